"""Augmentations of fastloop.transforms: torchvision's bits given the same parameters, which are a
function of the sample; torchvision's errors."""

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augment_draws import DRAWS, draw_augmentation, draw_choice, draw_order, policy
from augment_noise import normal
from augment_replay import replay_augmentations
from helpers import assert_same
from image_draws import Key, Words, below, unit
from torchvision_shim import torchvision_v2

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

v2: Any = torchvision_v2()
needs_torchvision = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
BLOCKS = range(4)
CASES = 60  # a block


def make_images(rng: random.Random, channels: int, count: int = 1) -> torch.Tensor:
    """uint8 [count, C, H, W]: noise, a narrow range, a gradient or blocks, of any size."""
    height, width = (rng.choice((1, 2, 3, rng.randint(4, 70))) for _ in "hw")
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    shape = (count, channels, height, width)
    noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    slope = torch.arange(width) * 255 // max(1, width - 1)
    looks = (noise, noise // 9 + 90, slope.to(torch.uint8).expand(shape), noise // 64 * 64)
    return rng.choice(looks).contiguous()


TONES: list[Callable[[random.Random], Any]] = [  # for any channels
    lambda r: T.RandomInvert(r.choice((0.5, 1))),
    lambda r: T.RandomSolarize(r.choice((r.randint(0, 255), r.uniform(-1, 255))), 0.8),
    lambda r: T.RandomPosterize(r.randint(0, 8), 0.8),
    lambda r: T.RandomEqualize(0.8),
    lambda r: T.RandomChannelPermutation(),
    lambda r: T.GaussianNoise(r.choice((0, 0.5)), r.choice((0.1, 2)), r.choice((True, False))),
    lambda r: T.RandomHorizontalFlip(),
    lambda r: T.RandomVerticalFlip(),
    lambda r: T.RandomCrop(
        (r.randint(1, 30), r.randint(1, 30)),
        padding=r.choice((0, 3)),
        pad_if_needed=True,
        fill=r.choice((0, 77)),
    ),
]
INTERPOLATIONS = ("nearest", "bilinear")
WARPS: list[Callable[[random.Random], Any]] = [
    lambda r: T.RandomRotation(
        r.choice((180, (-30, 700))), r.choice(INTERPOLATIONS), fill=r.choice((None, 0, 77.5))
    ),
    lambda r: T.RandomRotation(40, r.choice(INTERPOLATIONS), center=(3, 8.5)),
    lambda r: T.RandomAffine(
        *(20, (0.3, 0.2), (0.4, 1.8), (-30, 30, -10, 20), r.choice(INTERPOLATIONS)),
        fill=r.choice((None, 0, 200)),
        center=r.choice((None, (5, 1))),
    ),
    lambda r: T.RandomAffine(0, r.choice((None, (0.5, 1))), shear=r.choice((None, 40))),
    lambda r: T.RandomPerspective(r.choice((0.2, 1)), 0.8, r.choice(INTERPOLATIONS)),
    lambda r: T.RandomPerspective(fill=r.choice((None, 255))),
]
COLORS: list[Callable[[random.Random], Any]] = [  # for 1 and 3
    lambda r: T.RandomAutocontrast(0.8),
    lambda r: T.RandomGrayscale(0.5),
    lambda r: T.ColorJitter(0.8, 0.8, 0.8, 0.5),
    lambda r: T.ColorJitter(*(r.choice((None, 0.3)) for _ in range(4))),
    lambda r: T.ColorJitter(contrast=(0.2, 3)),
    lambda r: T.RandomPhotometricDistort(p=0.7),
    lambda r: T.RandomAdjustSharpness(r.choice((0, r.uniform(0, 4))), 0.8),
]


def make_held(rng: random.Random, makers: list[Callable[[random.Random], Any]]) -> Any:
    """Operations that keep the size, held by one."""
    few = [maker for maker in makers if maker is not TONES[-1]]
    held = [rng.choice(few)(rng) for _ in range(rng.randint(1, 3))]
    pair = T.Compose([T.RandomInvert(), T.RandomHorizontalFlip()])
    gates = (
        T.RandomApply(held, 0.6),
        T.RandomChoice([*held, T.Identity()]),
        T.RandomChoice([pair, *held], [3, *(1 for _ in held)]),
        T.RandomOrder([*held, pair]),
        T.RandomApply([T.RandomOrder(held)]),
    )
    return rng.choice(gates)


def make_chain(rng: random.Random, channels: int) -> list[Any]:
    makers = TONES if channels in (2, 4) else TONES + 2 * COLORS
    held = [lambda rng: make_held(rng, makers)] * 5
    return [rng.choice(makers + held)(rng) for _ in range(rng.randint(1, 5))]


@needs_torchvision
@pytest.mark.parametrize("block", BLOCKS)
def test_samples_are_torchvisions_given_their_parameters(block: int) -> None:
    for seed in range(block * CASES, block * CASES + CASES):
        rng = random.Random(seed)
        channels = rng.choice((1, 3, 3, 4))
        images, ops = make_images(rng, channels), make_chain(rng, channels)
        dataset = ArrayDataset(images, transform=T.Compose(ops), seed=seed)
        expected = replay_augmentations(v2, ops, dataset.params(0), images[0])
        # Of a contrast, gcc's loop in torch rounds the last few bytes in another way.
        assert_same_but_ends(dataset[0][0], expected, (seed, ops))


def assert_same_but_ends(ours: torch.Tensor, expected: torch.Tensor, where: object) -> None:
    assert ours.shape == expected.shape, where
    ours, expected = ours.flatten(), expected.flatten()
    whole = len(ours) // 16 * 16
    assert torch.equal(ours[:whole], expected[:whole]), where
    assert (ours[whole:].int() - expected[whole:].int()).abs().sum() <= 1, where


@needs_torchvision
@pytest.mark.parametrize("block", BLOCKS)
def test_turned_samples_are_torchvisions_given_their_parameters(block: int) -> None:
    for seed in range(block * CASES, block * CASES + CASES):
        rng = random.Random(seed)
        channels = rng.choice((1, 3, 3, 4))
        images = make_images(rng, channels)
        ops = [rng.choice(WARPS)(rng) for _ in range(rng.randint(1, 2))]
        ops.insert(rng.randint(0, 2), rng.choice(TONES)(rng))
        dataset = ArrayDataset(images, transform=T.Compose(ops), seed=seed)
        expected = replay_augmentations(v2, ops, dataset.params(0), images[0])
        assert_same(dataset[0][0], expected)


def test_noise_is_normal() -> None:
    grey = torch.full((1, 1, 400, 500), 128, dtype=torch.uint8)
    numbers = np.concatenate([normal(seed, 100_001) for seed in (1, 2**64 - 1)])
    ordered = np.sort(numbers.astype(np.float64))
    below = np.array([0.5 * (1 + math.erf(x / 2**0.5)) for x in ordered])
    distance = np.abs(below - np.arange(len(below)) / len(below)).max()
    assert distance * len(below) ** 0.5 < 1.95  # Kolmogorov and Smirnov's, once in a thousand
    for lag in (1, 2, 3, 4):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 0.01
    noisy = T.GaussianNoise(0, 0.1)(grey[0]).double() - 128
    assert abs(float(noisy.mean())) < 0.3 and 24.8 < float(noisy.std()) < 25.6


POLICIES = ("RandAugment", "TrivialAugmentWide", "AutoAugment")


@needs_torchvision
@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_torchvisions(name: str) -> None:
    """What is drawn, from the contract and torchvision's tables; the images, given that."""
    rng = random.Random(9)
    for seed in range(60):
        images = make_images(rng, rng.choice((1, 3)))
        args = {"interpolation": rng.choice(INTERPOLATIONS), "fill": rng.choice((None, 9))}
        ops = [getattr(T, name)(**args)]
        theirs = ArrayDataset(images, transform=getattr(v2, name)(**args), seed=seed)
        dataset = ArrayDataset(images, transform=T.Compose(ops), seed=seed)
        for epoch in range(4):
            told, size = dataset.params(0, epoch), tuple(images.shape[2:])
            drawn = policy(v2, name, Words(Key(seed, epoch, 0), name, 0), size)
            assert told[0]["transforms"] == drawn
            assert theirs.params(0, epoch) == told
            dataset.set_epoch(epoch)
            expected = replay_augmentations(v2, ops, told, images[0])
            assert_same_but_ends(dataset[0][0], expected, (seed, told))


@needs_torchvision
def test_mixtures_are_torchvisions_given_their_parameters() -> None:
    rng = random.Random(4)
    for seed in range(60):
        images = make_images(rng, rng.choice((1, 3)))
        width, depth = rng.choice(((3, -1), (1, 9), (6, 1), (2, 4)))
        args = {"severity": rng.randint(1, 10), "mixture_width": width, "chain_depth": depth}
        args |= {"alpha": rng.choice((1, 0.3, 4)), "all_ops": rng.choice((True, False))}
        ops = [T.AugMix(**args, fill=rng.choice((None, 9)))]
        dataset = ArrayDataset(images, transform=T.Compose(ops), seed=seed)
        told = dataset.params(0)
        assert len(told[0]["transforms"]) == width
        assert all(
            len(chain) in ((1, 2, 3) if depth < 0 else (depth,)) for chain in told[0]["transforms"]
        )
        expected = replay_augmentations(v2, ops, told, images[0])
        assert_same_but_ends(dataset[0][0], expected, (seed, told))
        theirs = ArrayDataset(images, transform=v2.AugMix(**args), seed=seed)
        assert theirs.params(0)[0]["weights"] == told[0]["weights"]


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_of_mixtures_are_dirichlets(alpha: float) -> None:
    """Mean and variance of the weight of the image, and of a chain's share of the rest."""
    dataset = ArrayDataset(
        torch.zeros(1, 3, 4, 4, dtype=torch.uint8), transform=T.AugMix(alpha=alpha)
    )
    weights = np.array([dataset.params(0, epoch)[0]["weights"] for epoch in range(4000)])
    assert np.allclose(weights.sum(1), 1, atol=1e-6) and (weights >= 0).all()
    mixed = weights[weights[:, 0] < 0.99]
    for drawn, count in ((weights[:, 0], 2), (mixed[:, 1] / (1 - mixed[:, 0]), 3)):
        mean, deviation = 1 / count, (1 / count * (1 - 1 / count) / (count * alpha + 1)) ** 0.5
        assert abs(drawn.mean() - mean) < 4 * deviation / len(drawn) ** 0.5
        assert abs(drawn.std() / deviation - 1) < 0.08


@needs_torchvision
@pytest.mark.parametrize("policy", ["IMAGENET", "CIFAR10", "SVHN"])
def test_all_pairs_of_autoaugment_are_torchvisions(policy: str) -> None:
    """By the operations that they draw; each has a probability of more than 0."""
    image = torch.zeros(1, 3, 30, 40, dtype=torch.uint8)
    dataset = ArrayDataset(image, transform=T.AutoAugment(T.AutoAugmentPolicy[policy]), seed=1)
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy[policy])
    possible: Counter[tuple[str, ...]] = Counter()
    for pair in theirs._policies:
        for chosen in itertools.product((False, True), repeat=2):
            steps = list(zip(pair, chosen, strict=True))
            names = tuple(step[0] for step, is_on in steps if is_on)
            chance = math.prod(step[1] if is_on else 1 - step[1] for step, is_on in steps)
            possible[names] += chance / 25
    count = 4000
    drawn = Counter(
        tuple(name for name, _ in dataset.params(0, epoch)[0]["transforms"])
        for epoch in range(count)
    )
    for names, chance in possible.items():
        assert abs(drawn[names] - count * chance) < 5 * (count * chance) ** 0.5 + 1, names


