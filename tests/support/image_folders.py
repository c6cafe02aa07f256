"""Folders of small image files for tests of ImageFolder."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastloop
from fastloop.compat import seams, verification
from fastloop.data.image_folder import planes


def picture(number: int, height: int = 0, width: int = 0) -> Any:
    """A smooth one, of a size of its own."""
    rng = np.random.default_rng(number)
    height, width = height or int(rng.integers(20, 60)), width or int(rng.integers(20, 60))
    small = rng.integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def use_own_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a test's planes apart from those of other tests and of the machine. All files count as
    old enough to be kept."""
    monkeypatch.setattr(planes, "_YOUNG_NS", -(10**18))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FASTLOOP_IMAGES", "")  # is put back at the end
    monkeypatch.delenv("FASTLOOP_IMAGES")
    planes._open_once.cache_clear()


def encode(image: Any, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_pillow(data: bytes) -> Any:
    """Decode the bytes of a file as torchvision's loader does."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def write_folder(root: Path, count: int = 14, height: int = 0, width: int = 0) -> Path:
    """JPEGs and PNGs of two classes, some of them deeper."""
    for number in range(count):
        kind = ("jpg", "png", "JPEG")[number % 3]
        folder = root / ("cat" if number % 2 else "bird") / ("deep" if number % 5 == 0 else "")
        folder.mkdir(parents=True, exist_ok=True)
        image = picture(number, height, width)
        data = encode(image, "PNG") if kind == "png" else encode(image, quality=90)
        (folder / f"{number:02}.{kind}").write_bytes(data)
    return root


def nothing_compared() -> Iterator[None]:
    """The body of a fixture: a test knows nothing of what other tests have compared, and undoes its
    patches."""
    verification.verification_of.cache_clear()
    yield
    fastloop.unpatch()
    if (seam := seams.opened.pop("transforms", None)) is not None:
        seams.Seam.take_out(seam)
