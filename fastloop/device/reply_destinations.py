"""Batches of worker processes that land on a device, or in memory that is pinned for one: carried
by C when they are there.

What has no place in that (a batch whose tensors hide in objects, say) is moved as any other batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory

from fastloop import _core
from fastloop.base.tensors import DTYPES, extent
from fastloop.device.accelerator import Accelerator, allocate_pinned
from fastloop.device.array_destinations import fix_size, is_small_part
from fastloop.device.uploader import Uploader
from fastloop.workers.batch_pickle import Place, TensorTarget, unpack

# So many batches no memory is asked for ahead of them after there was none: torch's allocators
# give all back that they keep before they say so.
_PAUSE = 32


class _Block:
    """Memory that holds a batch."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._storage = memory.untyped_storage()
        self._device = memory.device

    def tensor(self, place: Place) -> torch.Tensor:
        """With a version of its own: writing to one spoils no graph that saved another."""
        offset, code, *shape = place
        dtype = DTYPES[code]
        tensor = torch.empty(0, dtype=dtype, device=self._device)
        begin = offset // dtype.itemsize
        tensor.set_(self._storage, begin, shape)  # type: ignore[call-overload]
        return tensor


class _OnDevice:
    """On the device at the other end of a link."""

    def __init__(self, link: Accelerator) -> None:
        self._uploader = Uploader(link, None)
        self.check, self.new, self.lend = link.check, link.allocate, link.record_stream

    def open(self, parcel: _core.Reply, memory: torch.Tensor) -> Any:
        return unpack(parcel, TensorTarget(_Block(memory).tensor, torch.clone, is_dense=True))

    def send(self, batch: Any) -> Any:
        return self._uploader.hand_out(self._uploader.send(batch))

    def drop(self) -> None:
        self._uploader.finish()


class _Staged:
    """In pinned memory, from where batches go on."""

    def __init__(self, new: Callable[[int], torch.Tensor]) -> None:
        self.new = new

    def open(self, parcel: _core.Reply, memory: torch.Tensor) -> Any:
        return unpack(parcel, TensorTarget(_Block(memory).tensor, self._copy, is_dense=False))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """With the same strides, as torch pins."""
        begin, end = extent(tensor)
        if begin == end:
            return tensor
        copy = torch.empty(0, dtype=tensor.dtype, device="cpu")
        storage = self.new(end - begin).untyped_storage()
        copy.set_(storage, 0, tensor.shape, tensor.stride())
        return copy.copy_(tensor)

    def check(self) -> None:
        pass

    def lend(self, memory: torch.Tensor) -> None:
        pass

    def send(self, batch: Any) -> Any:
        return batch

    def drop(self) -> None:
        pass


class _Pinned(_Staged):
    """In memory of torch's caching host allocator, as torch's own loader pins."""

    def __init__(self, device: str) -> None:
        super().__init__(lambda size: fix_size(allocate_pinned(size)))
        self._device = device

    def open(self, parcel: _core.Reply, memory: torch.Tensor) -> Any:
        block = _Block(memory)

        def make(place: Place) -> torch.Tensor:
            tensor = block.tensor(place)
            return self._copy(tensor) if is_small_part(tensor, memory) else tensor

        batch = unpack(parcel, TensorTarget(make, self._copy, is_dense=False, is_one=False))
        # What is pinned torch leaves as it is. Containers it makes anew, objects pin themselves.
        return self.send(batch)

    @torch.inference_mode(False)  # as in torch's thread for it
    def send(self, batch: Any) -> Any:
        try:
            return pin_memory.pin_memory(batch, self._device)  # type: ignore[no-untyped-call]
        except Exception:
            index = torch.accelerator.current_device_index()
            where = f"in pin memory thread for device {index}"
            error = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        return error.reraise()  # type: ignore[no-untyped-call]


Destination = _OnDevice | _Staged


def _is_shortage(error: Exception) -> bool:
    """Whether there was no memory, but may be at the next call."""
    is_plain = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_plain or "out of memory" in str(error)


class Landing:
    """Where the parcels of one iterator land. Missing memory may be there at the next call. One
    thread at a time, as the iterator's next() sees to (base/next_lock.py)."""

    def __init__(self, parent_end: _core.ParentEnd, place: Destination) -> None:
        self._parent_end = parent_end
        self._place = place
        self._late: Any = None  # what the iterator gave and has not landed yet
        self._landed: list[Any] = []  # at most one, kept through what may interrupt
        self._pause = 0  # batches for which there is no look-ahead
        self.is_on_device = isinstance(place, _OnDevice)
        self.check = place.check  # raises where no batch can be taken

    @property
    def is_behind(self) -> bool:
        return self._late is not None or len(self._landed) > 0

    def put(self, data: Any) -> None:
        """What is to be handed out next: a parcel, or a batch that came some other way."""
        self._late = data

    def take(self, first: int) -> Any:
        """The batch; on a device, for the current stream. From now on those from number `first` on
        (-1: whichever come first) are carried when they come, as far as there is memory."""
        if not self._landed:
            self._landed.append(self._land())
        self._late = None
        self._look_ahead(first)
        return self._landed.pop()

    def _land(self) -> Any:
        late = self._late
        if type(late) is not _core.Reply or late.upload == 0:
            return self._move(late)
        with torch.inference_mode(False):  # tensors of that mode could not be used outside of it
            memory, is_elsewhere = late.deliver(self._place.new)
            try:
                if is_elsewhere:
                    self._place.lend(memory)
                return self._place.open(late, memory)
            except Exception as error:
                if not _is_shortage(error):
                    self._late = None
                raise

    def _move(self, late: Any) -> Any:
        try:
            batch = unpack(late) if type(late) is _core.Reply else late
            return self._place.send(batch)
        except Exception as error:
            if not _is_shortage(error):
                self._late = None
            raise

    def restart(self, first: int) -> None:
        """For a new epoch."""
        self.check()
        self.drop()
        self._look_ahead(first)

    def rest(self) -> None:
        """There are no more batches in this epoch."""
        self._parent_end.release_buffers()

    @torch.inference_mode(False)
    def _look_ahead(self, first: int) -> None:
        wanted = self._parent_end.set_window(first)
        if self._pause > 0:
            self._pause -= 1
            return
        try:
            for _ in range(wanted):
                self._parent_end.add_buffer(self._place.new(self._parent_end.expected_bytes))
        except Exception:  # what is wrong is raised when a batch cannot do without
            self._pause = _PAUSE

    def drop(self) -> None:
        """SYNC if a copy still reads memory of the user's."""
        self._late = None
        self._landed.clear()
        self._place.drop()


def on_device(link: Accelerator) -> Destination:
    return _OnDevice(link)


def pinned(loader: DataLoader[Any]) -> Destination | None:
    """Where torch would pin for this loader, None where it would not."""
    if not loader.pin_memory or not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return None if accelerator.type == "mps" else _Pinned(accelerator.type)


def on_the_way(link: Accelerator) -> Destination | None:
    """For batches that go on to a link, None where memory needs no pinning for that."""
    return _Staged(link.allocate_pinned) if link.device.type != "cpu" else None