@needs_torchvision
@pytest.mark.parametrize("angle", [0, 90, 180, 270, 360, -90, 450])
def test_quarter_turns_move_bytes(angle: float) -> None:
    for size in ((17, 17), (9, 14)):
        image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
        op = T.RandomRotation((angle, angle), fill=9)
        if size == (17, 17) or angle % 180 == 0:
            assert_same(op(image[0]), v2.functional.rotate(image[0], angle, fill=9).contiguous())
        else:
            told = [{"op": "RandomRotation", "angle": float(angle)}]
            assert_same(op(image[0]), replay_augmentations(v2, [op], told, image[0]))


@needs_torchvision
def test_coefficients_of_perspectives_are_torchvisions() -> None:
    image = torch.zeros(1, 1, 40, 50, dtype=torch.uint8)
    dataset = ArrayDataset(image, transform=T.RandomPerspective(0.6, p=1), seed=3)
    for epoch in range(50):
        words = Words(Key(3, epoch, 0), "RandomPerspective", 0)
        bounds = (16, 13, 16, 13)  # 0.6 of half an edge, cut, and 1
        near = [below(word, bound) for word, bound in zip(words.block(1), bounds, strict=True)]
        far = [below(word, bound) for word, bound in zip(words.block(2), bounds, strict=True)]
        ends = [
            near[:2],
            [34 + near[2], near[3]],
            [34 + far[0], 27 + far[1]],
            [far[2], 27 + far[3]],
        ]
        start = [[0, 0], [49, 0], [49, 39], [0, 39]]
        expected = v2.functional._geometry._get_perspective_coeffs(start, ends)
        told = dataset.params(0, epoch)[0]["coefficients"]
        assert told == pytest.approx(expected, rel=1e-5, abs=1e-9)


