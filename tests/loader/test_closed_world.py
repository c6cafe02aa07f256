"""Datasets that do more than index are left to torch, and none of their code runs to find that
out: no call, no draw, no write, no error."""

from __future__ import annotations

import random
from abc import ABC
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, epoch, outcome, random_states
from torch.utils.data import Dataset

from fastloop import DataLoader
from fastloop.adapters import closed_world

N = 9
SEEN: list[Any] = []  # what code of a dataset has done
TABLE = {"x": [1, 2, 3]}
# Loaders ask any object for these, and samplers ask for its length.
ASKED: list[Any] = ["len", "__getitems__", "state_dict", "__dict__", {}]


def note(what: Any) -> Any:
    SEEN.append(what)
    return what


class Base(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.arange(4.0 * N).reshape(N, 4)
        self.y = list(range(N))
        self.count = 0

    def __len__(self) -> int:
        return 9


class Counts(Base):
    def __getitem__(self, i: int) -> Any:
        self.count += 1
        return self.x[i]


class Writes(Base):
    def __getitem__(self, i: int) -> Any:
        self.y[i] = 0
        return self.x[i]


class WritesRows(Base):
    def __getitem__(self, i: int) -> Any:
        self.x[i] += 1
        return self.x[i]


class Appends(Base):
    def __getitem__(self, i: int) -> Any:
        SEEN.append(i)
        return self.x[i]


class AppendsToList(Base):
    def __getitem__(self, i: int) -> Any:
        self.y.append(i)
        return self.x[i]


class WritesGlobal(Base):
    def __getitem__(self, i: int) -> Any:
        global TABLE
        TABLE = {"x": []}
        return self.x[i]


class WritesGlobalDict(Base):
    def __getitem__(self, i: int) -> Any:
        TABLE["x"] = [i]
        return self.x[i]


class Draws(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], random.random()


class DrawsOfTorch(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[torch.randint(N, ())]


class DrawsOfNumPy(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], np.random.rand()


class InPlace(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i].add_(1)


class Prints(Base):
    def __getitem__(self, i: int) -> Any:
        print("sample", i)
        return self.x[i]


class Formats(Base):
    def __getitem__(self, i: int) -> Any:
        name = f"{i}"
        return self.x[i], name


class Branches(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i] if i < 4 else self.x[0]


class BranchesOnData(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i] if self.y[i] else self.x[0]


class Compares(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], 1 if i == 3 else 0


class IsSame(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], 1 if i is self.y else 0


class MayCompareWithNone(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], 1 if self.x is (self.y if len(self.x) > 1 else None) else 0


class Tries(Base):
    def __getitem__(self, i: int) -> Any:
        try:
            return note(self.x[i])
        except Exception:
            return self.x[0]


class Endless(Base):
    def __getitem__(self, i: int) -> Any:
        while True:
            if self.count == 0:
                return self.x[i]


class EndlessList(Base):
    def __getitem__(self, i: int) -> Any:
        items = [1]
        for item in items:
            if self.count == 0:
                return self.x[i]
            items += [item]
        return self.x[0]


class With(Base):
    def __getitem__(self, i: int) -> Any:
        with torch.no_grad():
            return self.x[i]


class Yields(Base):
    def __getitem__(self, i: int) -> Any:
        return torch.stack([*(self.x[k] for k in (i, 0))])


class Imports(Base):
    def __getitem__(self, i: int) -> Any:
        import math

        return self.x[i], math.pi


class Calls(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[note(i)]


class CallsOwn(Base):
    def row(self, i: int) -> Any:
        return note(self.x[i])

    def __getitem__(self, i: int) -> Any:
        return self.row(i)


class CallsAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.transform = note

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.x[i])


class Property(Base):
    @property
    def rows(self) -> Any:
        return note(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


class Found(Base):
    def __getattr__(self, name: str) -> Any:
        note(name)
        if name != "rows":
            raise AttributeError(name)
        return self.x

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


class FindsAll(Base):
    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            note(name)
        return super().__getattribute__(name)

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Descriptor:
    def __get__(self, thing: Any, cls: type) -> Any:
        return note(torch.zeros(N))

    def __set__(self, thing: Any, value: Any) -> None:
        raise AttributeError


class Described(Base):
    z = Descriptor()

    def __getitem__(self, i: int) -> Any:
        return self.z[i]


class Hidden(Base):
    """A property that hides an entry of the object's dict."""

    def __init__(self) -> None:
        super().__init__()
        vars(self)["z"] = torch.ones(N)

    @property
    def z(self) -> Any:
        return note(torch.zeros(N))

    def __getitem__(self, i: int) -> Any:
        return self.z[i]


class OfClass(Base):
    z = torch.arange(N)

    def __getitem__(self, i: int) -> Any:
        return self.z[i]


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        SEEN.append(name) if name in ("__mro__", "__dict__", "__getitem__") else None
        return super().__getattribute__(name)


class OfMeta(Base, metaclass=Meta):
    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class OfOddObject(Base):
    """An object of a class whose class is the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = Meta("Odd", (), {})()
        self.odd.rows = self.x

    def __getitem__(self, i: int) -> Any:
        return self.odd.rows[i]


class NotingDict(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return note(super().__getitem__(name))


class OfOddDict(Base):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__ = NotingDict(vars(self))

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Pickles(Base):
    def __getstate__(self) -> Any:
        return {**vars(self), "x": note(torch.zeros(N))}

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Slots(Base):
    __slots__ = ("rows",)

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.x

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


class OwnDict(Base):
    @property
    def __dict__(self) -> Any:
        return note({})

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Subclassed(torch.Tensor):
    pass


class OfSubclass(Base):
    def __init__(self) -> None:
        super().__init__()
        self.x = self.x.as_subclass(Subclassed)

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Noting(list[Any]):
    def __getitem__(self, i: Any) -> Any:
        return note(super().__getitem__(i))


class OfList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.y = Noting(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Number:
    def long(self) -> Any:
        return note(torch.tensor(1))

    def __int__(self) -> int:
        return int(note(1))


class OfObjects(Base):
    def __init__(self) -> None:
        super().__init__()
        self.items = [Number() for _ in range(N)]

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.items[i].long()


class OfArrays(OfObjects):
    def __init__(self) -> None:
        super().__init__()
        self.items = np.array(self.items)  # type: ignore[assignment]

    def __getitem__(self, i: int) -> Any:
        return self.x[i], int(self.items[i])


class Escapes(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], len(().__class__.__base__.__subclasses__()) > 0


class OwnLength(Base):
    def __len__(self) -> int:
        note("len")
        return N

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Abstract(Base, ABC):
    """Does nothing but index."""

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def wrapped(function: Any) -> Any:
    def call(self: Any, i: int) -> Any:
        return function(self, note(i))

    return call


class Wrapped(Base):
    @wrapped
    def __getitem__(self, i: int) -> Any:
        return self.x[i]


CLASSES = [
    found
    for found in list(vars().values())
    if isinstance(found, type) and issubclass(found, Base) and found not in (Base, Abstract)
]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_nothing_runs_and_torch_makes_the_samples(cls: Any, workers: int, capfd: Any) -> None:
    found = []
    closed_world._refused.clear()
    for make in (DataLoader, TorchLoader):
        TABLE.clear()
        data = cls()
        loader = make(data, 4, num_workers=workers)
        for _ in range(3):
            SEEN.clear()
            before = random_states()
            if make is DataLoader:
                stats = loader.stats()
                assert stats.path != "array"
                assert [each for each in SEEN if each not in ASKED] == [], stats.why
                assert random_states() == before
        if workers > 0:
            return  # the path of worker processes is tested elsewhere
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        batches = outcome(lambda: epoch(loader))  # noqa: B023
        called = [each for each in SEEN if type(each) not in (str, dict)]
        found.append([batches, repr(called), data.count, data.x, {**TABLE}])
        found[-1].append(capfd.readouterr().out)
    assert_same(*found)


def test_an_abstract_class_is_served() -> None:
    loader = DataLoader(Abstract(), 4)
    assert loader.stats().path == "array"
    assert_same(epoch(loader), epoch(TorchLoader(Abstract(), 4)))


def test_calls_are_as_many_as_torchs_or_fewer() -> None:
    class Watched(Abstract):
        pass

    calls: list[int] = []
    data = Watched()
    loader = DataLoader(data, 1)
    assert loader.stats().path == "array"
    code = Abstract.__getitem__

    def watched(self: Any, i: int) -> Any:
        calls.append(i)
        return code(self, i)

    iterator = iter(loader)
    Watched.__getitem__ = watched  # type: ignore[method-assign]
    assert len([*iterator]) == N
    assert calls == list(range(N))  # the class has changed before the first batch


def test_a_debugger_is_not_led_into_the_function() -> None:
    import sys

    seen = []
    loader = DataLoader(Abstract(), 4)
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: seen.append(frame.f_code))
    try:
        path = loader.stats().path
    finally:
        sys.settrace(before)
    assert path == "sync"
    assert Abstract.__getitem__.__code__ not in seen


def test_a_refusal_is_asked_for_twice() -> None:
    closed_world._refused.clear()
    loader = DataLoader(CallsAttribute(), 4)
    for _ in range(3):
        assert "transform" in loader.stats().why
    reasons = closed_world._refused[CallsAttribute.__getitem__.__code__, False]
    assert len(reasons) == 2
