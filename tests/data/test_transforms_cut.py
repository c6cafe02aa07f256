"""Transforms that hold functions: C does what stands before and behind them, with the same random
numbers, and errors are the function's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from PIL import Image

from fastloop import ArrayDataset, DataLoader, ImageFolder
from fastloop import transforms as T

PATHS = [("sync", 0), ("process", 2), ("thread", 2), ("torch", 0), ("torch", 2), ("auto", 2)]
_RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (20, 3, 19, 23), dtype=torch.uint8, generator=_RANDOM)
OPS: list[Any] = [
    T.RandomCrop(16, padding=2),
    T.RandomHorizontalFlip(),
    T.RandomCrop(12),
    T.ColorJitter(0.5, 0.5, 0.5, 0.1),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    T.RandomErasing(p=0.7),
]


def same(image: torch.Tensor) -> torch.Tensor:
    assert image.shape[0] == 3
    return image


def invert(image: torch.Tensor) -> torch.Tensor:
    return 255 - image


def invert_array(image: torch.Tensor) -> np.ndarray:
    return 255 - image.permute(1, 2, 0).numpy()


def fail(image: torch.Tensor) -> torch.Tensor:
    raise LookupError("the function's own")


def data(ops: list[Any], **options: Any) -> ArrayDataset:
    images = IMAGES.permute(0, 2, 3, 1) if options.get("layout") == "HWC" else IMAGES
    labels = torch.arange(len(images))
    return ArrayDataset(images, labels, transform=T.Compose(ops), seed=7, **options)


def epochs_of(loader: Any, dataset: Any) -> list[Any]:
    found = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        found += [[value.clone() for value in batch] for batch in loader]
    return found


@pytest.mark.parametrize(("path", "workers"), PATHS)
@pytest.mark.parametrize("places", [(0,), (1,), (3,), (4,), (0, 2), (2, 2), (1, 4)], ids=str)
def test_a_function_leaves_the_rest_as_it_was(path: str, workers: int, places: Any) -> None:
    ops = [*OPS[:-1]]
    for place in reversed(places):
        ops.insert(place, same)
    cut, whole = data(ops), data(OPS[:-1])
    ours = epochs_of(DataLoader(cut, 6, num_workers=workers, path=path), cut)
    assert_same(ours, epochs_of(TorchLoader(whole, 6), whole))


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_operations_behind_a_function_read_pixels_that_nobody_writes(
    path: str, workers: int
) -> None:
    """The image keeps its size and dtype, so that the result's memory would fit in the middle."""
    first, last = T.RandomCrop(16), [T.RandomVerticalFlip(0.5), T.RandomCrop(16, padding=3)]
    cut, whole = data([first, same, *last]), data([first, *last])
    ours = epochs_of(DataLoader(cut, 6, num_workers=workers, path=path), cut)
    assert_same(ours, epochs_of(TorchLoader(whole, 6), whole))


@pytest.mark.parametrize("function", [invert, invert_array])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_a_function_changes_the_image_where_it_stands(
    function: Callable[[Any], Any], layout: str, out_layout: str
) -> None:
    for place in range(5):
        ops, inverts = OPS[:], OPS[:]
        ops.insert(place, function)
        inverts.insert(place, T.RandomInvert(p=1.0))
        layouts = {"layout": layout, "out_layout": out_layout}
        ours, whole = data(ops, **layouts), data(inverts, **layouts)
        for i in range(8):
            assert_same(ours[i, 1], whole[i, 1])
            assert ours[i][0].stride() == whole[i][0].stride()
        told = ours.params(3, view=1)
        assert [each["op"] for each in told][place] == function.__name__
        del told[place]
        assert told == [each for each in whole.params(3, view=1) if each["op"] != "RandomInvert"]


def test_results_of_several_sizes_and_types_find_their_places() -> None:
    def change(image: torch.Tensor) -> torch.Tensor:
        wide = image[:, :, : 12 + int(image[0, 0, 0]) % 3]
        return wide if image[0, 0, 1] % 2 else wide.float()

    dataset = data([OPS[0], change, T.ToDtype(torch.float32)])
    loader = DataLoader(dataset, 6, collate_fn=list)
    assert {x.shape[2] for batch in loader for x, _ in batch} == {12, 13, 14}
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            list(DataLoader(dataset, 6))
    fixed = data([change, T.Resize((8, 9)), T.ToDtype(torch.float32)])
    with pytest.raises(TypeError, match="Resize: the image must be one CPU tensor of uint8"):
        list(DataLoader(fixed, 6))


