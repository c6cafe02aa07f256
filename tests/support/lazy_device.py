"""A device that is never in time: stands in for fastloop's Accelerator where there is no GPU.

Streams are queues of operations, and a schedule decides when each comes to run: memory is read and
written then, not when the operation was queued. Device and pinned memory come from pools that do
what torch's caching allocators promise, and nothing more: a block whose tensors have died is given
out again at once, unless another stream was noted for it, or a copy that has read it. Whoever gets
it next overwrites it. So a wait or a record that is missing shows as wrong numbers.
"""

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

POISON = 0xA5
SCHEDULES: dict[str, tuple[str, ...]] = {
    "copies-late": ("compute", "side", "copy"),
    "copies-early": ("copy", "side", "compute"),
    "side-first": ("side", "copy", "compute"),
}


class Event:
    def __init__(self) -> None:
        self.is_over = False


class Block:
    """Memory that outlives the tensors made over it."""

    def __init__(self, size: int, stream: str | None) -> None:
        self.bytes = np.empty(size + 64, np.uint8)
        self.begin = -self.bytes.ctypes.data % 64
        self.size = size
        self.stream = stream  # whose it is; None: pinned
        self.noted: set[str] = set()
        self.readers: list[Event] = []  # copies from pinned memory
        self.pending: list[Event] = []
        self.is_free = False
        self.is_foreign = False  # pinned by somebody else: gone when its tensors are

    def address(self) -> int:
        return int(self.bytes.ctypes.data) + self.begin

    def memory(self) -> np.ndarray:
        return self.bytes[self.begin : self.begin + self.size]


