"""pin_memory=True: batches are built, or land, in memory of torch's host allocator. Here that is
ordinary memory which a stand-in for the allocator remembers."""

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import KINDS, N, TorchLoader, assert_same, small_dataset
from returned import RESULTS
from test_landing import MAKES, UNMOVED
from test_pack import made_by
from torch.utils.data import Dataset
from torch.utils.data._utils import pin_memory
from twins import BOTH, Calls, Raised, assert_twins, results

from fastloop import ArrayDataset, DataLoader, _blocks, _landing

PATHS = [("array", 0), ("array", 2), ("process", 2), ("sync", 0)]
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
        block = torch.zeros(size, dtype=torch.uint8)
        self.made += 1
        self.addresses[block.data_ptr()] = size
        storage = block.untyped_storage()
        self.blocks.append(weakref.ref(storage))
        return block

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(at <= address < at + size for at, size in self.addresses.items())

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """As Tensor.pin_memory."""
        if tensor.layout is not torch.strided or tensor.numel() == 0 or self.holds(tensor):
            return tensor
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
        self.addresses[copy.data_ptr()] = copy.untyped_storage().nbytes()
        self.alive = copy
        return copy


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostAllocator]:
    allocator = HostAllocator()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, _=None: allocator.pin(tensor))
    monkeypatch.setattr(_landing, "pinned_bytes", allocator.new)
    monkeypatch.setattr(_blocks, "pinned_bytes", allocator.new)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # for forks
    yield allocator
    torch.set_num_threads(before)


def loader_of(cls: Any, path: str, workers: int, **kwargs: Any) -> Any:
    arguments = {"batch_size": 7, **KINDS["shuffle-generator"](N, torch.Generator()), **kwargs}
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
    assert (host.made > 0) == (path != "sync")  # there torch's own function copies
    loader = loader_of(DataLoader, path, workers)
    assert not hasattr(iter(loader), "_pin_memory_thread")
    assert loader.stats().path == path


@ahead
def test_tensors_have_versions_of_their_own(host: HostAllocator, path: str) -> None:
    x, y = next(iter(loader_of(DataLoader, path, 2)))
    before = y._version
    x.add_(1)
    assert y._version == before
    x, y = next(iter(loader_of(DataLoader, path, 2)))
    with torch.inference_mode():
        assert not any(t.is_inference() for t in next(iter(loader_of(DataLoader, path, 2))))


def test_results_of_every_kind_are_pinned_as_by_torch(host: HostAllocator) -> None:
    """Containers included: torch makes lists of tuples, say."""
    made = made_by(DataLoader, lambda k: MAKES[k](), len(MAKES), 1, pin_memory=True)
    theirs = results(made_by(BOTH[1], lambda k: MAKES[k](), len(MAKES), 1))
    made_count = 0
    for name, ours, batch in zip(RESULTS, results(made), theirs, strict=True):
        if any(name.startswith(f"{dtype}") for dtype in UNMOVED):
            continue
        try:
            expected = pin_memory.pin_memory(batch, "cuda")  # type: ignore[no-untyped-call]
        except Exception:  # overlapping tensors are more than torch can pin
            expected = batch
        if not isinstance(ours, Raised):
            assert_twins(ours, expected, name)
            made_count += 1
    assert made_count > len(RESULTS) // 2


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
    deadline = time.monotonic() + 30
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


# ---- what goes another way


def test_what_torch_fetches_is_pinned_too(host: HostAllocator) -> None:
    """Where the array path leaves a batch to torch's own code."""
    loader: Any = DataLoader(
        ArrayDataset(torch.arange(10.0)), sampler=[slice(0, 3), 4], batch_size=None, pin_memory=True
    )
    for batch in loader:
        assert host.holds(batch[0])


def test_nothing_lands_where_there_is_nothing_to_land(host: HostAllocator) -> None:
    texts: Any = DataLoader(Calls(length=3), 1, num_workers=1, collate_fn=str, pin_memory=True)
    assert [*texts] == ["[0]", "[1]", "[2]"]
    assert host.made == 0
