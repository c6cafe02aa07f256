"""The operations of fastloop.transforms: torchvision's arguments and texts, and errors that name
operation, argument, value and remedy."""

import copy
import enum
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision_shim import torchvision_v2

from fastloop import transforms as T


class Mode(enum.Enum):
    """As torchvision's InterpolationMode."""

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
        assert [(p.name, p.default) for p in ours.values()] == [
            (p.name, p.default) for p in theirs.values()
        ], name


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
    assert T.RandomCrop(np.int64(4), padding=np.uint8(1)).spec(lambda: (0, 0)) == {
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


SIZE = r"; pass an int for a square, or \(height, width\)$"
PADDING = r"; pass an int, \(left and right, top and bottom\), or \(left, top, right, bottom\)$"
STATISTICS = "; pass a list of one number a channel, or of one for all$"
MODES = "'constant', 'edge', 'reflect', 'symmetric'$"
INTERPOLATIONS = "'nearest', 'nearest-exact', 'bilinear', 'bicubic'$"

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: T.RandomCrop("32"), TypeError, "^RandomCrop: size='32' is a str" + SIZE),
    (lambda: T.RandomCrop(3.5), TypeError, "^RandomCrop: size=3.5 is a float" + SIZE),
    (lambda: T.RandomCrop(True), TypeError, "^RandomCrop: size=True is a bool" + SIZE),
    (
        lambda: T.RandomCrop(0),
        ValueError,
        r"^RandomCrop: size=0 is not in \[1, 16777216\]" + SIZE,
    ),
    (lambda: T.CenterCrop((4, 0)), ValueError, "^CenterCrop: size=0 is not in .*" + SIZE),
    (lambda: T.CenterCrop(2**24 + 1), ValueError, "^CenterCrop: size=16777217 is not in .*" + SIZE),
    (lambda: T.Resize(None, max_size=2**24 + 1), ValueError, "^Resize: max_size=16777217 is not i"),
    (lambda: T.Pad(2**24 + 1), ValueError, "^Pad: padding=16777217 is not in .*" + PADDING),
    (lambda: T.Resize(np.zeros((2, 2), int)), TypeError, r"(?s)^Resize: size=arr.* a nda.*" + SIZE),
    (
        lambda: T.RandomCrop(np.array([4.5, 4])),
        TypeError,
        "^RandomCrop: size=4.5 is no in.*" + SIZE,
    ),
    (
        lambda: T.Resize(4, max_size=np.array([9, 9])),
        TypeError,
        "^Resize: max_size=arr.* is no int",
    ),
    (lambda: T.Pad(1, padding_mode=["edge"]), ValueError, "^Pad: padding_mode=.'edge'. is .*"),
    (
        lambda: T.RandomCrop(4, pad_if_needed="no"),
        TypeError,
        "^RandomCrop: pad_if_needed='no' is no bool; pass True or False$",
    ),
    (lambda: T.ToDtype(torch.float32, scale=None), TypeError, "^ToDtype: scale=None is no bool; "),
    (lambda: T.ToDtype(torch.float32, scale=2), TypeError, "^ToDtype: scale=2 is no bool; pass T"),
    (lambda: T.Normalize([0], [1], "no"), TypeError, "^Normalize: inplace='no' is no bool; pass"),
    (
        lambda: T.RandomErasing(inplace=np.ones(2)),
        TypeError,
        "^RandomErasing: inplace=arr.* is no b",
    ),
    (lambda: T.CenterCrop((4, 4, 4)), ValueError, "size=.4, 4, 4. has 3 values" + SIZE),
    (lambda: T.CenterCrop([4, "5"]), TypeError, "^CenterCrop: size='5' is no integer" + SIZE),
    (lambda: T.RandomResizedCrop(()), ValueError, "size=.. has 0 values" + SIZE),
    (lambda: T.Pad(-1), ValueError, r"^Pad: padding=-1 is not in \[0, .*" + PADDING),
    (lambda: T.Pad((1, 2, 3)), ValueError, "^Pad: padding=.1, 2, 3. has 3 values" + PADDING),
    (lambda: T.Pad(1.5), TypeError, "^Pad: padding=1.5 is a float" + PADDING),
    (
        lambda: T.RandomCrop(4, padding="4"),
        TypeError,
        "^RandomCrop: padding='4' is a str" + PADDING,
    ),
    (
        lambda: T.Pad(1, padding_mode="wrap"),
        ValueError,
        "padding_mode='wrap' is .* one of " + MODES,
    ),
    (lambda: T.RandomCrop(4, padding_mode=None), ValueError, "padding_mode=None is .*" + MODES),
    (
        lambda: T.Pad(1, fill=(1, 2, 3), padding_mode="edge"),
        ValueError,
        r"^Pad: fill=\(1, 2, 3\) has .* padding_mode='edge' does not use; leave fill out, or pass",
    ),
    (lambda: T.Pad(1, fill="red"), TypeError, "^Pad: fill='red' is no number; pass a number"),
    (lambda: T.Pad(1, fill={torch.Tensor: 1}), TypeError, "^Pad: fill={.* is no number; pass"),
    (lambda: T.RandomCrop(4, fill=[]), TypeError, r"^RandomCrop: fill=\[\] is no number; pass a"),
    (
        lambda: T.Resize(4, "lanczos"),
        ValueError,
        "interpolation='lanczos' is not .*" + INTERPOLATIONS,
    ),
    (
        lambda: T.Resize(4, Mode.LANCZOS),
        ValueError,
        "LANCZOS.* is not covered; .*" + INTERPOLATIONS,
    ),
    (lambda: T.Resize(4, PillowMode.LANCZOS), ValueError, "^Resize: inter.* is not covered; pass"),
    (lambda: T.Resize(4, None), ValueError, "^Resize: interpolation=None is not covered; pass"),
    (
        lambda: T.Resize(4, antialias=False),
        ValueError,
        "^Resize: antialias=False is not covered, because C .* antialias=True; leave it out$",
    ),
    (
        lambda: T.RandomResizedCrop(4, interpolation="bicubic", antialias=None),
        ValueError,
        "^RandomResizedCrop: antialias=None is not covered, because .*; leave it out$",
    ),
    (lambda: T.Resize(None), ValueError, "^Resize: size=None needs max_size; pass max_size=, the"),
    (
        lambda: T.Resize((4, 4), max_size=5),
        ValueError,
        r"^Resize: max_size=5 goes with an int .* size=\(4, 4\); leave one of them out$",
    ),
    (
        lambda: T.Resize(4, max_size=4),
        ValueError,
        "^Resize: max_size=4 is not larger than size=4, ",
    ),
    (lambda: T.Resize(4, max_size=5.5), TypeError, "^Resize: max_size=5.5 is no integer; pass the"),
    (
        lambda: T.RandomHorizontalFlip(1.5),
        ValueError,
        "^RandomHorizontalFlip: p=1.5 is no probability; pass a number between 0 and 1$",
    ),
    (lambda: T.RandomVerticalFlip(-0.1), ValueError, "^RandomVerticalFlip: p=-0.1 is no proba"),
    (lambda: T.RandomErasing(float("nan")), ValueError, "^RandomErasing: p=nan is no probability"),
    (lambda: T.RandomVerticalFlip("1"), TypeError, "^RandomVerticalFlip: p='1' is no number; pass"),
    (lambda: T.RandomResizedCrop(4, 0.5), TypeError, "scale=0.5 are not two numbers; pass .min, m"),
    (lambda: T.RandomResizedCrop(4, (1, 0.5)), ValueError, "scale=.1, 0.5. is no range; pass .min"),
    (lambda: T.RandomResizedCrop(4, (0, 0)), ValueError, "scale=.0, 0. is out of .* above 0$"),
    (
        lambda: T.RandomResizedCrop(4, ratio=(0, 1)),
        ValueError,
        "ratio=.0, 1. is out of .* above 0$",
    ),
    (lambda: T.RandomResizedCrop(4, (1, float("inf"))), ValueError, "scale=.1, inf. is no range"),
    (lambda: T.RandomErasing(scale=(0.1, 1.5)), ValueError, "scale=.0.1, 1.5. .* between 0 and 1$"),
    (
        lambda: T.RandomErasing(value="random"),
        ValueError,
        "^RandomErasing: value='random' is not covered; pass a number or one for each channel, ",
    ),
    (lambda: T.ToDtype("float32"), TypeError, "^ToDtype: dtype='float32' is no torch.dtype; pass"),
    (
        lambda: T.ToDtype(torch.float64),
        ValueError,
        "^ToDtype: dtype=torch.float64 is not covered; pass one of torch.uint8, torch.float16, ",
    ),
    (lambda: T.Normalize(0.5, [1]), TypeError, "^Normalize: mean=0.5 are no numbers" + STATISTICS),
    (lambda: T.Normalize([1], []), TypeError, r"^Normalize: std=\[\] are no numbers" + STATISTICS),
    (lambda: T.Normalize([1], ["1"]), TypeError, "std=.'1'. are no numbers" + STATISTICS),
    (
        lambda: T.Normalize([1], [1, 0]),
        ValueError,
        r"^Normalize: std=\[1, 0\] has a zero in float32, .*; pass",
    ),
    (
        lambda: T.Normalize([1], [1e-50]),
        ValueError,
        "^Normalize: std=.1e-50. has a zero in float32, by",
    ),
    (
        lambda: T.Normalize([1], [float("nan")]),
        ValueError,
        "^Normalize: std=.nan. is not finite in",
    ),
    (lambda: T.Normalize([1e39], [1]), ValueError, "^Normalize: mean=.1e.39. is not finite in fl"),
    (lambda: T.Normalize([10**400], [1]), ValueError, "^Normalize: mean=.10*. is not finite in fl"),
    (lambda: T.Compose([]), ValueError, "^Compose: transforms is empty; pass at least one oper"),
    (lambda: T.Compose(T.Pad(1)), TypeError, "^Compose: transforms is a Pad; pass a list of oper"),
    (lambda: T.Compose([T.Pad(1), len]), TypeError, "^Compose: item 1 is a builtin_function_or_me"),
    (
        lambda: T.Compose([Flip()]),
        TypeError,
        "^Compose: item 0 is a Flip; pass instances of the op",
    ),
    (lambda: T.Compose([T.Pad]), TypeError, "^Compose: item 0 is the class Pad; pass instances"),
]


