"""A release of torchvision that fastloop does not know: a battery decides for each operation
whether it is served. FASTLOOP_MUTANTS is the number of changed functions that are tried."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import mutants
import pytest
import torch
from vision_cases import assert_same, assert_same_bits, dataset_of, v2

import fastloop
from fastloop.adapters import originals, torchvision_battery, torchvision_policies
from fastloop.adapters import torchvision_chain as chains
from fastloop.compat import verdicts, verification

pytestmark = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
if v2 is not None:
    from torchvision import transforms as v1

MUTANTS = int(os.environ.get("FASTLOOP_MUTANTS", "40"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
FLIP = "torchvision.transforms._functional_pil:hflip"
RESIZED = "torchvision.transforms.transforms:RandomResizedCrop.get_params"
MIXES = ("AugMix",) if torchvision_policies.rounds_positions() else ()  # else torchvision's


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    verification.verification_of.cache_clear()
    verdicts._read.clear()
    yield
    verification.verification_of.cache_clear()
    verdicts._read.clear()


def chain_of(module: Any, *parts: Any) -> Any:
    ends = [module.ToTensor()] if module is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, True)]
    return module.Compose([*parts, *ends])


def examples_of(module: Any, name: str) -> list[Any]:
    """Chains with an operation of this name."""
    half = [0.5] * 3
    before = {
        "RandomCrop": [module.RandomCrop(28, 3), module.RandomCrop((30, 35), pad_if_needed=True)],
        "Pad": [module.Pad((1, 2), fill=3)],
        "CenterCrop": [module.CenterCrop(24), module.CenterCrop(40)],
        "Resize": [module.Resize(20), module.Resize((33, 20), v1.InterpolationMode.BICUBIC)],
        "RandomResizedCrop": [module.RandomResizedCrop(16), module.RandomResizedCrop(9, (2, 3))],
        "RandomHorizontalFlip": [module.RandomHorizontalFlip(0.3)],
        "RandomVerticalFlip": [module.RandomVerticalFlip()],
        "RandomRotation": [module.RandomRotation(40, v1.InterpolationMode.BILINEAR, fill=9)],
        "RandomAffine": [module.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 9)],
        "RandomPerspective": [module.RandomPerspective(0.4)],
        **{
            name: [getattr(module, name)()]
            for name in ("RandAugment", "TrivialAugmentWide", "AutoAugment", *MIXES)
        },
        "ColorJitter": [module.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        **{
            name: [getattr(module, name)()]
            for name in ("RandomInvert", "RandomEqualize", "RandomAutocontrast", "RandomGrayscale")
        },
        "Grayscale": [module.Grayscale(3)],
        "RandomPosterize": [module.RandomPosterize(3)],
        "RandomSolarize": [module.RandomSolarize(99)],
        "RandomAdjustSharpness": [module.RandomAdjustSharpness(1.7)],
        "GaussianBlur": [module.GaussianBlur(5), module.GaussianBlur((3, 9), 1.5)],
        "RandomApply": [module.RandomApply([module.RandomHorizontalFlip()], 0.5)],
    }
    after = {
        "RandomErasing": [module.RandomErasing(), module.RandomErasing(1.0, value=(1, 2, 3))],
        "Normalize": [module.Normalize(half, half)],
    }
    if module is not v1:
        photometric = v2.RandomPhotometricDistort(), v2.RandomChannelPermutation()
        before |= {type(op).__name__: [op] for op in photometric}
    found = [chain_of(module, op) for op in before.get(name, [])]
    found += [module.Compose([*chain_of(module).transforms, op]) for op in after.get(name, [])]
    return found or [chain_of(module, module.RandomHorizontalFlip())]


def is_served(transform: Any, kind: str = "CIFAR10") -> bool:
    """Tell whether fastloop makes the batches of a dataset. They equal torch's."""
    dataset = dataset_of(kind, transform)
    is_ours = fastloop.DataLoader(dataset, batch_size=8).stats().path == "array"
    if is_ours:
        assert_same(dataset, {"batch_size": 8, "shuffle": True}, stops=[None])
    return is_ours


def change(patch: pytest.MonkeyPatch, path: str, before: str, after: str) -> None:
    function = originals.function_of(path)
    patch.setattr(function, "__code__", mutants.replaced(function, before, after))


def test_states_draw_the_chosen_numbers() -> None:
    for number in (0.0, 0.25, 0.5, 1 - 2**-24):
        generator = torch.Generator()
        generator.set_state(torchvision_battery._state_of(number))
        assert torch.rand(9, generator=generator).tolist() == [number] * 9


