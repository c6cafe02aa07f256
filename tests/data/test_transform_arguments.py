"""The operations of fastloop.transforms: torchvision's arguments and texts, and errors that name
operation, argument, value and remedy."""

import copy
import enum
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision_shim import torchvision_v2

from fastloop import transforms as T


class Mode(enum.Enum):
    """Values like those of torchvision's InterpolationMode."""

    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class PillowMode(enum.IntEnum):
    BILINEAR = 2
    LANCZOS = 1


class Flip(T.RandomHorizontalFlip):
    """A subclass may do anything."""


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = sorted(set(T.__all__) - {"Compose"})


def made(module: Any) -> list[Any]:
    return [
        module.Pad(4),
        module.Pad([1, 2], fill=3, padding_mode="constant"),
        module.Pad((1, 2, 3, 4), padding_mode="reflect"),
        module.CenterCrop(7),
        module.CenterCrop((7, 8)),
        module.RandomCrop(32, padding=4),
        module.RandomCrop([32, 31], padding=(1, 2), pad_if_needed=True, fill=(1, 2, 3)),
        module.RandomCrop(32, padding=0),
        module.RandomCrop((5,), padding=[1, 2, 3, 4], padding_mode="symmetric"),
        module.Resize(9),
        module.Resize((9, 8), "nearest-exact"),
        module.Resize([9], interpolation="bicubic", max_size=12),
        module.Resize(None, max_size=12),
        module.Resize(4, interpolation="nearest", antialias=False),
        module.RandomResizedCrop(224),
        module.RandomResizedCrop((3, 4), (0.5, 1), (1, 2), "bicubic", True),
        module.RandomHorizontalFlip(),
        module.RandomHorizontalFlip(p=1),
        module.RandomVerticalFlip(0.25),
        module.RandomErasing(),
        module.RandomErasing(0.1, (0.1, 0.2), (0.5, 2), [1, 2, 3], True),
        module.ToDtype(torch.float32, scale=True),
        module.ToDtype(torch.float16),
        module.Normalize(MEAN, STD),
        module.Normalize(mean=[0.5], std=[0.5], inplace=True),
        module.RandomInvert(),
        module.RandomSolarize(128),
        module.RandomPosterize(bits=3, p=1),
        module.RandomAutocontrast(0.2),
        module.Grayscale(),
        module.RandomGrayscale(),
        module.ColorJitter(0.4, (0.5, 2), [0, 1], 0.1),
        module.ColorJitter(brightness=0, hue=0),
        module.RandomChannelPermutation(),
        module.RandomPhotometricDistort(),
        module.RandomAdjustSharpness(2),
        module.GaussianBlur(3),
        module.GaussianBlur([5, 9], 1.5),
        module.RandomRotation(30),
        module.RandomRotation((10, 20), "bilinear", center=(1, 2), fill=(1, 2, 3)),
        module.RandomAffine(10),
        module.RandomAffine((1, 2), (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), "bilinear", 7, [1, 2]),
        module.RandomAffine(0, shear=3),
        module.RandomPerspective(),
        module.RandomPerspective(0.3, 0.9, "nearest", None),
        module.GaussianNoise(),
        module.GaussianNoise(0.5, 1, clip=False),
        module.RandAugment(),
        module.AugMix(),
        module.AugMix(5, 2, 4, 0.5, False, "nearest", 3),
        module.RandAugment(3, magnitude=4, fill=(1, 2, 3)),
        module.TrivialAugmentWide(interpolation="bilinear", fill=9),
        module.AutoAugment(),
        module.AutoAugment(module.AutoAugmentPolicy.SVHN),
        module.RandomApply([module.ColorJitter(0.1), module.GaussianBlur(3)], p=0.8),
        module.RandomApply([module.RandomApply([module.RandomInvert()])]),
        module.RandomChoice([module.RandomInvert(), module.Grayscale(3)]),
        module.RandomChoice([module.RandomInvert(), module.Identity()], p=[1, 3]),
        module.RandomOrder([module.RandomInvert(), module.RandomSolarize(3)]),
    ]


