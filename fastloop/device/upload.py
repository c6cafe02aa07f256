"""Uploads of a batch by one copy, batches uploaded ahead of their turn, and one batch whose tensors
keep their addresses.

A batch's plain tensors are packed into one buffer of pinned memory, and this buffer is copied into
one buffer on the device. The user gets tensors over the device's buffer; no two share a version
counter. A tensor that is pinned already is not packed: the copy reads the tensor's own memory.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastloop._core import FinalizerBase
from fastloop.base.checks import look_up
from fastloop.base.interrupts import interrupt_later
from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.base.threads import NextLock
from fastloop.compat.ranges import named
from fastloop.compat.tensors import (
    Slot,
    dtype_of,
    extent,
    is_plain,
    lay_out,
    outside_inference_mode,
    pad,
    slot_of,
    split_buffer,
)
from fastloop.device.accelerator import Accelerator, HostAccelerator

_FEW_BYTES = 4096  # copying this many bytes more costs less than a second copy
Transform = Callable[[Any], Any]


class _Run(NamedTuple):
    """Tensors of one storage that are copied together."""

    source: torch.Tensor  # bytes
    tensors: list[torch.Tensor]
    offsets: list[int]

    @classmethod
    def of(cls, tensors: list[torch.Tensor]) -> _Run:
        begins, ends = zip(*map(extent, tensors), strict=True)
        begin = min(begins)
        source = torch.empty(0, dtype=torch.uint8, device="cpu")
        source.set_(tensors[0].untyped_storage(), begin, (max(ends) - begin,), (1,))
        return cls(source, tensors, [at - begin for at in begins])

    def can_be_copied(self) -> bool:
        """Tell whether one copy pays: the tensors do not overlap, each is aligned, and few bytes
        lie between the tensors."""
        pairs = zip(self.offsets, self.tensors, strict=True)
        parts = sorted((offset, t.nbytes, t.itemsize) for offset, t in pairs)
        end = 0
        for offset, size, unit in parts:
            if offset < end or offset % unit:
                return False
            end = offset + size
        return end <= 2 * sum(size for _, size, _ in parts) + _FEW_BYTES


def _group_runs(tensors: Iterable[torch.Tensor]) -> list[_Run]:
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    runs = []
    for group in groups.values():
        run = _Run.of(group)
        runs += [run] if run.can_be_copied() else [_Run.of([tensor]) for tensor in group]
    return runs


def can_move(value: Any) -> bool:
    return callable(look_up(value, "to"))


def _has_record_stream(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or callable(look_up(value, "record_stream"))


def _choose_way(accelerator: Accelerator, leaf: Any) -> str:
    """Choose the way of a leaf to the device. "pinned" and "unpinned" leaves are copied together.
    "recorded" and "unrecorded" leaves move by their own to(); the first can be recorded for the
    stream of copies. A leaf that is "there" is on the device; a leaf that "stays" cannot move."""
    if not can_move(leaf):
        return "stays"
    if not isinstance(leaf, torch.Tensor):
        return "recorded" if _has_record_stream(leaf) else "unrecorded"
    if accelerator.holds(leaf):
        return "there"
    if leaf.device.type != "cpu" or not is_plain(leaf):
        return "recorded"
    # If a pinned tensor has gaps, torch would first copy the tensor into new memory.
    is_pinned = leaf.numel() > 0 and accelerator.is_pinned(leaf)
    return "pinned" if is_pinned and leaf.stride() == slot_of(leaf).strides else "unpinned"


class Sent(NamedTuple):
    """A batch on its way."""

    batch: Any
    event: Any  # the arrival
    to_record: list[Any]  # to be recorded for the stream that uses the batch


class Uploader:
    """Sends batches to an accelerator, one at a time."""

    def __init__(self, accelerator: Accelerator, transform: Transform | None) -> None:
        self._accelerator = accelerator
        self._transform = transform
        # The user's pinned memory, until copies have read it: torch keeps only its own memory
        # alive.
        self._reading: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def begin(self) -> None:
        """Let the transform use the results of work queued on the current stream up to now."""
        if self._transform is not None:
            event = self._accelerator.record_event()
            with self._accelerator.copy_stream():
                self._accelerator.wait_event(event)

    def send(self, batch: Any) -> Sent:
        """Queue the upload and the transform's work without waiting.

        If ``send`` raises, the batch is unchanged and may be sent again.
        """
        accelerator = self._accelerator
        while self._reading and accelerator.is_done(self._reading[0][0]):
            self._reading.popleft()
        # By way and by id: a leaf that is in the batch twice is in this dictionary once.
        ways: defaultdict[str, dict[int, Any]] = defaultdict(dict)

        def sort(_: Path, leaf: Any) -> Any:
            ways[_choose_way(accelerator, leaf)][id(leaf)] = leaf
            return leaf

        batch = map_leaves(batch, sort)  # a copy: a mapping may make new items at each access
        # Objects that cannot be recorded for a second stream are moved on the user's stream.
        moved = {key: accelerator.move(value) for key, value in ways["unrecorded"].items()}
        is_shared = ways["there"] or ways["recorded"] or ways["unrecorded"]
        begin = accelerator.record_event() if self._transform is not None and is_shared else None
        with accelerator.copy_stream():
            if begin is not None:
                accelerator.wait_event(begin)
            buffer = self._copy([*ways["pinned"].values()], [*ways["unpinned"].values()], moved)
            recorded = {key: accelerator.move(value) for key, value in ways["recorded"].items()}
            to_record = [*buffer, *recorded.values()]
            if begin is not None:
                for value in [*ways["there"].values(), *to_record]:
                    accelerator.record_stream(value)
            moved |= recorded
            batch = map_leaves(batch, lambda _, leaf: moved.get(id(leaf), leaf))
            if self._transform is not None:
                batch = self._transform(batch)
                to_record = [leaf for _, leaf in list_leaves(batch) if _has_record_stream(leaf)]
            return Sent(batch, accelerator.record_event(), to_record)

    def hand_out(self, sent: Sent) -> Any:
        """Return the batch, and let the current stream wait for its arrival."""
        self._accelerator.wait_event(sent.event)
        for value in sent.to_record:
            self._accelerator.record_stream(value)
        return sent.batch

    @outside_inference_mode
    def _copy(
        self, pinned: list[torch.Tensor], unpinned: list[torch.Tensor], moved: dict[int, Any]
    ) -> list[torch.Tensor]:
        """Copy plain tensors into one buffer on the device, and note the new tensors in `moved`, by
        the ids of the old ones. Returns the buffer, if there is one."""
        accelerator = self._accelerator
        runs = _group_runs(pinned)
        sources = [run.source for run in runs]
        if unpinned:
            runs.append(self._pack(unpinned))
        if not runs:
            return []
        *begins, size = accumulate((pad(run.source.nbytes) for run in runs), initial=0)
        buffer = accelerator.allocate(size)
        tensors, slots = [], []
        for run, begin in zip(runs, begins, strict=True):
            if run.source.nbytes > 0:
                accelerator.copy(buffer[begin : begin + run.source.nbytes], run.source)
            for tensor, offset in zip(run.tensors, run.offsets, strict=True):
                tensors.append(tensor)
                slots.append(slot_of(tensor)._replace(offset=begin + offset))
        if sources:
            self._reading.append((accelerator.record_event(), sources))
        moved.update(zip(map(id, tensors), split_buffer(buffer, slots), strict=True))
        return [buffer]

    def _pack(self, tensors: list[torch.Tensor]) -> _Run:
        """Copy the tensors into pinned memory, and return the run of the copies."""
        slots, size = lay_out([slot_of(tensor) for tensor in tensors])
        packed = self._accelerator.allocate_pinned(size)
        for part, tensor in zip(split_buffer(packed, slots), tensors, strict=True):
            part.copy_(tensor)
        return _Run(packed, tensors, [slot.offset for slot in slots])

    def finish(self) -> None:
        """SYNC: wait for copies that may still read the user's pinned memory."""
        if self._reading:
            self._accelerator.synchronize(self._reading[-1][0])
            self._reading.clear()


