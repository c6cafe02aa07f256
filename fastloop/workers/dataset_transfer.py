"""How a worker process gets its dataset.

A forked worker inherits it. A spawned one is sent a pickle in shared memory, with the large arrays
and tensors beside it. These are written once for all workers, and each worker maps them, privately
and writable. So it has the same as a forked one. torch would move tensors to shared memory instead,
whose address other code may know; tensors that are there already are shared as by torch.
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

_LARGE = 1 << 20  # arrays from this many bytes on go beside the pickle
_PAGE = mmap.ALLOCATIONGRANULARITY

# ParentEnd.address(): descriptor, bytes, offset, workers, depth, mapped at.
Address = tuple[int, int, int, int, int, int]
Place = tuple[int, int]  # in a SharedFile: offset, bytes


class SharedFile:
    """A file in memory for the data that spawned workers share. It is closed when all of them have
    started; where dead ones are replaced, when all have ended."""

    def __init__(self) -> None:
        self._fd = -1
        self._end = 0
        self._places: dict[tuple[Any, ...], Place] = {}
        self._alive: list[Any] = []  # keeps the addresses and storages from being used again

    def fd(self) -> int:
        if self._fd < 0:
            self._fd = os.memfd_create("fastloop", os.MFD_CLOEXEC)
        return self._fd

    def write(self, data: Any) -> Place:
        """Write `data` at the end. Return its place: offset, bytes."""
        view = memoryview(data).cast("B")
        offset, done = self._end, 0
        self._end += -(-len(view) // _PAGE) * _PAGE
        while done < len(view):
            done += os.pwrite(self.fd(), view[done:], offset + done)
        return offset, len(view)

    def write_once(self, buffer: Any, storage: torch.UntypedStorage | None) -> Place:
        """Write an array, or a storage, unless it is there already. Return its place. A storage is
        recognised by itself: its memory may move."""
        import numpy as np

        view = buffer.raw()
        owner: Any = buffer if storage is None else storage
        address = np.frombuffer(view, np.uint8).ctypes.data if storage is None else None
        key = address, view.nbytes, storage and storage._cdata
        if key not in self._places:
            self._alive.append(owner)
            self._places[key] = self.write(view)
        return self._places[key]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _open_storage(data: Any) -> torch.UntypedStorage:
    """Return a storage over memory that a worker has mapped; a copy if it is small."""
    whole = torch.frombuffer(data, dtype=torch.uint8)
    return (whole if whole.numel() >= _LARGE else whole.clone()).untyped_storage()


class _DatasetPickler(reduction.ForkingPickler):
    """Pickles as torch does, but storages that are not shared by their bytes."""

    def __init__(self, data: io.BytesIO, file: SharedFile) -> None:
        super().__init__(data, 5, True, self._put_beside)
        self._file = file
        self._storages: dict[int, torch.UntypedStorage] = {}  # by the id of their buffers
        self._buffers: list[pickle.PickleBuffer] = []  # keeps ids from being used again
        self.places: list[Place] = []

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
    """The arguments of a worker. They are sent with its process object, and after its death with
    the process object of its successor.

    Attributes:
        contents: torch's arguments, and where the shared memory is.
    """

    def __init__(self, arguments: dict[str, Any], address: Address, file: SharedFile) -> None:
        self.contents = arguments, address
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, (fd, *rest, _) = self.contents
        data = io.BytesIO()
        pickler = _DatasetPickler(data, self._file)
        pickler.dump(arguments)
        pickled = self._file.write(data.getbuffer())
        descriptors = reduction.DupFd(fd), reduction.DupFd(self._file.fd())
        return _receive, (*descriptors, rest, [pickled, *pickler.places])


def _receive(channel: Any, file: Any, rest: Any, places: list[Place]) -> DatasetTransfer:
    """Load a transfer in the process that it was sent to."""
    channel_fd, file_fd = channel.detach(), file.detach()
    pickled, *buffers = (_map_privately(file_fd, *place) for place in places)
    arguments = pickle.loads(pickled, buffers=buffers)
    os.close(file_fd)
    os.set_inheritable(channel_fd, False)  # a spawned process's descriptors are inheritable
    return DatasetTransfer(arguments, (channel_fd, *rest, 0), SharedFile())