def v2() -> Any:
    module = torchvision_v2()
    if module is None:
        pytest.skip("torchvision is not installed")
    return module


def test_names_order_and_defaults_of_arguments_are_torchvisions() -> None:
    for name in NAMES:
        ours = inspect.signature(getattr(T, name)).parameters
        theirs = inspect.signature(getattr(v2(), name)).parameters
        told = [
            [(p.name, getattr(p.default, "value", p.default)) for p in each.values()]
            for each in (ours, theirs)
        ]
        own = [("seed", 0)] if name in ("MixUp", "CutMix") else []
        assert told[0] == told[1] + own, name


def test_texts_are_torchvisions() -> None:
    for ours, theirs in zip(made(T), made(v2()), strict=True):
        assert repr(ours) == repr(theirs)
    for count in (1, 3):
        assert repr(T.Compose(made(T)[:count])) == repr(v2().Compose(made(v2())[:count]))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_are_the_same_operations(how: Callable[[Any], Any]) -> None:
    chain = T.Compose(made(T))
    assert repr(how(chain)) == repr(chain)
    assert vars(how(T.ToDtype(torch.bfloat16))) == vars(T.ToDtype(torch.bfloat16))


def test_interpolations_have_names_enums_and_numbers() -> None:
    given = ["bicubic", Mode.BICUBIC, 3, "bilinear", PillowMode.BILINEAR, 0]
    got = [T.Resize(4, interpolation=mode).interpolation for mode in given]
    assert got == ["bicubic"] * 3 + ["bilinear"] * 2 + ["nearest"]


def test_sizes_may_be_numpys() -> None:
    assert T.RandomCrop(np.int64(4), padding=np.uint8(1)).encode(lambda: (0, 0)) == {
        "size": (4, 4),
        "padding": (1, 1, 1, 1),
        "pad_if_needed": False,
        "padding_mode": 0,
    }
    assert T.Normalize(torch.tensor(MEAN, dtype=torch.float64), np.array(STD)).mean == list(MEAN)
    for make in (np.array, torch.tensor):
        assert repr(T.Resize(make([4, 5]))) == repr(T.Resize([4, 5]))
        assert repr(T.CenterCrop(make(4))) == repr(T.CenterCrop(4))
        assert repr(T.Pad(make([4, 5]))) == repr(T.Pad([4, 5]))
        assert T.RandomCrop(4, padding=make([1, 2])).padding == [1, 1, 2, 2]
        assert T.RandomErasing(value=make([1, 2, 3])).value == [1, 2, 3]
    assert T.Resize(4, antialias=np.True_).interpolation == "bilinear"
    assert T.RandomCrop(4, pad_if_needed=np.True_).pad_if_needed is True
    assert T.ToDtype(torch.float32, scale=1).scale is True


def test_the_longest_edge_is_one_that_c_takes() -> None:
    image = torch.zeros(1, 1, 1, dtype=torch.uint8)
    assert T.CenterCrop((1, 2**24))(image).shape == (1, 1, 2**24)