class LazyDevice:
    def __init__(self, schedule: str | int) -> None:
        self.queues: dict[str, deque[Any]] = {"compute": deque(), "side": deque(), "copy": deque()}
        self.current = "compute"
        self.order = SCHEDULES.get(str(schedule))
        self.random = random.Random(schedule)
        self.blocks: list[Block] = []
        self.copies: list[str] = []  # from the host: on which streams
        self.synchronized = 0
        self.budget: int | None = None  # bytes that may be in use
        self.is_capturing = False
        self.is_stepping = False

    # ---- streams

    def queue(self, operation: Callable[[], None]) -> None:
        self.queues[self.current].append(operation)
        # Some of what is queued runs before the host goes on. What runs may free memory.
        if self.order is None and not self.is_stepping:
            for _ in range(self.random.randrange(3)):
                self.step()

    def step(self) -> bool:
        names = [name for name in self.queues if self._can_run(name)]
        if not names:
            return False
        order = self.order or [self.random.choice(names)]
        name = next(name for name in order if name in names)
        operation = self.queues[name].popleft()
        if callable(operation):
            self.is_stepping = True
            operation()
            self.is_stepping = False
        return True

    def _can_run(self, name: str) -> bool:
        queue = self.queues[name]
        return bool(queue) and (not isinstance(queue[0], Event) or queue[0].is_over)

    def run(self) -> None:
        while self.step():
            pass
        assert not any(self.queues.values()), "streams wait for each other"

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def mark(self) -> Event:
        event = Event()
        self.queue(lambda: setattr(event, "is_over", True))
        return event

    # ---- memory

    def find(self, tensor: torch.Tensor) -> Block | None:
        at = tensor.data_ptr()
        found = [b for b in self.blocks if b.address() <= at < b.address() + max(b.size, 1)]
        return found[0] if found else None

    def allocate(self, size: int, stream: str | None) -> torch.Tensor:
        used = sum(b.size for b in self.blocks if b.stream is not None and not b.is_free)
        if stream is not None and self.budget is not None and used + size > self.budget:
            raise torch.OutOfMemoryError(f"no room for {size} bytes")
        for block in self.blocks:
            is_over = all(event.is_over for event in block.pending)
            if block.is_free and is_over and (block.size, block.stream) == (size, stream):
                break
        else:
            block = Block(size, stream)
            self.blocks.append(block)
        block.is_free = False
        block.noted, block.readers, block.pending = set(), [], []
        return self._tensor_over(block)

    def _tensor_over(self, block: Block) -> torch.Tensor:
        handle = block.memory()
        handle[:] = POISON if block.stream is None else handle
        if block.stream is not None:
            memory = block.memory()
            self.queue(lambda: memory.fill(POISON))  # as its new owner may do
        weakref.finalize(handle, self._free, block)
        return torch.from_numpy(handle)

    def _free(self, block: Block) -> None:
        block.is_free = True
        if block.is_foreign:
            block.memory().fill(POISON)
        block.pending = [*block.readers]
        for stream in block.noted - {block.stream}:
            with self.on(str(stream)):
                block.pending.append(self.mark())

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory, for an operation that is queued: keeps nothing alive."""
        block = self.find(tensor)
        assert block is not None, "not memory of the device"
        offset = (tensor.data_ptr() - block.address()) // tensor.itemsize
        whole = torch.from_numpy(block.memory())
        return whole.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), offset)

    # ---- what a test does

    def launch(self, kernel: Callable[..., None], *tensors: torch.Tensor) -> None:
        """A kernel on the current stream, which gets the memory of these when it runs."""
        aliases = [self.alias(tensor) for tensor in tensors]
        self.queue(lambda: kernel(*aliases))

    def foreign(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in memory that somebody else has pinned."""
        block = Block(tensor.nbytes, None)
        block.is_foreign = True
        self.blocks.append(block)
        made = self._tensor_over(block).view(tensor.dtype).view(tensor.shape)
        return made.copy_(tensor)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, made on the current stream."""
        made = self.allocate(tensor.nbytes, self.current).view(tensor.dtype).view(tensor.shape)
        self.launch(lambda memory: memory.copy_(tensor), made)
        return made


class LazyAccelerator:
    """The interface of fastloop.device.accelerator.Accelerator over a LazyDevice."""

    device = torch.device("cuda", 0)

    def __init__(self, late: LazyDevice) -> None:
        self.late = late

    def copy_stream(self) -> Any:
        return self.late.on("copy")

    def current_stream(self) -> str:
        return self.late.current

    def record_event(self, stream: str | None = None) -> Event:
        with self.late.on(stream or self.late.current):
            return self.late.mark()

    def wait_event(self, event: Event) -> None:
        self.late.queues[self.late.current].append(event)

    def is_done(self, event: Event) -> bool:
        return event.is_over

    def synchronize(self, event: Event) -> None:
        self.late.synchronized += 1
        while not event.is_over:
            assert self.late.step(), "waits for ever"

    def holds(self, tensor: torch.Tensor) -> bool:
        block = self.late.find(tensor)
        return block is not None and block.stream is not None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        # As torch, which looks at the storage: tensors without elements have no address.
        storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        block = self.late.find(storage)
        return block is not None and block.stream is None

    def allocate_pinned(self, size: int) -> torch.Tensor:
        return self.late.allocate(size, None)

    def allocate(self, size: int) -> torch.Tensor:
        return self.late.allocate(size, self.late.current)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        block = self.late.find(source)
        assert block is not None, "a copy from memory that is not pinned makes the host wait"
        if block.stream is None:
            self.late.copies.append(self.late.current)
        self.late.launch(lambda to, of: to.copy_(of), target, source)
        if block.stream is None and not block.is_foreign:
            block.readers.append(self.late.mark())

    def move(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value.to(self)
        return self.late.put(value)

    def record_stream(self, value: Any) -> None:
        block = self.late.find(value)
        assert block is not None and block.stream is not None
        block.noted.add(self.late.current)

    def check(self) -> None:
        if self.late.is_capturing:
            raise RuntimeError("capture")


def numbered(count: int = 12) -> Iterator[torch.Tensor]:
    """Batches for a prefetch, full of their numbers."""
    for i in range(count):
        yield torch.full((4, 3), float(i))


def read(late: LazyDevice, *tensors: torch.Tensor) -> list[Any]:
    """A kernel that reads them; what it has read, once it has run."""
    seen: list[Any] = []
    late.launch(lambda *memory: seen.extend(m.clone() for m in memory), *tensors)
    return seen


def check(late: LazyDevice, seen: list[list[torch.Tensor]], wanted: list[float]) -> None:
    late.run()
    assert [s[0].unique().tolist() for s in seen] == [[value] for value in wanted]