class NoUpload(Uploader):
    """An uploader for batches that come on the device: it runs only the transform, on the current
    stream."""

    def __init__(self, transform: Transform | None) -> None:
        super().__init__(HostAccelerator(torch.device("cpu")), transform)

    def send(self, batch: Any) -> Sent:
        if self._transform is not None:
            # On a copy: if the transform fails, the next try must not meet changed containers.
            batch = self._transform(map_leaves(batch, lambda _, leaf: leaf))
        return Sent(batch, None, [])


# ---- batches ahead of their turn


class Prefetcher(FinalizerBase):
    """Reads batches from an iterator until `depth` are on their way, then hands out the oldest."""

    def __init__(
        self, source: Any, accelerator: Accelerator, depth: int, uploader: Uploader, is_static: bool
    ) -> None:
        self._source = source  # an iterator
        self._accelerator = accelerator
        self._depth = depth
        self._uploader = uploader
        self._static_batch = StaticBatch(accelerator) if is_static else None
        self._ahead: deque[Sent | None] = deque()  # None: read and not sent, at most the last
        self._unsent: Any = None  # the batch that was read and not sent
        self._pending_error: list[Exception] = []  # at most one, met while reading ahead
        self._next_lock = NextLock()
        self._begin()

    def _begin(self) -> None:
        self._accelerator.check()
        self._uploader.begin()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._accelerator.check()
        with self._next_lock.of_process():
            named("prefetch", self._fill)()
            if not self._ahead:
                raise self._pending_error.pop()
            sent: Any = self._ahead[0]
            batch = self._uploader.hand_out(sent)
            if self._static_batch is not None:
                batch = self._static_batch.fill(batch)
            self._ahead.popleft()
            return batch

    def _fill(self) -> None:
        while True:
            if self._ahead and self._ahead[-1] is None:
                try:
                    self._ahead[-1] = named("upload", self._uploader.send)(self._unsent)
                    self._unsent = None
                except Exception:
                    if len(self._ahead) == 1:
                        raise
                    return  # tried again at this batch's turn: memory may be free then
            if self._pending_error or len(self._ahead) == self._depth:
                return
            self._pull()

    def _pull(self) -> None:
        try:
            self._unsent = next(self._source)
            self._ahead.append(None)
        except StopIteration:
            # A new exception: if a loop ends after the last batch, the frames of the old one's
            # traceback would keep this iterator and its workers alive.
            self._pending_error.append(StopIteration())
        except Exception as error:
            self._pending_error.append(error)

    def _drop(self) -> None:
        """Drop the batches that were read ahead."""
        self._unsent = None
        self._ahead.clear()
        self._pending_error.clear()
        self._uploader.finish()

    def close(self) -> None:
        """End here: drop the batches that were read ahead, and release the iterable."""
        self._drop()
        self._source = iter(())

    def _finalize(self) -> None:
        if hasattr(self, "_pending_error"):
            self._drop()

    _interrupt_later = staticmethod(interrupt_later)


