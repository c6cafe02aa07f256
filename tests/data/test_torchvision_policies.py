"""torchvision's policies of PIL images, and AugMix also of tensors: bits and random states of
torchvision alone, for single images, whole batches and folders."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vision_cases import assert_same, dataset_of, v2
from warp_cases import MODES, assert_served, chain_of, images_of, no_plan_compared, save_folder

import fastloop
from fastloop._core import policy_strengths
from fastloop.adapters import torchvision_chain, torchvision_policies
from fastloop.data.transforms import policy as own_policy
from fastloop.data.transforms.dataset_transform import make_own

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms.functional import pil_to_tensor

CHAINS = int(os.environ.get("FASTLOOP_FUZZ", "24"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
NAMES = "RandAugment", "TrivialAugmentWide", "AutoAugment"
IS_MIXED = torchvision_policies.rounds_positions()
NEEDS_MIXES = pytest.mark.skipif(not IS_MIXED, reason="on this CPU torchvision makes AugMix")


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from no_plan_compared(monkeypatch)


def random_policy(any_of: random.Random, module: Any, name: str = "") -> Any:
    how, fill = any_of.choice(MODES), any_of.choice((None, 0, 9, 255, 3.7))
    name = name or any_of.choice(NAMES)
    if name == "RandAugment":
        bins = any_of.choice((2, 10, 31))
        return module.RandAugment(any_of.randint(0, 8), any_of.randrange(bins), bins, how, fill)
    if name == "TrivialAugmentWide":
        return module.TrivialAugmentWide(any_of.choice((2, 5, 31, 100)), how, fill)
    if name == "AutoAugment":
        return module.AutoAugment(any_of.choice([*module.AutoAugmentPolicy]), how, fill)
    width, depth = any_of.choice(((3, -1), (1, 9), (2, 2), (3, 3), (6, 1)))
    alpha, how = any_of.choice((1.0, 0.3, 7.5)), any_of.choice(MODES[:2])
    fill = None if module is v1 else fill
    return module.AugMix(any_of.randint(1, 10), width, depth, alpha, True, how, fill)


def test_single_images_of_all_sizes() -> None:
    any_of = random.Random(SEED)
    for number in range(CHAINS):
        module = any_of.choice((v1, v2))
        transform = chain_of(module, random_policy(any_of, module))
        assert_served(transform, images_of(SEED + number), number, 16)


@NEEDS_MIXES
@MODULES
def test_aug_mix_of_tensors_and_of_pil_images_of_all_sizes(module: Any) -> None:
    """The contrast of v2's tensors depends on torch's vectors, so some sizes are torchvision's."""
    any_of = random.Random(SEED)
    for number in range(CHAINS // 24):
        op = random_policy(any_of, module, "AugMix")
        op.all_ops = module is v1
        images = images_of(SEED + number)
        assert_served(chain_of(module, op), images, number, 16)
        tensors = [pil_to_tensor(image).contiguous() for image in images]
        chain = module.Compose([op, module.ConvertImageDtype(torch.float32)])
        assert_served(chain, tensors, number, 10)  # an edge of one pixel may have any stride
        op.all_ops = True
        assert_served(chain, tensors, number, 4)


@MODULES
@pytest.mark.parametrize("name", [*NAMES, pytest.param("AugMix", marks=NEEDS_MIXES)])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_operation_of_a_policy_in_whole_batches(module: Any, name: str, workers: int) -> None:
    """300 samples draw each pair of AutoAugment."""
    any_of = random.Random(SEED)
    for kind in ("CIFAR10", "MNIST"):
        ops = [module.RandomCrop(24, 2), random_policy(any_of, module, name)]
        dataset = dataset_of(kind, chain_of(module, *ops), 30 if name == "AugMix" else 150)
        options = {"batch_size": 30, "shuffle": True, "num_workers": workers}
        assert fastloop.DataLoader(dataset, **options).stats().path == "array", ops
        assert_same(dataset, options)


@MODULES
def test_folders(module: Any, tmp_path: Path) -> None:
    """The size of images that enter a policy may be known only when there is an image."""
    save_folder(tmp_path, images_of(8, 24))
    any_of = random.Random(SEED)
    for pair in zip(NAMES, (*NAMES[:2], "AugMix" if IS_MIXED else NAMES[2]), strict=True):
        first, last = (random_policy(any_of, module, name) for name in pair)
        transform = chain_of(module, first, module.RandomResizedCrop(24), last)
        dataset = datasets.ImageFolder(str(tmp_path), transform)
        why = fastloop.DataLoader(dataset, batch_size=5).stats().why
        assert why == "samples of ImageFolder by fastloop"
        for workers in (0, 2):
            assert_same(dataset, {"batch_size": 5, "num_workers": workers})


@MODULES
@pytest.mark.parametrize("bins", [2, 3, 10, 31, 1000])
def test_strengths_are_torchs(module: Any, bins: int) -> None:
    for edge in range(1, 700, 3):
        for op in (module.RandAugment(2, 1, bins), module.TrivialAugmentWide(bins)):
            own = make_own(getattr(own_policy, type(op).__name__), op)
            own.is_v1 = module is v1
            spec = {"kind": own.kind, **own.encode(tuple)}
            space = torchvision_policies._strengths_of(op, edge, 2 * edge)
            found = policy_strengths(spec, edge, 2 * edge)
            for name, (values, _) in space.items():
                if values is not None and values.ndim > 0:
                    assert values.tolist() == list(found[own_policy.NAMES.index(name)])


def test_what_is_left_to_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(op: Any, why: str) -> None:
        module = v1 if type(op).__module__.startswith("torchvision.transforms.auto") else v2
        with pytest.raises(ValueError, match=why):
            torchvision_chain.open_plan(chain_of(module, op), (32, 32, 3), "HWC")

    op = v1.AutoAugment()
    op.policies[3] = (("Invert", 1.0, None), ("Invert", 1.0, None))
    left(op, "the policies of AutoAugment were replaced")
    left(v1.AugMix(fill=0), "AugMix of v1 has a fill")
    left(v2.AugMix(alpha=1), "alpha must be a float")
    mixed = v1.AugMix()
    mixed._PARAMETER_MAX = 11
    left(mixed, "fastloop does not know the strengths of AugMix")
    left(v1.RandAugment(9), r"num_ops must be an int in \[0, 8\]")
    table = {**v2.RandAugment._AUGMENTATION_SPACE}
    table["Rotate"] = lambda bins, height, width: torch.linspace(0, 90, bins), True
    monkeypatch.setattr(v2.RandAugment, "_AUGMENTATION_SPACE", table)
    left(v2.RandAugment(), "_AUGMENTATION_SPACE was replaced")
    monkeypatch.setattr(torchvision_policies, "_strengths_of", lambda *_: {})
    left(v2.TrivialAugmentWide(), "fastloop does not know the strengths of TrivialAugmentWide")
