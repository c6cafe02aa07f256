"""Unknown attributes of the user's objects may raise anything: fastloop finds out what it wants to
know all the same, and the batches are torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import fastloop
from fastloop.tools.report.loader_source import LoaderSource

# What stands for AttributeError in the wild: d[name], a property that is not set yet, a refusal.
ERRORS = {"KeyError": KeyError, "RuntimeError": RuntimeError, "refusal": NotImplementedError}


class Strict:
    """Raises for unknown attributes, but for the names that Python itself asks for."""

    error: type[Exception] = KeyError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error(name)


class Rows(Strict, Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


class Properties(Dataset[Any]):
    """Raises in properties of names that loaders know."""

    error: type[Exception] = KeyError

    def _refuse(self) -> Any:
        raise self.error("not set yet")

    state_dict = load_state_dict = reshard_state_dict = property(_refuse)
    datasets = dataset = _transforms = _untranslated = property(_refuse)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


class Stream(Strict, IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Walk(Strict):
    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        self.place += 1
        if self.place > 4:
            raise StopIteration
        return self.place


class Walked(IterableDataset[Any]):
    error: type[Exception] = KeyError

    def __iter__(self) -> Iterator[int]:
        walk: Any = type("Walk", (Walk,), {"error": self.error})()
        return walk  # type: ignore[no-any-return]


class Order(Strict, Sampler[Any]):
    def __init__(self) -> None: ...

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([2, 1, 0])


class Batches(Order):
    def __iter__(self) -> Iterator[Any]:
        return iter([[2, 1], [0]])


class LateEpoch(Order):
    """Has an epoch once it is set."""

    def set_epoch(self, epoch: int) -> None: ...

    @property
    def epoch(self) -> int:
        raise self.error("set_epoch() first")


class Join(Strict):
    def __call__(self, samples: list[Any]) -> torch.Tensor:
        return torch.tensor(samples)


class Init(Strict):
    def __call__(self, worker: int) -> None: ...


class Unbound(Strict):
    """Stands for another object, as a proxy does, and does not know yet for which."""

    @property
    def __class__(self) -> Any:
        raise self.error("unbound")


class Holding(Rows):
    def __init__(self) -> None:
        self.proxy = type("Unbound", (Unbound,), {"error": self.error})()


X = torch.arange(5)
CASES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dataset": lambda make: {"dataset": make(Rows)},
    "properties": lambda make: {"dataset": make(Properties)},
    "attribute of a dataset": lambda make: {"dataset": make(Holding)},
    "stream": lambda make: {"dataset": make(Stream)},
    "iterator of a stream": lambda make: {"dataset": make(Walked)},
    "sampler": lambda make: {"dataset": X, "sampler": make(Order)},
    "epoch of a sampler": lambda make: {"dataset": X, "sampler": make(LateEpoch)},
    "batch sampler": lambda make: {"dataset": X, "batch_sampler": make(Batches)},
    "collate": lambda make: {"dataset": X, "collate_fn": make(Join)},
    "worker_init_fn": lambda make: {"dataset": X, "worker_init_fn": make(Init)},
}


def arguments_of(case: str, error: str) -> dict[str, Any]:
    def make(cls: type) -> Any:
        return type(cls.__name__, (cls,), {"error": ERRORS[error]})()

    return CASES[case](make)


def list_batches(loader: Any) -> Any:
    return [batch.tolist() for batch in loader]


both = pytest.mark.parametrize("workers", [0, 1])
all_errors = pytest.mark.parametrize("error", ERRORS)
all_cases = pytest.mark.parametrize("case", CASES)


@all_cases
@all_errors
@both
def test_batches_are_torchs_where_unknown_attributes_raise(
    case: str, error: str, workers: int
) -> None:
    wanted = list_batches(DataLoader(**arguments_of(case, error), num_workers=workers))
    loader: Any = fastloop.DataLoader(**arguments_of(case, error), num_workers=workers)
    assert list_batches(loader) == wanted
    with fastloop.patched():
        again: Any = DataLoader(**arguments_of(case, error), num_workers=workers)
        assert list_batches(again) == wanted
        assert fastloop.stats(again).batches == len(wanted)
    assert loader.stats().batches == len(wanted)
    assert repr(loader)


@all_cases
@all_errors
def test_states_are_saved_and_loaded_where_unknown_attributes_raise(case: str, error: str) -> None:
    loader: Any = fastloop.DataLoader(**arguments_of(case, error), resume="skip")
    wanted, iterator = list_batches(loader), iter(loader)
    next(iterator)
    state = loader.state_dict()
    other: Any = fastloop.DataLoader(**arguments_of(case, error), resume="skip")
    other.load_state_dict(state, strict=True)
    assert list_batches(other) == wanted[1:]


@all_cases
@all_errors
def test_tools_look_at_loaders_whose_unknown_attributes_raise(case: str, error: str) -> None:
    given = arguments_of(case, error)
    loader: Any = DataLoader(**given)
    with fastloop.report(verbose=False):
        list_batches(loader)
    assert type(loader.dataset).__name__ in LoaderSource(loader).name
    fastloop.tune(loader, seconds=0.01, cpu_budget=1)
    assert fastloop.doctor(loader).status in (0, 1)


@both
def test_getitems_that_raises_is_torchs_error(workers: int) -> None:
    class Asked(Rows):
        @property
        def __getitems__(self) -> Any:
            raise KeyError("rows")

    torchs: Any = DataLoader(Asked(), num_workers=workers)
    with pytest.raises(KeyError, match="rows"):
        list_batches(torchs)
    ours: Any = fastloop.DataLoader(Asked(), num_workers=workers)
    with pytest.raises(KeyError, match="rows"):
        list_batches(ours)


# Names by which classes of fastloop answer loaders; a table has columns, too.
MEANINGS: dict[str, Callable[[], Any]] = {
    "names": lambda: ["x", "y"],
    "a method": lambda: lambda self, *others: ["x", "y"],
    "nothing": lambda: lambda self, *others: None,
    "a refusal": lambda: property(lambda self: {}["columns"]),
}


@both
@pytest.mark.parametrize("meaning", MEANINGS)
def test_the_programs_classes_may_use_fastloops_names_for_something_else(
    meaning: str, workers: int
) -> None:
    names = ("_columns", "_borrows_slots", "_uses_core")
    body = {name: MEANINGS[meaning]() for name in names}
    dataset: Any = type("Table", (Rows,), body)()
    collate_fn: Any = type("Joined", (Join,), body)()
    for given in ({"dataset": dataset}, {"dataset": X, "collate_fn": collate_fn}):
        wanted = list_batches(DataLoader(**given, num_workers=workers))
        loader: Any = fastloop.DataLoader(**given, num_workers=workers)
        assert list_batches(loader) == wanted
        assert loader.stats().path == ("process" if workers > 0 else "sync")
        with fastloop.patched():
            assert list_batches(DataLoader(**given, num_workers=workers)) == wanted