def loading_iterator(iterator: Any) -> Any:
    """Return the iterator that loads, below all prefetchers."""
    while isinstance(iterator, Prefetcher):
        iterator = iterator._source
    return iterator


class StaticBatch:
    """A batch whose tensors keep their addresses, for CUDA graphs; all later batches are copied
    into its memory."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._slots: dict[Path, Slot] | None = None
        self._tensors: dict[Path, torch.Tensor] = {}
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Queue the copy on the current stream, after all work on the batch before."""
        accelerator = self._accelerator
        tensors = {path: leaf for path, leaf in list_leaves(batch) if self._takes(path, leaf)}
        slots = {path: slot_of(tensor) for path, tensor in tensors.items()}
        stream = accelerator.current_stream()
        if self._slots is None:
            self._open(slots)
            self._stream = stream
        elif slots != self._slots:
            raise ValueError(_explain(self._slots, slots))
        if stream != self._stream:
            accelerator.wait_event(accelerator.record_event(self._stream))
            accelerator.record_stream(self._buffer)
            self._stream = stream
        for path, tensor in tensors.items():
            accelerator.copy(self._tensors[path], tensor)
        return map_leaves(batch, lambda path, leaf: self._tensors.get(path, leaf))

    @outside_inference_mode
    def _open(self, slots: dict[Path, Slot]) -> None:
        laid_out, size = lay_out([*slots.values()])
        self._buffer = self._accelerator.allocate(size)
        self._tensors = dict(zip(slots, split_buffer(self._buffer, laid_out), strict=True))
        self._slots = slots

    def _takes(self, path: Path, leaf: Any) -> bool:
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor and is_plain(leaf) and self._accelerator.holds(leaf):
            return True
        if not (is_tensor or can_move(leaf)):
            return False
        kind = f" ({leaf.layout} on {leaf.device})" if is_tensor else ""
        raise ValueError(
            f"{describe_path(path)} must be a plain dense tensor with static_buffers=True, got a "
            f"{type(leaf).__name__}{kind} (make plain tensors in collate_fn or device_transform)"
        )


def _explain(before: dict[Path, Slot], now: dict[Path, Slot]) -> str:
    was, are = ({path: _describe(p) for path, p in slots.items()} for slots in (before, now))
    changes = [
        f"{describe_path(path)} was {was.get(path, 'absent')} and is {are.get(path, 'absent')}"
        for path in {**was, **are}
        if was.get(path) != are.get(path)
    ]
    remedy = "pass drop_last=True for a short last batch, pad batches, or leave static_buffers out"
    return (
        f"all batches must be alike with static_buffers=True, got {'; '.join(changes)} ({remedy})"
    )


def _describe(slot: Slot) -> str:
    return f"{dtype_of(slot.dtype)} {slot.shape} with strides {slot.strides}"
