"""Behind patch(), timm's transforms for evaluation give timm's bits: in create_loader(), in an
ImageFolder, and for single images."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from image_folders import picture

pytest.importorskip("timm.data")

from timm.data import create_dataset, create_loader, create_transform, transforms
from timm_loaders import (
    NUMBERS,
    RUNS,
    SEED,
    compare,
    count_served,
    damage,
    make_root,
    nothing_is_known,
    stack_with_strides,
)
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomHorizontalFlip

import fastloop
from fastloop.compat import verification

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
FIXTURES = make_root, nothing_is_known  # pytest finds what is imported


def random_evaluation(any_of: random.Random) -> dict[str, Any]:
    side = any_of.choice([16, 24, 33])
    mode = any_of.choice(["center", "squash"])
    return {
        "is_training": (is_training := any_of.choice([False, False, True])),
        "no_aug": is_training,
        "input_size": (3, side, 20 if mode == "squash" and any_of.random() < 0.5 else side),
        "crop_mode": mode,
        "crop_pct": any_of.choice([None, 1.0, 0.5, 0.95]),
        "interpolation": any_of.choice(["bilinear", "bicubic"]),
        "use_prefetcher": any_of.choice([True, False]),
        "mean": any_of.choice([(0.485, 0.456, 0.406), (0.5, 0.5, 0.5)]),
        "workers": any_of.choice([0, 0, 0, 2]),
    }


@pytest.mark.parametrize("number", range(RUNS))
def test_random_evaluations(root: Path, number: int) -> None:
    compare(root, **random_evaluation(random.Random(SEED + number)))


@NUMBERS
@pytest.mark.parametrize("has_prefetcher", [False, True])
def test_evaluation_of_damaged_files(
    root: Path, tmp_path: Path, workers: int, has_prefetcher: bool
) -> None:
    damage(root, tmp_path)
    compare(tmp_path, workers=workers, is_training=False, use_prefetcher=has_prefetcher)


@pytest.mark.parametrize("has_prefetcher", [False, True])
def test_evaluation_for_the_programs_collate(root: Path, has_prefetcher: bool) -> None:
    named = {"is_training": False, "use_prefetcher": has_prefetcher}
    compare(root, collate_fn=stack_with_strides, **named)


def test_evaluation_with_labels_of_the_programs(root: Path) -> None:
    def change(loader: Any) -> None:
        reader = loader.dataset.reader
        reader.samples = [(path, label or None) for path, label in reader.samples]
        loader.dataset.target_transform = lambda label: label + random.randrange(5)

    compare(root, change=change, is_training=False)


class Negated(transforms.MaybeToTensor):  # type: ignore[misc]
    def __call__(self, image: Any) -> Any:
        return 1 - super().__call__(image)


CHANGES: dict[str, Any] = {
    "a mean": lambda ops: ops[-1].mean.numpy().fill(0.25),
    "a std": lambda ops: ops[-1].std.mul_(2),
    "a gradient": lambda ops: ops[-1].std.requires_grad_(),
    "another mean": lambda ops: setattr(ops[-1], "mean", torch.zeros(3)),
    "another conversion": lambda ops: ops.__setitem__(2, Negated()),
    "a size": lambda ops: setattr(ops[1], "size", (20, 24)),
    "no normalization": lambda ops: ops.pop(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_evaluation_that_changes_between_batches(root: Path, name: str) -> None:
    def play_changes() -> list[Any]:
        dataset, made = create_dataset("", root=str(root)), list[Any]()
        how = {"use_prefetcher": False, "num_workers": 0, "device": torch.device("cpu")}
        for number, batch in enumerate(create_loader(dataset, (3, 24, 24), 6, **how)):
            made += [*batch, batch[0].requires_grad]
            if number == 2:
                CHANGES[name](dataset.transform.transforms)
        return made

    theirs = play_changes()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_changes(), theirs)
    assert count_served() > 0


def test_a_conversion_that_is_replaced_between_batches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play_replaced() -> list[Any]:
        dataset, made = create_dataset("", root=str(root)), list[Any]()
        loader = create_loader(dataset, (3, 24, 24), 6, num_workers=0, use_prefetcher=False)
        before = transforms.MaybeToTensor.__call__
        with monkeypatch.context() as patched:
            for number, batch in enumerate(loader):
                made += batch
                if number == 2:
                    negated = lambda *given: 1 - before(*given)  # noqa: E731
                    patched.setattr(transforms.MaybeToTensor, "__call__", negated)
        return made

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_replaced(), theirs)
    assert count_served() > 0


def test_statistics_that_need_a_gradient_are_left(root: Path) -> None:
    def change(loader: Any) -> None:
        loader.dataset.transform.transforms[-1].mean.requires_grad_()

    compare(root, is_served=False, change=change, is_training=False, use_prefetcher=False)


def test_evaluation_of_an_image_folder_and_of_single_images(root: Path) -> None:
    def play_folder() -> list[Any]:
        transform = create_transform(24)
        folder = ImageFolder(str(root), transform)
        images = [picture(number, 40, 50 + number) for number in range(9)]
        return [*torch.utils.data.DataLoader(folder, 8), *map(transform, images)]

    theirs = play_folder()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_folder(), theirs)
    assert count_served() > 0
    assert fastloop.patch_status().seams["transforms"].native >= 9
    assert not fastloop.patch_status().seams["transforms"].fallbacks


def flip_tensors(loader: Any) -> None:
    loader.dataset.transform.transforms.append(RandomHorizontalFlip())


def test_other_evaluation_is_left(root: Path) -> None:
    compare(root, is_served=False, is_training=False, crop_mode="border")
    compare(root, is_served=False, is_training=False, change=flip_tensors)
