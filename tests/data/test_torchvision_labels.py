"""Datasets of torchvision with a target_transform, and loaders with a worker_init_fn: batches and
the states of all generators as with torch alone, by C where the functions' code shows that they
draw and keep nothing."""

from __future__ import annotations

import functools
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset
from vision_cases import KINDS, assert_same, assert_same_bits, cifar, dataset_of, play, v2

import fastloop
from fastloop._core import read_function
from fastloop.base import originals

pytestmark = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
if v2 is not None:
    from torchvision import transforms as v1

NUMBERS = pytest.mark.parametrize("workers", [0, 2])
COARSE = {label: label // 3 for label in range(10)}
ORDER = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
SHIFT = 2
rand = 3


@pytest.fixture(autouse=True)
def trials() -> Iterator[None]:
    originals.trial_of.cache_clear()
    yield
    originals.trial_of.cache_clear()


def labelled(target_transform: Any, kind: str = "CIFAR10") -> Any:
    transform = v1.ToTensor() if "MNIST" in kind else cifar(v1)
    dataset = dataset_of(kind, transform)
    dataset.target_transform = target_transform
    return dataset


def stats_of(dataset: Any, **options: Any) -> Any:
    return fastloop.DataLoader(dataset, **options).stats()


# ---- labels


def row_of(label: int) -> torch.Tensor:
    row = torch.zeros(10)
    row[label] = 1
    return row


def closed_over(held: Any) -> Callable[[int], Any]:
    return lambda label: held[label]


def with_modules() -> Callable[[int], Any]:
    import torch as held

    return lambda label: held.zeros(10).scatter_(0, held.tensor(label), 1)


def counted(label: int, names: Any = ("a", "b")) -> float:
    return sum(float(each) for each in range(label)) / len(names)


SERVED: dict[str, Callable[[], Any]] = {
    "the recipe of PyTorch's tutorial": lambda: v1.Lambda(
        lambda y: torch.zeros(10, dtype=torch.float).scatter_(0, torch.tensor(y), value=1)
    ),
    "one_hot": lambda: lambda y: F.one_hot(torch.tensor(y), num_classes=10).float(),
    "one_hot of nn": lambda: lambda y: nn.functional.one_hot(torch.tensor(y), 10),
    "a row": lambda: row_of,
    "a view": lambda: lambda y: torch.eye(10)[y],
    "torch's function": lambda: torch.tensor,
    "a builtin": lambda: float,
    "a number": lambda: lambda y: y + SHIFT,
    "a bool": lambda: lambda y: y > 4,
    "a float": lambda: counted,
    "a number of NumPy": lambda: lambda y: np.float32(y) / 3,
    "a row of NumPy": lambda: lambda y: np.eye(10)[y],
    "a dict": lambda: lambda y: COARSE[y],
    "a dict by default": lambda: lambda y, m=COARSE: m.get(y, -1),
    "a list": lambda: closed_over(ORDER),
    "a module": with_modules,
}


@NUMBERS
@pytest.mark.parametrize("make", SERVED.values(), ids=SERVED)
def test_functions_of_labels(workers: int, make: Callable[[], Any]) -> None:
    dataset = labelled(make())
    options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    assert stats_of(dataset, **options).path == "array"
    assert_same(dataset, options, workers == 0, stops=[None, 2, None])


@pytest.mark.parametrize("kind", KINDS)
def test_each_class(kind: str) -> None:
    """The function gets an int, which it may tell from other numbers."""
    dataset = labelled(lambda y: str(y).count("0") + len(str(y)), kind)
    assert stats_of(dataset).path == "array"
    assert_same(dataset, {"batch_size": 9, "shuffle": True})


@NUMBERS
def test_parts_persistent_workers_and_the_check(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", "1")
    part = Subset(labelled(row_of), [5, 3, -2, 7, 7, 0, 11])
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "shuffle": True}
    options |= {"persistent_workers": True} if workers else {}
    assert stats_of(part, **options).path == "array"
    assert_same(part, options, stops=[None, 1, None])


class _Own:
    def __call__(self, label: int) -> int:
        return label


class _OwnLambda(v1.Lambda if v2 is not None else object):  # type: ignore[misc]
    pass


def kept(label: int, seen: list[int] = []) -> int:  # noqa: B006
    seen.append(label)
    return len(seen)


def kept_in_place(label: int, seen: list[int] = []) -> int:  # noqa: B006
    seen += [label]
    return len(seen)


def kept_by_key(label: int, seen: dict[int, int] = {}) -> int:  # noqa: B006
    seen[label] = len(seen)
    return 1


def kept_by_closure() -> Callable[[int], int]:
    count = 0

    def function(label: int) -> int:
        nonlocal count
        count += 1
        return count

    return function


LAST = 0


def kept_globally(label: int) -> int:
    global LAST
    LAST = label
    return label


def drawing() -> Callable[[int], Any]:
    def function(label: int) -> Any:
        return sum([random.random() for _ in range(2)]) * label

    return function


def imported(label: int) -> float:
    import random as drawn

    return drawn.random()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "random numbers": (lambda: lambda y: random.random(), "it uses random"),
    "random numbers of torch": (lambda: lambda y: torch.tensor(y).float().normal_(), "normal_"),
    "random numbers inside": (drawing, "random"),
    "an import": (lambda: imported, "random"),
    "a name that is a value, too": (lambda: lambda y: torch.rand(1) * rand, "rand"),
    "a file": (lambda: lambda y: np.zeros(3).tofile("x"), "tofile"),
    "memory as it was": (lambda: lambda y: torch.empty(3), "empty"),
    "another function": (lambda: lambda y: row_of(y), "row_of"),
    "a builtin": (lambda: lambda y: id(y), "id"),
    "a tensor": (lambda: closed_over(torch.arange(10)), "not plain"),
    "a list of it": (lambda: lambda y, held=[int]: y, "not plain"),
    "a list that grows": (lambda: kept, "append"),
    "a list that grows in place": (lambda: kept_in_place, "changes a value"),
    "a dict that grows": (lambda: kept_by_key, "changes a value"),
    "a count": (kept_by_closure, "changes a value"),
    "a global": (lambda: kept_globally, "changes a value"),
    "an object": (_Own, "not a plain function"),
    "a method": (lambda: _Own().__call__, "not a plain function"),
    "a subclass": (lambda: _OwnLambda(row_of), "not a plain function"),
    "a partial": (lambda: functools.partial(row_of), "not a plain function"),
    "mixed types": (lambda: lambda y: y if y > 4 else y / 2, "not all of one type"),
    "shapes that differ": (lambda: lambda y: torch.zeros(y), "RuntimeError"),
    "texts": (lambda: lambda y: str(y), "not all of one type"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_functions_that_are_left(case: tuple[Callable[[], Any], str]) -> None:
    make, why = case
    found = stats_of(labelled(make()))
    assert found.path == "sync"
    assert "target_transform of the CIFAR10" in found.why
    assert why in found.why


def test_an_error_is_torchvisions() -> None:
    dataset = labelled({0: 1}.__getitem__)
    assert stats_of(dataset).path == "sync"
    dataset = labelled(lambda y: {0: 1}[y])
    assert "KeyError" in stats_of(dataset).why
    with pytest.raises(KeyError):
        list(fastloop.DataLoader(dataset))


def test_labels_that_are_no_ints_are_left() -> None:
    dataset = labelled(lambda y: y + 1)
    dataset.targets = np.array(dataset.targets, dtype=np.int16)
    assert "not a list of ints" in stats_of(dataset).why
    assert_same(dataset, {"batch_size": 7})


def test_a_function_of_torch_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = labelled(row_of)
    assert stats_of(dataset).path == "array"
    monkeypatch.setattr(torch, "zeros", functools.wraps(torch.zeros)(lambda n: torch.ones(n)))
    assert "was replaced: zeros" in stats_of(dataset).why
    assert_same(dataset, {"batch_size": 7})


# ---- what changes between batches and epochs


def changing(change: str) -> tuple[Any, Callable[[], None]]:
    """Return a function of labels, and one that makes it another."""
    held = {label: label for label in range(10)}
    scope: dict[str, Any] = {"held": held, "torch": torch, "random": random}
    function = eval("lambda y, m=None: (m or held)[y]", scope)
    function.__defaults__ = (held if change == "default" else None,)

    def to_equal_values() -> None:  # equal numbers of another type
        held.update({label: float(label) for label in range(10)})

    def to_other_keys() -> None:  # the same values, under other keys
        values = list(held.values())
        held.clear()
        held.update(zip(range(9, -1, -1), values, strict=True))

    changes: dict[str, Callable[[], Any]] = {
        "default": lambda: held.update({3: 77}),
        "global": lambda: scope.update(held=list(range(10, 20))),
        "values": to_equal_values,
        "keys": to_other_keys,
        "defaults": lambda: setattr(function, "__defaults__", (dict.fromkeys(range(10), 5),)),
        "code": lambda: setattr(function, "__code__", (lambda y, m=None: y * 3).__code__),
        "drawing": lambda: setattr(
            function, "__code__", eval("lambda y, m=None: torch.rand(1)", scope).__code__
        ),
    }
    return function, changes[change]


CHANGES = "default", "global", "values", "keys", "defaults", "code", "drawing"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["batch 1", "epoch", "with workers"])
def test_changes_are_seen(change: str, place: str) -> None:
    def run(make_loader: Any) -> list[torch.Tensor]:
        function, change_it = changing(change)
        workers, at = (2, 6) if place == "with workers" else (0, {"batch 1": 1, "epoch": 5}[place])
        turns = []

        def between(number: int) -> None:
            turns.append(number)
            if len(turns) == at:
                change_it()

        dataset = labelled(function)
        options = {"batch_size": 7, "num_workers": workers}
        return list(play(make_loader, dataset, options, [None, None], between=between))

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


def test_a_lambda_that_gets_another_function() -> None:
    def run(make_loader: Any) -> list[torch.Tensor]:
        held = v1.Lambda(lambda y: y)

        def between(number: int) -> None:
            held.lambd = lambda y: y + 100

        options = {"batch_size": 7}
        return list(play(make_loader, labelled(held), options, [None], between=between))

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


# ---- worker_init_fn


def seed_worker(worker: int) -> None:
    """As PyTorch's page about reproducibility has it."""
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def seed_with(worker: int, seed: int = 5) -> None:
    import random as pythons

    pythons.seed(seed + worker)
    np.random.seed(seed + worker)


def framework(module: str, name: str, *args: Any, **named: Any) -> Callable[[], Any]:
    def load() -> Any:
        pytest.importorskip(module.partition(".")[0])
        return functools.partial(getattr(importlib.import_module(module), name), *args, **named)

    return load


SEEDERS: dict[str, Callable[[], Any]] = {
    "PyTorch's": lambda: seed_worker,
    "nothing": lambda: lambda worker: None,
    "a partial": lambda: functools.partial(seed_with, seed=11),
}


@pytest.mark.parametrize("make", SEEDERS.values(), ids=SEEDERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_seeders(make: Callable[[], Any], persistent: bool) -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    options = {"batch_size": 7, "shuffle": True, "num_workers": 2, "worker_init_fn": make()}
    options["persistent_workers"] = persistent
    states = random.getstate(), np.random.get_state()
    assert stats_of(dataset, **options).path == "array"
    assert_same(dataset, options, persistent, stops=[None, 2, None])
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == str(states[1])


def odd_seeder(worker: int) -> None:
    random.seed(random.getrandbits(9))


def seed_inside(worker: int) -> None:
    (lambda: torch.seed())()


def seed_by_argument(worker: int, lib: Any) -> None:
    lib.seed()


def seed_by_another_name(worker: int) -> None:
    import torch as others

    others.seed()


OTHERS: dict[str, Callable[[], Any]] = {
    "another draw": lambda: odd_seeder,
    "a draw of torch": lambda: lambda worker: torch.rand(1),
    "torch's seed": lambda: lambda worker: torch.seed(),
    "a part of torch": lambda: lambda worker: torch.random.seed(),
    "a number as torch's seed": lambda: lambda worker: torch.manual_seed(worker),
    "torch's seed inside": lambda: seed_inside,
    "torch by another name": lambda: seed_by_another_name,
    "an object": _Own,
    "a partial of torch": lambda: functools.partial(seed_by_argument, lib=torch),
    "transformers": framework("transformers.trainer_utils", "seed_worker", num_workers=2, rank=1),
    "lightning": framework("lightning_fabric.utilities.seed", "pl_worker_init_function", rank=1),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_functions_for_workers_that_are_left(make: Callable[[], Any]) -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    found = stats_of(dataset, num_workers=1, worker_init_fn=make())
    assert found.path == "process"
    assert "worker_init_fn" in found.why


def test_the_state_is_all_that_a_function_depends_on() -> None:
    assert read_function(row_of, False) == read_function(row_of, False)
    assert read_function(lambda y: 1, False) != read_function(lambda y: 1.0, False)
    assert isinstance(read_function(None, False), str)


class _Unprintable:
    def __call__(self, label: int) -> int:
        return label

    def __repr__(self) -> str:
        raise ValueError("not to be called")


class _Noisy:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args) + random.random()


def import_another(label: int) -> Any:
    import functional  # type: ignore[import-not-found]

    return functional.get(label)


def test_what_stands_in_the_place_of_a_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_Unprintable" in read_function(_Unprintable(), False)
    assert read_function(import_another, False).endswith("it imports functional")
    make_tensor: Any = lambda label: torch.tensor(label)  # noqa: E731
    state = read_function(make_tensor, False)
    for noisy in (_Noisy(torch.tensor), functools.partial(torch.tensor), _Noisy.__call__):
        monkeypatch.setattr(torch, "tensor", noisy)
        assert "was replaced: tensor" in read_function(make_tensor, False)
        monkeypatch.undo()
        assert read_function(make_tensor, False) == state
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    assert type(read_function(len, False)) is tuple