HORIZONS: list[tuple[tuple[int, int], int, float]] = [
    ((2, 2), 8, 1.0),
    ((3, 3), 8, 1.0),
    ((5, 4), 8, 0.9),
    ((8, 8), 29, 0.9),
]


@pytest.mark.parametrize("how", ["nearest", "bilinear"])
@pytest.mark.parametrize(("size", "seed", "distortion"), HORIZONS)
@pytest.mark.parametrize("fill", [None, 0, 7])
def test_at_the_horizon_of_a_perspective_bytes_are_torchs(
    how: str, size: tuple[int, int], seed: int, distortion: float, fill: int | None
) -> None:
    """Some pixels are divided by 0. torch's grid_sample makes NaN of them, and 0 of NaN."""
    images = torch.arange(1, 31 * math.prod(size)).byte().clamp(1)[: 30 * math.prod(size)]
    images = images.view(30, 1, *size)
    op = T.RandomPerspective(distortion, 1, how, fill)  # type: ignore[arg-type]
    dataset = ArrayDataset(images, transform=op, seed=3)
    a, b, c, d, e, f, g, h = dataset.params(seed)[0]["coefficients"]
    edges = torch.tensor(size) / 2
    y, x = torch.meshgrid(*(torch.arange(n) + 0.5 for n in size), indexing="ij")
    z = x * g + y * h + 1
    assert (z == 0).any()
    to_x = (x * (a / edges[1]) + y * (b / edges[1])) + c / edges[1]
    to_y = (x * (d / edges[0]) + y * (e / edges[0])) + f / edges[0]
    grid = torch.stack((to_x / z - 1, to_y / z - 1), -1)[None]
    both = torch.stack((images[seed, 0].float(), torch.ones(size)))[None]
    made = torch.nn.functional.grid_sample(both, grid, how, "zeros", align_corners=False)
    image, mask = made[0]
    if fill is not None and how == "nearest":
        image = torch.where(mask < 0.5, torch.tensor(float(fill)), image)
    elif fill is not None:
        image = image.sub(fill).mul(mask).add(fill)
    assert_same(dataset[seed][0][0], image.nan_to_num(0).round().byte())


