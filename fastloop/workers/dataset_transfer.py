"""How a worker process gets its dataset.

A forked worker inherits it. A spawned one is sent a pickle, in shared memory and with the large
arrays and tensors beside it: they are written there once for all workers and mapped by each,
privately and writable, instead of being copied through a pipe for every worker. So a worker has
what a forked one would have. torch would move tensors to shared memory instead, under everybody who
knows their address; tensors that are there already are shared as by torch.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
from multiprocessing import reduction
from typing import Any

import torch

_LARGE = 1 << 20  # arrays of so many bytes go beside the pickle
_PAGE = mmap.ALLOCATIONGRANULARITY

# Of ParentEnd.address: descriptor, bytes, offset, workers, depth, mapped at.
Address = tuple[int, int, int, int, int, int]


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


class SharedFile:
    """A file in memory with what spawned workers share. Closed when all of them have started, and
    where dead ones are replaced, at the end of all."""

    def __init__(self) -> None:
        self._fd = -1
        self._end = 0
        self._places: dict[tuple[Any, ...], int] = {}
        self._alive: list[Any] = []  # so that no address or storage is another's

    def fd(self) -> int:
        if self._fd < 0:
            self._fd = os.memfd_create("fastloop", os.MFD_CLOEXEC)
        return self._fd

    def write(self, data: Any, over: tuple[int, int] | None = None) -> tuple[int, int]:
        """The place of `data` (offset, bytes): at the end, or over one that nobody reads any more,
        if it fits there."""
        view = memoryview(data).cast("B")
        is_over = over is not None and _whole_pages(len(view)) <= _whole_pages(over[1])
        offset = over[0] if over is not None and is_over else self._end
        done = 0
        while done < len(view):
            done += os.pwrite(self.fd(), view[done:], offset + done)
        if not is_over:
            self._end += _whole_pages(len(view))
        return offset, len(view)

    def write_once(
        self, buffer: pickle.PickleBuffer, storage: torch.UntypedStorage | None
    ) -> tuple[int, int]:
        """The place of an array, or of a storage, which is known by itself: it may move."""
        import numpy as np

        view = buffer.raw()
        owner: Any = buffer if storage is None else storage
        address = np.frombuffer(view, np.uint8).ctypes.data
        key = (address if storage is None else None, view.nbytes, storage and storage._cdata)
        if key not in self._places:
            self._alive.append(owner)
            self._places[key], _ = self.write(view)
        return self._places[key], view.nbytes

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _open_storage(data: Any) -> torch.UntypedStorage:
    """Over the memory that a worker has mapped; of a small one, a copy."""
    whole = torch.frombuffer(data, dtype=torch.uint8)
    return (whole if whole.numel() >= _LARGE else whole.clone()).untyped_storage()


class _DatasetPickler(reduction.ForkingPickler):
    """torch's, but of storages that are not shared it takes the bytes."""

    def __init__(self, data: io.BytesIO, file: SharedFile) -> None:
        super().__init__(data, 5, True, self._put_beside)
        self._file = file
        self._storages: dict[int, torch.UntypedStorage] = {}  # by the id of their buffers
        self._buffers: list[pickle.PickleBuffer] = []  # so that no id is used twice
        self.places: list[tuple[int, int]] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.UntypedStorage or obj.device.type != "cpu":
            return NotImplemented
        if obj.nbytes() == 0 or obj.is_shared():
            return NotImplemented
        view = (ctypes.c_char * obj.nbytes()).from_address(obj.data_ptr())
        buffer = pickle.PickleBuffer(view)
        self._storages[id(buffer)] = obj
        self._buffers.append(buffer)
        return _open_storage, (buffer,)

    def _put_beside(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _LARGE:
            return True
        self.places.append(self._file.write_once(buffer, self._storages.get(id(buffer))))
        return False


def _map_privately(fd: int, offset: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(b"")
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    return memoryview(mmap.mmap(fd, size, mmap.MAP_PRIVATE, prot, offset=offset))


class DatasetTransfer:
    """The arguments of a worker, sent along with its process object, and after its end with that
    of its successor."""

    def __init__(
        self, arguments: dict[str, Any], address: Address, worker: int, file: SharedFile
    ) -> None:
        self._contents = arguments, address, worker
        self._file = file
        self._pickled: tuple[int, int] | None = None  # where the last pickle lies

    def unload(self) -> tuple[dict[str, Any], Address, int]:
        return self._contents

    def replace(self, **arguments: Any) -> None:
        """The next process gets these in the place of those that it had."""
        self._contents[0].update(arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, (fd, *rest, _), worker = self._contents
        data = io.BytesIO()
        pickler = _DatasetPickler(data, self._file)
        pickler.dump(arguments)
        self._pickled = pickled = self._file.write(data.getbuffer(), self._pickled)
        descriptors = reduction.DupFd(fd), reduction.DupFd(self._file.fd())
        return _ReceivedDataset, (descriptors, tuple(rest), worker, pickled, pickler.places)


class _ReceivedDataset:
    """A transfer in the process it was sent to."""

    def __init__(
        self,
        descriptors: tuple[Any, Any],
        rest: tuple[int, int, int, int],
        worker: int,
        pickled: tuple[int, int],
        places: list[tuple[int, int]],
    ) -> None:
        self._fd, self._file = (descriptor.detach() for descriptor in descriptors)
        self._rest, self._worker = rest, worker
        self._pickled, self._places = pickled, places

    def unload(self) -> tuple[dict[str, Any], Address, int]:
        buffers = [_map_privately(self._file, *place) for place in self._places]
        arguments = pickle.loads(_map_privately(self._file, *self._pickled), buffers=buffers)
        os.close(self._file)
        os.set_inheritable(self._fd, False)  # which a spawned process's descriptors are not
        return arguments, (self._fd, *self._rest, 0), self._worker
