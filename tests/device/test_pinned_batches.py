"""pin_memory=True: batches are built, or land, in memory of torch's host allocator. Here that is
ordinary memory which a stand-in for the allocator remembers."""

import contextlib
import ctypes
import dataclasses
import gc
import threading
import time
import weakref
from collections import UserList
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from collate_results import MAKES, RESULTS, UNMOVED
from compare import LOADERS, FunctionDataset, Raised, assert_identical, collating_loader, results
from helpers import SAMPLERS, N, TorchLoader, assert_same, small_dataset
from time_limits import limit
from torch.utils.data import Dataset
from torch.utils.data._utils import pin_memory

from fastloop import ArrayDataset, DataLoader, _core
from fastloop import transforms as T
from fastloop.device import destinations
from fastloop.loader.workers import batch_pickle, processes

PATHS = [("array", 0), ("array", 2), ("process", 2), ("thread", 2), ("sync", 0)]
every_path = pytest.mark.parametrize(("path", "workers"), PATHS)
ahead = pytest.mark.parametrize("path", ["array", "process"])


class HostAllocator:
    """Of torch, as far as these tests go."""

    def __init__(self) -> None:
        self.blocks: list[weakref.ref[torch.UntypedStorage]] = []
        self.addresses: dict[int, int] = {}  # and sizes
        self.made = 0
        self.hook: Callable[[], object] = lambda: None

    def new(self, size: int) -> torch.Tensor:
        self.hook()
        block = torch.zeros(size, dtype=torch.uint8, device="cpu")
        self.made += 1
        self._remember(block)
        self.blocks.append(weakref.ref(block.untyped_storage()))
        return block

    def _remember(self, block: torch.Tensor) -> None:
        storage = block.untyped_storage()
        self.addresses[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, self.addresses.pop, storage.data_ptr(), None)

    def held_bytes(self) -> int:
        gc.collect()
        return sum(self.addresses.values())

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(at <= address < at + size for at, size in self.addresses.items())

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """As Tensor.pin_memory."""
        if tensor.layout is not torch.strided or tensor.numel() == 0 or self.holds(tensor):
            return tensor
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
        self._remember(copy)
        return copy


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> HostAllocator:
    allocator = HostAllocator()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, _=None: allocator.pin(tensor))
    monkeypatch.setattr(destinations, "allocate_pinned", allocator.new)
    return allocator


def loader_of(cls: Any, path: str, workers: int, **kwargs: Any) -> Any:
    arguments = {"batch_size": 7, **SAMPLERS["shuffle-generator"](N, torch.Generator()), **kwargs}
    if cls is DataLoader:
        arguments.update(path=path, pin_memory=True)
    return cls(small_dataset(), num_workers=workers, **arguments)


@every_path
def test_batches_are_torchs(host: HostAllocator, path: str, workers: int) -> None:
    for _ in range(2):
        ours = [*loader_of(DataLoader, path, workers)]
        theirs = [*loader_of(TorchLoader, path, workers)]
        assert_same(ours, theirs)
        assert all(host.holds(tensor) for batch in ours for tensor in batch)
    assert (host.made > 0) == (
        path in ("array", "process")
    )  # elsewhere torch's own function copies
    loader = loader_of(DataLoader, path, workers)
    assert not hasattr(iter(loader), "_pin_memory_thread")
    assert loader.stats().path == path


def image_dataset(out_layout: str = "CHW") -> ArrayDataset:
    images = torch.randint(0, 256, (20, 3, 24, 20), dtype=torch.uint8)
    ops: list[Any] = [T.RandomCrop(16), T.ToDtype(torch.float16, scale=True)]
    return ArrayDataset(images, torch.arange(20), transform=T.Compose(ops), out_layout=out_layout)


@every_path
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_images_are_made_in_pinned_memory(
    host: HostAllocator, path: str, workers: int, out_layout: str
) -> None:
    dataset = image_dataset(out_layout)
    arguments: Any = {"batch_size": 6, "num_workers": workers, "path": path}
    pinned = [*DataLoader(dataset, pin_memory=True, **arguments)]
    assert_same(pinned, [*DataLoader(dataset, **arguments)])
    assert all(host.holds(tensor) for batch in pinned for tensor in batch)
    if path == "array" and out_layout == "channels_last":
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x, _ in pinned)