@needs_torchvision
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(256, 320), (401, 333)])
def test_contrast_of_large_images_is_torchvisions(channels: int, size: tuple[int, int]) -> None:
    """Their sum is more than float32 counts, so its order matters."""
    rng = np.random.default_rng(channels)
    torch.set_num_threads(1)
    for low in (0, 200):
        image = torch.from_numpy(rng.integers(low, 256, (1, channels, *size)).astype(np.uint8))
        op = T.ColorJitter(contrast=(0.1, 0.9))
        dataset = ArrayDataset(image, transform=T.Compose([T.RandomHorizontalFlip(1), op]))
        factor = dataset.params(0)[1]["contrast_factor"]
        expected = v2.functional.adjust_contrast(image[0].flip(2).contiguous(), factor)
        assert_same_but_ends(dataset[0][0], expected, (channels, size))


@needs_torchvision
def test_every_hue_is_torchvisions() -> None:
    colors = torch.cartesian_prod(*(torch.arange(0, 256, 3, dtype=torch.uint8) for _ in "rgb"))
    image = colors.T.reshape(1, 3, 86, -1).contiguous()
    for index, ends in enumerate(((-0.5, -0.5), (-0.2, 0.1), (0, 0.3), (0.5, 0.5))):
        dataset = ArrayDataset(image, transform=T.ColorJitter(hue=ends), seed=index)
        factor = dataset.params(0)[0]["hue_factor"]
        assert_same(dataset[0][0], v2.functional.adjust_hue(image[0], factor))


