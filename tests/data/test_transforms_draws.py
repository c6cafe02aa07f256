"""How the parameters of fastloop.transforms are spread, and that they stay what they are.

They are a function of (seed, epoch, index, view), so these tests give the same result at all times.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_draws import Key, draw

from fastloop import ArrayDataset
from fastloop import transforms as T

COUNT = 20_000
# What a statistic exceeds once in a thousand tries.
CHI_SQUARED = {8: 26.1, 80: 124.8}  # by degrees of freedom
KOLMOGOROV_SMIRNOV = 1.95
NORMAL = 3.3


def params_of(op: Any, side: int = 32, seed: int = 3, epoch: int = 0) -> list[dict[str, Any]]:
    image = torch.zeros((1, 1, side, side), dtype=torch.uint8).expand(COUNT, 1, side, side)
    dataset = ArrayDataset(image, transform=T.Compose([op]), seed=seed)
    return [dataset.params(index, epoch)[0] for index in range(COUNT)]


def chi_squared(counts: Counter[Any], cells: int) -> float:
    expected = counts.total() / cells
    assert len(counts) <= cells
    absent = (cells - len(counts)) * expected
    return absent + sum((count - expected) ** 2 / expected for count in counts.values())


def test_offsets_of_random_crops_are_uniform_and_independent() -> None:
    params = params_of(T.RandomCrop(32, padding=4))
    for side in ("top", "left"):
        assert chi_squared(Counter(each[side] for each in params), 9) < CHI_SQUARED[8]
    together = Counter((each["top"], each["left"]) for each in params)
    assert chi_squared(together, 81) < CHI_SQUARED[80]


def test_flips_happen_as_often_as_asked_and_independently_of_neighbours() -> None:
    for op in (T.RandomHorizontalFlip(0.3), T.RandomVerticalFlip(0.3)):
        flips = np.array([each["flip"] for each in params_of(op)])
        deviation = math.sqrt(COUNT * 0.3 * 0.7)
        assert abs(flips.sum() - 0.3 * COUNT) < NORMAL * deviation
        both = (flips[1:] & flips[:-1]).sum()
        assert abs(both - 0.09 * COUNT) < NORMAL * math.sqrt(COUNT * 0.09 * 0.91) * 1.5


def test_flips_happen_always_with_1_and_never_with_0() -> None:
    assert all(each["flip"] for each in params_of(T.RandomHorizontalFlip(1)))
    assert not any(each["flip"] for each in params_of(T.RandomHorizontalFlip(0)))


def torchvisions_resized_crops(side: int, scale: Any, ratio: Any) -> list[tuple[int, int]]:
    """Height and width, by the formula of RandomResizedCrop.make_params and torch's numbers."""
    made, generator = [], torch.Generator().manual_seed(0)
    low, high = torch.log(torch.tensor(ratio)).tolist()
    area = side * side * torch.empty(COUNT, 10).uniform_(*scale, generator=generator).double()
    aspect = torch.exp(torch.empty(COUNT, 10).uniform_(low, high, generator=generator)).double()
    widths, heights = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    for tries in zip(heights.tolist(), widths.tolist(), strict=True):
        fits = [(h, w) for h, w in zip(*tries, strict=True) if 0 < w <= side and 0 < h <= side]
        made.append(fits[0] if fits else (side, side))
    return [(int(h), int(w)) for h, w in made]


def distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Kolmogorov and Smirnov's, of two samples of COUNT, in units of its deviation."""
    both = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(of), both, side="right") / COUNT for of in (one, other)]
    return float(np.abs(below[0] - below[1]).max() * math.sqrt(COUNT / 2))


def test_resized_crops_are_spread_as_torchvisions() -> None:
    side, scale, ratio = 256, (0.08, 1.0), (3 / 4, 4 / 3)
    params = params_of(T.RandomResizedCrop(8, scale, ratio), side)
    ours = np.array([(each["height"], each["width"]) for each in params], float)
    theirs = np.array(torchvisions_resized_crops(side, scale, ratio), float)
    assert distance(ours.prod(1), theirs.prod(1)) < KOLMOGOROV_SMIRNOV
    assert distance(*(np.log(of[:, 1] / of[:, 0]) for of in (ours, theirs))) < KOLMOGOROV_SMIRNOV
    for axis, edge in (("top", "height"), ("left", "width")):
        slack = [(each[axis] + 0.5) / (side - each[edge] + 1) for each in params]
        assert distance(np.array(slack), (np.arange(COUNT) + 0.5) / COUNT) < KOLMOGOROV_SMIRNOV


def test_erasing_happens_as_often_as_asked_inside_the_image() -> None:
    params = params_of(T.RandomErasing(0.25), 40)
    erased = [each for each in params if each["erase"]]
    assert abs(len(erased) - 0.25 * COUNT) < NORMAL * math.sqrt(COUNT * 0.25 * 0.75)
    for each in erased:
        assert 0 <= each["top"] <= 40 - each["height"] and each["height"] < 40
        assert 0 <= each["left"] <= 40 - each["width"] and each["width"] < 40


def test_parameters_change_with_seed_epoch_view_and_index() -> None:
    image = torch.zeros((2, 3, 64, 64), dtype=torch.uint8)
    datasets = [ArrayDataset(image, transform=T.RandomCrop(8), seed=seed) for seed in (0, 1, 2**63)]
    drawn = [
        tuple(dataset.params(index, epoch, view)[0][side] for side in ("top", "left"))
        for dataset in datasets
        for index in (0, 1)
        for epoch in (0, 1, 2**32 - 1)
        for view in (0, 255)
    ]
    assert len(set(drawn)) >= len(drawn) - 2  # of 57 * 57 places


def test_an_operation_more_changes_no_other_kind() -> None:
    image = torch.zeros((1, 3, 64, 64), dtype=torch.uint8)
    crop, flip = T.RandomCrop(8), T.RandomHorizontalFlip()
    chains = [crop], [flip, crop], [T.Pad(0), crop, flip], [crop, T.RandomCrop(4)]
    for epoch in range(20):
        found = [
            next(
                each
                for each in ArrayDataset(image, transform=T.Compose(ops)).params(0, epoch)
                if each["op"] == "RandomCrop"
            )
            for ops in chains
        ]
        assert all(each == found[0] for each in found)


KNOWN = json.loads(Path(__file__).with_name("known_parameters.json").read_text())


def test_parameters_stay_what_they_were() -> None:
    """A change here makes the augmentation of everybody's earlier runs another one: it is a
    breaking change, whatever its reason."""
    for case in KNOWN:
        key, size = Key(**case["key"]), tuple(case["size"])
        ops = [(name, args) for name, args in case["ops"]]
        chain = T.Compose([getattr(T, name)(**args) for name, args in ops])
        row = torch.zeros((1, 1, *size), dtype=torch.uint8)
        images = row.expand(key.index + 1, 1, *size)
        ours = ArrayDataset(images, transform=chain, seed=key.seed).params(
            key.index, key.epoch, key.view
        )
        drawn = draw(ops, key, size)
        for known, mine, again in zip(case["params"], ours, drawn, strict=True):
            mine, again = json.loads(json.dumps([mine, again]))
            assert {name: mine[name] for name in known} == known
            assert {name: again[name] for name in known} == known
