"""SharedList: samples in memory that worker processes share.

A forked worker shares its parent's memory until one of them writes to a page. Reading a Python
object writes to the object's reference count, so workers copy a long list of objects page by page.
Here samples are pickled one after the other into a file in memory, which each process maps, and a
sample is unpickled when it is read. Any thread may read.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import context, reduction
from typing import Any, TypeVar, overload

from torch.utils.data import Dataset

from fastloop.base.checks import check_type, is_int
from fastloop.base.shown import repr_of

_T_co = TypeVar("_T_co", covariant=True)
_NOT_KEPT = "_memory", "_ends", "_fd"  # by pickle


def _write(parts: Iterable[Any]) -> int:
    """Return the descriptor of a new file in memory with these bytes."""
    fd = os.memfd_create("fastloop list", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.writelines(parts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _pickle(item: object, number: int) -> bytes:
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        text = f"items must be picklable, got items[{number}] of type {type(item).__qualname__}"
        raise TypeError(f"{text} ({type(error).__name__}: {error})") from error


class SharedList(Dataset[_T_co]):
    """A list of samples that no worker process copies, however workers are started.

    Use it in place of a list of many Python objects (paths, dicts, tuples), as a dataset or inside
    one. Each index makes a new object, so changes to a sample are not kept. The memory is freed
    when no process has the list any more. For example:

        samples = SharedList((path, label) for path, label in read_labels())

    A process that is started with the list maps the same memory. ``pickle.dumps()`` and ``copy()``
    otherwise take all samples along.

    Args:
        items: the samples, which must be picklable. They are pickled one at a time.

    Raises:
        TypeError: ``items`` cannot be iterated, or a sample cannot be pickled; the text names the
            sample.
        OSError: there is not enough memory.
    """

    def __init__(self, items: Iterable[_T_co]) -> None:
        given: object = items
        is_fine = isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))
        check_type("items", given, is_fine, "an iterable of samples")
        ends = array("q", [0])

        def pickle_all() -> Iterator[Any]:
            for number, item in enumerate(items):
                data = _pickle(item, number)
                ends.append(ends[-1] + len(data))
                yield data
            yield bytes(-ends[-1] % ends.itemsize)
            yield ends

        fd = _write(pickle_all())
        self._open(fd, len(ends) - 1)

    def _open(self, fd: int, count: int) -> None:
        self._fd, self._count = fd, count
        weakref.finalize(self, os.close, fd)
        self._memory = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        self._ends = self._memory[-8 * (count + 1) :].cast("q")

    @property
    def nbytes(self) -> int:
        """The bytes of shared memory."""
        return self._memory.nbytes

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        check_type("index", index, is_int(index), "an int or a slice")
        place = int(index) + (self._count if index < 0 else 0)
        if not 0 <= place < self._count:
            raise IndexError(f"index {index} is out of bounds for {self._count} samples")
        return pickle.loads(self._memory[self._ends[place] : self._ends[place + 1]])

    def __iter__(self) -> Iterator[_T_co]:
        return (self[number] for number in range(self._count))

    def __repr__(self) -> str:
        return repr_of(self, f"{self._count:,} samples", f"{self.nbytes:,} bytes")

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _NOT_KEPT}
        is_for_child = context.get_spawning_popen() is not None
        return {
            **state,
            "_data": reduction.DupFd(self._fd) if is_for_child else bytes(self._memory),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        data = state.pop("_data")
        self.__dict__.update(state)
        if isinstance(data, bytes):
            fd = _write([data])
        else:
            fd = data.detach()
            os.set_inheritable(fd, False)  # a spawned process's descriptors are inheritable
        self._open(fd, self._count)