@needs_torchvision
@pytest.mark.parametrize("kernel_size", [1, 3, 5, (9, 5), (1, 7), 13, 23, (31, 41), 63])
def test_blurs_are_torchvisions(kernel_size: Any) -> None:
    """On a CPU with AVX-512. With AVX2 torch sums the weights of 9 and more taps in another order,
    and one channel of few pixels with 3 taps is not summed tap by tap: a step of 255 then."""
    capability = torch.backends.cpu.get_cpu_capability()
    sizes = [(64, 64), (96, 81), (224, 224)]
    for seed, (channels, size) in enumerate((c, s) for c in (3, 1) for s in sizes):
        generator = torch.Generator().manual_seed(seed)
        image = torch.randint(0, 256, (1, channels, *size), dtype=torch.uint8, generator=generator)
        op = T.GaussianBlur(kernel_size, (0.1, 5))
        dataset = ArrayDataset(image, transform=op, seed=seed)
        expected = replay_augmentations(v2, [op], dataset.params(0), image[0])
        if capability == "AVX512" and (channels == 3 or kernel_size != 3):
            assert_same(dataset[0][0], expected)
        else:
            away = (dataset[0][0].int() - expected.int()).abs()
            assert away.max() <= 1 and away.sum() < 20


@pytest.mark.parametrize("kernel_size", [13, (13, 1), (3, 15)])
def test_a_blur_needs_edges_longer_than_half_of_it(kernel_size: Any) -> None:
    images = torch.zeros(1, 3, 7, 6, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"GaussianBlur: half of kernel_size .*image of \(7, 6\)"):
        ArrayDataset(images, transform=T.GaussianBlur(kernel_size))


@needs_torchvision
def test_grayscale_changes_the_number_of_channels() -> None:
    images = make_images(random.Random(1), 3)
    mean, std = [0.4], [0.3]
    for after in (1, 3):
        ops = [T.Pad(2, fill=(9, 200, 30)), T.Grayscale(after), T.Pad(1, fill=8)]
        values = [T.ToDtype(torch.float32, scale=True), T.Normalize(mean, std)]
        theirs = [v2.Pad(2, fill=(9, 200, 30)), v2.Grayscale(after), v2.Pad(1, fill=8)]
        theirs += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean * after, std * after)]
        dataset = ArrayDataset(images, transform=T.Compose([*ops, *values]))
        assert_same(dataset[0][0], v2.Compose(theirs)(images[0]))
        assert dataset[0][0].shape[0] == after
    grey = make_images(random.Random(2), 1)
    dataset = ArrayDataset(grey, transform=T.Grayscale(3), out_layout="HWC")
    assert_same(dataset[0][0], grey[0].expand(3, -1, -1).permute(1, 2, 0).contiguous())


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("RandomInvert", {}),
    ("RandomSolarize", {"threshold": 100.5, "p": 0.3}),
    ("RandomPosterize", {"bits": 3, "p": 0.9}),
    ("RandomAutocontrast", {"p": 0.1}),
    ("RandomEqualize", {}),
    ("RandomAdjustSharpness", {"sharpness_factor": 1.7}),
    ("GaussianBlur", {"kernel_size": 3}),
    ("GaussianBlur", {"kernel_size": (5, 3), "sigma": (0.5, 9)}),
    ("GaussianNoise", {"sigma": 0.3}),
    ("RandomRotation", {"degrees": (-20, 90), "interpolation": "bilinear", "fill": 7}),
    ("RandomAffine", {"degrees": (0, 0), "translate": (0.5, 1)}),
    ("RandomAffine", {"degrees": (-9, 9), "scale": (0.5, 2), "shear": (1, 2, -3, 4)}),
    ("Grayscale", {"num_output_channels": 3}),
    ("RandomGrayscale", {}),
    ("ColorJitter", {"brightness": (0.5, 2), "hue": (-0.1, 0.4)}),
    ("ColorJitter", {"contrast": (0, 1), "saturation": (0.9, 7)}),
    ("RandomChannelPermutation", {}),
    ("RandomPhotometricDistort", {}),
    ("RandomPhotometricDistort", {"brightness": (0, 1), "hue": (0, 0.5), "p": 0.8}),
]


