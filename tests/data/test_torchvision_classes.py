"""What a program may assign between two batches: the class of a transform or a dataset, and
functions of Pillow's that read files. The next batch is torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from image_folders import nothing_compared, write_folder
from torch.utils.data import DataLoader, Subset
from vision_cases import cifar, dataset_of, play, v2

import fastloop
from fastloop._core import Snapshot
from fastloop.compat.verification import same_bits

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image, ImageFile
from torchvision import datasets
from torchvision import transforms as v1


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    yield from nothing_compared()


class Turned(v1.RandomHorizontalFlip):  # type: ignore[misc]
    def forward(self, image: Any) -> Any:
        return v1.functional.vflip(super().forward(image))


class Dark(v1.Compose):  # type: ignore[misc]
    def __call__(self, image: Any) -> Any:
        return super().__call__(image) / 2


def shifted(cls: Any) -> Any:
    def get_next(self: Any, row: int) -> Any:
        return cls.__getitem__(self, (row + 1) % len(self))

    return type("Shifted", (cls,), {"__getitem__": get_next, "__getitems__": None})


def labelled(root: Path) -> Any:
    dataset = dataset_of("CIFAR10", cifar(v1))
    dataset.target_transform = lambda label: label + 100
    return dataset


def call(transform: Any, image: Any) -> Any:
    return transform(image)


def make_folder(root: Path) -> Any:
    return datasets.ImageFolder(str(root), cifar(v1))


def stack(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]), torch.tensor([n for _, n in samples])


MAKE: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "arrays": (lambda root: dataset_of("CIFAR10", cifar(v1)), None),
    "labels": (labelled, None),
    "a folder": (make_folder, None),
    "a folder and a collate": (make_folder, stack),
    "a call": (lambda root: datasets.ImageFolder(str(root), partial(call, cifar(v1))), None),
    "arrays and a collate": (lambda root: dataset_of("CIFAR10", cifar(v1)), stack),
}


def change_op(dataset: Any) -> None:
    dataset.transform.transforms[1].__class__ = Turned


def change_compose(dataset: Any) -> None:
    dataset.transform.__class__ = Dark


def change_attributes(dataset: Any) -> None:
    op = dataset.transform.transforms[1]
    op.__dict__ = {**vars(op), "p": 1.0}


def change_dataset(dataset: Any) -> None:
    dataset.__class__ = shifted(type(dataset))


def change_fetch(dataset: Any) -> None:
    dataset.__getitems__ = lambda rows: [dataset[27 - row] for row in rows]


def change_indices(subset: Any) -> None:
    subset.indices = range(27, -1, -1)


CHANGES = change_op, change_compose, change_attributes, change_dataset, change_fetch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), 28, 40, 44)


def batches(cls: Any, dataset: Any, change: Callable[[], None], collate: Any) -> list[Any]:
    def between(number: int) -> None:
        if number == 1:
            change()

    options = {"batch_size": 7, "collate_fn": collate}
    return list(play(cls, dataset, options, [None], between=between))


@pytest.mark.parametrize("kind", [kind for kind in MAKE if kind != "a call"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_object_gets_another_class(root: Path, kind: str, change: Callable[[Any], None]) -> None:
    make, collate = MAKE[kind]
    found = []
    for cls in (DataLoader, fastloop.DataLoader):
        dataset = make(root)
        found.append(batches(cls, dataset, lambda to=dataset: change(to), collate))
    assert same_bits(found[1], found[0])


def drawing(function: Any) -> Any:
    def draw(*args: Any, **named: Any) -> Any:
        torch.rand(1)
        return function(*args, **named)

    return draw


@pytest.mark.parametrize("kind", ["a folder", "a folder and a collate", "a call"])
@pytest.mark.parametrize(("owner", "name"), [(Image, "open"), (ImageFile.ImageFile, "load")])
def test_pillow_gets_a_function_that_draws(
    root: Path, kind: str, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, collate = MAKE[kind]
    found = []
    for cls in (DataLoader, fastloop.DataLoader):
        with monkeypatch.context() as patch:
            change = partial(patch.setattr, owner, name, drawing(vars(owner)[name]))
            found.append([batches(cls, make(root), change, collate), torch.get_rng_state()])
    assert same_bits(found[1], found[0])


def change_subset_of(subset: Any) -> None:
    subset.dataset = Subset(subset.dataset, range(27, -1, -1))


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("change", [change_dataset, change_subset_of, change_fetch, change_indices])
def test_a_subset_becomes_another(root: Path, kind: str, change: Callable[[Any], None]) -> None:
    make, collate = MAKE[kind]
    found = []
    for cls in (DataLoader, fastloop.DataLoader):
        subset = Subset(make(root), range(28))
        found.append(batches(cls, subset, lambda to=subset: change(to), collate))
    assert same_bits(found[1], found[0])


@pytest.mark.parametrize("change", [change_op, change_compose, change_attributes])
def test_a_transform_of_single_images(change: Callable[[Any], None]) -> None:
    def run() -> list[Any]:
        dataset, found = dataset_of("CIFAR10", cifar(v1)), list[Any]()
        torch.manual_seed(3)
        for row in range(20):
            if row == 10:
                change(dataset)
            found.append(dataset[row])
        return found

    expected = run()
    fastloop.patch("transforms", verbose=False)
    assert same_bits(run(), expected)


def test_a_snapshot_notes_classes_and_dicts_and_keeps_no_object_alive() -> None:
    op = v1.RandomHorizontalFlip()
    noted = Snapshot([op])
    op.__class__ = Turned
    assert not noted.is_same()
    op.__class__ = v1.RandomHorizontalFlip
    assert noted.is_same()
    op.__dict__ = dict(vars(op))
    assert not noted.is_same()
    noted = Snapshot([op])
    del op
    assert not noted.is_same()


def test_a_snapshot_notes_no_class() -> None:
    with pytest.raises(TypeError, match="classes"):
        Snapshot([int])
