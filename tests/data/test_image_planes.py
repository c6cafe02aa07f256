"""Planes of JPEG files that are kept: the same samples, files decoded once, and nothing stale."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import picture, use_own_planes
from PIL import Image

import fastloop
from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T
from fastloop._core import YccImage
from fastloop.cli import run, start
from fastloop.data.image_folder import planes as room
from fastloop.data.image_folder.planes import ImagePlanes, parse_cache, to_array

TRAIN = T.Compose(
    [
        T.RandomResizedCrop((12, 10)),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    ]
)
ONE, OTHER = "444/31x47.jpg", "420/40x32.jpg"
SUBSAMPLINGS = {"444": 0, "422": 1, "420": 2, "411": "4:1:1"}


def save(path: Path, image: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "PNG" if path.suffix == ".png" else "JPEG", **options)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of every kind. They count as old at once."""
    use_own_planes(tmp_path, monkeypatch)
    root, number = tmp_path / "images", 0
    for name, subsampling in SUBSAMPLINGS.items():
        for height, width in ((31, 47), (40, 32), (1, 9), (9, 1), (2, 5), (3, 4), (2, 700)):
            image = picture(number, height, width)
            number += 1
            for kind in ("", "p"):
                path = root / name / f"{height}x{width}{kind}.jpg"
                save(path, image, subsampling=subsampling, progressive=bool(kind), quality=70)
    image = picture(99, 30, 41)
    exif = Image.Exif()
    exif[274] = 6  # turned
    save(root / "others" / "exif.jpg", image, exif=exif)
    save(root / "others" / "grey.jpg", image.convert("L"))
    save(root / "others" / "cmyk.jpg", image.convert("CMYK"))
    save(root / "others" / "picture.png", image)
    return root


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a file was decoded again")

    monkeypatch.setattr(ImagePlanes, "_decode", refuse)


def test_colours_are_rounded_as_libjpeg_rounds_them() -> None:
    y = np.repeat(np.array([0, 1, 90, 128, 254, 255], np.uint8), 256 * 256).reshape(-1, 256)
    chroma = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    cb, cr = (np.tile(plane, (6, 1)) for plane in (chroma, chroma.T))
    made = to_array(YccImage(y.tobytes() + cb.tobytes() + cr.tobytes(), 6 * 256, 256, 1))
    v, b, r = (plane.astype(np.int32) - less for plane, less in ((y, 0), (cb, 128), (cr, 128)))
    scaled = [91881 * r, -22554 * b - 46802 * r, 116130 * b]
    expected = np.stack([v + ((each + 32768) >> 16) for each in scaled], 2).clip(0, 255)
    assert np.array_equal(made, expected.astype(np.uint8))


