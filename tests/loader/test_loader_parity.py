"""Same seed, same batches, same random numbers: the array path beside torch's own loader."""

import collections
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    SAMPLERS,
    Kind,
    ListSampler,
    N,
    ShufflingSampler,
    TorchLoader,
    assert_same,
    assert_same_trace,
    epoch,
    random_states,
    small_dataset,
    trace,
)
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop import ArrayDataset, DataLoader

kinds = pytest.mark.parametrize("kind", SAMPLERS.values(), ids=SAMPLERS)


def two(
    kind: Kind, workers: tuple[int, int] = (0, 0), n: int = N, **kwargs: Any
) -> list[tuple[Any, torch.Generator]]:
    """Our loader with workers[0] and torch's with workers[1], each with a generator of its own."""
    loaders = []
    for cls, count in zip((DataLoader, TorchLoader), workers, strict=True):
        generator = torch.Generator().manual_seed(11)
        arguments = {"num_workers": count, **kind(n, generator), **kwargs}
        loaders.append((cls(small_dataset(n), **arguments), generator))
    assert loaders[0][0].stats().path == "array"
    return loaders


@kinds
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 32, N, 3 * N + 1])
def test_two_epochs_are_torchs(kind: Kind, batch_size: int, drop_last: bool) -> None:
    """Batches and the state of every generator, after iter(), each next() and the end."""
    (ours, g), (theirs, h) = two(kind, batch_size=batch_size, drop_last=drop_last)
    assert_same_trace(trace(ours, g), trace(theirs, h))


@kinds
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (7, True), (32, False)])
def test_workers_change_no_batch(
    kind: Kind, workers: int, batch_size: int, drop_last: bool
) -> None:
    (ours, g), (theirs, h) = two(kind, (workers, 0), batch_size=batch_size, drop_last=drop_last)
    ours_end, theirs_end = (
        [[batch for _, batch, *_ in part], part[-1][2:]]
        for part in (trace(ours, g), trace(theirs, h))
    )
    assert_same(ours_end, theirs_end)


@kinds
def test_two_workers_draw_when_torchs_two_draw(kind: Kind) -> None:
    (ours, g), (theirs, h) = two(kind, (2, 2), batch_size=6)
    assert_same_trace(trace(ours, g), trace(theirs, h))


@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("name", ["user-drawing", "replacement-default-generator"])
def test_prefetch_draws_as_far_ahead_as_torch(name: str, prefetch_factor: int) -> None:
    (ours, g), (theirs, h) = two(
        SAMPLERS[name], (2, 2), batch_size=5, prefetch_factor=prefetch_factor
    )
    assert_same_trace(trace(ours, g, epochs=1), trace(theirs, h, epochs=1))


@kinds
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_leaving_early_leaves_torchs_random_state(kind: Kind, stop: int) -> None:
    (ours, g), (theirs, h) = two(kind, batch_size=6)
    assert_same_trace(trace(ours, g, 3, stop), trace(theirs, h, 3, stop))


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_early_with_workers_leaves_torchs_random_state(workers: int) -> None:
    for name in ("shuffle", "replacement-no-generator", "user-drawing"):
        (ours, g), (theirs, h) = two(SAMPLERS[name], (workers, workers), batch_size=5)
        assert_same_trace(trace(ours, g, 2, 2), trace(theirs, h, 2, 2))


@kinds
def test_numbers_drawn_by_the_loop_change_nothing(kind: Kind) -> None:
    (ours, g), (theirs, h) = two(kind, batch_size=7)
    draw = lambda: torch.rand(3)  # noqa: E731
    assert_same_trace(trace(ours, g, body=draw), trace(theirs, h, body=draw))


def test_numbers_drawn_by_the_loop_change_nothing_with_workers() -> None:
    draw = lambda: torch.rand(3)  # noqa: E731
    for name in ("shuffle", "replacement-default-generator", "user-drawing"):
        (ours, g), (theirs, h) = two(SAMPLERS[name], (2, 2), batch_size=4)
        assert_same_trace(trace(ours, g, body=draw), trace(theirs, h, body=draw))


@pytest.mark.parametrize("workers", [0, 2])
def test_only_torchs_generator_is_drawn_from(workers: int) -> None:
    loader = DataLoader(small_dataset(), batch_size=7, shuffle=True, num_workers=workers)
    python, numpy, _ = random_states()
    list(loader)
    assert random_states()[:2] == (python, numpy)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [None, 6], ids=["batch_size=None", "batch_sampler"])
