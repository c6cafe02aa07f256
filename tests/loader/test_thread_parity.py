"""Whole loaders over worker threads against torch's over worker processes: every kind of sample and
index, orders, epochs, iterable datasets, errors, and the random state after each next()."""

import functools
import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from compare import (
    NAMES,
    BatchKinds,
    FunctionDataset,
    Raised,
    assert_identical,
    record_run,
    results,
)
from helpers import (
    SAMPLERS,
    FailingSampler,
    ListSampler,
    N,
    TorchLoader,
    assert_same_trace,
    small_dataset,
    trace,
)
from time_limits import limit
from torch.utils.data import BatchSampler, ChainDataset, IterableDataset, get_worker_info

from fastloop import DataLoader, PackCollate, PadCollate

np.random.get_state()  # imported here, where no collection of garbage meets a fork
Threaded = functools.partial(DataLoader, path="thread")
in_workers = pytest.mark.parametrize("workers", [1, 3])
pytestmark = pytest.mark.usefixtures("one_thread")  # for forks


def assert_same_run(dataset: Any, **kwargs: Any) -> list[Any]:
    ours, theirs = (record_run(cls, dataset, **kwargs) for cls in (Threaded, TorchLoader))
    assert_identical([said_by_a_process(item) for item in ours], theirs)
    return ours


def said_by_a_process(item: Any) -> Any:
    """An error names the kind of worker it was met in."""
    if not isinstance(item, Raised):
        return item
    kind, text = item
    return Raised((kind, text.replace("DataLoader worker thread", "DataLoader worker process")))


# ---- samples


def said_here(item: Any) -> Any:
    """An error without the name of its worker."""
    if not isinstance(item, Raised):
        return item
    kind, text = item
    return Raised((kind, text.split(".\n", 1)[1] if text.startswith("Caught ") else text))


def message(item: Any) -> Any:
    """An error of this process as a worker tells it."""
    if not isinstance(item, Raised):
        return item
    kind, text = item
    return Raised((kind, f"{kind.__name__}: {text}".rstrip(": ")))