def test_a_function_at_the_end_gives_any_result() -> None:
    both = data([*OPS, lambda image: {"image": image, "mean": image.mean()}])
    (batch, _), *_ = DataLoader(both, 5)
    whole = torch.stack([data(OPS)[i][0] for i in range(5)])
    assert torch.equal(batch["image"], whole) and batch["mean"].shape == (5,)
    first = data([T.RandomCrop(9), lambda image: image.float().log1p()], out_layout="HWC")
    assert first[2][0].shape == (9, 9, 3)


def test_behind_a_function_that_returns_floats_stand_values_alone() -> None:
    def double(image: torch.Tensor) -> torch.Tensor:
        return image * 2

    ours = data([*OPS[:5], double, OPS[5]])
    image = data(OPS[:5])[4][0] * 2
    assert_same(ours[4][0], OPS[5](image))
    with pytest.raises(TypeError, match="RandomErasing: the image must be one CPU tensor of uint8"):
        data([*OPS[:5], double, OPS[6]])[0]


def test_a_loader_says_who_makes_its_batches() -> None:
    dataset = data([T.Pad(1), same, *OPS])
    loader = DataLoader(dataset, 4, num_workers=1)
    assert len(list(loader)) == 5
    assert loader.stats().path == "process"
    assert loader.stats().why == "Python runs same in the middle of the transform"
    with pytest.raises(ValueError, match=r"path=.array. cannot load this: Python runs same"):
        iter(DataLoader(dataset, 4, path="array"))
    assert "same: Python, for each sample (in this process none yet)" in dataset.explain()
    assert dataset[3] and "each for 1)" in dataset.explain()
    assert (
        "in dataset[i], because Python runs same"
        in ArrayDataset(
            IMAGES, IMAGES, transform={0: T.Compose([T.Pad(1), same]), 1: T.Pad(1)}
        ).explain()
    )


def test_an_epoch_goes_on_where_it_was_left() -> None:
    dataset = data([OPS[0], same, *OPS[1:]])
    loader = DataLoader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    iterator = iter(loader)
    assert len([next(iterator) for _ in range(2)]) == 2
    state, rest = loader.state_dict(), list(iterator)
    again = DataLoader(
        pickle.loads(pickle.dumps(dataset)), 4, shuffle=True, generator=torch.Generator()
    )
    again.load_state_dict(state)
    assert_same(list(again), rest)


@pytest.mark.parametrize(("path", "workers"), PATHS[:3])
def test_the_error_of_a_function_is_its_own(path: str, workers: int) -> None:
    with pytest.raises(LookupError, match="the function's own") as error:
        list(DataLoader(data([T.Pad(1), fail, T.Pad(1)]), 4, num_workers=workers, path=path))
    assert workers > 0 or error.traceback[-1].name == "fail"


def test_what_does_not_go_with_the_images_is_told_when_the_dataset_is_made() -> None:
    with pytest.raises(ValueError, match=r"^field 0: RandomCrop: size must be within .*, got .*99"):
        data([T.RandomCrop(99), same])
    with pytest.raises(
        ValueError, match=r"RandomCrop: size must be within .*, got .*99"
    ):  # for sizes that a function returns
        data([same, T.RandomCrop(99)])[0]
    with pytest.raises(TypeError, match=r"RandomApply: item 0 must be .* in a Compose"):
        T.RandomApply([same])


def test_a_compose_with_a_function_can_be_called() -> None:
    torch.manual_seed(0)
    ours = T.Compose([T.RandomCrop(9), invert, *OPS[4:6]])(IMAGES[0])
    torch.manual_seed(0)
    assert torch.equal(ours, T.Compose(OPS[4:6])(invert(T.RandomCrop(9)(IMAGES[0]))))


def test_a_folder_of_images(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    for i in range(3):
        pixels = IMAGES[i, :, : 14 + i].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(root / "a" / f"{i}.png")
    ops = [T.Resize((20, 20)), T.RandomCrop(16), T.RandomCrop(12), T.ToDtype(torch.float32)]
    whole = ImageFolder(root, T.Compose(ops), seed=3)
    for cache in (None, f"u8:{tmp_path / 'cache'}"):
        cut = ImageFolder(root, T.Compose([*ops[:2], same, *ops[2:]]), seed=3, cache=cache)
        assert_same(list(DataLoader(cut, 2)), list(DataLoader(whole, 2)))
        again = pickle.loads(pickle.dumps(cut))
        assert_same(list(DataLoader(again, 2)), list(TorchLoader(cut, 2)))
        told = cut.params(2)
        assert told.pop(2) == {"op": "same"} and told == whole.params(2)
        assert "  same: Python, for each sample" in cut.explain()
