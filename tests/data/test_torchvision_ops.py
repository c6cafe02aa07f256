"""Transforms of torchvision's v2 as `transform=`: translated to the same operations of fastloop, or
run in Python, with the reason."""

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from time_limits import limit
from torchvision_shim import torchvision_v2

from fastloop import ArrayDataset
from fastloop import transforms as T

v2: Any = torchvision_v2()
pytestmark = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = np.random.default_rng(5).integers(0, 256, (6, 3, 12, 14), np.uint8)

CHAINS: dict[str, Callable[[Any], list[Any]]] = {
    "CIFAR": lambda m: [
        m.RandomCrop(12, padding=4),
        m.RandomHorizontalFlip(),
        m.ToDtype(torch.float32, scale=True),
        m.Normalize(MEAN, STD),
    ],
    "ImageNet": lambda m: [
        m.RandomResizedCrop(8, antialias=True),
        m.RandomHorizontalFlip(p=0.5),
        m.ToDtype(torch.float32, scale=True),
        m.Normalize(mean=list(MEAN), std=list(STD)),
        m.RandomErasing(p=0.7, value=(1, 2, 3)),
    ],
    "evaluation": lambda m: [
        m.Resize(10, interpolation="bicubic", max_size=20),
        m.CenterCrop((9, 20)),
        m.ToDtype(torch.float32),
    ],
    "paddings": lambda m: [
        m.Pad((1, 2), fill=7),
        m.Pad([1, 2, 3, 4], padding_mode="reflect"),
        m.RandomCrop((30, 9), padding=(1, 2, 3, 4), pad_if_needed=True, fill=(1, 2, 3)),
        m.RandomVerticalFlip(0.9),
        m.Resize(None, max_size=16, interpolation="nearest"),
    ],
}


@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_the_same_operations_give_the_same_samples(make: Callable[[Any], list[Any]]) -> None:
    ours = ArrayDataset(IMAGES, transform=T.Compose(make(T)), seed=4)
    head: list[Any] = [v2.ToImage(), v2.Identity()]
    theirs = [
        v2.Compose(make(v2)),
        v2.Compose([*head, v2.Compose(make(v2)), v2.ToPureTensor()]),
        v2.Compose([*make(v2)[:1], *make(T)[1:]]),
    ]
    for transform in theirs:
        dataset = ArrayDataset(IMAGES, transform=transform, seed=4)
        assert dataset._untranslated == ""
        assert repr(dataset) == repr(ours)
        assert dataset.explain() == ours.explain()
        for i in range(len(IMAGES)):
            assert_same(dataset[i], ours[i])


def test_interpolations_of_torchvisions_enum() -> None:
    mode = v2.InterpolationMode.BICUBIC
    dataset = ArrayDataset(IMAGES, transform=v2.Resize(7, interpolation=mode))
    assert_same(dataset[1], ArrayDataset(IMAGES, transform=T.Resize(7, interpolation="bicubic"))[1])


class Crop(v2.RandomCrop if v2 else object):  # type: ignore[misc]
    """May do anything."""


class OwnCrop(T.CenterCrop):
    """So may this."""


def brighten(image: torch.Tensor) -> torch.Tensor:
    return (image.int() + 20).clamp(0, 255).byte()


UNTRANSLATED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: v2.ElasticTransform(sigma=0.5),
        "^field 0: fastloop.transforms has no ElasticTransform$",
    ),
    (
        lambda: v2.Compose([v2.RandomZoomOut(), v2.RandomZoomOut()]),
        "^field 0: fastloop.transforms has no RandomZoomOut$",
    ),
    (
        lambda: Crop(4),
        "^field 0: Crop must be of fastloop.transforms or torchvision.transforms.v2$",
    ),
    (
        lambda: v2.Compose([brighten]),
        "^field 0: brighten must be of fastloop.transforms or torchvision.transforms.v2$",
    ),
    (lambda: OwnCrop(4), "^field 0: OwnCrop must be of fastloop.transforms or torchvision.trans"),
    (
        lambda: brighten,
        "^field 0: brighten must be of fastloop.transforms or torchvision.transforms.v2$",
    ),
    (
        lambda: sys.modules["torchvision"].transforms.RandomCrop(4),
        r"^field 0: RandomCrop must be .*, got v1's of torchvision \(write",
    ),
    (
        lambda: v2.ConvertImageDtype(torch.float32),
        "^field 0: fastloop.transforms has no ConvertImageDtype; write ToDtype.dtype, scale=True",
    ),
    (
        lambda: v2.RandomErasing(value="random"),
        "^field 0: RandomErasing: value must be .*, got 'random' ",
    ),
    (
        lambda: v2.Resize(4, antialias=False),
        "^field 0: Resize: antialias must be True with .*, got False$",
    ),
    (lambda: v2.Resize(4, "lanczos"), "^field 0: Resize: interpolation must be .*, got 'lanczos'$"),
    (lambda: v2.ToDtype(torch.float64), "^field 0: ToDtype: dtype must be .*, got torch.float64$"),
    (
        lambda: v2.ToDtype({"others": torch.float32}),
        "^field 0: ToDtype: dtype must be .*, got {'others'.*}$",
    ),
    (
        lambda: v2.Pad(1, fill={"others": 3}),
        "^field 0: Pad: fill must be a number, .*, got {'others': 3}$",
    ),
    (
        lambda: v2.Compose([v2.ToDtype(torch.float32), v2.Resize(4)]),
        "^field 0: Resize must stand before ToDtype: it resizes uint8 images$",
    ),
]