@pytest.mark.parametrize(("make", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_wrong_arguments_are_named(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
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
            "^Normalize: t",
        ),
        (
            T.Normalize(MEAN, STD),
            torch.zeros(4, 2, 2),
            ValueError,
            "^Normalize: mean=.*4 channels; ",
        ),
        (
            T.Normalize(MEAN, STD),
            torch.zeros(3, 2),
            ValueError,
            r"has shape \(3, 2\); pass \[..., C",
        ),
        (T.Normalize(MEAN, STD), [1.0], TypeError, "^Normalize: the image is list; put"),
        (
            T.ToDtype(torch.uint8),
            torch.zeros(3, 2, 2),
            TypeError,
            "^ToDtype: dtype=torch.uint8 of a",
        ),
        (
            T.RandomCrop(2),
            torch.zeros(3, 2, 2),
            TypeError,
            "^RandomCrop: the image is torch.float32 ",
        ),
        (
            T.Pad(2),
            np.zeros((3, 2, 2), np.uint8),
            TypeError,
            "^Pad: the image is a ndarray; pass a",
        ),
        (
            T.RandomCrop(2),
            torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
            ValueError,
            r"^RandomCrop: the image has shape \(1, 3, 2, 2\); pass one image \[C, H, W\]$",
        ),
    ],
)
def test_images_that_an_operation_does_not_take(
    op: Any, image: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        op(image)
