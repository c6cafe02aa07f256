"""Plans that decode parts of JPEG files: the pixels are Pillow's, and damaged files give what they
give without."""

import io
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture, use_own_planes, write_folder
from PIL import Image, ImageFile

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T
from fastloop._core import JpegDecoder, JpegImage, YccImage
from fastloop.compat import verdicts
from fastloop.data.image_folder import decode, jpeg
from fastloop.data.image_folder.decode import AutoDecoder
from fastloop.data.image_folder.planes import ImagePlanes, to_array
from fastloop.data.transforms.split import Piece, SplitPlan

try:
    FOUND = JpegDecoder(Image.core.__file__)
except ValueError:
    pytest.skip("Pillow links no libjpeg-turbo", allow_module_level=True)

KINDS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "grey": {},
    "restarts": {"subsampling": 2, "restart_marker_blocks": 3},
    "rows": {"subsampling": 1, "restart_marker_rows": 1},
    "tables": {"subsampling": 2, "optimize": True},
}


def four_columns(data: bytes) -> bytes:
    """Say of a file that it has four columns for one of Cb; what follows does not fit."""
    at = data.index(b"\xff\xc0") + 11
    return data[:at] + b"\x41" + data[at + 1 :]


LEFT: dict[str, Callable[[Any], bytes]] = {
    "progressive": lambda image: encode(image, progressive=True),
    "4:1:1": lambda image: four_columns(encode(image, subsampling=2)),
    "CMYK": lambda image: encode(image.convert("CMYK")),
    "PNG": lambda image: encode(image, "PNG"),
    "truncated": lambda image: encode(image)[:-2],
    "empty": lambda _: b"",
}
TRAIN = T.Compose(
    [
        T.RandomResizedCrop((12, 10), scale=(0.05, 0.6)),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
    ]
)


@pytest.fixture(autouse=True)
def small_images_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LEAST_PIXELS", 0)


def make(kind: str, height: int, width: int, number: int = 0) -> bytes:
    """Noise, so that each pixel beside a part would show."""
    shape = (height, width) if kind == "grey" else (height, width, 3)
    pixels = np.random.default_rng(number).integers(0, 256, shape, np.uint8)
    return encode(Image.fromarray(pixels), quality=85, **KINDS[kind])


def plan_of(*ops: Any) -> SplitPlan:
    return SplitPlan((Piece(ops, ()),), (0, 0, 3), "HWC", "HWC", 0)


def opened(data: bytes) -> JpegImage:
    image = FOUND.open(data)
    assert image is not None
    return image


def without_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "find_jpeg", lambda: None)


def hide_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    find = decode.find_module
    monkeypatch.setattr(
        decode, "find_module", lambda name: None if name == "simplejpeg" else find(name)
    )


# ---- pixels


@pytest.mark.parametrize("kind", KINDS)
def test_small_images_of_all_sizes(kind: str) -> None:
    whole, corner = plan_of(T.ToDtype(torch.uint8)), plan_of(T.RandomCrop((1, 1)))
    for height in range(1, 41):
        for width in range(1, 41):
            data = make(kind, height, width, height)
            expected = by_pillow(data)
            image = opened(data)
            assert image.shape == expected.shape
            assert np.array_equal(whole.apply(image, 0).numpy(), expected)
            made = corner.apply(image, width)
            assert torch.equal(made, corner.apply(expected, width))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_larger_images(kind: str) -> None:
    rng = random.Random(kind)
    for number in range(25):
        height, width = rng.randint(30, 220), rng.randint(60, 400)
        data = make(kind, height, width, number)
        expected, image = by_pillow(data), opened(data)
        for i in range(12):
            size = rng.randint(1, height), rng.randint(1, width)
            crop = T.RandomCrop(size)
            for plan in (plan_of(crop), plan_of(T.RandomVerticalFlip(1), crop)):
                assert torch.equal(plan.apply(image, i), plan.apply(expected, i)), (size, i)