@ahead
def test_tensors_have_versions_of_their_own(host: HostAllocator, path: str) -> None:
    x, y = next(iter(loader_of(DataLoader, path, 2)))
    before = y._version
    x.add_(1)
    assert y._version == before
    with torch.inference_mode():
        assert not any(t.is_inference() for t in next(iter(loader_of(DataLoader, path, 2))))


def test_results_of_every_kind_are_pinned_as_by_torch(host: HostAllocator) -> None:
    made = collating_loader(DataLoader, lambda k: MAKES[k](), len(MAKES), 1, pin_memory=True)
    theirs = results(collating_loader(LOADERS[1], lambda k: MAKES[k](), len(MAKES), 1))
    differ = set()
    for name, ours, batch in zip(RESULTS, results(made), theirs, strict=True):
        if any(name.startswith(f"{dtype}") for dtype in UNMOVED):
            continue
        try:
            expected = pin_memory.pin_memory(batch, "cuda")  # type: ignore[no-untyped-call]
        except Exception:
            expected = Raised
        if expected is Raised or isinstance(ours, Raised):
            if not (expected is Raised and isinstance(ours, Raised)):
                differ.add(name)
        else:
            assert_identical(ours, expected, name)
    assert differ <= {"expanded", "overlapping"}  # more than torch can pin


class PinsItself:
    def pin_memory(self) -> str:
        return "pinned by itself"


class Items(UserList[Any]):
    """torch makes a copy."""


@dataclasses.dataclass
class Unset:
    x: torch.Tensor
    y: Any = dataclasses.field(init=False)


def looped(x: torch.Tensor) -> Unset:
    unset = Unset(x)
    unset.y = unset
    return unset


def test_torchs_own_function_has_the_last_word(host: HostAllocator) -> None:
    x = torch.arange(6.0)
    for make in (
        lambda: [x, PinsItself()],
        lambda: [x, Items([x + 1, 2])],
        lambda: Unset(x),
        lambda: looped(x).x,
    ):
        (ours,) = collating_loader(DataLoader, lambda _, make=make: make(), 1, 1, pin_memory=True)
        assert_identical(ours, pin_memory.pin_memory(make(), "cuda"))  # type: ignore[no-untyped-call]
    (ours,) = collating_loader(DataLoader, lambda _: [looped(x), x], 1, 1, pin_memory=True)
    assert ours[0].y is ours[0]


def test_a_tensor_that_is_there_twice_is_pinned_twice(host: HostAllocator) -> None:
    x = torch.ones(4)
    (ours,) = collating_loader(DataLoader, lambda _: [x, x], 1, 1, pin_memory=True)
    ours[0].add_(1)
    assert ours[1].tolist() == [1, 1, 1, 1]
    assert all(host.holds(tensor) for tensor in ours)


