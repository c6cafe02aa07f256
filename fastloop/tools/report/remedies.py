"""What of fastloop's loads a dataset faster than more workers would, judged by what it holds."""

from __future__ import annotations

from itertools import islice
from os import PathLike, fspath
from typing import Any

from fastloop.data.kinds import is_image_folder

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_MOST_PARTS = 64  # of a dataset that are looked at
_FOLDER = "fastloop.ImageFolder(root, cache='u8:FOLDER'), which decodes each image once"
_TRANSFORMS = (
    "fastloop.transforms in place of torchvision's, over a fastloop.ArrayDataset: they run in C"
)


def find_remedy(dataset: Any) -> str:
    """The words behind "Next:"; "" for what only workers, threads or a cache can help."""
    for _ in range(8):  # Subsets and the like, inside each other
        if is_image_folder(dataset):
            is_cached = dataset._cached is not None
            return "" if is_cached else "cache='u8:FOLDER' for the ImageFolder: decoded only once"
        parts = list(islice(vars(dataset).values(), _MOST_PARTS)) if _has_parts(dataset) else []
        if any(map(_names_images, parts)):
            return _FOLDER
        if any(type(part).__module__.startswith("torchvision.transforms") for part in parts):
            return _TRANSFORMS
        inner = getattr(dataset, "datasets", None)
        dataset = inner[0] if isinstance(inner, list) and inner else getattr(dataset, "dataset", 0)
    return ""


def _has_parts(dataset: Any) -> bool:
    return hasattr(dataset, "__dict__") and not isinstance(dataset, type)


def _names_images(part: Any) -> bool:
    """Whether it is a list of paths of images, or of tuples that begin with one."""
    first = part[0] if isinstance(part, list | tuple) and part else None
    first = first[0] if isinstance(first, list | tuple) and first else first
    return isinstance(first, str | PathLike) and str(fspath(first)).lower().endswith(_IMAGES)