@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda case: case[0])
def test_parameters_are_those_drawn_from_the_contract(case: tuple[str, dict[str, Any]]) -> None:
    name, args = case
    assert {each for each, _ in ARGUMENTS} == set(DRAWS)
    for seed in range(60):
        channels, key = 1 + 2 * (seed % 2), Key(seed << 40, seed % 5, seed % 3, seed % 4)
        image = torch.zeros(3, channels, 4, 5, dtype=torch.uint8)
        chain = T.Compose([getattr(T, name)(**args), T.ToDtype(torch.float32)])
        dataset = ArrayDataset(image, transform=chain, seed=key.seed)
        ours = dataset.params(key.index, key.epoch, key.view)[0]
        assert ours == draw_augmentation(name, args, key, channels)


def test_parameters_stay_what_they_were() -> None:
    """A change here makes the augmentation of everybody's earlier runs another one."""
    invert, posterize = T.RandomInvert(), T.RandomPosterize(3)
    chain = [T.RandomInvert(), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomPhotometricDistort()]
    chain += [T.RandomChannelPermutation(), T.GaussianBlur(3), T.RandomRotation(30)]
    chain += [T.RandomAffine(10, (0.1, 0.2), (0.5, 2), (1, 2, 3, 4)), T.RandomPerspective(p=1)]
    chain += [T.RandAugment(), T.TrivialAugmentWide(), T.AutoAugment(), T.GaussianNoise()]
    chain += [T.AugMix(), T.RandomApply([T.RandomSolarize(9)], 0.9)]
    chain += [T.RandomChoice([invert, posterize])]
    chain += [T.RandomOrder([T.RandomEqualize(), T.RandomAutocontrast()])]
    images = torch.zeros(1, 3, 20, 24, dtype=torch.uint8).expand(6, 3, 20, 24)
    told = ArrayDataset(images, transform=T.Compose(chain), seed=12345).params(5, 3, 1)
    known = json.loads(Path(__file__).with_name("known_augmentations.json").read_text())
    assert json.loads(json.dumps(told)) == known


@needs_torchvision
@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda case: case[0])
def test_torchvisions_objects_are_translated(case: tuple[str, dict[str, Any]]) -> None:
    name, args = case
    images = make_images(random.Random(5), 3, 4)
    ours = ArrayDataset(images, transform=getattr(T, name)(**args), seed=3)
    theirs = ArrayDataset(images, transform=getattr(v2, name)(**args), seed=3)
    assert theirs._untranslated == "" and theirs.explain() == ours.explain()
    for i in range(4):
        assert theirs.params(i) == ours.params(i)
        assert_same(theirs[i], ours[i])


@needs_torchvision
def test_torchvisions_simclr_is_translated() -> None:
    def make(m: Any) -> list[Any]:
        jitter = m.ColorJitter(0.8, 0.8, 0.8, 0.2)
        return [
            *(m.RandomResizedCrop(16, (0.08, 1)), m.RandomHorizontalFlip()),
            *(m.RandomApply([jitter], p=0.8), m.RandomGrayscale(p=0.2)),
            m.RandomApply([m.GaussianBlur(kernel_size=3, sigma=(0.1, 2.0))], p=0.5),
            m.RandomChoice([m.RandomSolarize(128), m.Compose([m.Identity(), m.ToImage()])], [1, 2]),
            m.RandomOrder(
                [m.RandomInvert(), m.Compose([m.RandomEqualize(), m.RandomPosterize(2)])]
            ),
            *(m.ToDtype(torch.float32, scale=True), m.Normalize([0.5], [0.5])),
        ]

    images = make_images(random.Random(6), 3, 30)
    ours = ArrayDataset(images, transform=T.Compose(make(T)), seed=3)
    theirs = ArrayDataset(images, transform=v2.Compose(make(v2)), seed=3)
    assert theirs._untranslated == ""
    for i in range(30):
        assert theirs.params(i) == ours.params(i)
        assert_same(theirs[i], ours[i])