SIZE = "must be an int >= 1 for a square, or (height, width), got "
PADDING = (
    "must be an int >= 0, (left and right, top and bottom), or (left, top, right, bottom), got "
)
MODE = "must be one of 'constant', 'edge', 'reflect', 'symmetric', got "
INTERPOLATION = "must be one of 'nearest', 'nearest-exact', 'bilinear', 'bicubic', got "
LENGTH = "must be an int in [1, 16777216], got "
FLAG = "must be True or False, got "
NUMBERS = "must be a number, or one for each channel, got "
PROBABILITY = "must be a number in [0, 1], got "
RANGE = "must be (min, max) with 0 <= min <= max and 0 < max"
DTYPE = "must be one of torch.uint8, torch.float16, torch.bfloat16, torch.float32, got "
STATISTICS = "must be one number for each channel, or one for all, finite in float32"
OPERATION = "must be an operation of fastloop.transforms, got "

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: T.RandomCrop("32"), TypeError, f"RandomCrop: size {SIZE}'32'"),
    (lambda: T.RandomCrop(3.5), TypeError, f"RandomCrop: size {SIZE}3.5"),
    (lambda: T.RandomCrop(True), TypeError, f"RandomCrop: size {SIZE}True"),
    (lambda: T.RandomCrop(0), ValueError, f"RandomCrop: size {LENGTH}0"),
    (lambda: T.CenterCrop((4, 0)), ValueError, f"CenterCrop: size {LENGTH}0"),
    (lambda: T.CenterCrop(2**24 + 1), ValueError, f"CenterCrop: size {LENGTH}16777217"),
    (
        lambda: T.Resize(None, max_size=2**24 + 1),
        ValueError,
        f"Resize: max_size {LENGTH}16777217 (or None)",
    ),
    (
        lambda: T.Pad(2**24 + 1),
        ValueError,
        "Pad: padding must be an int in [0, 16777216], got 16777217",
    ),
    (lambda: T.Resize(np.zeros((2, 2), int)), TypeError, f"Resize: size {SIZE}array([[0, 0],"),
    (lambda: T.RandomCrop(np.array([4.5, 4])), TypeError, f"RandomCrop: size {LENGTH}4.5"),
    (
        lambda: T.Resize(4, max_size=np.array([9, 9])),
        TypeError,
        f"Resize: max_size {LENGTH}array([9, 9]) (or None)",
    ),
    (lambda: T.Pad(1, padding_mode=["edge"]), ValueError, f"Pad: padding_mode {MODE}['edge']"),
    (
        lambda: T.RandomCrop(4, pad_if_needed="no"),
        TypeError,
        f"RandomCrop: pad_if_needed {FLAG}'no'",
    ),
    (lambda: T.ToDtype(torch.float32, scale=None), TypeError, f"ToDtype: scale {FLAG}None"),
    (lambda: T.ToDtype(torch.float32, scale=2), TypeError, f"ToDtype: scale {FLAG}2"),
    (lambda: T.Normalize([0], [1], "no"), TypeError, f"Normalize: inplace {FLAG}'no'"),
    (
        lambda: T.RandomErasing(inplace=np.ones(2)),
        TypeError,
        f"RandomErasing: inplace {FLAG}array([1., 1.])",
    ),
    (lambda: T.CenterCrop((4, 4, 4)), ValueError, f"CenterCrop: size {SIZE}(4, 4, 4)"),
    (lambda: T.CenterCrop([4, "5"]), TypeError, f"CenterCrop: size {LENGTH}'5'"),
    (lambda: T.RandomResizedCrop(()), ValueError, f"RandomResizedCrop: size {SIZE}()"),
    (lambda: T.Pad(-1), ValueError, "Pad: padding must be an int in [0, 16777216], got -1"),
    (lambda: T.Pad((1, 2, 3)), ValueError, f"Pad: padding {PADDING}(1, 2, 3)"),
    (lambda: T.Pad(1.5), TypeError, f"Pad: padding {PADDING}1.5"),
    (lambda: T.RandomCrop(4, padding="4"), TypeError, f"RandomCrop: padding {PADDING}'4'"),
    (lambda: T.Pad(1, padding_mode="wrap"), ValueError, f"Pad: padding_mode {MODE}'wrap'"),
    (
        lambda: T.RandomCrop(4, padding_mode=None),
        ValueError,
        f"RandomCrop: padding_mode {MODE}None",
    ),
    (
        lambda: T.Pad(1, fill=(1, 2, 3), padding_mode="edge"),
        ValueError,
        "Pad: fill must be one number with padding_mode='edge', got (1, 2, 3)",
    ),
    (lambda: T.Pad(1, fill="red"), TypeError, f"Pad: fill {NUMBERS}'red'"),
    (
        lambda: T.Pad(1, fill={torch.Tensor: 1}),
        TypeError,
        f"Pad: fill {NUMBERS}{{<class 'torch.Tensor'>: 1}}",
    ),
    (lambda: T.RandomCrop(4, fill=[]), TypeError, f"RandomCrop: fill {NUMBERS}[]"),
    (lambda: T.Resize(4, "lanczos"), ValueError, f"Resize: interpolation {INTERPOLATION}'lanczos'"),
    (
        lambda: T.Resize(4, Mode.LANCZOS),
        ValueError,
        f"Resize: interpolation {INTERPOLATION}'lanczos'",
    ),
    (
        lambda: T.Resize(4, PillowMode.LANCZOS),
        ValueError,
        f"Resize: interpolation {INTERPOLATION}<PillowMode.LANCZOS: 1>",
    ),
    (lambda: T.Resize(4, None), ValueError, f"Resize: interpolation {INTERPOLATION}None"),
    (
        lambda: T.Resize(4, antialias=False),
        ValueError,
        "Resize: antialias must be True with interpolation='bilinear', got False",
    ),
    (
        lambda: T.RandomResizedCrop(4, interpolation="bicubic", antialias=None),
        ValueError,
        "RandomResizedCrop: antialias must be True with interpolation='bicubic', got None",
    ),
    (
        lambda: T.Resize(None),
        ValueError,
        "Resize: size must be an int, or (height, width), without max_size, got None",
    ),
    (
        lambda: T.Resize((4, 4), max_size=5),
        ValueError,
        "Resize: size must be an int, or None, with max_size, got [4, 4]",
    ),
    (
        lambda: T.Resize(4, max_size=4),
        ValueError,
        "Resize: max_size must be an int > size=4, the shorter edge, got 4",
    ),
    (lambda: T.Resize(4, max_size=5.5), TypeError, f"Resize: max_size {LENGTH}5.5 (or None)"),
    (lambda: T.RandomHorizontalFlip(1.5), ValueError, f"RandomHorizontalFlip: p {PROBABILITY}1.5"),
    (lambda: T.RandomVerticalFlip(-0.1), ValueError, f"RandomVerticalFlip: p {PROBABILITY}-0.1"),
    (lambda: T.RandomErasing(float("nan")), ValueError, f"RandomErasing: p {PROBABILITY}nan"),
    (lambda: T.RandomVerticalFlip("1"), TypeError, f"RandomVerticalFlip: p {PROBABILITY}'1'"),
    (
        lambda: T.RandomResizedCrop(4, 0.5),
        TypeError,
        f"RandomResizedCrop: scale {RANGE} < inf, got 0.5",
    ),
    (
        lambda: T.RandomResizedCrop(4, (1, 0.5)),
        ValueError,
        f"RandomResizedCrop: scale {RANGE} < inf, got (1, 0.5)",
    ),
    (
        lambda: T.RandomResizedCrop(4, (0, 0)),
        ValueError,
        f"RandomResizedCrop: scale {RANGE} < inf, got (0, 0)",
    ),
    (
        lambda: T.RandomResizedCrop(4, ratio=(0, 1)),
        ValueError,
        "RandomResizedCrop: ratio must be (min, max) with 0 < min <= max < inf, got (0, 1)",
    ),
    (
        lambda: T.RandomResizedCrop(4, (1, float("inf"))),
        ValueError,
        f"RandomResizedCrop: scale {RANGE} < inf, got (1, inf)",
    ),
    (
        lambda: T.RandomErasing(scale=(0.1, 1.5)),
        ValueError,
        f"RandomErasing: scale {RANGE} <= 1, got (0.1, 1.5)",
    ),
    (
        lambda: T.RandomErasing(value="random"),
        ValueError,
        f"RandomErasing: value {NUMBERS}'random' (for noise, erase in the training loop",
    ),
    (lambda: T.ToDtype("float32"), ValueError, f"ToDtype: dtype {DTYPE}'float32'"),
    (lambda: T.ToDtype(torch.float64), ValueError, f"ToDtype: dtype {DTYPE}torch.float64"),
    (lambda: T.Normalize(0.5, [1]), TypeError, f"Normalize: mean {STATISTICS}, got 0.5"),
    (
        lambda: T.Normalize([1], []),
        TypeError,
        f"Normalize: std {STATISTICS} and not 0, got []",
    ),
    (
        lambda: T.Normalize([1], ["1"]),
        TypeError,
        f"Normalize: std {STATISTICS} and not 0, got ['1']",
    ),
    (
        lambda: T.Normalize([1], [1, 0]),
        ValueError,
        f"Normalize: std {STATISTICS} and not 0, got [1, 0]",
    ),
    (
        lambda: T.Normalize([1], [1e-50]),
        ValueError,
        f"Normalize: std {STATISTICS} and not 0, got [1e-50]",
    ),
    (
        lambda: T.Normalize([1], [float("nan")]),
        ValueError,
        f"Normalize: std {STATISTICS} and not 0, got [nan]",
    ),
    (lambda: T.Normalize([1e39], [1]), ValueError, f"Normalize: mean {STATISTICS}, got [1e+39]"),
    (lambda: T.Normalize([10**400], [1]), ValueError, f"Normalize: mean {STATISTICS}, got [1000"),
    (
        lambda: T.Compose([]),
        ValueError,
        "Compose: transforms must be a list of at least one operation, got []",
    ),
    (
        lambda: T.Compose(T.Pad(1)),
        TypeError,
        "Compose: transforms must be a list of at least one operation, got Pad(padding=1",
    ),
    (
        lambda: T.Compose([T.Pad(1), T.Pad]),
        TypeError,
        f"Compose: item 1 {OPERATION}<class 'fastloop.data.transforms.ops.Pad'>",
    ),
    (lambda: T.RandomApply([Flip()]), TypeError, f"RandomApply: item 0 {OPERATION}Flip(p=0.5)"),
    (
        lambda: T.Compose([T.Pad]),
        TypeError,
        f"Compose: item 0 {OPERATION}<class 'fastloop.data.transforms.ops.Pad'>",
    ),
]


