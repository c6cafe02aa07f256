"""Datasets of torchvision with a target_transform, and loaders with a worker_init_fn: the program's
functions are called as often, and in the same places of all random streams, as by torch alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compare import raised
from torch.utils.data import DataLoader, Subset
from vision_cases import KINDS, assert_same, assert_same_bits, cifar, dataset_of, play, v2

import fastloop
from fastloop._core import ImageDraws
from fastloop.adapters import torchvision_chain
from fastloop.compat import verification

pytestmark = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
if v2 is not None:
    from PIL import Image
    from torchvision import datasets
    from torchvision import transforms as v1

NUMBERS = pytest.mark.parametrize("workers", [0, 2])
COARSE = {label: label // 3 for label in range(10)}
LEFT = {0: "sync", 2: "process"}  # the path, by the number of workers


@pytest.fixture(autouse=True)
def verifications() -> Iterator[None]:
    verification.verification_of.cache_clear()
    yield
    verification.verification_of.cache_clear()


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


class Counted:
    """A target_transform that draws from every generator, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, label: Any) -> Any:
        self.count += 1
        drawn = int(torch.randint(0, 100, ())) + random.randrange(100) + np.random.randint(100)
        return label + drawn + 1000 * self.count


def seeding(label: int) -> float:
    torch.manual_seed(label)
    return random.random()


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "the recipe of PyTorch's tutorial": lambda: v1.Lambda(
        lambda y: torch.zeros(10, dtype=torch.float).scatter_(0, torch.tensor(y), value=1)
    ),
    "one_hot": lambda: lambda y: F.one_hot(torch.tensor(y), num_classes=10).float(),
    "a row": lambda: row_of,
    "torch's function": lambda: torch.tensor,
    "a builtin": lambda: float,
    "a bool": lambda: lambda y: y > 4,
    "a number of NumPy": lambda: lambda y: np.float32(y) / 3,
    "a row of NumPy": lambda: lambda y: np.eye(10)[y],
    "a dict": lambda: COARSE.__getitem__,
    "a pair": lambda: lambda y: (y, {"coarse": y // 3}),
    "mixed types": lambda: lambda y: y if y > 4 else y / 2,
    "random numbers of torch": lambda: lambda y: torch.tensor(y).float().normal_(),
    "random numbers of all": Counted,
    "a seed": lambda: seeding,
    "a Compose": lambda: v1.Compose([v1.Lambda(float), Counted()]),
}


@NUMBERS
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_labels(workers: int, make: Callable[[], Any]) -> None:
    options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    found, path = [], stats_of(labelled(make()), **options)
    for make_loader in (DataLoader, fastloop.DataLoader):
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        loader = make_loader(labelled(then := make()), **options)
        batches = [list(loader), next(iter(loader)), *loader]
        states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        found.append((batches, getattr(then, "count", 0), *states))
    assert verification.same_bits(found[1], found[0])
    assert (path.path, path.why) == (LEFT[workers], "samples of CIFAR10 by fastloop")


@NUMBERS
def test_a_text_is_a_text(workers: int) -> None:
    dataset, found = labelled(str), []
    for make in (DataLoader, fastloop.DataLoader):
        torch.manual_seed(3)
        found.append(list(make(dataset, 7, num_workers=workers)))
    assert verification.same_bits(found[1], found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_each_class(kind: str) -> None:
    """The function gets an int, which it may tell from other numbers."""
    dataset = labelled(lambda y: str(y).count("0") + len(str(y)), kind)
    assert stats_of(dataset).path == LEFT[0]
    assert_same(dataset, {"batch_size": 9, "shuffle": True})


@pytest.mark.parametrize("targets", [np.arange(40, dtype=np.int16), [True, 2] * 20])
def test_labels_that_are_no_ints(targets: Any) -> None:
    dataset = labelled(lambda y: len(type(y).__name__))
    dataset.targets = targets
    assert_same(dataset, {"batch_size": 7})


@NUMBERS
def test_parts_persistent_workers_and_the_check(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A comparison does not call the function."""
    monkeypatch.setenv("FASTLOOP_CHECK", "1")
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "shuffle": True}
    options |= {"persistent_workers": True} if workers else {}
    found = []
    for make_loader in (DataLoader, fastloop.DataLoader):
        outer = Subset(Subset(labelled(Counted()), range(20)), [5, 3, -2, 7, 7, 0, 11])
        random.seed(1)
        np.random.seed(2)
        found.append(list(play(make_loader, outer, options, [None, 1, None])))
    assert_same_bits(found[1], found[0])


@NUMBERS
def test_nothing_is_called_before_the_first_batch_is_wanted(workers: int) -> None:
    dataset = labelled(counted := Counted())
    loader = fastloop.DataLoader(dataset, 8, num_workers=workers)
    stats_of(dataset, num_workers=workers)
    loader.stats()
    iter(loader)
    assert counted.count == 0


class _FailsAtThird:
    def __init__(self, error: type[Exception]) -> None:
        self.count, self.error = 0, error

    def __call__(self, label: int) -> float:
        self.count += 1
        torch.rand(1)
        if self.count == 3:
            raise self.error("the third")
        return label / 2


@pytest.mark.parametrize("error", [KeyError, RuntimeError, StopIteration, IndexError])
def test_an_error_of_the_function_comes_out_as_with_torch(error: type[Exception]) -> None:
    """The loader goes on with the next batch, and the generator stands where torch leaves it."""

    def run(make_loader: Any) -> Any:
        torch.manual_seed(3)
        batches, found = iter(make_loader(labelled(_FailsAtThird(error)), 7, shuffle=True)), []
        for _ in range(8):
            try:
                found.append(next(batches))
            except Exception as raised:
                found.append((type(raised).__name__, str(raised)))
            found.append(torch.get_rng_state())
        return found

    assert verification.same_bits(run(fastloop.DataLoader), run(DataLoader))


@pytest.mark.parametrize("results", ["shapes", "kinds"])
def test_results_that_torch_does_not_collate(results: str) -> None:
    functions = {"shapes": lambda y: torch.zeros(y), "kinds": lambda y: object()}
    found = []
    for make_loader in (DataLoader, fastloop.DataLoader):
        torch.manual_seed(3)
        with pytest.raises((RuntimeError, TypeError)) as error:
            next(iter(make_loader(labelled(functions[results]), 7)))
        found.append((str(error.value).partition(" at 0x")[0], torch.get_rng_state()))
    assert verification.same_bits(found[1], found[0])


def test_an_index_that_is_not_there() -> None:
    found: list[Any] = []
    for make_loader in (DataLoader, fastloop.DataLoader):
        counted = Counted()
        loader = make_loader(labelled(counted), 4, sampler=[1, 2, 40, 3, 4])
        torch.manual_seed(3)
        with pytest.raises(IndexError) as error:
            next(iter(loader))
        found.append((str(error.value), counted.count, torch.get_rng_state()))
    assert verification.same_bits(found[1], found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_c_makes_all_images(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision makes the first three, too. The function is called once for each sample."""
    dataset = labelled(counted := Counted(), kind)
    made, compared, compare = [], [], verification.Verification.compare

    def note(self: Any, original: Any, native: Any) -> Any:
        compared.append(self)
        return compare(self, original, native)

    class Draws:
        def __init__(self, *args: Any) -> None:
            self.draws = ImageDraws(*args)

        def apply(self, *args: Any) -> None:
            self.draws.apply(*args)
            made.append(args)

    monkeypatch.setattr(verification.Verification, "compare", note)
    monkeypatch.setattr(torchvision_chain, "ImageDraws", Draws)
    list(fastloop.DataLoader(dataset, 7, sampler=list(range(40))))
    assert (counted.count, len(made), len(compared)) == (40, 40, 3)
    assert not any(each.falls_back for each in compared)


@NUMBERS
def test_the_function_gets_the_very_object_of_a_list(workers: int) -> None:
    labels = [1000 + number for number in range(40)]
    dataset = labelled(lambda y: any(y is label for label in labels))
    dataset.targets = labels
    loader = fastloop.DataLoader(dataset, 7, num_workers=workers)
    assert all(batch[1].all() for batch in loader)


@pytest.mark.parametrize("kind", ["CIFAR10", "MNIST", "folder"])
def test_a_getitems_that_the_dataset_was_given_is_called(kind: str, tmp_path: Path) -> None:
    dataset = images(tmp_path) if kind == "folder" else labelled(int, kind)
    assert stats_of(dataset).why.endswith("by fastloop")
    dataset.__getitems__ = lambda rows: [(torch.zeros(1), row) for row in rows]
    assert_same(dataset, {"batch_size": 5, "shuffle": True})
    assert not stats_of(dataset).why.endswith("by fastloop")


class _ChangesTheDataset:
    """A target_transform that changes other attributes for the samples behind it."""

    def __init__(self, change: str) -> None:
        self.change, self.count, self.dataset = change, 0, None

    def __call__(self, label: int) -> int:
        self.count += 1
        if self.count == 10:
            dataset: Any = self.dataset
            changes: dict[str, Callable[[], Any]] = {
                "transform": lambda: setattr(dataset, "transform", v1.ToTensor()),
                "data": lambda: setattr(dataset, "data", 255 - dataset.data),
                "a list": lambda: setattr(dataset, "targets", [8] * 40),
                "an array": lambda: setattr(dataset, "targets", np.arange(40, dtype=np.int16)),
                "fewer": lambda: setattr(dataset, "data", dataset.data[:12]),
            }
            changes[self.change]()
        return len(type(label).__name__) + int(label)


@pytest.mark.parametrize("change", ["transform", "data", "a list", "an array", "fewer"])
def test_a_function_that_changes_the_dataset(change: str) -> None:
    def run(make_loader: Any) -> Any:
        dataset = labelled(function := _ChangesTheDataset(change))
        function.dataset = dataset
        torch.manual_seed(3)
        batches, found = iter(make_loader(dataset, 7)), []
        for _ in range(7):
            try:
                found.append(next(batches))
            except Exception as error:
                found.append((type(error).__name__, str(error)))
            found.append((torch.get_rng_state(), function.count))
        return found

    assert verification.same_bits(run(fastloop.DataLoader), run(DataLoader))


@NUMBERS
def test_torchs_loader_behind_patch(workers: int) -> None:
    def run() -> Any:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        batch_sampler = [[3, 1, 1], [39, -2], [5]]
        dataset = labelled(counted := Counted())
        loader = DataLoader(dataset, batch_sampler=batch_sampler, num_workers=workers)
        batches = [*loader, *loader]
        states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        return batches, counted.count, *states

    torchs = run()
    fastloop.patch()
    try:
        ours = run()
    finally:
        fastloop.unpatch()
    assert verification.same_bits(ours, torchs)


def test_a_resumed_epoch_calls_the_function_for_its_own_samples_alone() -> None:
    options = {"batch_size": 7, "shuffle": True}
    torch.manual_seed(3)
    loader = fastloop.DataLoader(labelled(lambda y: y * 2), **options)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    rest = list(batches)
    other = fastloop.DataLoader(labelled(counted := Doubled()), **options)
    torch.manual_seed(3)
    other.load_state_dict(state)
    found = list(other)
    assert counted.count == 26
    assert [batch[1].tolist() for batch in found] == [batch[1].tolist() for batch in rest]


class Doubled:
    """A target_transform that counts."""

    count = 0

    def __call__(self, label: int) -> int:
        self.count += 1
        return label * 2


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


class _AtEachCall:
    """A target_transform that changes the dataset for the samples behind it."""

    dataset: Any = None

    def __call__(self, label: int) -> int:
        self.dataset.target_transform = lambda y: y + 100
        return label


def test_a_function_that_puts_another_in_its_place() -> None:
    def run(make_loader: Any) -> list[torch.Tensor]:
        dataset = labelled(first := _AtEachCall())
        first.dataset = dataset
        return list(play(make_loader, dataset, {"batch_size": 7}, [None]))

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


def images(root: Path) -> Any:
    for number in range(12):
        path = root / str(number % 2) / f"{number}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 25 + number, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    crop = v1.RandomCrop(20, padding=4)
    return datasets.ImageFolder(str(root), v1.Compose([crop, v1.ToTensor()]))


@NUMBERS
@pytest.mark.parametrize("every", ["0", "2"])
def test_a_target_transform_of_an_image_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, every: str
) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", every)
    dataset, found = images(tmp_path), []
    for make in (DataLoader, fastloop.DataLoader):
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        dataset.target_transform = counted = Counted()
        loader = make(dataset, batch_size=5, shuffle=True, num_workers=workers)
        batches = [*loader, *loader]
        states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        found.append((batches, counted.count, *states))
    assert verification.same_bits(found[1], found[0])
    assert stats_of(dataset).why == "samples of ImageFolder by fastloop"


# ---- worker_init_fn


def seed_worker(worker: int) -> None:
    """As PyTorch's page about reproducibility has it."""
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


@pytest.mark.parametrize("init", [seed_worker, lambda worker: torch.manual_seed(worker)])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_init_fn_runs_in_the_workers(init: Any, persistent: bool) -> None:
    dataset = labelled(Counted())
    options = {"batch_size": 7, "shuffle": True, "num_workers": 2, "worker_init_fn": init}
    options["persistent_workers"] = persistent
    assert stats_of(dataset, **options).why == "samples of CIFAR10 by fastloop"
    without = stats_of(dataset_of("CIFAR10", cifar(v1)), **options)
    assert (without.path, "worker_init_fn" in without.why) == ("process", True)
    assert_same(dataset, options, persistent, stops=[None, 2, None])


def too_large(worker: int) -> None:
    np.random.seed(torch.initial_seed())


def without_argument() -> None:
    np.random.seed(3)


@pytest.mark.parametrize("init", [too_large, without_argument])
def test_a_worker_init_fn_that_raises(init: Any) -> None:
    """A function that only seeds may fail, too."""
    found = []
    for make in (DataLoader, fastloop.DataLoader):
        dataset = dataset_of("CIFAR10", cifar(v1))
        with pytest.raises((TypeError, ValueError)) as error:
            list(make(dataset, num_workers=1, worker_init_fn=init))
        found.append(raised(error.value))
    assert found[0] == found[1]
