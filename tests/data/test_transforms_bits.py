"""What fastloop.transforms makes of images, bit for bit: the replay of its parameters with plain
torch, and with torchvision where that is installed; and the parameters, drawn a second time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bits
from image_cases import Case, make_case
from image_draws import Key, Op, draw
from image_reference import out_dtype, replay
from torchvision_shim import replay_by_torchvision, torchvision_v2

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

SAMPLES = 3
BLOCKS = range(6)
CASES = 60  # a block

Images = np.ndarray[Any, np.dtype[np.uint8]]


def chain(ops: list[Op]) -> T.Compose:
    return T.Compose([getattr(T, name)(**args) for name, args in ops])


# ---- where images lie


def reversed_rows(images: Images) -> Images:
    return images[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1]


def spread_out(images: Images) -> Images:
    """With odd strides, between bytes that are not theirs."""
    count, a, b, c = images.shape
    room = np.full((count, a + 1, 2 * b + 1, 3 * c + 2), 99, np.uint8)
    view = room[:, :a, 1 : 2 * b + 1 : 2, 2 : 3 * c + 2 : 3]
    view[:] = images
    return view


def other_layout(images: Images) -> Images:
    """The last axis is not the one whose elements are neighbours."""
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def read_only(images: Images) -> Images:
    images.flags.writeable = False
    return images


PLACES: tuple[Callable[[Images], Images], ...] = (
    *(np.ascontiguousarray, reversed_rows, spread_out, other_layout, read_only),
)


def make_dataset(case: Case, seed: int, images: torch.Tensor) -> ArrayDataset:
    array = images.numpy()
    if case.layout == "HWC":
        array = array.transpose(0, 2, 3, 1)
    array = PLACES[seed % len(PLACES)](np.ascontiguousarray(array))
    layouts = {"layout": case.layout, "out_layout": case.out_layout}
    return ArrayDataset(array, transform=chain(case.ops), seed=seed, **layouts)


def laid_out(expected: torch.Tensor, layout: str) -> torch.Tensor:
    channels_last = expected.permute(1, 2, 0).contiguous()
    if layout == "HWC":
        return channels_last
    return channels_last.permute(2, 0, 1) if layout == "channels_last" else expected


def flat_bits(image: torch.Tensor) -> bytes:
    """Of elements in the order of the shape, wherever they lie."""
    return bits(image.clone(memory_format=torch.contiguous_format))


def assert_same(ours: torch.Tensor, expected: torch.Tensor, where: object) -> None:
    assert ours.dtype == expected.dtype and ours.shape == expected.shape, where
    several = [i for i, length in enumerate(expected.shape) if length > 1]
    strides = [[t.stride()[i] for i in several] for t in (ours, expected)]
    assert strides[0] == strides[1], where
    assert flat_bits(ours) == flat_bits(expected), where


@pytest.mark.parametrize("block", BLOCKS)
def test_images_are_the_replay_of_their_parameters(block: int) -> None:
    for seed in range(block * CASES, block * CASES + CASES):
        case = make_case(seed)
        images = case.images(SAMPLES, seed)
        dataset = make_dataset(case, seed, images)
        dataset.set_epoch(seed % 5)
        for index, image in enumerate(images):
            ours, params = dataset[index][0], dataset.params(index)
            expected = laid_out(replay(case.ops, params, image), case.out_layout)
            assert_same(ours, expected, (seed, index, case))


@pytest.mark.parametrize("block", BLOCKS)
def test_images_are_torchvisions(block: int) -> None:
    v2 = torchvision_v2()
    if v2 is None:
        pytest.skip("torchvision is not installed")
    for seed in range(block * CASES, block * CASES + CASES):
        case = make_case(seed)
        image = case.images(1, seed)
        dataset = make_dataset(case, seed, image)
        drawn = draw(case.ops, Key(seed, 0, 0), case.size)
        if any(each["out"] == (1, 1) for each in drawn) and case.channels == 3:
            continue  # an assertion inside torch 2.13 fails for resizes to one pixel
        expected = replay_by_torchvision(v2, case.ops, dataset.params(0, epoch=0), image[0])
        assert_same(dataset[0][0], laid_out(expected, case.out_layout), (seed, case))


@pytest.mark.parametrize("block", BLOCKS)
def test_parameters_are_those_drawn_from_the_contract(block: int) -> None:
    for seed in range(block * CASES, block * CASES + CASES):
        case = make_case(seed)
        dataset = make_dataset(case, seed, case.images(SAMPLES, seed))
        for index in range(SAMPLES):
            epoch, view = seed % 7, seed % 3
            ours = dataset.params(index, epoch, view)
            drawn = draw(case.ops, Key(seed, epoch, index, view), case.size)
            for mine, theirs in zip(ours, drawn, strict=True):
                told = {name: value for name, value in mine.items() if name in theirs}
                assert told == {name: theirs[name] for name in told}, (seed, index, case)
                if mine["op"].startswith("Random"):
                    assert told.keys() == theirs.keys() - {"out"}, (seed, index, case)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_replay_of_their_parameters(workers: int) -> None:
    for seed in range(40):
        case = make_case(seed)
        images = case.images(7, seed)
        dataset = make_dataset(case, seed, images)
        loader = DataLoader(dataset, batch_size=3, num_workers=workers, path="array")
        for epoch in range(2):
            ours = torch.cat([batch[0] for batch in loader])
            for index, image in enumerate(images):
                params = dataset.params(index, epoch=epoch)
                expected = laid_out(replay(case.ops, params, image), case.out_layout)
                assert flat_bits(ours[index]) == flat_bits(expected), (seed, case)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_images_of_a_mapped_file_are_the_replay_of_their_parameters(
    tmp_path: Path, layout: str
) -> None:
    for seed in range(20):
        case = make_case(seed)
        images = case.images(SAMPLES, seed)
        order = (0, 1, 2, 3) if layout == "CHW" else (0, 2, 3, 1)
        np.save(tmp_path / "images.npy", images.numpy().transpose(order))
        dataset = ArrayDataset(
            tmp_path / "images.npy", transform=chain(case.ops), layout=layout, seed=seed
        )
        batch = next(iter(DataLoader(dataset, batch_size=SAMPLES)))[0]
        for index, image in enumerate(images):
            expected = replay(case.ops, dataset.params(index, epoch=0), image)
            assert_same(dataset[index][0], expected, (seed, case))
            assert_same(batch[index], expected, (seed, case))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("statistics", [(0.5, 0.25), (0.485, 0.229), (0.0, 1.0), (1e-3, 3e-6)])
def test_all_bytes_become_what_torch_makes_of_them(
    dtype: torch.dtype, statistics: tuple[float, float]
) -> None:
    mean, std = statistics
    values: list[Op] = [("ToDtype", {"dtype": dtype, "scale": True})]
    values.append(("Normalize", {"mean": [mean], "std": [std]}))
    image = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    dataset = ArrayDataset(image[None], transform=chain(values))
    expected = replay(values, [{"op": name} for name, _ in values], image)
    assert expected.dtype == out_dtype(values) == dtype
    assert bits(dataset[0][0]) == bits(expected)
