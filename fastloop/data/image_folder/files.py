"""The files of an ImageFolder: torchvision's classes and samples, in torchvision's order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def read_root(root: Any) -> str:
    try:
        path = os.fspath(root)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise TypeError(
            f"root={root!r} is no path; pass the folder that has a folder for each class"
        )
    return os.path.expanduser(path)


def read_extensions(extensions: Any) -> tuple[str, ...]:
    """In lower case, as names of files are compared."""
    if extensions is None:
        return EXTENSIONS
    given: Sequence[Any] = (extensions,) if isinstance(extensions, str) else extensions
    if not isinstance(given, list | tuple | set | frozenset) or len(given) == 0:
        raise TypeError(f"extensions={extensions!r} is no list of names as '.jpg'")
    for name in given:
        if not isinstance(name, str) or not name.startswith(".") or len(name) < 2:
            raise ValueError(
                f"extensions={extensions!r}: {name!r} does not begin with a dot; pass names as "
                "'.jpg'"
            )
    return tuple(name.lower() for name in given)


def find_classes(root: str) -> tuple[list[str], dict[str, int]]:
    """The folders in the root, by name, and the number of each.

    Raises:
        FileNotFoundError: there is no root, or no folder in it.
    """
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    return classes, {name: number for number, name in enumerate(classes)}


def find_samples(
    root: str, class_to_idx: dict[str, int], extensions: tuple[str, ...]
) -> list[tuple[str, int]]:
    """(path, number of the class) of each file that ends with one of the extensions, at any depth,
    also behind links.

    Raises:
        FileNotFoundError: a class has no such file.
    """
    samples: list[tuple[str, int]] = []
    empty = []
    for name in sorted(class_to_idx):
        before = len(samples)
        # torchvision sorts what os.walk yields, so a folder comes before what is in it.
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            samples += [
                (os.path.join(folder, file), class_to_idx[name])
                for file in sorted(files)
                if file.lower().endswith(extensions)
            ]
        if len(samples) == before:
            empty.append(name)
    if empty:
        raise FileNotFoundError(
            f"Found no valid file for the classes {', '.join(empty)}. "
            f"Supported extensions are: {', '.join(extensions)}"
        )
    return samples
