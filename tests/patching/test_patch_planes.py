"""Programs' own datasets, which open files by Pillow, with kept planes: images, states of Pillow's
objects and batches as without."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import picture, use_own_planes
from PIL import Image, JpegImagePlugin

import fastloop
from fastloop.adapters import pillow_load
from fastloop.data.image_folder import planes as room
from fastloop.data.image_folder.planes import ImagePlanes


def open_path(path: str) -> Any:
    return Image.open(path).convert("RGB")


def open_file(path: str) -> Any:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def load(path: str) -> Any:
    image = Image.open(path)
    image.load()
    return image


def load_twice(path: str) -> Any:
    image = Image.open(path)
    image.load()
    image.putpixel((0, 0), (1, 2, 3) if image.mode == "RGB" else 1)
    image.load()
    return image


def draft(path: str) -> Any:
    image = Image.open(path)
    image.draft("L", (10, 10))
    return image.convert("RGB")


def resize(path: str) -> Any:
    with Image.open(path) as image:
        return image.resize((12, 10))


def copy(path: str) -> Any:
    return pickle.loads(pickle.dumps(Image.open(path))).convert("RGB")


WAYS = [open_path, open_file, load, load_twice, draft, resize, copy]


class Files(Dataset[Any]):
    def __init__(self, paths: list[str], way: Callable[[str], Any]) -> None:
        self.paths, self.way = paths, way

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = self.way(self.paths[index]).convert("RGB").resize((9, 8))
        return torch.from_numpy(np.array(image)), torch.rand(())


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    use_own_planes(tmp_path, monkeypatch)
    pillow_load._open_verdict.cache_clear()
    paths = []
    for number in range(12):
        image = picture(number, 30 + number, 530 if number == 8 else 47 - number)
        image = image.convert("L" if number == 5 else "CMYK" if number == 6 else "RGB")
        paths.append(str(tmp_path / f"{number}.{'png' if number == 7 else 'jpg'}"))
        path = paths[-1]
        image.convert("RGB").save(path) if number == 7 else image.save(path, subsampling=number % 3)
    yield paths
    fastloop.unpatch()


def state_of(image: Any) -> Any:
    """Return what a program can see of an image."""
    names = set(vars(image)) - {"fp", "_im", "im", "_fp", "pyaccess"}
    kept = {name: repr(vars(image)[name]) for name in names}
    return type(image), image.tobytes("raw", "RGBX" if image.mode == "RGB" else image.mode), kept


@pytest.mark.parametrize("way", WAYS)
def test_images_and_their_states_are_pillows(
    paths: list[str], way: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [state_of(way(path)) for path in paths]
    fastloop.patch(["transforms"], cache="4M")
    for _ in range(2):
        assert_same([state_of(way(path)) for path in paths], expected)
    image = Image.open(paths[0])
    file = image.fp
    image.load()
    assert image.fp is None and file.closed and image.getexif() is not None
    if way is not draft:
        native = fastloop.patch_status().seams["transforms"].native
        monkeypatch.setattr(JpegImagePlugin.Image.core, "jpeg_decoder", None)
        assert_same(state_of(way(paths[0])), expected[0])
        assert fastloop.patch_status().seams["transforms"].native > native


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", [open_path, open_file])
def test_batches_of_a_programs_dataset(
    paths: list[str], workers: int, way: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(3)
        loader = DataLoader(Files(paths, way), 5, shuffle=True, num_workers=workers)
        return [batch for _ in range(2) for batch in loader] + [torch.get_rng_state()]

    expected = epochs()
    fastloop.patch(cache="4M")
    assert_same(epochs(), expected)
    monkeypatch.setattr(ImagePlanes, "_decode", None)
    kept = room.find_asked()
    assert kept is not None and kept.read(paths[0]) is not None


def test_an_image_is_of_the_file_that_was_opened(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(paths[1], tmp_path / "other" / "0.jpg")
    monkeypatch.chdir(tmp_path)
    expected = state_of(load("0.jpg"))
    fastloop.patch(["transforms"], cache="4M")
    load("0.jpg")
    image = Image.open("0.jpg")
    monkeypatch.chdir("other")  # before Pillow's image is compared
    image.load()
    assert_same(state_of(image), expected)


def test_a_difference_is_seen(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [state_of(open_path(path)) for path in paths]
    fastloop.patch(["transforms"], cache="4M")
    open_path(paths[0])
    monkeypatch.setattr(pillow_load, "pil_ycc", lambda core, image: None)
    with pytest.warns(RuntimeWarning, match="JPEG files"):
        assert_same(state_of(open_path(paths[0])), expected[0])
    assert_same([state_of(open_path(path)) for path in paths], expected)


def test_images_of_several_blocks_of_memory(paths: list[str]) -> None:
    expected = [state_of(open_path(path)) for path in paths]
    fastloop.patch(["transforms"], cache="4M")
    size = Image.core.get_block_size()
    Image.core.set_block_size(4096)
    try:
        assert_same([state_of(open_path(path)) for path in paths], expected)
    finally:
        Image.core.set_block_size(size)
    assert fastloop.patch_status().seams["transforms"].native == 9


def test_a_damaged_file_raises_pillows_error(paths: list[str]) -> None:
    data = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(data[:-300])
    texts = []
    for _ in range(2):
        with pytest.raises(OSError, match="truncated") as caught:
            open_path(paths[0])
        texts.append(str(caught.value))
        fastloop.patch(["transforms"], cache="4M")
    assert texts[0] == texts[1]
