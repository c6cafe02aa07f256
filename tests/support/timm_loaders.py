"""Runs a loader of timm without fastloop and behind patch(), and compares the batches."""

import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import encode, nothing_compared, picture

pytest.importorskip("timm.data")

from timm.data import create_dataset, create_loader
from torch.utils.data import Subset

import fastloop
from fastloop.adapters.timm_draws import get_states
from fastloop.compat import verification
from fastloop.data.image_folder import decode

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261130"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "40"))
NUMBERS = pytest.mark.parametrize("workers", [0, 2])
RECIPE: dict[str, Any] = {
    "auto_augment": "rand-m7-mstd0.5-inc1",
    "interpolation": "random",
    "re_prob": 0.25,
    "re_mode": "pixel",
}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test knows what earlier tests have compared, and small files are decoded in parts."""
    monkeypatch.setattr(decode, "LEAST_PIXELS", 1)
    yield from nothing_compared()


@pytest.fixture(name="root", scope="module")
def make_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(36):
        image = picture(40 + number, 90 - 2 * number)
        kind, end = ("PNG", "png") if number % 9 == 8 else ("JPEG", "jpg")
        image = image.convert("L") if number % 11 == 5 else image
        named = {"progressive": True} if number % 9 == 4 else {}
        path = root / f"class {number % 3}" / f"{number:02}.{end}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(image, kind, **named))
    return root


def play(
    root: Path, workers: int = 0, is_subset: bool = False, change: Any = None, **named: Any
) -> list[Any]:
    """Return two epochs of a loader's batches, and the states of all generators."""
    dataset: Any = create_dataset("", root=str(root))
    options: dict[str, Any] = {"batch_size": 8, "is_training": True, "persistent_workers": False}
    options |= {"input_size": (3, 32, 32), "device": torch.device("cpu"), **named}
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    loader = create_loader(dataset, num_workers=workers, **options)
    if is_subset:  # keeps the transform of the dataset inside
        inner = loader.loader
        loader.loader = torch.utils.data.DataLoader(
            Subset(dataset, range(3, 30)), 8, num_workers=workers, collate_fn=inner.collate_fn
        )
    if change is not None:
        change(loader)
    found: list[Any] = []
    try:
        for _ in range(2):
            found += [[type(part), part.stride(), part] for b in loader for part in b]
    except Exception as error:
        found.append((type(error), str(error).splitlines()[0]))
    return [found, get_states(), torch.get_rng_state()]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours[0]) == len(theirs[0]) and verification.same_bits(ours[0], theirs[0])
    assert ours[1] == theirs[1] and torch.equal(ours[2], theirs[2])


def count_served() -> int:
    served = fastloop.patch_status().seams["dataloader"].served
    return sum(epochs for how, (_, epochs) in served.items() if "samples by fastloop" in how)


def compare(root: Path, is_served: bool = True, **named: Any) -> list[Any]:
    """Compare what timm and fastloop make. Return it."""
    theirs = play(root, **named)
    assert theirs[0]
    fastloop.patch(verbose=False)
    with warnings.catch_warnings(record=True) as seen:  # in a sample they would be errors of files
        warnings.simplefilter("always")
        assert_same(play(root, **named), theirs)
    assert not [each for each in seen if "fastloop" in str(each.message)]
    assert (count_served() > 0) == is_served, fastloop.patch_status()
    fastloop.unpatch()
    return theirs


def damage(root: Path, tmp_path: Path) -> None:
    """Copy the files of a folder to `tmp_path`, and damage three of seven."""
    for number, path in enumerate(sorted(root.glob("*/*"))):
        data = path.read_bytes()
        data = data[: len(data) // 2] if number % 7 == 3 else data
        data = b"no image" if number % 7 == 5 else data
        if number % 7 == 6:  # a wrong code of Huffman's
            data = data[:-30] + b"\x12\x13" * 10 + data[-10:]
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(data)


def stack_with_strides(batch: Any) -> Any:
    strides = [image.stride() for image, _ in batch]
    images, labels = zip(*batch, strict=True)
    return torch.stack(images), torch.tensor([*labels, *sum(strides, ())])