def test_gates_are_drawn_from_the_contract() -> None:
    image = torch.zeros(1, 3, 4, 5, dtype=torch.uint8)
    five = [T.RandomInvert(), *(T.RandomPosterize(bits) for bits in range(2, 6))]
    chain = [T.RandomApply([T.RandomInvert()], 0.3), T.RandomChoice(five, [1, 2, 3, 4, 5])]
    dataset = ArrayDataset(image, transform=T.Compose([*chain, T.RandomOrder(five)]), seed=5)
    for epoch in range(100):
        told, key = dataset.params(0, epoch), Key(5, epoch, 0, 0)
        applied = unit(Words(key, "RandomApply", 0).block(0)[0]) < 0.3
        assert told[0]["apply"] == applied and ("transforms" in told[0]) == applied
        assert told[1]["chosen"] == draw_choice(Words(key, "RandomChoice", 0), [1, 2, 3, 4, 5])
        assert told[2]["order"] == draw_order(Words(key, "RandomOrder", 0), 5)
        alone = draw_augmentation("RandomInvert", {}, key, 3)
        assert not applied or told[0]["transforms"] == [alone]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_samples(workers: int) -> None:
    images = make_images(random.Random(8), 3, 9)
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5], [0.2])]
    chain = [T.RandomHorizontalFlip(), T.ColorJitter(0.5, 0.5, 0.5, 0.2), T.RandomEqualize()]
    dataset = ArrayDataset(images, transform=T.Compose([*chain, *values]), seed=3)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, path="array")
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = torch.cat([batch[0] for batch in loader])
        for i in range(9):
            assert_same(batches[i], dataset[i][0])


def test_augmented_images_travel_as_bytes() -> None:
    images = make_images(random.Random(8), 3, 2)
    chain = [T.Pad(1, fill=3), T.RandomAffine(9), T.ColorJitter(0.5), T.RandAugment()]
    chain += [T.RandomApply([T.GaussianBlur(1), T.RandomVerticalFlip()]), T.AugMix()]
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5], [0.2])]
    for head in (chain, [*chain, T.Grayscale()], [T.Grayscale(), *chain]):
        dataset = ArrayDataset(images, transform=T.Compose([*head, *values]))
        assert "a CUDA device: uint8 is uploaded, and the device looks" in dataset.explain()