@pytest.mark.parametrize(
    "ops",
    [
        (T.RandomResizedCrop(20),),
        (T.RandomHorizontalFlip(1), T.RandomResizedCrop((9, 30)), T.RandomErasing(1)),
        (T.Resize((40, 30)), T.RandomCrop(24)),
        (T.CenterCrop(300), T.RandomCrop((50, 290))),
        (T.RandomCrop(200, padding=90, padding_mode="reflect"),),
        (T.RandomCrop((130, 200), padding=(300, 150), fill=7),),
        (T.Pad(30, padding_mode="edge"), T.RandomCrop(40), T.RandomVerticalFlip(1)),
        (T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.RandomResizedCrop(20)),
        (T.RandomResizedCrop(30), T.GaussianBlur(3), T.RandomGrayscale(0.5)),
        (T.RandomRotation(40), T.CenterCrop(60)),
        (T.AugMix(), T.CenterCrop(30)),
    ],
    ids=lambda ops: ops[0].__class__.__name__,
)
def test_chains(ops: Any) -> None:
    data = make("420", 150, 230)
    plan, expected, image = plan_of(*ops), by_pillow(data), opened(data)
    compared = 0
    for i in range(30):
        with suppress(ValueError):  # the crop lies in the padding
            made = plan.apply(image, i)
            compared += 1
            assert torch.equal(made, plan.apply(expected, i))
    assert compared > 10


@pytest.mark.parametrize("padding", [(900, 0), (0, 900)])
def test_a_crop_that_is_all_padding_is_refused(padding: tuple[int, int]) -> None:
    plan = plan_of(T.RandomCrop((20, 20), padding=padding))
    with pytest.raises(ValueError, match="no pixel is read"):
        plan.apply(opened(make("420", 30, 40)), 1)


@pytest.mark.parametrize("kind", LEFT)
def test_other_files_are_left(kind: str) -> None:
    assert FOUND.open(LEFT[kind](picture(1))) is None


def test_a_file_has_no_pixels_for_other_plans() -> None:
    plan = SplitPlan((Piece((T.CenterCrop(5),), ()),), (0, 0, 1), "HWC", "HWC", 0)
    with pytest.raises((TypeError, BufferError, ValueError)):
        plan.apply(opened(make("grey", 20, 20)), 0)