def test_an_error_of_pinning_has_torchs_text(
    host: HostAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("cannot pin that")

    monkeypatch.setattr(pin_memory, "pin_memory", refuse)
    iterator = iter(
        collating_loader(DataLoader, lambda k: torch.ones(k + 1), 2, 1, pin_memory=True)
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="Caught ValueError in pin memory thread for device 0"):
            next(iterator)
    assert next(iterator, None) is None


# ---- who does it, and when


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((100_000,), i + 1, dtype=torch.uint8)


@pytest.mark.parametrize(
    "dataset",
    [Slow(), ArrayDataset(torch.stack([Slow()[i] for i in range(8)]))],
    ids=["process", "array"],
)
def test_batches_are_there_before_they_are_asked_for(host: HostAllocator, dataset: Any) -> None:
    loader: Any = DataLoader(dataset, 1, num_workers=1, prefetch_factor=3, pin_memory=True)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    is_there = False
    deadline = time.monotonic() + limit(120)
    while not is_there and time.monotonic() < deadline:  # nobody asks for more
        storages = [block() for block in host.blocks]
        is_there = any(s is not None and bytes(s[99_990:100_000]) == b"\3" * 10 for s in storages)
        time.sleep(0.01)
    assert is_there
    made = host.made
    batch = next(iterator)
    batch = batch[0] if isinstance(batch, list) else batch
    assert batch.tolist() == [[3] * 100_000]
    assert host.made <= made + 1  # its block is one that was there


@pytest.mark.slowest
@ahead
@pytest.mark.parametrize("taken", [0, 2, 5])
def test_a_loop_that_is_left_leaves_nothing(host: HostAllocator, path: str, taken: int) -> None:
    for is_persistent in (False, True):
        loader = loader_of(DataLoader, path, 2, persistent_workers=is_persistent)
        for _ in range(2):
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
        del iterator
        loader.close()
        gc.collect()
        assert not [block for block in host.blocks if block() is not None]
        assert loader.stats().slots_lent == 0


# ---- no memory


@ahead
def test_without_memory_a_batch_comes_later(host: HostAllocator, path: str) -> None:
    def refuse() -> None:
        raise RuntimeError("no memory to pin")

    iterator = iter(loader_of(DataLoader, path, 2))
    theirs = iter(loader_of(TorchLoader, path, 2))
    for k in range(N // 7):
        host.hook = refuse if k % 3 == 1 else lambda: None
        batch = None
        while batch is None:
            with contextlib.suppress(RuntimeError, MemoryError):
                batch = next(iterator)
            host.hook = lambda: None
        assert_same(batch, next(theirs))


@ahead
def test_an_interrupt_loses_no_batch(host: HostAllocator, path: str) -> None:
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt

    host.hook = interrupt
    iterator: Any = None
    while iterator is None:
        with contextlib.suppress(KeyboardInterrupt):
            iterator = iter(loader_of(DataLoader, path, 1))
    ours: list[Any] = []
    while len(ours) < N // 7:
        with contextlib.suppress(KeyboardInterrupt):
            ours.append(next(iterator))
    assert calls > 6
    assert_same(ours, [*loader_of(TorchLoader, path, 1)][: len(ours)])


class Hidden:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("refused", range(2, 9))
@pytest.mark.parametrize("kind", ["views", "objects"])
def test_a_batch_is_kept_when_memory_ends_anywhere(
    host: HostAllocator, monkeypatch: pytest.MonkeyPatch, kind: str, refused: int
) -> None:
    x = torch.arange(100.0)
    calls = 0

    def refuse() -> None:
        nonlocal calls
        calls += 1
        if calls == refused:
            raise MemoryError("out of memory")

    def make(k: int) -> Any:
        return [x[:60], x[40:], k] if kind == "views" else [Hidden(x), x.to_sparse(), k]

    def pin(batch: Any, _: Any) -> Any:
        if kind == "objects":
            refuse()
        return batch

    host.hook = refuse
    monkeypatch.setattr(pin_memory, "pin_memory", pin)
    iterator = iter(collating_loader(DataLoader, make, 5, 1, pin_memory=True))
    seen = []
    while len(seen) < 5:
        with contextlib.suppress(MemoryError):
            seen.append(next(iterator)[2])
    assert seen == [0, 1, 2, 3, 4]
    assert next(iterator, None) is None


def test_an_interrupt_behind_the_landing_loses_nothing(
    host: HostAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parcel has landed then, and lands there again."""
    calls = 0

    def unpack(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        return batch_pickle.unpack(*args)

    monkeypatch.setattr(processes, "unpack", unpack)
    iterator = iter(
        collating_loader(DataLoader, lambda k: torch.full((99_999,), k), 9, 1, pin_memory=True)
    )
    seen: list[int] = []
    while len(seen) < 9:
        with contextlib.suppress(KeyboardInterrupt):
            seen.append(int(next(iterator)[0]))
    assert seen == [*range(9)]
    assert calls == 9 + 4


def test_threads_share_an_iterator(host: HostAllocator) -> None:
    iterator = iter(
        collating_loader(DataLoader, lambda k: torch.full((99_999,), k), 60, 2, pin_memory=True)
    )
    seen: list[int] = []

    def take() -> None:
        for batch in iterator:
            assert (batch == batch[0]).all()
            seen.append(int(batch[0]))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [*range(60)]


# ---- what is kept


@ahead
def test_who_keeps_labels_keeps_no_images(host: HostAllocator, path: str) -> None:
    images, labels = torch.zeros(40, 50_000), torch.arange(40)
    dataset: Any = ArrayDataset(images, labels)
    loader: Any = DataLoader(dataset, 4, num_workers=1, pin_memory=True, path=path)
    kept = [y for _, y in loader]
    assert torch.equal(torch.cat(kept), labels)
    assert host.held_bytes() < 1000
    x, _ = next(iter(loader))
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(100, 50_000)


def test_one_large_batch_makes_no_others_large(host: HostAllocator) -> None:
    sizes = [2_000_000 if k == 5 else 1000 for k in range(60)]
    kept = [*collating_loader(DataLoader, lambda k: torch.ones(sizes[k]), 60, 1, pin_memory=True)]
    assert [len(batch) for batch in kept] == sizes
    assert host.held_bytes() < 4 * 2_000_000 + 60 * 140_000


def test_nothing_is_held_between_epochs(host: HostAllocator) -> None:
    loader = loader_of(DataLoader, "process", 2, persistent_workers=True)
    for _ in range(2):
        assert sum(1 for _ in loader) == len(loader)
        assert host.held_bytes() == 0


# ---- what goes another way


def test_what_torch_fetches_is_pinned_too(host: HostAllocator) -> None:
    """Where the array path leaves a batch to torch's own code."""
    loader: Any = DataLoader(
        ArrayDataset(torch.arange(10.0)), sampler=[slice(0, 3), 4], batch_size=None, pin_memory=True
    )
    for batch in loader:
        assert host.holds(batch[0])


def test_nothing_lands_where_there_is_nothing_to_land(host: HostAllocator) -> None:
    texts: Any = DataLoader(
        FunctionDataset(length=3), 1, num_workers=1, collate_fn=str, pin_memory=True
    )
    assert [*texts] == ["[0]", "[1]", "[2]"]
    assert host.made == 0


def test_a_reply_that_changes_after_it_was_copied_is_an_error() -> None:
    """A worker may write anywhere; here it says afterwards that its batch needs more memory."""
    size, pool = 100_000, _core.BatchPool(0, is_shared=True)
    buffers: list[torch.Tensor] = []

    def allocate(size: int) -> torch.Tensor:
        buffers.append(torch.zeros(size, dtype=torch.uint8))
        return buffers[-1]

    destination = destinations.Destination(allocate)
    parent_end = _core.ParentEnd(pool, torch.Tensor, 1, 4, 1 << 30, destination)
    *_, offset, _, _, base = parent_end.address()
    worker_end = _core.WorkerEnd(torch.Tensor, *parent_end.address(), 0)

    def build(turn: int) -> None:
        parent_end.submit(0, b"x", (turn, None))
        worker_end.receive(1.0)
        source = torch.full((size,), turn, dtype=torch.uint8)
        worker_end.copy(source.data_ptr(), size)
        assert worker_end.answer(b"head", 1, False)

    def receive() -> _core.Reply:
        received = parent_end.receive(1.0)
        assert received is not None
        return received[1]

    build(0)
    receive().deliver()
    parent_end.run_ahead(1)
    assert len(buffers) > 1
    build(1)
    deadline = time.monotonic() + limit(120)
    while all(b[size - 1] == 0 for b in buffers[1:]) and time.monotonic() < deadline:
        time.sleep(0.01)
    words = np.ctypeslib.as_array((ctypes.c_int32 * 8192).from_address(base + offset))
    (at,) = [i for i in range(0, 8192, 2) if tuple(words[i : i + 4]) == (1, 0, 0, 1)]
    words[at + 3] = -1  # its kind
    words[at + 6] = 1 << 28  # what it needs
    with pytest.raises(RuntimeError, match="worker 0 has overwritten"):
        parent_end.receive(1.0)
    parent_end.release()
    counts = pool.count()
    assert counts["empty"] == counts["made"]