@pytest.mark.parametrize(("make", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_wrong_arguments_are_named(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}"):
        make()


# ---- ToDtype and Normalize of floats


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5)])
def test_normalize_of_floats_is_torchvisions(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    image = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = image.clone()
    truth = v2().Normalize(MEAN, STD)(image)
    assert torch.equal(T.Normalize(MEAN, STD)(image), truth)
    assert torch.equal(image, before)
    T.Normalize(MEAN, STD, inplace=True)(image)
    assert torch.equal(image, truth)


def test_a_compose_of_values_takes_floats() -> None:
    image = torch.rand(3, 4, 5)
    both = T.Compose([T.ToDtype(torch.float16), T.Normalize(MEAN, STD)])(image)
    assert torch.equal(both, T.Normalize(MEAN, STD)(image.half()))


@pytest.mark.parametrize(
    ("op", "image", "kind", "text"),
    [
        (
            T.Normalize(MEAN, STD),
            torch.zeros(3, 2, 2, dtype=torch.uint8),
            TypeError,
            "^Normalize: the image must be a float tensor .* got torch.uint8 .put ToDtype",
        ),
        (
            T.Normalize(MEAN, STD),
            torch.zeros(4, 2, 2),
            ValueError,
            "^Normalize: mean must be one number, or one for each of 4 channels, got ",
        ),
        (
            T.Normalize(MEAN, STD),
            torch.zeros(3, 2),
            ValueError,
            r"^Normalize: the image must be .* \[..., C, H, W\], got \(3, 2\)$",
        ),
        (
            T.Normalize(MEAN, STD),
            [1.0],
            TypeError,
            r"^Normalize: the image must be .*, got \[1.0\]",
        ),
        (
            T.ToDtype(torch.uint8),
            torch.zeros(3, 2, 2),
            TypeError,
            "^ToDtype: the image must be uint8 for dtype=torch.uint8, got torch.float32$",
        ),
        (
            T.RandomCrop(2),
            torch.zeros(3, 2, 2),
            TypeError,
            "^RandomCrop: the image must be .*, got torch.float32 on cpu .put ToDtype and",
        ),
        (
            T.Pad(2),
            np.zeros((3, 2, 2), np.uint8),
            TypeError,
            "^Pad: the image must be one CPU tensor of uint8 .*, got ndarray",
        ),
        (
            T.RandomCrop(2),
            torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
            ValueError,
            r"^RandomCrop: the image must be .* \[C, H, W\], got \(1, 3, 2, 2\)$",
        ),
    ],
)
def test_images_that_an_operation_does_not_take(
    op: Any, image: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        op(image)