@pytest.mark.parametrize(("make", "reason"), UNTRANSLATED, ids=[text for _, text in UNTRANSLATED])
def test_what_is_not_translated_runs_as_it_is(make: Callable[[], Any], reason: str) -> None:
    transform = make()
    dataset = ArrayDataset(IMAGES, np.arange(6), transform=transform)
    with pytest.raises(TypeError, match=r"^transform .* Python's: " + reason.removeprefix("^")):
        dataset.params(0)
    assert dataset._plans == (None, None)
    assert reason.removeprefix("^field 0: ").split(" ")[0] in dataset.explain()
    assert "path='process' or 'sync'" in dataset.explain()
    both = ArrayDataset(IMAGES, IMAGES, transform={0: transform, 1: T.Pad(1)})
    line = r"\nfield 1: uint8 .*, native, in dataset\[i\], because "
    assert re.search(line + reason.removeprefix("^").removesuffix("$"), both.explain())
    for i in range(6):
        torch.manual_seed(i)
        image, label = dataset[i]
        torch.manual_seed(i)
        assert_same(image, transform(torch.from_numpy(IMAGES.copy())[i]))
        assert label == i
    for how in (copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))):
        assert how(dataset)._untranslated == dataset._untranslated


def test_floats_are_torchvisions_business() -> None:
    images = torch.rand(4, 3, 5, 6)
    dataset = ArrayDataset(images, transform=v2.Normalize(MEAN, STD))
    assert dataset._untranslated.startswith("field 0: images with a transform must be uint8")
    assert_same(dataset[2][0], v2.Normalize(MEAN, STD)(images[2]))


def test_untranslated_transforms_see_chw_and_give_the_layout_asked_for() -> None:
    images = IMAGES.transpose(0, 2, 3, 1).copy()
    grey = v2.Compose([v2.Lambda(lambda image: 255 - image), v2.CenterCrop(5)])
    truth = grey(torch.from_numpy(IMAGES.copy())[1])
    interleaved = truth.permute(1, 2, 0)
    strided = interleaved.contiguous().permute(2, 0, 1)
    for out_layout, expected in (("CHW", truth), ("HWC", interleaved), ("channels_last", strided)):
        dataset = ArrayDataset(images, transform=grey, layout="HWC", out_layout=out_layout)
        assert_same(dataset[1][0], expected)
        assert out_layout != "channels_last" or dataset[1][0].stride() == strided.stride()
    rows = ArrayDataset(images, transform=lambda row: row.shape)
    assert rows[0] == ((12, 14, 3),)
    pictures = ArrayDataset(IMAGES, transform=v2.ToPILImage(), out_layout="HWC")
    with pytest.raises(
        TypeError, match=r"^field 0: out_layout must be 'CHW' if results are not .*, got 'HWC'"
    ):
        pictures[0]


def test_torchs_loader_runs_what_is_not_translated() -> None:
    dataset = ArrayDataset(
        IMAGES, transform=v2.Compose([v2.ElasticTransform(sigma=0.5), v2.Pad(1)])
    )
    (batch,) = next(iter(TorchLoader(dataset, 6, num_workers=1)))
    assert batch.shape == (6, 3, 14, 16)


@pytest.mark.slow
def test_a_translated_dataset_is_unpickled_without_torchvision() -> None:
    data = pickle.dumps(ArrayDataset(IMAGES, transform=v2.Compose(CHAINS["CIFAR"](v2)), seed=4))
    script = """if True:
        import pickle, sys
        dataset = pickle.load(sys.stdin.buffer)
        assert "torchvision" not in sys.modules
        print(float(dataset[3][0].double().sum()))
    """
    told = subprocess.run(
        [sys.executable, "-c", script],
        input=data,
        capture_output=True,
        check=True,
        timeout=limit(120),
    )
    expected = ArrayDataset(IMAGES, transform=T.Compose(CHAINS["CIFAR"](T)), seed=4)[3][0]
    assert float(told.stdout) == float(expected.double().sum())