def test_a_sampler_that_draws_in_iter_is_called_as_often_as_by_torch(
    size: int | None, workers: int
) -> None:
    """torch's iterator with workers calls iter() on the index sampler twice."""
    traces, calls = [], []
    for cls in (DataLoader, TorchLoader):
        sampler = ShufflingSampler(18, size)
        kwargs: dict[str, Any] = {"batch_sampler": sampler} if size else {"sampler": sampler}
        if size is None:
            kwargs["batch_size"] = None
        loader = cls(small_dataset(), num_workers=workers, **kwargs)
        assert not isinstance(loader, DataLoader) or loader.stats().path == "array"
        traces.append(trace(loader))
        calls.append(sampler.calls)
    assert_same_trace(*traces)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", ["shuffle", "replacement", "user-drawing", "sequential"])
def test_persistent_workers_draw_as_torchs(name: str, in_order: bool) -> None:
    workers = (2, 2) if in_order else (1, 1)
    (ours, g), (theirs, h) = two(
        SAMPLERS[name], workers, batch_size=8, persistent_workers=True, in_order=in_order
    )
    assert_same_trace(trace(ours, g, 3), trace(theirs, h, 3))
    assert_same_trace(trace(ours, g, 2, stop=2), trace(theirs, h, 2, stop=2))


@pytest.mark.parametrize("workers", [(0, 0), (2, 2)])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_sampler_may_change_between_epochs(
    workers: tuple[int, int], persistent: bool
) -> None:
    """Curricula set batch_sampler.batch_size, drop_last or sampler between epochs."""
    if persistent and workers == (0, 0):
        pytest.skip("torch has no persistent workers without workers")
    traces = []
    for loader, generator in two(
        SAMPLERS["shuffle"], workers, batch_size=8, persistent_workers=persistent
    ):
        seen = trace(loader, generator, 1)
        loader.batch_sampler.batch_size = 13
        seen += trace(loader, generator, 1)
        loader.batch_sampler.drop_last = True
        seen += trace(loader, generator, 1)
        loader.batch_sampler.sampler = ListSampler([4, 3, 2, 1] * 5)
        seen += trace(loader, generator, 1)
        loader.batch_sampler.sampler = SequentialSampler(range(17))
        traces.append(seen + trace(loader, generator, 1))
    assert_same_trace(*traces)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [0, 1, 10, 11, 12])
def test_distributed_sampler(n: int, shuffle: bool, drop_last: bool, workers: int) -> None:
    dataset = small_dataset(n)
    for replicas, rank in [(1, 0), (3, 0), (3, 1), (3, 2), (4, 3), (13, 12)]:
        if drop_last and n < replicas:
            continue
        loaders = []
        for cls, count in ((DataLoader, workers), (TorchLoader, 0)):
            sampler = DistributedSampler(dataset, replicas, rank, shuffle, 5, drop_last)
            loaders.append(cls(dataset, batch_size=2, sampler=sampler, num_workers=count))
        for number in (0, 1, 7):
            for loader in loaders:
                loader.sampler.set_epoch(number)
            assert_same(epoch(loaders[0]), epoch(loaders[1]), f"{replicas} {rank} {number}")


class Enum5(int):
    """An int of another type, as IntEnum members are."""


SCALARS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "negative": lambda i: i - N,
    "int-subclass": Enum5,
    "np.int64": np.int64,
    "np.int32": np.int32,
    "np.uint8": np.uint8,
    "0-d-array": np.array,
    "tensor": torch.tensor,
    "int32-tensor": lambda i: torch.tensor(i, dtype=torch.int32),
    "item-of-tensor": lambda i: torch.arange(N)[i],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("convert", SCALARS.values(), ids=SCALARS)
@pytest.mark.parametrize("data", ["tensors", "arrays", "subset"])
def test_a_user_sampler_yields_integers_of_any_kind(
    convert: Callable[[int], Any], batch_size: int | None, workers: int, data: str
) -> None:
    base = small_dataset()
    dataset = {
        "tensors": base,
        "arrays": ArrayDataset(x=base.tensors[0].numpy(), y=base.tensors[1]),
        "subset": Subset(base, list(range(N - 1, -1, -1))),
    }[data]
    sampler = ListSampler([3, 0, N - 1, 3, 20, 41, 7], convert)
    theirs = TorchLoader(dataset, batch_size, sampler=sampler)
    ours = DataLoader(dataset, batch_size, sampler=sampler, num_workers=workers, path="array")
    for _ in range(2):
        assert_same(epoch(ours), epoch(theirs))


