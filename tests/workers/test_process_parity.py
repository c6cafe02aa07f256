"""Whole loaders on the sync and the process path against torch's: every kind of sample and index,
worker seeds, iterable datasets, errors, and the random state of this process after each next()."""

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from compare import (
    LOADERS,
    NAMES,
    BatchKinds,
    Fetch,
    FunctionDataset,
    Raised,
    assert_identical,
    assert_same_run,
    raised,
    record_run,
    results,
)
from helpers import FailingSampler, ListSampler, TorchLoader
from samples import X
from time_limits import limit
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    IterableDataset,
    Sampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils import collate
from torch.utils.data.datapipes.iter import IterableWrapper

from fastloop import DataLoader

np.random.get_state()  # imported here, where no collection of garbage meets a fork
everywhere = pytest.mark.parametrize("workers", [0, 1, 2])
in_workers = pytest.mark.parametrize("workers", [1, 2])
pytestmark = pytest.mark.usefixtures("one_thread")  # for forks


# ---- every kind of sample

# Not batched, these end torch's worker, or it hangs.
TORCH_FAILS = {"tensors: zero", "tensors: no leaf"}


def outcomes(cls: Any, batch_size: int | None, workers: int, **kwargs: Any) -> list[Any]:
    if workers:
        kwargs["timeout"] = limit(300)  # of a test that hangs
    wanted = [k for k, name in enumerate(NAMES) if batch_size or name not in TORCH_FAILS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = cls(
            BatchKinds(), batch_size, sampler=ListSampler(wanted), num_workers=workers, **kwargs
        )
        return list(zip((NAMES[k] for k in wanted), results(loader), strict=True))


@functools.lru_cache(1)  # each holds hundreds of files open, as torch shares memory
def torchs(batch_size: int | None, workers: int) -> list[Any]:
    return outcomes(TorchLoader, batch_size, workers)


def assert_outcomes_agree(batch_size: int | None, workers: int, **kwargs: Any) -> None:
    ours = outcomes(DataLoader, batch_size, workers, **kwargs)
    for (name, a), (_, b) in zip(ours, torchs(batch_size, workers), strict=True):
        assert_identical(a, b, name)


@everywhere
def test_every_kind_of_batch_comes_through(workers: int) -> None:
    assert_outcomes_agree(1, workers)


@pytest.mark.slowest
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_every_kind_of_batch_comes_from_other_processes(method: str) -> None:
    assert_outcomes_agree(1, 1, multiprocessing_context=method)


@in_workers
def test_every_kind_of_sample_comes_through_alone(workers: int) -> None:
    """Without batches, default_convert makes what crosses."""
    assert_outcomes_agree(None, workers)


# ---- every kind of index


def show(index: Any) -> str:
    return f"{type(index).__name__} {index!r}"


big = torch.arange(100)
INDICES = [
    *(torch.tensor(3), big[7], big[7:9], big[::9], torch.tensor([1.5], dtype=torch.bfloat16)),
    *(torch.ones(2, 3).t(), torch.zeros(0), torch.eye(2).to_sparse(), torch.eye(2)[1]),
    *(
        "x",
        (1, 2),
        None,
        1.5,
        np.int64(3),
        np.arange(20)[::3],
        [1],
        {1: 2},
        frozenset([3]),
        ...,
        2**99,
    ),
]
BATCHES_OF_INDICES = [(1, 2), [3], torch.tensor([1, 2]), np.arange(3), "ab", range(2), {1: 2}, 5]


@everywhere
def test_indices_of_every_kind(workers: int) -> None:
    assert_same_run(FunctionDataset(show), sampler=INDICES, num_workers=workers)
    kwargs: dict[str, Any] = {"batch_sampler": BATCHES_OF_INDICES, "num_workers": workers}
    assert_same_run(FunctionDataset(show), **kwargs)
    assert_same_run(FunctionDataset(show), batch_size=None, sampler=INDICES, num_workers=workers)


@in_workers
def test_of_a_tensor_index_only_what_it_shows_is_sent(workers: int) -> None:
    indices = torch.arange(4_000_000)
    kwargs: dict[str, Any] = {"sampler": ListSampler(indices[:64]), "batch_size": 32}
    assert_same_run(FunctionDataset(lambda index: index * 2), num_workers=workers, **kwargs)
    assert max(len(payload) for payload in _payloads(indices)) < 40_000


def _payloads(indices: torch.Tensor) -> Iterator[bytes]:
    from fastloop.loader.workers.batch_pickle import pickle_task

    yield pickle_task((0, list(indices[:64])))
    yield pickle_task((0, indices[5:100:3]))
    yield pickle_task((0, [index.bfloat16() for index in indices[:64]]))
    yield pickle_task((0, indices.bfloat16()[:64]))


# ---- seeds, worker information, worker_init_fn


def seeds(index: int) -> tuple[Any, ...]:
    info = get_worker_info()
    drawn = random.random(), np.random.rand(), torch.rand(2).tolist()
    if info is None:
        return index, torch.initial_seed(), drawn[2]
    told = info.id, info.num_workers, info.seed, info.rng, info.worker_method
    return index, told, torch.initial_seed(), drawn, type(info.dataset), torch.get_num_threads()


def draw_more(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == worker
    torch.manual_seed(worker + torch.initial_seed() % 1000)
    info.dataset.function = lambda index: (seeds(index), f"set by {worker}")


@everywhere
@pytest.mark.parametrize("generator", [None, 4])
def test_seeds_and_numbers(workers: int, generator: int | None) -> None:
    for kwargs in ({}, {"shuffle": True}, {"persistent_workers": workers > 0, "epochs": 3}):
        more: dict[str, Any] = {"num_workers": workers, "collate_fn": list, "generator": generator}
        assert_same_run(FunctionDataset(seeds), **{"epochs": 2, **kwargs, **more})


@in_workers
def test_worker_init_fn(workers: int) -> None:
    kwargs: dict[str, Any] = {"num_workers": workers, "worker_init_fn": draw_more, "epochs": 2}
    for persistent in (False, True):
        assert_same_run(
            FunctionDataset(seeds), collate_fn=list, persistent_workers=persistent, **kwargs
        )

    def fail(worker: int) -> None:
        raise KeyError(f"worker {worker} will\nnot")

    assert_same_run(FunctionDataset(), num_workers=workers, worker_init_fn=fail)


def last(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    return {"last": batch[-1]}


def extend(worker: int) -> None:
    collate.default_collate_fn_map[torch.Tensor] = last


@everywhere
def test_an_extended_registry(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = FunctionDataset(lambda i: (X + i, i))
    if workers:
        told = assert_same_run(dataset, num_workers=workers, worker_init_fn=extend)
        assert isinstance(told[2][0], dict)
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, last)
    told = assert_same_run(dataset, num_workers=workers)
    assert isinstance(told[2][0], dict)


def use_meta(worker: int) -> None:
    torch.set_default_device("meta")


@in_workers
def test_a_default_device_of_a_worker(workers: int) -> None:
    dataset = FunctionDataset(lambda i: {"n": i, "a": np.ones(2), "t": i * 1.5})
    told = assert_same_run(dataset, num_workers=workers, worker_init_fn=use_meta)
    # torch 2.10 raises there.
    assert not isinstance(told[2], dict) or told[2]["n"].is_meta


# ---- arguments


@everywhere
@pytest.mark.parametrize("method", ["__getitems__", "tuple", "tensor", "generator", "too few"])
def test_getitems(workers: int, method: str) -> None:
    kinds: dict[str, Fetch] = {
        "__getitems__": lambda batch: [(i, X + i) for i in batch],
        "tuple": lambda batch: tuple(str(i) for i in batch),
        "tensor": torch.tensor,
        "generator": lambda batch: (str(i) for i in batch),
        "too few": lambda batch: batch[:-1],
    }
    dataset = FunctionDataset()
    dataset.__getitems__ = kinds[method]  # type: ignore[attr-defined]
    assert_same_run(dataset, batch_size=4, num_workers=workers)


@everywhere
def test_other_arguments(workers: int) -> None:
    dataset = FunctionDataset(lambda i: (X + i, {"i": i, "s": str(i)}))
    kwargs: list[dict[str, Any]] = [
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"pin_memory": True},
        {"batch_sampler": [[1, 2, 3], [4], [5, 6]]},
        {"sampler": range(9, 0, -2)},
        {"dataset": ConcatDataset([dataset, FunctionDataset(dataset.function, 3)])},
    ]
    if workers:
        kwargs += [
            {"prefetch_factor": 1},
            {"prefetch_factor": 7},
            {"multiprocessing_context": "fork"},
            {"multiprocessing_context": torch.multiprocessing.get_context("fork")},
            {"persistent_workers": True, "epochs": 3},
        ]
    for more in kwargs:
        assert_same_run(more.pop("dataset", dataset), num_workers=workers, **more)


KINDS_TOLD = (bytes, torch.Tensor)
EVEN = range(0, 10, 2)


@in_workers
def test_out_of_order_the_same_batches_come(workers: int) -> None:
    kwargs = {"in_order": False, "persistent_workers": True, "epochs": 2}
    told = [record_run(cls, FunctionDataset(), num_workers=workers, **kwargs) for cls in LOADERS]
    states, batches = ([[i for i in t if isinstance(i, k)] for t in told] for k in KINDS_TOLD)
    assert states[0] == states[1]
    for given in batches:
        for epoch in (given[:5], given[5:]):
            assert sorted(batch.tolist() for batch in epoch) == [[i, i + 1] for i in EVEN]


# ---- iterable datasets


class Stream(IterableDataset[Any]):
    """Worker w yields counts[w] numbers, and remembers how often it was begun."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = info.id if info else 0
        self.begun += 1
        for i in range(self.counts[worker]):
            yield 100 * worker + i, self.begun, torch.rand(())

    def __repr__(self) -> str:
        return "Stream"


class Sized(Stream):
    def __len__(self) -> int:
        return 4


class Breaks(Stream):
    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            if item[0] % 100 == 3:
                raise ValueError("broken")
            yield item


STREAMS: dict[str, Callable[[], Any]] = {
    "even": lambda: Stream(6, 6),
    "first ends early": lambda: Stream(1, 9),
    "second ends early": lambda: Stream(9, 3),
    "first is empty": lambda: Stream(0, 3),
    "all are empty": lambda: Stream(0, 0),
    "longer than its length": lambda: Sized(7, 5),
    "breaks": lambda: Breaks(9, 6),
    "ChainDataset": lambda: ChainDataset([Stream(2, 3), Stream(4, 1)]),
    "IterDataPipe": lambda: IterableWrapper(range(12)).shuffle().sharding_filter(),
}


@pytest.mark.slowest
@everywhere
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_iterable_datasets(workers: int, make: Callable[[], Any]) -> None:
    for kwargs in ({"epochs": 2}, {"drop_last": True}, {"batch_size": None}):
        assert_identical(
            *(record_run(cls, make(), num_workers=workers, **kwargs) for cls in LOADERS)
        )
    if workers:
        kwargs = {"epochs": 3, "persistent_workers": True, "num_workers": workers}
        assert_same_run(make(), **kwargs)


# ---- errors


class TwoArgumentsError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def fails(error: Callable[[], BaseException]) -> Fetch:
    def fetch(index: int) -> int:
        if index in (2, 5):
            raise error()
        return index

    return fetch


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad\nvalue"),
    "without text": ValueError,
    "KeyError": lambda: KeyError("a\nb"),
    "StopIteration": lambda: StopIteration("3"),
    "two arguments": lambda: TwoArgumentsError(1, 2),
    "OSError": lambda: FileNotFoundError(2, "No such file", "name"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": lambda: RecursionError("deep"),
    "MemoryError": lambda: MemoryError("much"),
    "of an unknown type": lambda: type("Unknown", (OSError,), {"__module__": "nowhere"})("strange"),
}


@pytest.mark.slowest
@everywhere
@pytest.mark.parametrize("name", [name for name in ERRORS if "unknown" not in name])
def test_errors_of_the_dataset(workers: int, name: str) -> None:
    if (name, workers) == ("StopIteration", 2):
        pytest.skip("torch takes 5 s for each worker to end")
    assert_same_run(FunctionDataset(fails(ERRORS[name])), num_workers=workers)


def test_an_error_says_where() -> None:
    loader = DataLoader(FunctionDataset(fails(ERRORS["ValueError"])), 2, num_workers=1)
    with pytest.raises(
        ValueError, match=r"bad\nvalue\nThis happened in batch 1 \(indices \[2, 3\]\)\."
    ):
        list(loader)


@in_workers
@pytest.mark.parametrize("name", ["ValueError", "of an unknown type"])
def test_an_error_of_worker_init_fn_names_no_batch(workers: int, name: str) -> None:
    """It came before any batch was asked for. The next error is one of a batch."""

    def init(worker: int) -> None:
        if worker == 0:
            raise ERRORS[name]()

    dataset = FunctionDataset(fails(ERRORS["ValueError"]))
    options: dict[str, Any] = {"num_workers": workers, "worker_init_fn": init}
    iterator = iter(DataLoader(dataset, 2, **options))
    with pytest.raises((ValueError, RuntimeError)) as caught:
        next(iterator)
    assert "in DataLoader worker process 0" in str(caught.value)
    assert "This happened" not in str(caught.value)
    if workers > 1:  # a single worker has no fetcher now, which is an error of its batches
        with pytest.raises(ValueError, match=r"This happened in batch 1 \(indices"):
            next(iterator)


@in_workers
def test_an_error_that_cannot_be_pickled(workers: int) -> None:
    """torch hangs."""
    error = ERRORS["of an unknown type"]
    loader = DataLoader(FunctionDataset(fails(error)), 2, num_workers=workers)
    assert [type(item) for item in results(loader)].count(Raised) == 2
    with pytest.raises(
        RuntimeError, match="Unknown, an exception that cannot be pickled"
    ) as caught:
        list(loader)
    assert "nowhere.Unknown: strange" in str(caught.value)


@everywhere
def test_errors_of_samplers(workers: int) -> None:
    for size in (1, 2, None):
        for error in (ValueError, StopIteration, RuntimeError):
            if size is None and error is StopIteration:
                continue  # an iterator that goes on after its end
            sampler: Sampler[int] = FailingSampler(6, 3, error)
            kwargs: dict[str, Any] = {"sampler": sampler, "num_workers": workers}
            assert_same_run(FunctionDataset(), batch_size=size, **kwargs)
    batches = {"batch_sampler": FailingSampler(3, 1), "num_workers": workers}
    assert_same_run(FunctionDataset(), **batches)


@everywhere
def test_ranges_of_the_profiler_have_torchs_names(workers: int) -> None:
    names = []
    for cls in LOADERS:
        loader = cls(FunctionDataset(), 5, num_workers=workers)
        with torch.profiler.profile() as profile:
            list(loader)
        events = [event for event in profile.events() if "DataLoader" in event.name]
        names.append(sorted(event.name for event in events))
    assert names[0] == names[1]
    assert len(names[0]) >= 2


def test_what_raised_keeps_of_a_text() -> None:
    text = "Caught A in B.\nOriginal Traceback (most recent call last):\n  File\nA: x\ny\n"
    wanted = "Caught A in B.\nA: x\ny"
    assert raised(ValueError(text)) == (ValueError, wanted)
    ours = text + "This happened in batch 3 (indices [1, 2])."
    assert raised(ValueError(ours)) == (ValueError, wanted)
    assert default_collate([1]).tolist() == [1]
