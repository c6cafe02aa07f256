"""Names of torchvision's v2 in fastloop.transforms: those that change nothing, the interpolations,
and what is said of those that are not there."""

import sys

import numpy as np
import pytest
import torch
from helpers import assert_same
from torchvision_shim import torchvision_v2

from fastloop import ArrayDataset
from fastloop import transforms as T

IMAGES = np.random.default_rng(5).integers(0, 256, (4, 3, 6, 7), np.uint8)
NOTHING = ["Identity", "ToImage", "ToPureTensor"]


@pytest.mark.parametrize("name", NOTHING)
def test_what_changes_nothing_is_no_part_of_a_plan(name: str) -> None:
    op = getattr(T, name)()
    assert repr(op) == f"{name}()"
    image = torch.from_numpy(IMAGES[0].copy())
    assert op(image) is image
    alone = ArrayDataset(IMAGES, transform=op)
    assert_same(alone[1][0], torch.from_numpy(IMAGES[1].copy()))
    crop = T.RandomCrop(4)
    among = ArrayDataset(IMAGES, transform=T.Compose([op, crop, op]), seed=3)
    without = ArrayDataset(IMAGES, transform=crop, seed=3)
    assert among.params(2) == without.params(2)
    assert_same(among[2], without[2])


@pytest.mark.parametrize("name", NOTHING)
def test_what_changes_nothing_takes_floats(name: str) -> None:
    image = torch.rand(3, 4, 5)
    both = T.Compose([getattr(T, name)(), T.Normalize([0.5], [0.5])])
    assert_same(both(image), T.Normalize([0.5], [0.5])(image))


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 4)])
def test_an_array_becomes_an_image(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    truth = torch.from_numpy(array).reshape(5, 4, -1).permute(2, 0, 1).contiguous()
    assert_same(T.ToImage()(array), truth)
    assert T.ToImage()(array).is_contiguous()
    assert_same(T.Compose([T.ToImage(), T.CenterCrop(4)])(array), T.CenterCrop(4)(truth))
    v2 = torchvision_v2()
    if v2 is not None:
        assert_same(v2.ToPureTensor()(v2.ToImage()(array)), truth)


@pytest.mark.parametrize(
    ("typo", "meant"), [("ColorJiter", "ColorJitter"), ("Normalise", "Normalize")]
)
def test_a_typo_gets_the_nearest_name(typo: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(T, typo)
    assert str(caught.value) == (
        f"module 'fastloop.transforms' has no attribute {typo!r}; did you mean {meant}?"
    )
    assert caught.value.obj is None  # or a traceback would have Python's suggestion as well


def test_a_list_is_no_image() -> None:
    with pytest.raises(
        TypeError, match=r"^ToImage: the image must be a torch.Tensor or a .*, got \[1\]"
    ):
        T.ToImage()([1])


def test_a_pure_tensor_is_no_tv_tensor() -> None:
    v2 = torchvision_v2()
    if v2 is None:
        pytest.skip("torchvision is not installed")
    image = v2.ToImage()(torch.from_numpy(IMAGES[0].copy()))
    assert type(T.ToPureTensor()(image)) is torch.Tensor
    assert T.ToPureTensor()("label") == "label"


def test_interpolations_are_torchvisions() -> None:
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        given = T.InterpolationMode(mode)
        assert repr(T.Resize(4, given)) == repr(T.Resize(4, mode))
    with pytest.raises(
        ValueError, match=r"interpolation must be one of 'nearest', .*, got 'lanczos'"
    ):
        T.Resize(4, T.InterpolationMode.LANCZOS)
    v2 = torchvision_v2()
    if v2 is not None:
        theirs = {mode.name: mode.value for mode in v2.InterpolationMode}
        assert {mode.name: mode.value for mode in T.InterpolationMode} == theirs


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ElasticTransform", "to the batch, on the device, or .* v2.Compose .* path='process'"),
        ("RandomIoUCrop", "path='process'"),
        ("ToTensor", r"use ToImage\(\), ToDtype\(torch.float32, scale=True\)$"),
        ("ConvertImageDtype", r"use ToDtype\(dtype, scale=True\)$"),
        ("functional", "use torchvision.transforms.v2.functional, or an operation called with a"),
        ("Lambda", "use your function itself in the Compose$"),
    ],
)
def test_names_that_are_not_there_have_a_remedy(name: str, remedy: str) -> None:
    with pytest.raises(
        AttributeError, match=f"no attribute '{name}', because fastloop .*; .*{remedy}"
    ):
        getattr(T, name)


def test_private_names_are_pythons_business() -> None:
    for name in ("__path__", "_x"):
        text = rf"^module 'fastloop.transforms' has no attribute '{name}'$"
        with pytest.raises(AttributeError, match=text):
            getattr(T, name)
    assert set(T.__all__) <= set(vars(sys.modules["fastloop.transforms"]))
