"""torchvision's operations on colours, in whole batches and behind patch(): bits, strides and
random states of torchvision alone, for PIL images and tensors, v1 and v2."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from vision_cases import (
    MEAN,
    STD,
    assert_same,
    assert_same_images,
    dataset_of,
    random_colors,
    results,
    status,
    v2,
)

import fastloop
from fastloop.adapters import torchvision_chain
from fastloop.compat import verification

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import transforms as v1

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
CHAINS = int(os.environ.get("FASTLOOP_FUZZ", "150"))
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    verification.verification_of.cache_clear()
    yield
    fastloop.unpatch("transforms")


def images_of(shape: tuple[int, int, int], count: int, seed: int, is_pil: bool) -> list[Any]:
    """Return images [C, H, W]: noise, few values, one value, gradients."""
    numbers, (channels, height, width) = np.random.default_rng(seed), shape
    ramp = np.add.outer(np.arange(height) * 5, np.arange(width) * 3)
    found: list[Any] = []
    for i in range(count):
        low = numbers.integers(0, 250)
        pixels = (
            numbers.integers(0, 256, shape),
            numbers.integers(low, low + 6, shape),
            np.full(shape, low),
            (ramp + numbers.integers(0, 256, (channels, 1, 1))) % 256,
        )[i % 4].astype(np.uint8)
        image = pixels.transpose(1, 2, 0) if channels == 3 else pixels[0]
        found.append(Image.fromarray(image) if is_pil else torch.from_numpy(pixels))
    return found


def to_floats(module: Any, is_pil: bool) -> list[Any]:
    if module is v1:
        return [v1.ToTensor() if is_pil else v1.ConvertImageDtype(torch.float32)]
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


def serve(transform: Any, images: list[Any], seed: int = 5) -> int:
    """Compare images and states with torchvision alone; return how many fastloop made."""
    torchs = results(transform, images, seed)
    fastloop.patch("transforms", verbose=False)
    ours = results(transform, images, seed)
    count = status().native
    fastloop.unpatch("transforms")
    assert_same_images(ours, torchs)
    return count


def ops_of(module: Any) -> list[Any]:
    """Return each operation, with the ends of its arguments."""
    found = [
        *(module.ColorJitter((f, f)) for f in (0.0, 0.5, 2.0, 40.0)),
        *(module.ColorJitter(0, (f, f)) for f in (0.0, 0.5, 2.0, 40.0)),
        *(module.ColorJitter(0, 0, (f, f)) for f in (0.0, 0.5, 2.0, 40.0)),
        *(module.ColorJitter(0, 0, 0, (f, f)) for f in (-0.5, -1 / 255, 1 / 255, 0.25, 0.5)),
        *(module.ColorJitter(*n) for n in ((0.4, 0.4, 0.4, 0.1), (1, 1, 1, 0.5), (0, 0, 0, 0))),
        *(module.RandomPosterize(bits, 0.7) for bits in (1, 3, 8)),
        *(module.RandomSolarize(t, 0.7) for t in (-3, 0, 100.5, 128.00000001, 255)),
        *(module.RandomAdjustSharpness(f, 0.7) for f in (0, 0.3, 1, 2, 25.5)),
        *(module.RandomGrayscale(p) for p in (0, 0.4, 1)),
        module.Grayscale(),
        module.Grayscale(3),
        *(getattr(module, name)(0.7) for name in ("RandomInvert", "RandomEqualize")),
        module.RandomAutocontrast(0.7),
    ]
    if module is v2:
        found += [v2.RandomPhotometricDistort(p=p) for p in (0.0, 0.5, 1.0)]
        found += [v2.RandomPhotometricDistort((0, 9), (0, 9), (0, 9), (-0.5, 0.5))]
        found += [v2.RandomChannelPermutation()]
    return found


@pytest.mark.parametrize("is_pil", [True, False], ids=["PIL", "tensors"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("version", [1, 2])
def test_each_operation(version: int, channels: int, is_pil: bool) -> None:
    module = v1 if version == 1 else v2
    for number, op in enumerate(ops_of(module)):
        transform = module.Compose([op, *to_floats(module, is_pil)])
        for shape in ((1, 1), (2, 8), (3, 3), (16, 5), (31, 48)):
            count = serve(transform, images_of((channels, *shape), 9, number, is_pil))
            # v1's tensors have other channels and strides, and torch's contrast other sums.
            is_served = is_pil or (version == 2 and channels * shape[0] * shape[1] % 16 == 0)
            assert count == 6 or not is_served, (op, shape)


def test_random_chains() -> None:
    """FASTLOOP_FUZZ is how many, FASTLOOP_FUZZ_SEED the seed, which is that of the day."""
    any_of, served = random.Random(SEED), 0
    for number in range(CHAINS):
        module, is_pil = any_of.choice((v1, v2)), any_of.random() < 0.6
        size = any_of.choice((1, 2, 3, 16, 31)), any_of.choice((1, 4, 16, 32, 33))
        parts = random_colors(any_of, module, size, any_of.randint(1, 4))
        transform = module.Compose([*parts, *to_floats(module, is_pil)])
        images = images_of((any_of.choice((1, 3)), *size), 8, number, is_pil)
        try:
            served += serve(transform, images, number)
        except Exception as error:
            case = f"seed {SEED}, case {number}, {size}, {type(images[0])}: {transform}"
            raise AssertionError(f"{case}: {error}") from None
    assert served > CHAINS * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_random_chains_of_datasets(workers: int) -> None:
    any_of = random.Random(SEED)
    for number in range(CHAINS // 20):
        module, kind = any_of.choice((v1, v2)), any_of.choice(("CIFAR10", "MNIST", "SVHN"))
        side = 28 if kind == "MNIST" else 32
        colors = random_colors(any_of, module, (side, side), any_of.randint(1, 3))
        parts = [module.RandomCrop(side, 4), *colors, module.RandomHorizontalFlip()]
        late = colors if module is v2 and any_of.random() < 0.3 else []
        tail = to_floats(module, True)
        dataset = dataset_of(kind, module.Compose([*parts, tail[0], *late, *tail[1:]]))
        options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
        case = f"seed {SEED}, case {number}: {kind}, {dataset.transform}"
        found = fastloop.DataLoader(dataset, **options).stats()
        assert found.path == "array" or late, f"{case}: {found.why}"
        try:
            assert_same(dataset, options)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


def test_grey_images_of_a_dataset_become_rgb() -> None:
    grey = v1.Compose([v1.Grayscale(3), v1.ColorJitter(0.4, 0.4), v1.ToTensor()])
    rgb = v2.Compose([v2.Grayscale(1), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    for kind, transform in (("MNIST", grey), ("CIFAR10", rgb)):
        dataset = dataset_of(kind, transform)
        assert fastloop.DataLoader(dataset, batch_size=8).stats().path == "array"
        assert_same(dataset, {"batch_size": 8})


def test_fills_and_resizes_around_colours() -> None:
    parts = [v1.Pad(3, fill=9), v1.ColorJitter(0.4, 0.4, 0.4, 0.2), v1.RandomResizedCrop(20)]
    parts += [v1.RandomEqualize(), v1.RandomCrop(20, 4, fill=200), v1.RandomGrayscale(0.5)]
    tail = [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(0.7)]
    dataset = dataset_of("CIFAR10", v1.Compose([*parts, *tail]))
    assert fastloop.DataLoader(dataset, batch_size=8).stats().path == "array"
    assert_same(dataset, {"batch_size": 8, "num_workers": 1})


def with_hook(op: Any) -> Any:
    op.register_forward_hook(lambda *args: None)
    return op


LEFT: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "0 bits": (lambda: [v1.RandomPosterize(0, 0.0)], "Pillow 13 cannot"),
    "a large threshold": (lambda: [v1.RandomSolarize(256)], "threshold must be"),
    "a negative sharpness": (lambda: [v1.RandomAdjustSharpness(-1)], "must be"),
    "an order of v1": (lambda: [v1.RandomOrder([v1.RandomInvert()])], "from Python's random"),
    "a choice of v1": (lambda: [v1.RandomChoice([v1.RandomInvert()])], "from Python's random"),
    "a hook": (lambda: [with_hook(v1.ColorJitter(0.5))], "was replaced or added"),
    "a hook inside": (
        lambda: [v1.RandomApply([with_hook(v1.ColorJitter(0.5))])],
        "was replaced or added",
    ),
    "a range that is stale": (lambda: [stale_jitter()], "ColorJitter: brightness"),
    "floats": (lambda: [v1.ToTensor(), v1.RandomInvert()], "are not of PIL or tensors of bytes"),
}


def stale_jitter() -> Any:
    op = v1.ColorJitter(0.5)
    op.brightness = (2.0, 1.0)
    return op


@pytest.mark.parametrize("case", LEFT.values(), ids=LEFT)
def test_what_is_left(case: tuple[Callable[[], list[Any]], str]) -> None:
    parts, text = case[0](), case[1]
    tail = [] if isinstance(parts[0], v1.ToTensor) else [v1.ToTensor()]
    with pytest.raises((TypeError, ValueError), match=text):
        torchvision_chain.read_chain(v1.Compose([*parts, *tail]))


def test_contrast_of_some_tensors_is_left() -> None:
    """torch's sum of many pixels depends on threads, and its loops round some bytes otherwise."""
    tail = [v2.ToImage(), v2.ColorJitter(0, 0.5), v2.ToDtype(torch.float32)]
    for side, path in ((32, "array"), (30, "sync")):
        dataset = dataset_of("CIFAR10", v2.Compose([v2.CenterCrop(side), *tail]))
        assert fastloop.DataLoader(dataset, batch_size=8).stats().path == path
        assert_same(dataset, {"batch_size": 8})
    large = torch.randint(0, 256, (3, 272, 256), dtype=torch.uint8)
    assert serve(v2.Compose([tail[1], v2.CenterCrop(8), tail[2]]), [large] * 6) == 0
    small = torch.randint(0, 256, (1, 8, 6), dtype=torch.uint8)
    assert serve(v2.Compose(tail), [small] * 6) == 3


@pytest.mark.parametrize("wrong", ["bits", "draws"])
def test_the_check_sees_a_difference(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    true_chain = torchvision_chain.read_chain

    def read_wrongly(*args: Any, **named: Any) -> Any:
        chain = true_chain(*args, **named)
        jitter: Any = chain.ops[0]
        if wrong == "bits":
            jitter.arithmetic = 0
        else:
            jitter.brightness = None
        return chain

    monkeypatch.setattr(torchvision_chain, "read_chain", read_wrongly)
    dataset = dataset_of("CIFAR10", v1.Compose([v1.ColorJitter(0.4, 0.4, 0.4, 0.4), v1.ToTensor()]))
    with pytest.warns(RuntimeWarning, match="differ from torchvision's"):
        assert fastloop.DataLoader(dataset).stats().path == "sync"
