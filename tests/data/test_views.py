"""Several views of one image: fields of one dataset over one source, each with random numbers of
its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from PIL import Image

from fastloop import ArrayDataset, DataLoader, ImageFolder
from fastloop import transforms as T

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("thread", 2), ("torch", 2)]
IMAGES = torch.randint(0, 256, (20, 3, 24, 20), dtype=torch.uint8)
LABELS = torch.arange(20)
GLOBAL = T.Compose([T.RandomResizedCrop(16), T.ColorJitter(0.4), T.ToDtype(torch.float32)])
LOCAL = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip()])
VIEWS = {"view1": GLOBAL, "view2": GLOBAL, "small": LOCAL}


def epochs_of(loader: Any, data: Any) -> list[Any]:
    found = []
    for epoch in range(2):
        data.set_epoch(epoch)
        found += list(loader)
    return found


@pytest.mark.parametrize(("path", "workers"), PATHS)
@pytest.mark.parametrize("is_named", [False, True])
def test_views_are_those_of_datasets_with_one_transform(
    path: str, workers: int, is_named: bool
) -> None:
    arrays: Any = {"image": IMAGES, "label": LABELS} if is_named else (IMAGES, LABELS)
    if is_named:
        data = ArrayDataset(**arrays, transform=VIEWS, seed=5)
    else:
        data = ArrayDataset(*arrays, transform=VIEWS, seed=5)
    loader = DataLoader(data, 6, path=path, num_workers=workers)
    singles = [
        ArrayDataset(IMAGES, LABELS, transform=aug, seed=5 + i)
        for i, aug in enumerate(VIEWS.values())
    ]
    wanted = [epochs_of(TorchLoader(each, 6), each) for each in singles]
    for ours, *batches in zip(epochs_of(loader, data), *wanted, strict=True):
        values = [*(batch[0] for batch in batches), batches[0][1]]
        if is_named:
            assert list(ours) == ["view1", "view2", "small", "label"]
            ours = list(ours.values())
        assert_same(list(ours), values)
        assert not torch.equal(ours[0], ours[1])


def test_parameters_of_each_view() -> None:
    data = ArrayDataset(IMAGES, LABELS, transform=VIEWS, seed=2**64 - 1)
    ones = ArrayDataset(IMAGES, transform=GLOBAL, seed=0)
    assert data.params(3, field="view2") == ones.params(3)
    assert data.params(3, field="view1") != ones.params(3)
    lines = data.explain().splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("field")] == [
        "field 'view1'",
        "field 'view2'",
        "field 'small'",
        "field 3",
    ]
    assert repr(data).startswith(
        "ArrayDataset(view1: uint8 (20, 3, 24, 20) -> float32 (3, 16, 16), "
    )
    with pytest.raises(ValueError, match="field must be one of"):
        data.params(3)


def test_one_unknown_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="each key of transform must be"):
        ArrayDataset(image=IMAGES, transform={"imgae": GLOBAL})


def test_views_beside_another_field_with_a_transform() -> None:
    both = {"a": LOCAL, "b": LOCAL, "mask": T.RandomHorizontalFlip()}
    data = ArrayDataset(image=IMAGES, mask=IMAGES[:, :1], transform=both, seed=1)
    flip = ArrayDataset(IMAGES[:, :1], transform=both["mask"], seed=1)
    assert list(data[4]) == ["a", "b", "mask"]
    assert torch.equal(data[4]["mask"], flip[4][0])


def test_a_mapped_file_and_functions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES.numpy())
    views = {"a": LOCAL, "b": T.Compose([T.RandomCrop(9), lambda image: image.float()])}
    data = ArrayDataset(str(tmp_path / "x.npy"), LABELS, transform=views)
    again = ArrayDataset(IMAGES, LABELS, transform=views)
    assert_same(list(DataLoader(data, 5, num_workers=1)), list(TorchLoader(again, 5)))


@pytest.mark.parametrize("has_cache", [False, True])
def test_files_are_decoded_once(tmp_path: Path, has_cache: bool) -> None:
    folder = tmp_path / "root" / "a"
    folder.mkdir(parents=True)
    for i in range(4):
        Image.fromarray(IMAGES[i].permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    decoded = []

    def decode(content: bytes) -> Any:
        decoded.append(len(content))
        return IMAGES[len(decoded) - 1].permute(1, 2, 0).numpy()

    cache = f"u8:{tmp_path / 'cache'}" if has_cache else None
    data = ImageFolder(tmp_path / "root", VIEWS, decode=decode, cache=cache, seed=3)
    arrays = ArrayDataset(IMAGES[:4], torch.zeros(4).long(), transform=VIEWS, seed=3)
    assert_same(list(DataLoader(data, 2)), list(TorchLoader(arrays, 2)))
    assert len(decoded) == 4
    if has_cache:
        assert data.params(2, field="small") == arrays.params(2, field="small")
    assert "small: native" in data.explain() or "'small': uint8" in data.explain()
    with pytest.raises(TypeError, match=r"transform.'b'. must be of fastloop.transforms"):
        ImageFolder(tmp_path / "root", {"a": LOCAL, "b": len})