def test_an_erased_rectangle_is_changed_by_what_comes_after_it() -> None:
    image = torch.full((1, 3, 20, 20), 10, dtype=torch.uint8)
    erase = T.RandomErasing(1, value=(1, 2, 3))
    before = ArrayDataset(image, transform=erase)[0][0]
    after = ArrayDataset(image, transform=T.Compose([erase, T.RandomInvert(1)]))[0][0]
    assert_same(after, 255 - before)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("RandomInvert", {"p": 1.5}, "p must be a number in [0, 1], got 1.5"),
    ("RandomPosterize", {"bits": 9, "p": 1}, "bits must be an int in [0, 8], got 9"),
    ("RandomPosterize", {"bits": 2.0, "p": 1}, "bits must be an int in [0, 8], got 2.0"),
    ("RandomSolarize", {"threshold": 256, "p": 1}, "threshold must be a number <= 255, got 256"),
    ("Grayscale", {"num_output_channels": 2}, "num_output_channels must be one of 1, 3, got 2"),
    ("ColorJitter", {"brightness": -1}, "brightness must be a number >= 0, or (min, max) with 0"),
    ("ColorJitter", {"contrast": (2, 1)}, "contrast must be a number >= 0, or (min, max) with 0 <"),
    ("ColorJitter", {"saturation": (1, 2, 3)}, "saturation must be a number >= 0, or (min, max)"),
    ("ColorJitter", {"saturation": "1"}, "saturation must be a number >= 0, or (min, max) with "),
    (
        "RandomAdjustSharpness",
        {"sharpness_factor": -1, "p": 1},
        "sharpness_factor must be a number",
    ),
    ("RandomApply", {"transforms": []}, "transforms must be a list of at least one operation"),
    ("RandomApply", {"transforms": 3}, "transforms must be a list of at least one operation"),
    ("RandomApply", {"transforms": [T.Identity()], "p": 2}, "p must be a number in [0, 1], got 2"),
    ("RandomChoice", {"transforms": [T.Identity()], "p": [1, 2]}, "p must be 1 numbers >= 0, one "),
    ("RandomOrder", {"transforms": ()}, "transforms must be a list of at least one operation"),
    ("RandomRotation", {"degrees": -1}, "degrees must be 2 numbers, in pairs (min, max), or one "),
    ("RandomRotation", {"degrees": (1, 2, 3)}, "degrees must be 2 numbers, in pairs (min, max)"),
    ("RandomRotation", {"degrees": None}, "degrees must be 2 numbers, in pairs (min, max), or one"),
    ("RandomRotation", {"degrees": 1, "center": 3}, "center must be (x, y), or None, got 3"),
    ("RandomRotation", {"degrees": 1, "interpolation": "bicubic"}, "interpolation must be 'near"),
    ("RandomAffine", {"degrees": 1, "translate": (0, 2)}, "translate must be two numbers n with"),
    ("RandomAffine", {"degrees": 1, "scale": (0, 2)}, "scale must be two numbers n with 0 < n <="),
    ("RandomAffine", {"degrees": 1, "shear": (0, 2, 3)}, "shear must be 2 numbers or 4 numbers,"),
    ("RandomPerspective", {"distortion_scale": 2}, "distortion_scale must be a number in [0, 1]"),
    ("GaussianNoise", {"sigma": -1}, "sigma must be a number in [0, 20], got -1"),
    ("AugMix", {"severity": 11}, "severity must be a number in [1, 10], got 11"),
    ("RandAugment", {"num_ops": -1}, "num_ops must be an int in [0, 8], got -1"),
    ("AutoAugment", {"policy": "none"}, "policy must be one of 'imagenet', 'cifar10', 'svhn', got"),
    ("GaussianBlur", {"kernel_size": 4}, "kernel_size must be odd and <= 127, got 4"),
    ("GaussianBlur", {"kernel_size": 0}, "kernel_size must be an int in [1, 16777216], got 0"),
    ("GaussianBlur", {"kernel_size": 3, "sigma": (2, 1)}, "sigma must be a number > 0, or (min, m"),
    (
        "GaussianBlur",
        {"kernel_size": 3, "sigma": None},
        "sigma must be a number > 0, or (min, max)",
    ),
    ("ColorJitter", {"hue": 0.6}, "hue must be a number >= 0, or (min, max) with -0.5 <= min <="),
]


@pytest.mark.parametrize(("name", "args", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_wrong_arguments_are_torchvisions_errors(
    name: str, args: dict[str, Any], text: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as ours:
        getattr(T, name)(**args)
    assert str(ours.value).startswith(f"{name}: {text}")
    if v2 is not None:
        with pytest.raises(ours.type):
            getattr(v2, name)(**args)(torch.zeros(3, 4, 4, dtype=torch.uint8))


def test_what_a_gate_holds_keeps_the_size_and_is_no_value() -> None:
    images = torch.zeros(2, 3, 5, 5, dtype=torch.uint8)
    for gate in (T.RandomApply([T.CenterCrop(3)]), T.RandomOrder([T.Grayscale()])):
        with pytest.raises(ValueError, match="the size and the channels of results depend on"):
            ArrayDataset(images, transform=gate)
    crops = T.RandomChoice([T.CenterCrop(3), T.RandomResizedCrop(3)])
    assert ArrayDataset(images, transform=crops)[0][0].shape == (3, 3, 3)
    with pytest.raises(ValueError, match="ToDtype must stand after RandomApply, not inside"):
        T.RandomApply([T.ToDtype(torch.float32)])


@pytest.mark.parametrize(
    "op", [T.ColorJitter(0.1), T.RandomAutocontrast(), T.RandomGrayscale(), T.Grayscale()], ids=repr
)
def test_colors_need_one_or_three_channels(op: Any) -> None:
    images = torch.zeros(2, 4, 5, 5, dtype=torch.uint8)
    name = type(op).__name__
    with pytest.raises(TypeError, match=f"{name}: the channels of images must be 1 or 3, got 4$"):
        ArrayDataset(images, transform=op)
    late = T.Compose([T.ToDtype(torch.float32), op])
    with pytest.raises(ValueError, match=f"{name} must stand before ToDtype: it changes"):
        ArrayDataset(images[:, :3], transform=late)