BATCHES: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "tensor": torch.tensor,
    "int32-tensor": lambda b: torch.tensor(b, dtype=torch.int32),
    "strided-tensor": lambda b: torch.tensor([b, b]).t()[:, 0],
    "array": np.array,
    "int32-array": lambda b: np.array(b, np.int32),
    "strided-array": lambda b: np.array(b[::-1])[::-1],
    "big-endian-array": lambda b: np.array(b, ">i8"),
    "list-of-np": lambda b: [np.int64(i) for i in b],
    "list-of-tensors": lambda b: [torch.tensor(i) for i in b],
    "mixed-list": lambda b: [b[0], *(torch.tensor(i) for i in b[1:2]), *map(np.int16, b[2:])],
    "generator": lambda b: (i for i in b),
    "range": lambda b: range(b[0], b[0] + len(b)),
    "deque": collections.deque,
    "dict": dict.fromkeys,
    "list-subclass": type("MyList", (list,), {}),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("convert", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_user_batch_sampler_yields_batches_of_any_kind(
    convert: Callable[[list[int]], Any], workers: int, depth: int
) -> None:
    dataset: Any = small_dataset()
    for _ in range(depth):
        dataset = Subset(dataset, range(N - 1, -1, -1))
    batches = ListSampler([[3, 1, 2], [-1], [0, 0, -N, 9, 17], [40, 41]], convert)
    ours = DataLoader(dataset, batch_sampler=batches, num_workers=workers, path="array")
    theirs = TorchLoader(dataset, batch_sampler=batches)
    for _ in range(2):
        assert_same(epoch(ours), epoch(theirs))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "items",
    [
        [[1, 2], [3], [0, 0, 0]],
        [torch.tensor([1, 2]), torch.tensor([[0, 1], [2, 3]])],
        [np.array([1, 2]), np.array([], dtype=np.int64)],
        [slice(2, 5), slice(None, 4, 2)],
        [(1, 1), 4, [5], torch.tensor(6)],
        [None, Ellipsis],
    ],
    ids=["lists", "tensors", "arrays", "slices", "mixed", "new axes"],
)
def test_without_batching_an_index_may_be_anything_the_dataset_takes(
    items: list[Any], workers: int
) -> None:
    dataset = TensorDataset(small_dataset().tensors[0])
    ours = DataLoader(dataset, None, sampler=items, num_workers=workers, path="array")
    assert_same(epoch(ours), epoch(TorchLoader(dataset, None, sampler=items)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_without_batching_lists_reach_subsets_as_in_torch(workers: int, depth: int) -> None:
    dataset: Any = small_dataset()
    for _ in range(depth):
        dataset = Subset(dataset, list(range(N - 1, -1, -1)))
    for shuffle in (False, True):
        ours = DataLoader(dataset, None, shuffle, num_workers=workers, path="array")
        assert_same(epoch(ours), epoch(TorchLoader(dataset, None, shuffle)))
    ours = DataLoader(dataset, None, sampler=[[1, 2], [-1]], num_workers=workers, path="array")
    assert_same(epoch(ours), epoch(TorchLoader(dataset, None, sampler=[[1, 2], [-1]])))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_of_torchs_own_is_cut_as_by_torch(workers: int, drop_last: bool) -> None:
    dataset = small_dataset()
    for make in (
        lambda: SequentialSampler(range(0)),
        lambda: SequentialSampler(range(17)),
        lambda: [5, 4, 3],
        lambda: iter(range(9)),
        lambda: RandomSampler(range(40), num_samples=3),
        lambda: ShufflingSampler(20),
    ):
        loaders = [
            cls(
                dataset,
                batch_sampler=BatchSampler(make(), 4, drop_last),
                num_workers=count,
            )
            for cls, count in ((DataLoader, workers), (TorchLoader, 0))
        ]
        assert_same(*map(epoch, loaders))


def test_samples_of_one_field_and_of_many_keep_their_containers() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    for dataset in (TensorDataset(x), TensorDataset(*[x + i for i in range(30)])):
        for batch_size in (None, 4):
            pair = [cls(dataset, batch_size) for cls in (DataLoader, TorchLoader)]
            assert_same(*map(epoch, pair))
    named = ArrayDataset(**dict.fromkeys("zxya", x))
    batch = next(iter(DataLoader(named, 2)))
    assert list(batch) == list("zxya")
    assert_same(*(epoch(cls(named, 2)) for cls in (DataLoader, TorchLoader)))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_grad_modes_change_no_value(mode: Any) -> None:
    with mode():
        dataset = TensorDataset(torch.arange(20.0).reshape(10, 2))
        assert_same(*(epoch(cls(dataset, 4, True)) for cls in (DataLoader, TorchLoader)))
    assert_same(*(epoch(cls(dataset, 4, num_workers=1)) for cls in (DataLoader, TorchLoader)))


def test_a_profiled_epoch_is_the_same_and_has_ranges() -> None:
    loader = DataLoader(small_dataset(), batch_size=20)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        batches = epoch(loader)
    assert_same(batches, epoch(TorchLoader(small_dataset(), batch_size=20)))
    ranges = [e for e in profile.events() if e.name.startswith("enumerate(DataLoader)#")]
    assert len(ranges) == operator.index(len(loader) + 1)