@pytest.mark.parametrize("transform", [TRAIN, None, lambda image: np.asarray(image).sum()])
def test_samples_are_those_without_a_cache(
    root: Path, transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ImageFolder(root, transform, seed=5)
    kept = ImageFolder(root, transform, seed=5, cache="planes:4M")
    for epoch in (0, 1):
        for dataset in (plain, kept):
            dataset.set_epoch(epoch)
        assert_same([kept[i] for i in range(len(kept))], [plain[i] for i in range(len(plain))])
        if transform is TRAIN:
            assert kept.params(3) == plain.params(3)
    assert kept._planes is not None and kept._planes.why == ""
    of_jpeg = [path for path, _ in kept.samples if "cmyk" not in path and "png" not in path]
    forbid_decoding(monkeypatch)
    assert all(kept._planes.read(path) is not None for path in of_jpeg)
    assert "planes of JPEG files in" in kept.explain()


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_share_the_file(
    root: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ImageFolder(root, TRAIN, seed=5)
    kept = ImageFolder(root, TRAIN, seed=5, cache="planes:4M")
    expected = list(TorchLoader(plain, 4))
    assert_same(list(DataLoader(kept, 4, num_workers=workers)), expected)
    forbid_decoding(monkeypatch)
    again = ImageFolder(root, TRAIN, seed=5, cache="planes")  # a second run takes the same file
    paths = [path for path, _ in kept.samples if path.endswith(("x47.jpg", "x32p.jpg"))]
    assert len(paths) == 2 * len(SUBSAMPLINGS)
    assert again._planes is not None and all(map(again._planes.read, paths))


def test_a_changed_file_is_decoded_again(root: Path) -> None:
    planes, path = ImagePlanes("1M"), root / ONE
    files = [path.read_bytes(), (root / OTHER).read_bytes()]
    length = max(map(len, files))
    before = os.stat(path)
    for data in files * 2:  # in place, and with the size and the time of before
        path.write_bytes(data.ljust(length, b"\0"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with Image.open(path) as image:
            expected = np.asarray(image.convert("RGB"))
        for _ in range(2):
            assert np.array_equal(to_array(planes.read(str(path))), expected)


def test_a_file_that_has_just_changed_is_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_YOUNG_NS", 10**18)
    planes = ImagePlanes("1M")
    assert planes.read(str(root / ONE)) is None


def test_a_damaged_file_gives_the_error_without_a_cache(root: Path) -> None:
    path = root / ONE
    path.write_bytes(path.read_bytes()[:-200])
    (root / OTHER).write_bytes(b"\xff\xd8\xff")
    plain, kept = ImageFolder(root, TRAIN), ImageFolder(root, TRAIN, cache="planes:1M")
    rows = [row for row, (path, _) in enumerate(plain.samples) if path.endswith((ONE, OTHER))]
    assert len(rows) == 2
    for row in rows:
        texts = []
        for dataset in (plain, kept):
            with pytest.raises(OSError, match="cannot be decoded") as caught:
                dataset[row]
            texts.append(str(caught.value))
        assert texts[0] == texts[1]


def test_the_file_never_outgrows_its_budget(root: Path) -> None:
    planes = ImagePlanes("64K")
    samples = ImageFolder(root).samples
    for path, _ in samples * 2:
        image = planes.read(path)
        if image is not None:
            with Image.open(path) as expected:
                assert np.array_equal(to_array(image), np.asarray(expected.convert("RGB")))
    file = Path(planes.folder, "images")
    assert planes._is_full and planes._file.used <= 2**16 == os.path.getsize(file)


def test_a_larger_budget_and_a_restarted_machine_begin_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(root / ONE)
    small = ImagePlanes("100K")
    image = small.read(path)
    assert small._file.used > 500
    assert ImagePlanes("")._file.used == ImagePlanes("80K")._file.used == small._file.used
    assert ImagePlanes("200K")._file.used < small._file.used
    with Image.open(path) as expected:  # the old file is there as long as somebody uses it
        assert np.array_equal(to_array(image), np.asarray(expected.convert("RGB")))
    large = ImagePlanes("")
    large.read(path)
    monkeypatch.setattr(room, "_read_boot", lambda: b"x" * 16)
    assert ImagePlanes("200K")._file.used < large._file.used


@pytest.mark.parametrize("damage", [b"", b"x" * 5000, None])
def test_a_damaged_cache_is_made_anew(root: Path, damage: bytes | None) -> None:
    path = str(root / ONE)
    planes = ImagePlanes("100K")
    file = Path(planes.folder, "images")
    file.write_bytes(damage if damage is not None else file.read_bytes()[:70_000])
    again = ImagePlanes("100K")
    assert again.read(path) is not None and again._file.find(again._key(path, os.stat(path)))


def test_planes_that_make_other_images_are_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = ImagePlanes("1M")
    monkeypatch.setattr(room, "find_jpeg", lambda: None)
    monkeypatch.setattr(ImagePlanes, "_planes", lambda *_: (bytes(31 * 47 * 3), 31, 47, 1))
    assert planes.read(str(root / ONE)) is None
    assert "do not make Pillow's images" in planes.explain()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8G", 2**33), ("1.5GiB", 3 * 2**29), ("64k", 2**16), ("./8G", None), ("", None)],
)
def test_a_size_or_a_folder(text: str, expected: int | None, root: Path) -> None:
    budget, folder = parse_cache(text)
    assert budget == expected
    home = f"{root.parent}/home/fastloop/images"
    assert folder == (os.path.abspath("8G") if "/" in text else home)


def test_what_cannot_be_opened_is_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").touch()
    monkeypatch.setenv("FASTLOOP_IMAGES", str(root / "file" / "folder"))
    assert room.find_asked() is None and "FASTLOOP_IMAGES" not in os.environ
    monkeypatch.setenv("FASTLOOP_IMAGES", "100K")
    assert room.find_asked() is room.find_asked() is not None


def test_a_file_of_another_user_is_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ImagePlanes("100K")
    mine.read(str(root / ONE))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert ImagePlanes("100K")._file.used < mine._file.used


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "images-unfinished"
    mine.write_text("text")
    link.symlink_to(mine)  # by another user
    ImagePlanes(str(tmp_path))
    assert mine.stat().st_size == 4 and not (tmp_path / "images").is_symlink()


def test_wrong_arguments(root: Path) -> None:
    with pytest.raises(ValueError, match=r"^cache must be True, a size or a folder, got 3"):
        fastloop.patch(cache=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^cache must be a size such as '8G', of at least 64K"):
        ImageFolder(root, cache="planes:1K")
    with pytest.raises(ValueError, match=r"^cache must be None if decode is a function"):
        ImageFolder(root, cache="planes", decode=lambda data: data)


@pytest.mark.parametrize("option", ["--cache", "--cache=100K"])
def test_run_opens_it_in_the_program(
    root: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(os, "execve", lambda path, command, env: found.update(env))
    argv = [sys.executable, "-m", "fastloop", "run", option, "script.py"]
    monkeypatch.setattr(sys, "orig_argv", argv)
    run.main(argv[4:])
    monkeypatch.setenv("FASTLOOP_IMAGES", found["FASTLOOP_IMAGES"])
    start._act("transforms", False, lambda: None)
    try:
        kept = room.find_asked()
        assert kept is not None and (kept._file.size == 100 << 10) == ("=" in option)
    finally:
        fastloop.unpatch()