@pytest.mark.parametrize("batch_size", [1, None])
def test_every_kind_of_batch_comes_through(batch_size: int | None) -> None:
    """As torch makes it without workers: nothing is pickled."""
    runs = []
    for cls, workers in ((Threaded, 2), (TorchLoader, 0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs.append(results(cls(BatchKinds(), batch_size, num_workers=workers)))
    for name, ours, theirs in zip(NAMES, *runs, strict=True):
        assert_identical(said_here(ours), message(theirs), name)


@pytest.mark.parametrize(
    "collate", [PadCollate(return_mask=True), PackCollate(), lambda batch: (len(batch), batch)]
)
def test_other_collates(collate: Any) -> None:
    samples = [{"input_ids": list(range(i % 5 + 1)), "label": i} for i in range(31)]
    assert_same_run(FunctionDataset(samples.__getitem__, 31), num_workers=3, collate_fn=collate)


class InBatches(FunctionDataset):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [self[index] for index in indices]


def test_a_dataset_that_loads_batches() -> None:
    assert_same_run(InBatches(), batch_size=3, num_workers=2)


# ---- order


@pytest.mark.parametrize("kind", SAMPLERS)
def test_order_and_random_numbers(kind: str) -> None:
    for workers, kwargs in ((2, {}), (1, {"persistent_workers": True, "prefetch_factor": 3})):
        runs = []
        for cls in (Threaded, TorchLoader):
            generator = torch.Generator().manual_seed(11)
            arguments = {"batch_size": 7, **SAMPLERS[kind](N, generator), **kwargs}
            runs.append(trace(cls(small_dataset(), num_workers=workers, **arguments), generator))
        assert_same_trace(*runs)


RUNS: dict[str, dict[str, Any]] = {
    "drop_last": {"drop_last": True, "batch_size": 3},
    "one by one": {"batch_size": None},
    "one by one, drawn": {"batch_size": None, "shuffle": True},
    "batches of the user's": {"batch_sampler": [[3, 1], [2], [7, 8, 9]]},
    "batches that are tuples": {"batch_sampler": ListSampler([(3, 1), (2,)])},
    "batches that are generators": {"batch_sampler": BatchSampler(range(9), 4, True)},
    "lists one by one": {"batch_size": None, "sampler": ListSampler([[1], [2, 3]])},
    "deep": {"prefetch_factor": 5},
    "shallow": {"prefetch_factor": 1},
    "persistent": {"persistent_workers": True, "epochs": 3},
    "of a generator": {"generator": 5, "shuffle": True, "epochs": 2},
    "empty": {"sampler": ListSampler([])},
}


@pytest.mark.parametrize("kwargs", RUNS.values(), ids=RUNS)
def test_runs_are_torchs(kwargs: dict[str, Any]) -> None:
    assert_same_run(FunctionDataset(lambda i: {"i": i, "x": (torch.tensor(i), "a")}), **{
        "num_workers": 2, **kwargs
    })  # fmt: skip


def test_out_of_order_every_batch_comes_once() -> None:
    loader = Threaded(FunctionDataset(), 2, num_workers=3, in_order=False)
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(10))


def test_out_of_order_a_slow_batch_is_overtaken() -> None:
    """By one at least: which thread gets the later ones is torch's to say."""
    is_there = threading.Event()
    dataset = FunctionDataset(lambda i: is_there.wait(limit(60)) and i if i == 0 else i)
    iterator = iter(Threaded(dataset, 1, num_workers=2, in_order=False))
    first = next(iterator).item()
    assert first != 0
    is_there.set()
    assert sorted([first, *(batch.item() for batch in iterator)]) == list(range(10))


# ---- iterable datasets


class Stream(IterableDataset[Any]):
    """Yields so many numbers, and how often it was begun."""

    def __init__(self, count: int, error_at: int = -1) -> None:
        self.count, self.error_at, self.begun = count, error_at, 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for i in range(self.count):
            if i == self.error_at:
                raise ValueError("broken")
            yield i, self.begun

    def __repr__(self) -> str:
        return "Stream"


class Sized(Stream):
    def __len__(self) -> int:
        return 4


STREAMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: Stream(9),
    "empty": lambda: Stream(0),
    "breaks": lambda: Stream(9, 5),
    "longer than its length": lambda: Sized(9),
    "ChainDataset": lambda: ChainDataset([Stream(2), Stream(4)]),
}


@pytest.mark.slowest
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_a_stream_is_read_ahead_by_one_thread(make: Callable[[], Any]) -> None:
    for kwargs in (
        {"drop_last": True},
        {"batch_size": None},
        {"epochs": 3, "persistent_workers": True},
    ):
        runs = [record_run(cls, make(), num_workers=1, **kwargs) for cls in (Threaded, TorchLoader)]
        assert_identical([said_by_a_process(item) for item in runs[0]], runs[1])


def test_a_new_stream_each_epoch() -> None:
    """It is begun in the loader's process, so it counts."""
    dataset = Stream(4)
    loader = Threaded(dataset, 2, num_workers=1)
    assert [[batch[1].tolist() for batch in loader] for _ in range(2)] == [
        [[1, 1]] * 2,
        [[2, 2]] * 2,
    ]


# ---- what threads have of torch's workers


def test_each_thread_is_initialised_with_its_number() -> None:
    numbers: list[Any] = []

    def init(number: int) -> None:
        numbers.append((number, threading.current_thread().name, get_worker_info()))

    state = torch.get_rng_state()
    list(Threaded(FunctionDataset(), 2, num_workers=3, worker_init_fn=init, shuffle=False))
    assert sorted(numbers) == [(n, f"fastloop worker {n}", None) for n in range(3)]
    assert not torch.equal(state, torch.get_rng_state())  # the base seed was drawn
    states = []
    for cls in (Threaded, TorchLoader):
        torch.manual_seed(4)
        list(cls(FunctionDataset(), 2, num_workers=2))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_torchs_operations_run_on_the_thread_alone() -> None:
    torch.set_num_threads(2)
    dataset = FunctionDataset(lambda _: torch.get_num_threads())
    assert next(iter(Threaded(dataset, 2, num_workers=1))).tolist() == [1, 1]
    assert torch.get_num_threads() == 2


