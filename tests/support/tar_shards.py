"""Tar shards of small samples for tests of TarDataset."""

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from image_folders import encode, picture

Member = tuple[str, bytes]


def write_tar(path: Path, members: Iterable[Member], format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def image_members(numbers: Sequence[int], size: int = 0) -> list[Member]:
    """A JPEG and its class for each number."""
    members = []
    for n in numbers:
        members.append((f"img/{n:04}.jpg", encode(picture(n, size, size), quality=90)))
        members.append((f"img/{n:04}.cls", str(n).encode()))
    return members


def write_shards(folder: Path, shards: int = 3, each: int = 10, size: int = 0) -> list[str]:
    """Shards of images, numbered on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"train-{s:03}.tar" for s in range(shards)]
    for s, path in enumerate(paths):
        write_tar(path, image_members(range(s * each, (s + 1) * each), size))
    return [str(path) for path in paths]


def parts_of(dataset: Any, row: int) -> dict[str, bytes]:
    """The bytes of a sample's parts, without the decoders."""
    return dict(dataset._members(row)[1])
