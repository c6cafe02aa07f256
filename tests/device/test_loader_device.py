"""DataLoader(device=...): torch's batches, order and random numbers on every path, on a device that
is late; where the loader stands; and pin_memory without a device."""

import gc
import os
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import (
    SAMPLERS,
    N,
    TorchLoader,
    assert_same,
    assert_same_trace,
    collector_off,
    epoch,
    loader_of,
    outcome,
    run_program,
    small_dataset,
    trace,
)
from lazy_device import LazyAccelerator, LazyDevice
from torch.utils.data import IterableDataset
from torch.utils.data._utils import pin_memory

import fastloop.loader.device_iter
from fastloop import ArrayDataset, DataLoader, Stepper
from fastloop import transforms as T
from fastloop.device.accelerator import Accelerator

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("thread", 2)]
PATHS += [("torch", 0), ("torch", 2)]
every_path = pytest.mark.parametrize(("path", "workers"), PATHS)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    device = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    return device


def on_device(path: str, workers: int, kind: str = "shuffle", **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(11)
    arguments = {"batch_size": 7, **SAMPLERS[kind](N, generator), **kwargs}
    return DataLoader(small_dataset(), num_workers=workers, path=path, device="cuda", **arguments)


def on_cpu(workers: int, kind: str = "shuffle", **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(11)
    arguments = {"batch_size": 7, **SAMPLERS[kind](N, generator), **kwargs}
    return TorchLoader(small_dataset(), num_workers=workers, **arguments)


class NoUpload:
    """A loader whose batches are waited for."""

    def __init__(self, late: LazyDevice, loader: Any) -> None:
        self.late, self.loader = late, loader

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.loader)
        return map(self.wait, iterator)

    def wait(self, batch: Any) -> Any:
        self.late.run()
        return [tensor.clone() for tensor in batch]


# ---- batches, order, random numbers


@every_path
@pytest.mark.parametrize("kind", ["sequential", "shuffle", "replacement", "user", "distributed"])
def test_batches_and_random_numbers_are_torchs(
    late: LazyDevice, path: str, workers: int, kind: str
) -> None:
    ours = trace(NoUpload(late, on_device(path, workers, kind)), body=lambda: torch.rand(2))
    assert_same_trace(ours, trace(on_cpu(workers, kind), body=lambda: torch.rand(2)))
    assert late.copies == ["copy"] * 2 * len(on_cpu(0, kind))


@pytest.mark.parametrize("path", ["array", "sync", "torch"])
def test_nothing_is_read_ahead_without_workers(late: LazyDevice, path: str) -> None:
    ours = trace(NoUpload(late, on_device(path, 0, "user-drawing")), body=lambda: torch.rand(2))
    assert_same_trace(ours, trace(on_cpu(0, "user-drawing"), body=lambda: torch.rand(2)))


@every_path
def test_an_iterator_is_one_of_torchs(late: LazyDevice, path: str, workers: int) -> None:
    loader = on_device(path, workers)
    iterator = iter(loader)
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert iter(iterator) is iterator
    assert len(iterator) == len(loader)
    next(iterator)
    assert loader.stats().batches >= 1
    assert outcome(lambda: pickle.dumps(iterator))[1] is NotImplementedError
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


@pytest.mark.parametrize("end", [0, 3, 8, None])
@every_path
def test_an_iterator_leaves_nothing_behind(
    late: LazyDevice, path: str, workers: int, end: int | None
) -> None:
    with collector_off():
        iterator = iter(on_device(path, workers))
        source = weakref.ref(iterator._source)
        processes = list(iterator._workers) if workers > 0 else []
        assert len(list(islice(iterator, end))) == (8 if end is None else end)
        del iterator
        assert source() is None
        assert not any(process.is_alive() for process in processes)
        late.run()
        assert all(block.is_free for block in late.blocks)


persistent_paths = pytest.mark.parametrize("path", ["array", "process", "thread", "torch"])


@persistent_paths
@pytest.mark.parametrize("stop", [4, 8])
def test_persistent_workers(late: LazyDevice, path: str, stop: int) -> None:
    kwargs: dict[str, Any] = {"persistent_workers": True}
    ours = trace(NoUpload(late, on_device(path, 2, **kwargs)), epochs=3, stop=stop)
    assert_same_trace(ours, trace(on_cpu(2, **kwargs), epochs=3, stop=stop))


@persistent_paths
def test_a_transform_may_use_what_was_made_before_an_epoch(late: LazyDevice, path: str) -> None:
    factors = []

    def scale(batch: Any) -> Any:
        late.launch(lambda x, factor: x.mul_(factor), batch[1], factors[-1])
        return batch[1]

    loader = on_device(
        path, 1, "sequential", persistent_workers=True, device_transform=scale, drop_last=True
    )
    late.order = ("copy", "side", "compute")
    for value in (2, 3):
        factors.append(late.put(torch.full((7,), value)))
        seen = []
        for labels in loader:
            late.launch(lambda memory: seen.extend(memory.tolist()), labels)  # noqa: B023
        late.run()
        assert seen == [10 * value * i for i in range(49)]


class Counts(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_datasets(late: LazyDevice, workers: int) -> None:
    loader = DataLoader(Counts(), batch_size=4, num_workers=workers, device="cuda")
    batches = [x for x in loader if late.run() is None]
    assert [x.tolist() for x in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_stepper_counts_such_batches(late: LazyDevice, workers: int) -> None:
    w = torch.zeros(3, requires_grad=True)
    stepper = Stepper(torch.optim.SGD([w], lr=0.1), accumulate=4)
    state, _ = save_at(late, on_device("array", workers), 3, False)
    loader = on_device("array", workers)
    loader.load_state_dict(state)
    steps = []
    for x, _ in stepper.iterate(loader):
        late.run()
        with stepper.micro(weight=len(x)):
            stepper.backward((x @ w).mean())
        steps.append(stepper.stepped)
    assert steps == [0, 0, 0, 1, 2]  # five are left of eight


# ---- where it stands


def save_at(late: LazyDevice, loader: Any, batches: int, is_held: bool) -> tuple[Any, list[Any]]:
    """The state after that many batches, of a loop that goes on or was left."""
    torch.manual_seed(5)
    arrived = NoUpload(late, loader)
    iterator = iter(loader)
    seen = [arrived.wait(next(iterator)) for _ in range(batches)]
    if not is_held:
        del iterator
    return loader.state_dict(), seen


@every_path
@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("batches", [0, 1, 5, 7, 8])
@pytest.mark.parametrize("kwargs", [{}, {"persistent_workers": True}], ids=["", "persistent"])
def test_a_state_counts_what_the_user_has(
    late: LazyDevice, path: str, workers: int, batches: int, is_held: bool, kwargs: dict[str, Any]
) -> None:
    if kwargs and workers == 0:
        kwargs = {}
    loader = on_device(path, workers, "shuffle-generator", **kwargs)
    state, seen = save_at(late, loader, batches, is_held)
    assert (state["yielded"], state["begun"], state["epoch"]) == (batches, True, 0)
    whole = epoch(on_cpu(workers, "shuffle-generator"), 5)
    rest = on_device("array", 0, "shuffle-generator")
    rest.load_state_dict(state)
    assert_same([*seen, *NoUpload(late, rest)], whole)
    del loader


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_counts_so_where_an_iterator_dies_in_a_cycle(
    late: LazyDevice, workers: int
) -> None:
    loader = on_device("array", workers)
    iterator = iter(loader)
    next(iterator)
    iterator.itself = iterator
    del iterator
    gc.collect()
    assert loader.state_dict()["yielded"] == 1


@every_path
def test_an_epoch_is_over_when_the_user_has_met_its_end(
    late: LazyDevice, path: str, workers: int
) -> None:
    loader = on_device(path, workers)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    assert loader.state_dict()["begun"]
    assert outcome(lambda: next(iterator))[1] is StopIteration
    state = loader.state_dict()
    assert (state["begun"], state["epoch"], state["yielded"]) == (False, 1, 0)


@every_path
def test_a_loop_that_was_left_in_an_epoch_resumed(
    late: LazyDevice, path: str, workers: int
) -> None:
    state, seen = save_at(late, on_device(path, workers), 3, False)
    again = on_device(path, workers)
    again.load_state_dict(state)
    for batch in NoUpload(late, again):
        seen.append(batch)
        if len(seen) == 6:
            break
    assert again.state_dict()["yielded"] == 6
    last = on_device(path, workers)
    last.load_state_dict(again.state_dict())
    assert_same([*seen, *NoUpload(late, last)], epoch(on_cpu(workers), 5))


# ---- transform, static buffers


def test_transform_and_static_buffers_reach_the_stage(late: LazyDevice) -> None:
    def keep_first(batch: Any) -> Any:
        return batch[0]

    loader = on_device("array", 2, device_transform=keep_first, static_buffers=True, drop_last=True)
    addresses = set()
    for x in loader:
        late.run()
        assert x.shape == (7, 3)
        addresses.add(x.data_ptr())
    assert len(addresses) == 1


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_are_channels_last_stay_so(
    late: LazyDevice, workers: int, is_static: bool
) -> None:
    images = torch.randint(0, 256, (20, 3, 12, 10), dtype=torch.uint8)
    ops: list[Any] = [T.RandomCrop(8), T.ToDtype(torch.float32, scale=True)]
    dataset = ArrayDataset(images, transform=T.Compose(ops), out_layout="channels_last")
    arguments: Any = {"batch_size": 5, "num_workers": workers, "path": "array"}
    expected = [*DataLoader(dataset, **arguments)]
    loader = DataLoader(dataset, device="cuda", static_buffers=is_static, **arguments)
    for (x,), (wanted,) in zip(loader, expected, strict=True):
        late.run()
        assert x.stride() == wanted.stride() == (192, 1, 24, 3)
        assert_same(x.clone(), wanted)


def test_on_the_cpu_a_transform_runs_too() -> None:
    loader = DataLoader(small_dataset(), device="cpu", batch_size=5, device_transform=len)
    assert list(loader) == [2] * 10
    assert type(iter(loader_of(0, device="cpu"))) is type(iter(loader_of(0)))


def test_bad_arguments() -> None:
    for kwargs in ({"device_transform": len}, {"static_buffers": True}):
        with pytest.raises(ValueError, match="must come with a device, got device=None"):
            loader_of(0, **kwargs)
    with pytest.raises(TypeError, match="device_transform must be a function of a batch, got 3"):
        loader_of(0, device="cpu", device_transform=3)
    with pytest.raises(RuntimeError, match="nowhere"):
        loader_of(0, device="nowhere")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the device is there")
@every_path
def test_without_a_device_iter_raises_torchs_own_error(path: str, workers: int) -> None:
    theirs = outcome(lambda: torch.empty(0, device="cuda"))
    loader = on_device(path, workers)
    assert len(pickle.loads(pickle.dumps(loader))) == len(loader)
    assert outcome(lambda: iter(loader)) == theirs
    loader.device = None
    assert len(list(loader)) == len(loader)


# ---- pinned memory


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """An accelerator for torch's loader, and what was pinned for it."""
    tensors: list[torch.Tensor] = []

    def pin(data: Any, device: Any = None) -> Any:
        made = [tensor.clone() for tensor in data]
        tensors.extend(made)
        return made

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(pin_memory, "pin_memory", pin)
    return tensors


@pytest.mark.parametrize(("path", "workers"), [p for p in PATHS if p != ("torch", 2)])
def test_nothing_is_pinned_twice(
    late: LazyDevice, pinned: list[torch.Tensor], path: str, workers: int
) -> None:
    loader = on_device(path, workers, pin_memory=True)
    assert_same([*NoUpload(late, loader)][1][0].shape, torch.Size([7, 3]))
    assert loader.pin_memory
    assert not pinned


# ---- forks


@pytest.mark.skipif(torch.accelerator.is_available(), reason="tests/gpu has the real one")
def test_a_forked_child_gets_torchs_own_error(tmp_path: Any) -> None:
    assert "not compiled with CUDA" in run_program(
        tmp_path, "loader_device/a_forked_child_gets_torchs_own_error"
    )


def test_workers_see_no_device(late: LazyDevice) -> None:
    loader = DataLoader([os.getpid()] * 4, num_workers=1, device="cuda", collate_fn=pids)
    for parent, own in loader:
        assert own != parent


def pids(samples: list[int]) -> tuple[int, int]:
    assert not torch.cuda.is_initialized()
    return samples[0], os.getpid()


@pytest.mark.parametrize("captured", [0, 1])
def test_a_capture_is_asked_of_the_loaders_device(
    monkeypatch: pytest.MonkeyPatch, captured: int
) -> None:
    """Device 0 is current, and the loader's is device 1."""
    current = [0]

    @contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        before, current[0] = current[0], int(device.index)
        yield
        current[0] = before

    module = SimpleNamespace(
        device=enter, is_current_stream_capturing=lambda: current[0] == captured
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    accelerator = Accelerator.__new__(Accelerator)  # without a stream
    accelerator.device, accelerator._pid = torch.device("cuda", 1), os.getpid()
    if captured == 0:
        accelerator.check()
    else:
        with pytest.raises(RuntimeError, match="while a graph is being captured"):
            accelerator.check()
    assert current == [0]