def test_many_threads_are_not_warned_about(recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()  # else a thread may collect an iterator of torch's, and wait for its workers
    list(Threaded(FunctionDataset(), 2, num_workers=200))
    assert [str(w.message) for w in recwarn] == []


# ---- errors


class TwoArgumentsError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad\nvalue"),
    "KeyError": lambda: KeyError("a\nb"),
    "StopIteration": lambda: StopIteration("3"),
    "two arguments": lambda: TwoArgumentsError(1, 2),
    "OSError": lambda: FileNotFoundError(2, "No such file", "name"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
    "MemoryError": lambda: MemoryError("much"),
}


def failing(error: Callable[[], BaseException]) -> FunctionDataset:
    def fetch(index: int) -> int:
        if index in (2, 5):
            raise error()
        return index

    return FunctionDataset(fetch)


@pytest.mark.slowest
@in_workers
@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_dataset(workers: int, name: str) -> None:
    if (name, workers) == ("StopIteration", 3):
        pytest.skip("torch takes 5 s for each worker to end")
    assert_same_run(failing(ERRORS[name]), num_workers=workers)


def test_an_error_says_where() -> None:
    loader = Threaded(failing(ERRORS["ValueError"]), 2, num_workers=1)
    with pytest.raises(ValueError) as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("Caught ValueError in DataLoader worker thread 0.\nOriginal Traceback")
    assert text.endswith("bad\nvalue\nThis happened in batch 1 (indices [2, 3]).")


def test_an_error_of_worker_init_fn_names_no_batch() -> None:
    def init(number: int) -> None:
        raise ValueError("no beginning")

    iterator = iter(Threaded(FunctionDataset(), 2, num_workers=1, worker_init_fn=init))
    for _ in range(2):
        with pytest.raises(ValueError, match="no beginning") as caught:
            next(iterator)
        assert "This happened" not in str(caught.value)


class Unshown:
    """An index that cannot be told."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("path", ["thread", "process"])
def test_an_error_comes_through_where_its_indices_cannot_be_told(path: str) -> None:
    def fail(index: Unshown) -> Any:
        if index.index == 1:
            raise KeyError("broken")
        return index.index

    sampler = ListSampler([Unshown(i) for i in range(3)])
    batches = iter(DataLoader(FunctionDataset(fail), 1, sampler=sampler, num_workers=1, path=path))
    assert next(batches).item() == 0
    text = r"batch 1 \(indices which cannot be shown, ValueError\)"
    with pytest.raises(KeyError, match="broken") as error:
        next(batches)
    assert re.search(text, str(error.value))
    assert next(batches).item() == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_a_process_is_an_error_of_the_batch(error: BaseException) -> None:
    items = results(Threaded(failing(lambda: error), 2, num_workers=2))
    assert [type(item) for item in items].count(Raised) == 2
    assert [item.tolist() for item in items if type(item) is not Raised] == [[0, 1], [6, 7], [8, 9]]
    with pytest.raises(RuntimeError, match=f"{type(error).__name__}, which ends no thread"):
        list(Threaded(failing(lambda: error), 2, num_workers=2))


def test_errors_of_the_start() -> None:
    def init(number: int) -> None:
        raise ValueError(f"in {number}")

    class Stuck(Stream):
        def __iter__(self) -> Iterator[Any]:
            raise ValueError("of the stream")

    items = results(Threaded(FunctionDataset(), 2, num_workers=2, worker_init_fn=init))
    assert [kind for kind, _ in items] == [ValueError] * 5
    assert "in 1" in items[1][1]
    with pytest.raises(ValueError, match="of the stream"):
        next(iter(Threaded(Stuck(3), 2, num_workers=1)))


@in_workers
def test_errors_of_samplers(workers: int) -> None:
    for size in (1, 2, None):
        for error in (ValueError, StopIteration, RuntimeError):
            if size is not None or error is not StopIteration:  # which goes on after its end
                kwargs = {"sampler": FailingSampler(6, 3, error), "num_workers": workers}
                assert_same_run(FunctionDataset(), batch_size=size, **kwargs)


def test_errors_of_the_collate() -> None:
    def collate(batch: list[int]) -> Any:
        raise LookupError(batch)

    assert_same_run(FunctionDataset(), num_workers=2, collate_fn=collate)
