"""A batch onto a device: its tensors in one buffer, by one copy.

All plain tensors of a batch are packed into one block of pinned memory, and that is copied into
one block on the device. What the user gets are tensors over that block, each with a version of its
own, so that autograd takes them for strangers. What is already pinned is copied from where it lies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.device.accelerator import Accelerator

_ALIGNMENT = 64
_FEW_BYTES = 4096  # to copy them costs less than another copy
Transform = Callable[[Any], Any]


class Place(NamedTuple):
    """What a tensor is, but for its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _place_of(tensor: torch.Tensor) -> Place:
    """With the strides that ``tensor.to(device)`` gives."""
    strides = tensor.stride()
    if not tensor.is_contiguous():
        strides = torch.empty_like(tensor, device="meta").stride()
    return Place(tensor.dtype, tuple(tensor.shape), strides)


def _pad(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _padded_size(place: Place) -> int:
    return _pad(math.prod(place.shape) * place.dtype.itemsize)


def _tensor_in(buffer: torch.Tensor, place: Place, begin: int) -> torch.Tensor:
    view = buffer.view(place.dtype)
    view = view.as_strided(place.shape, place.strides, begin // place.dtype.itemsize)
    # A view would share its version with all others: writing to one would spoil the graphs that
    # have saved another.
    return view.data


@torch.inference_mode(False)  # tensors of that mode could not be used outside of it
def _allocate(
    allocate: Callable[[int], torch.Tensor], places: Sequence[Place]
) -> tuple[torch.Tensor, list[int], list[torch.Tensor]]:
    """A buffer of bytes, and tensors one after the other in it: where they begin, and they."""
    begins = [0, *accumulate(map(_padded_size, places))]
    buffer = allocate(begins.pop())
    return buffer, begins, [_tensor_in(buffer, *at) for at in zip(places, begins, strict=True)]


class _Run(NamedTuple):
    """Tensors of one storage that are copied together."""

    source: torch.Tensor  # bytes
    tensors: list[torch.Tensor]
    offsets: list[int]

    @classmethod
    def of(cls, tensors: list[torch.Tensor]) -> _Run:
        storage = tensors[0].untyped_storage()
        begins = [tensor.data_ptr() for tensor in tensors]
        begin = min(begins)
        end = max(at + tensor.nbytes for at, tensor in zip(begins, tensors, strict=True))
        source = torch.empty(0, dtype=torch.uint8, device="cpu")
        source.set_(storage, begin - storage.data_ptr(), (end - begin,), (1,))
        return cls(source, tensors, [at - begin for at in begins])

    def is_tight(self) -> bool:
        """Whether the tensors lie apart, each where its type may, and little else between them."""
        places = sorted(
            (offset, tensor.nbytes, tensor.itemsize)
            for offset, tensor in zip(self.offsets, self.tensors, strict=True)
        )
        end = 0
        for offset, size, unit in places:
            if offset < end or offset % unit:
                return False
            end = offset + size
        return end <= 2 * sum(size for _, size, _ in places) + _FEW_BYTES


def _find_runs(tensors: Iterable[torch.Tensor]) -> list[_Run]:
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    runs = []
    for group in groups.values():
        run = _Run.of(group)
        runs += [run] if run.is_tight() else [_Run.of([tensor]) for tensor in group]
    return runs


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers are all there is to it, so that their copy is a copy of it."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _can_move(value: Any) -> bool:
    return callable(getattr(value, "to", None))


def _can_be_lent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or callable(getattr(value, "record_stream", None))


class _Leaves:
    """The leaves of a batch by how they get to the device, each once, however often it is there."""

    def __init__(self, link: Accelerator, batch: Any) -> None:
        self._link = link
        self.unpinned: dict[int, torch.Tensor] = {}
        self.pinned: dict[int, torch.Tensor] = {}
        self.others: dict[int, Any] = {}
        self.here: dict[int, Any] = {}
        # A copy, because a mapping may make its items anew whenever it is asked.
        self.batch = map_leaves(batch, self._sort)

    def _sort(self, _: Path, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if self._link.has(leaf):
                group = self.here
            elif leaf.device.type != "cpu" or not _is_plain(leaf):
                group = self.others
            elif leaf.numel() == 0:
                group = self.unpinned
            elif self._link.is_pinned(leaf) and leaf.stride() == _place_of(leaf).strides:
                group = self.pinned
            else:  # or pinned with gaps, which torch would copy into other memory first
                group = self.unpinned
        elif _can_move(leaf):
            group = self.others
        else:
            return leaf
        group[id(leaf)] = leaf
        return leaf


class Sent(NamedTuple):
    """A batch on its way."""

    batch: Any
    event: Any  # when it has arrived
    lent: list[Any]  # what the stream that uses the batch must be noted for


class Uploader:
    """Sends batches over a link, one at a time."""

    def __init__(self, link: Accelerator, transform: Transform | None) -> None:
        self._link = link
        self._transform = transform
        # Pinned memory of the user's, until it has been read: torch keeps only its own alive.
        self._reading: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def begin(self) -> None:
        """The transform may use what has been queued on the current stream up to now."""
        if self._transform is not None:
            event = self._link.mark()
            with self._link.copying():
                self._link.wait(event)

    def send(self, batch: Any) -> Sent:
        """Queues the upload and what the transform does, and does not wait for it.

        If this raises, nothing has been taken of the batch, which may be sent again.
        """
        link = self._link
        while self._reading and link.is_over(self._reading[0][0]):
            self._reading.popleft()
        leaves = _Leaves(link, batch)
        moved = {**leaves.here}
        # What cannot be lent to another stream is moved on the user's own.
        for key, value in leaves.others.items():
            if not _can_be_lent(value):
                moved[key] = link.move(value)
        is_shared = self._transform is not None and (leaves.here or leaves.others)
        begin = link.mark() if is_shared else None
        with link.copying():
            if begin is not None:
                link.wait(begin)
            lent = self._copy(leaves, moved)
            for key, value in leaves.others.items():
                if key not in moved:
                    moved[key] = link.move(value)
                    lent.append(moved[key])
            if begin is not None:
                for value in [*leaves.here.values(), *lent]:
                    link.lend(value)
            batch = map_leaves(leaves.batch, lambda _, leaf: moved.get(id(leaf), leaf))
            if self._transform is not None:
                batch = self._transform(batch)
                lent = [leaf for _, leaf in list_leaves(batch) if _can_be_lent(leaf)]
            return Sent(batch, link.mark(), lent)

    def hand_out(self, sent: Sent) -> Any:
        """The batch, for the current stream, which waits for it."""
        self._link.wait(sent.event)
        for value in sent.lent:
            self._link.lend(value)
        return sent.batch

    @torch.inference_mode(False)  # tensors of that mode could not be used outside of it
    def _copy(self, leaves: _Leaves, moved: dict[int, Any]) -> list[torch.Tensor]:
        """Returns the buffer on the device."""
        link = self._link
        runs = _find_runs(leaves.pinned.values())
        sources = [run.source for run in runs]
        if leaves.unpinned:
            runs.append(self._pack([*leaves.unpinned.values()]))
        if not runs:
            return []
        begins = [0, *accumulate(_pad(run.source.nbytes) for run in runs)]
        buffer = link.empty(begins.pop())
        copies = {}
        for run, begin in zip(runs, begins, strict=True):
            if run.source.nbytes > 0:
                link.copy(buffer[begin : begin + run.source.nbytes], run.source)
            for tensor, offset in zip(run.tensors, run.offsets, strict=True):
                copies[id(tensor)] = _tensor_in(buffer, _place_of(tensor), begin + offset)
        if sources:
            self._reading.append((link.mark(), sources))
        moved.update(copies)
        return [buffer]

    def _pack(self, tensors: list[torch.Tensor]) -> _Run:
        """Copies of the tensors in pinned memory, where they stand for them."""
        places = [_place_of(tensor) for tensor in tensors]
        packed, begins, parts = _allocate(self._link.pinned, places)
        for part, tensor in zip(parts, tensors, strict=True):
            part.copy_(tensor)
        return _Run(packed, tensors, begins)

    def finish(self) -> None:
        """SYNC: if copies may still read pinned memory of the user's, waits for them."""
        if self._reading:
            self._link.finish(self._reading[-1][0])
            self._reading.clear()


class NoUpload:
    """In an uploader's place where batches are on the device when they come: the transform alone,
    on the current stream."""

    def __init__(self, transform: Transform | None) -> None:
        self._transform = transform

    def begin(self) -> None:
        pass

    def send(self, batch: Any) -> Sent:
        if self._transform is not None:
            # Of a copy: what a transform that fails has done to its containers is not to be met by
            # its next try.
            batch = self._transform(map_leaves(batch, lambda _, leaf: leaf))
        return Sent(batch, None, [])

    def hand_out(self, sent: Sent) -> Any:
        return sent.batch

    def finish(self) -> None:
        pass


class StaticBatch:
    """One batch whose tensors keep their addresses; others are copied into it."""

    def __init__(self, link: Accelerator) -> None:
        self._link = link
        self._places: dict[Path, Place] | None = None
        self._buffer: torch.Tensor
        self._tensors: dict[Path, torch.Tensor] = {}
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Queued on the current stream, after all that uses the batch before."""
        link = self._link
        tensors = {path: leaf for path, leaf in list_leaves(batch) if self._takes(path, leaf)}
        places = {path: _place_of(tensor) for path, tensor in tensors.items()}
        stream = link.stream()
        if self._places is None:
            self._buffer, _, fixed = _allocate(link.empty, [*places.values()])
            self._tensors = dict(zip(places, fixed, strict=True))
            self._places, self._stream = places, stream
        elif places != self._places:
            raise ValueError(self._explain(self._places, places))
        if stream != self._stream:
            link.wait(link.mark(self._stream))
            link.lend(self._buffer)
            self._stream = stream
        for path, tensor in tensors.items():
            link.copy(self._tensors[path], tensor)
        return map_leaves(batch, lambda path, leaf: self._tensors.get(path, leaf))

    def _takes(self, path: Path, leaf: Any) -> bool:
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor and _is_plain(leaf) and self._link.has(leaf):
            return True
        if is_tensor or _can_move(leaf):
            what = f"{leaf.layout} on {leaf.device}" if is_tensor else "an object of its own"
            raise ValueError(
                f"static_buffers=True takes plain dense tensors, and {describe_path(path)} is a "
                f"{type(leaf).__name__} ({what}); make plain tensors of it in collate_fn or "
                "device_transform"
            )
        return False

    def _explain(self, before: dict[Path, Place], now: dict[Path, Place]) -> str:
        changes = [
            f"{describe_path(path)} was {before.get(path, 'absent')} and is "
            f"{now.get(path, 'absent')}"
            for path in {**before, **now}
            if before.get(path) != now.get(path)
        ]
        return (
            f"static_buffers=True needs batches that are all alike: {'; '.join(changes)}; pass "
            "drop_last=True if it is the last one, pad it, or leave static_buffers out"
        )