@pytest.mark.parametrize("version", [1, 2])
def test_every_operation_passes_its_battery(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the functions that run are among those that the plans are said to need."""
    module = v1 if version == 1 else v2
    groups = ["transforms", "transforms.v2"][:version]
    listed = {
        originals.function_of(f"{e.module}:{e.name}").__code__: e
        for e in originals.entries_of(groups)
    }
    judged = []
    missing: dict[str, set[str]] = {}

    def judge(plans: Any, battery: Any = None) -> Any:
        if battery is None:
            return verdicts.Verdict("")
        ran: set[Any] = set()
        sys.settrace(lambda frame, event, arg: ran.add(frame.f_code))
        try:
            judged.append((plans[0], battery.find_difference(True)))
        finally:
            sys.settrace(None)
        words = {plans[0], *plans[0].split(".")}
        names = {
            listed[code].name for code in ran & listed.keys() if not listed[code].users & words
        }
        if names and not plans[0].endswith("RandomApply"):  # it runs the operations inside
            missing[plans[0]] = names
        return verdicts.Verdict("")

    monkeypatch.setattr(originals, "judge", judge)
    monkeypatch.setattr(torchvision_battery, "_COUNT", {True: 48})
    for name in chains._READERS:
        for chain in examples_of(module, name):
            chains.read_chain(chain)
    assert missing == {}
    assert len(judged) > 30 and [why for _, why in judged if why] == []


def test_a_changed_function_that_makes_the_same_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "method = Image.FLIP_LEFT_RIGHT\n    return img.transpose(method)"
    change(monkeypatch, FLIP, "return img.transpose(Image.FLIP_LEFT_RIGHT)", text)
    assert all(is_served(chain_of(module, module.RandomHorizontalFlip())) for module in (v1, v2))
    assert "transforms: proven for torchvision" in verdicts.in_force()[0]


def serve_images(chain: Any, images: list[Any]) -> Any:
    """Compare images and random state with and without fastloop. Return the seam's counts."""
    torch.manual_seed(3)
    expected = [*map(chain, images), torch.get_rng_state()]
    torch.manual_seed(3)
    with fastloop.patched("transforms"):
        found = [*map(chain, images), torch.get_rng_state()]
        seam = fastloop.patch_status().seams["transforms"]
    assert_same_bits(found, expected)
    return seam


@pytest.mark.parametrize("name", ["Compose", "RandomApply"])
@pytest.mark.parametrize("is_gate", [False, True])
def test_a_changed_compose_is_served_if_it_makes_the_same(
    name: str, is_gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of single images; the operation inside the gate runs in Python."""
    path, of = "torchvision.transforms.v2._container", f"{name}.forward"
    flips = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.Lambda(lambda image: image)]
    chain = chain_of(v2, v2.RandomApply(flips) if is_gate else v2.RandomResizedCrop(20))
    images = [image for image, _ in dataset_of("CIFAR10", None, 12)]
    for text, is_served in (("reversed(self.transforms)", False), ("tuple(self.transforms)", True)):
        with monkeypatch.context() as patch:
            change(patch, f"{path}:{of}", "in self.transforms", f"in {text}")
            seam = serve_images(chain, images)
        assert (seam.native > 0) is (is_served or name == "RandomApply")
        verdicts._read.clear()


def test_a_difference_costs_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, FLIP, "FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM")
    for module in (v1, v2):
        assert is_served(chain_of(module, module.RandomVerticalFlip()))
        assert not is_served(chain_of(module, module.RandomHorizontalFlip()))


def test_an_image_in_a_tuple_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "torchvision.transforms.v2._container:RandomApply.forward"
    change(monkeypatch, path, "inputs if needs_unpacking else inputs[0]", "inputs")
    dataset = dataset_of("CIFAR10", chain_of(v2, v2.RandomApply([v2.RandomHorizontalFlip()])))
    assert fastloop.DataLoader(dataset).stats().why.endswith("an image of RandomApply differs")


def test_one_more_number_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "torch.rand(1)\n    _, height, width = F.get_dimensions"
    change(monkeypatch, RESIZED, "_, height, width = F.get_dimensions", text)
    assert not is_served(chain_of(v1, v1.RandomResizedCrop(9)))


def test_a_branch_for_wide_images_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "area = height * width"
    change(monkeypatch, RESIZED, before, f"{before}\n    if width > 4096:\n        area = 0")
    dataset = dataset_of("CIFAR10", chain_of(v1, v1.RandomResizedCrop(9)))
    assert "get_params has not run" in fastloop.DataLoader(dataset).stats().why


def test_only_the_changed_operation_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of single images, natively."""
    change(monkeypatch, FLIP, "FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM")
    parts = [v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), v1.RandomResizedCrop(9)]
    chain = chain_of(v1, *parts)
    images = [image for image, _ in dataset_of("CIFAR10", None, 12)]
    seam = serve_images(chain, images)
    assert seam.native > 0
    assert list(seam.fallbacks) == ["RandomHorizontalFlip, operation 2, runs in Python"]


@pytest.mark.filterwarnings("ignore")
def test_no_mutant_changes_a_batch() -> None:
    """Where the battery finds no difference, fastloop's batches are the mutant's."""
    any_of, tried, kept = random.Random(SEED), 0, []
    entries = list(originals.entries_of(["transforms", "transforms.v2"]))
    entries = [entry for entry in entries if entry.users != {"ImageFolder"}]
    while tried < MUTANTS:
        entry = any_of.choice(entries)
        function = originals.function_of(f"{entry.module}:{entry.name}")
        user = any_of.choice(sorted(entry.users))
        version, _, name = user.rpartition(".")
        module = {"v1": v1, "v2": v2}.get(version) or any_of.choice((v1, v2))
        code = mutants.mutant_of(function, any_of)
        if code is None:
            continue
        tried += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(function, "__code__", code)
            chains_of_it = examples_of(module, name)
            try:
                kept += [user] * sum(map(is_served, chains_of_it))
            except Exception as error:
                text = f"{entry.name}, {user}, seed {SEED}, number {tried}: {error}"
                raise AssertionError(text) from error
    print(f"{len(kept)} chains are served with {tried} mutants: {sorted(kept)}")