def test_a_library_without_libjpeg_is_no_decoder() -> None:
    for path in ("/nowhere.so", torch._C.__file__, ""):
        with pytest.raises(ValueError, match="JpegDecoder"):
            JpegDecoder(path)
    with pytest.raises(TypeError, match="bytes"):
        FOUND.open("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        JpegImage()


def test_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        path = FOUND.path

        def open(self, data: bytes) -> Any:
            return np.asarray(Image.open(io.BytesIO(data)).convert("L").convert("RGB"))

    assert jpeg.find_jpeg() is not None
    assert not jpeg._is_pillows(Other(), Image)  # type: ignore[arg-type]
    monkeypatch.setattr(jpeg, "JpegDecoder", lambda _: Other())
    monkeypatch.setattr(verdicts, "_read", {})
    assert jpeg.find_jpeg.__wrapped__() is None


def test_a_verdict_is_kept_for_later_programs_with_the_same_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FASTLOOP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, answers = tmp_path / "libjpeg.so", [True, False, True]
    monkeypatch.setattr(jpeg, "JpegDecoder", lambda _: SimpleNamespace(path=str(library)))
    monkeypatch.setattr(jpeg, "_is_pillows", lambda *_: answers.pop(0))
    for change, is_found in enumerate((True, False, True)):
        if change == 2:
            monkeypatch.setenv("LD_PRELOAD", "libother.so")  # Pillow may call another libjpeg
        else:
            (tmp_path / "new").write_bytes(b"")
            os.utime(tmp_path / "new", (1, 1))  # a package's files may all have one time
            os.replace(tmp_path / "new", library)
        for _ in range(2):
            monkeypatch.setattr(verdicts, "_read", {})  # as in a new process
            assert (jpeg.find_jpeg.__wrapped__() is not None) is is_found
        assert len(answers) == 2 - change


# ---- folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "images", 8)
    number = 0
    for kind in KINDS:
        for size in ((60, 90), (1, 1), (31, 170)):
            (root / "cat" / f"{kind} {size}.jpg").write_bytes(make(kind, *size, number))
            number += 1
    for kind in ("progressive", "CMYK", "PNG"):
        (root / "bird" / f"{kind}.jpg").write_bytes(LEFT[kind](picture(number)))
    (root / "bird" / "RGB components.jpg").write_bytes(encode(picture(number), keep_rgb=True))
    return root


@pytest.mark.parametrize("has_simplejpeg", [True, False], ids=["simplejpeg", "Pillow"])
@pytest.mark.parametrize(
    "transform",
    [TRAIN, None, T.Compose([T.Resize(20), T.CenterCrop(16)]), {"a": TRAIN, "b": TRAIN}],
    ids=["train", "none", "test", "views"],
)
def test_samples_are_those_of_whole_files(
    root: Path, transform: Any, has_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_simplejpeg:
        hide_simplejpeg(monkeypatch)
    parts = ImageFolder(root, transform, seed=5)
    made = []
    for epoch in (0, 1):
        parts.set_epoch(epoch)
        made += [parts[i] for i in range(len(parts))]
    assert all("RGB" in path for path in parts._refused)
    without_parts(monkeypatch)
    plain = ImageFolder(root, transform, seed=5)
    expected = []
    for epoch in (0, 1):
        plain.set_epoch(epoch)
        expected += [plain[i] for i in range(len(plain))]
        if transform is TRAIN:
            assert parts.params(3, epoch) == plain.params(3, epoch)
    assert_same(made, expected)


def test_small_images_and_large_crops_are_decoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "a").mkdir()
    (folder / "1.jpg").write_bytes(make("420", 300, 300))
    opened_types = []
    for least, transform in (
        (90_001, TRAIN),
        (90_000, TRAIN),
        (0, T.RandomCrop(212)),
        (0, T.RandomCrop(213)),
        (0, T.Compose([T.ToDtype(torch.float32)])),
    ):
        monkeypatch.setattr(decode, "LEAST_PIXELS", least)
        dataset = ImageFolder(tmp_path, transform)
        opened_types.append(type(dataset._load(0, dataset._least)) is JpegImage)
    assert opened_types == [False, True, True, False, False]


def test_a_file_that_nobody_can_decode_raises_if_the_crop_reads_nothing(tmp_path: Path) -> None:
    (folder := tmp_path / "a").mkdir()
    data = make("420", 60, 90)
    tables = data.index(b"\xff\xc4")
    (folder / "1.jpg").write_bytes(data[: tables + 5] + b"\xff" * 16 + data[tables + 21 :])
    assert opened((folder / "1.jpg").read_bytes()) is not None
    dataset = ImageFolder(tmp_path, T.Compose([T.Pad(200), T.RandomCrop(9)]), seed=1)
    for epoch in range(20):
        dataset.set_epoch(epoch)
        with pytest.raises(OSError, match="cannot be decoded"):
            dataset[0]


@pytest.mark.parametrize("path", ["thread", "process"])
def test_workers_decode_parts(root: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"num_workers": 2, "path": path}
    made = list(DataLoader(ImageFolder(root, TRAIN, seed=5), 4, **options))
    without_parts(monkeypatch)
    assert_same(made, list(TorchLoader(ImageFolder(root, TRAIN, seed=5), 4)))


def test_no_whole_file_is_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a whole file was decoded")

    dataset = ImageFolder(root, TRAIN)
    rows = [row for row, (path, _) in enumerate(dataset.samples) if Path(path).parent.name == "cat"]
    rows = [row for row in rows if " (" in dataset.samples[row][0]]
    assert len(rows) == 3 * len(KINDS)
    monkeypatch.setattr(AutoDecoder, "__call__", refuse)
    for row in rows:
        dataset[row]
    assert "decodes the part that the transform reads" in dataset.explain()


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change bytes, cut, or write an end in the middle."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    way = rng.randrange(4)
    if way == 1:
        del changed[rng.randrange(len(data)) :]
    if way == 2:
        at = rng.randrange(len(data) // 2, len(data))
        changed[at : at + 2] = b"\xff\xd9"
    if way == 3:
        at = rng.randrange(len(data))
        del changed[at : at + rng.randint(1, 40)]
    return bytes(changed)


def outcome(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(("on_error", "has_simplejpeg"), [("raise", 1), ("skip", 1), ("raise", 0)])
def test_damaged_files_give_what_they_give_without(
    tmp_path: Path, on_error: str, has_simplejpeg: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_simplejpeg:
        hide_simplejpeg(monkeypatch)
    rng, folder = random.Random(on_error), tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    count = int(os.environ.get("FASTLOOP_FUZZ", "16")) * 20
    for number in range(count):
        data = make(rng.choice(list(KINDS)), rng.randint(1, 60), rng.randint(1, 120), number)
        (folder / f"{number:05}.jpg").write_bytes(damage(data, rng))
    datasets = [ImageFolder(tmp_path / "images", TRAIN, on_error=on_error) for _ in range(2)]
    monkeypatch.setattr("warnings.warn", lambda *_, **__: None)  # of Pillow and of skipped files
    made = [[outcome(datasets[0], row) for row in range(count)] for _ in range(2)]
    without_parts(monkeypatch)
    expected = [outcome(datasets[1], row) for row in range(count)]
    for outcomes in made:
        for found, wanted in zip(outcomes, expected, strict=True):
            if isinstance(wanted[0], type):
                assert found == wanted
            else:
                assert_same(found, wanted)
    assert datasets[0].skipped_files == datasets[1].skipped_files
    assert datasets[0]._refused


def test_a_damaged_file_with_a_function(tmp_path: Path) -> None:
    path = tmp_path / "images" / "a" / "1.jpg"
    path.parent.mkdir(parents=True)
    data = make("420", 60, 90)
    path.write_bytes(data[:-300] + b"\xff\xd8\x00" + data[-297:])  # a marker that Pillow refuses
    grey = np.full((9, 9, 3), 7, np.uint8)
    dataset = ImageFolder(tmp_path / "images", T.CenterCrop(5), on_error=lambda *_: grey)
    assert (dataset[0][0] == 7).all()


def test_pillow_may_refuse_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images" / "a" / "1.jpg"
    path.parent.mkdir(parents=True)
    data = make("420", 60, 90)
    path.write_bytes(data[:2] + b"\xff\xe0\x00\x06JFIF" + data[2:])
    assert opened(path.read_bytes()).shape == (60, 90, 3)
    hide_simplejpeg(monkeypatch)
    with pytest.raises(OSError, match="no format that Pillow knows"):
        ImageFolder(tmp_path / "images", TRAIN)[0]


def test_pillows_limit_of_pixels_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images" / "a" / "1.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(make("420", 60, 90))
    dataset = ImageFolder(tmp_path / "images", TRAIN)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 90 // 2 - 1)
    with pytest.raises(OSError, match="exceeds limit"):
        dataset[0]


# ---- planes


@pytest.mark.parametrize("kind", KINDS)
def test_planes_are_those_of_pillow(kind: str) -> None:
    by_halves = ImagePlanes._planes
    planes = object.__new__(ImagePlanes)
    planes._pil = decode.find_module("PIL.JpegImagePlugin")
    for height in (*range(1, 20), 47):
        for width in (*range(1, 20), 90):
            data = make(kind, height, width, width)
            made = opened(data).planes()
            if made is None:
                assert kind in ("422", "rows") or width <= 4 or height == 1
                continue
            expected = YccImage(*by_halves(planes, planes._open(data), data))
            assert np.array_equal(to_array(made), by_pillow(data))
            assert np.array_equal(to_array(expected), to_array(made))


def test_a_file_is_decoded_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_own_planes(tmp_path, monkeypatch)
    path, damaged = root / "cat" / "420 (60, 90).jpg", tmp_path / "damaged.jpg"
    data = path.read_bytes()
    damaged.write_bytes(data[:-200] + data[-2:])
    with pytest.raises(ValueError, match="libjpeg"):
        opened(damaged.read_bytes()).planes()
    planes = ImagePlanes("1M")
    kept = planes.read(str(damaged))  # by Pillow, which does not mind the warning
    assert kept is not None and np.array_equal(to_array(kept), by_pillow(damaged.read_bytes()))

    def refuse(*_: Any) -> Any:
        raise AssertionError("Pillow decodes twice")

    monkeypatch.setattr(ImagePlanes, "_planes", refuse)
    made = planes.read(str(path))
    assert made is not None and np.array_equal(to_array(made), by_pillow(data))
    shutil.rmtree(planes.folder)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
