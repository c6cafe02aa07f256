"""The seam of transforms: torchvision's ``Compose``, v1 and v2, and Pillow's ``GaussianBlur``.

Imports neither torchvision nor Pillow, nor the rest of what fastloop knows of them: a program that
is patched may have neither.
"""

from __future__ import annotations

import functools
from typing import Any

from fastloop.compat import late_seam
from fastloop.compat.late_seam import LateSeam

# Modules, a class of each, and its function that is replaced.
_OWNERS = {
    "torchvision.transforms.transforms": ("Compose", "__call__"),
    "torchvision.transforms.v2._container": ("Compose", "forward"),
    "PIL.ImageFilter": ("GaussianBlur", "filter"),
}


def _prepare(names: set[str]) -> None:
    if names != {"filter"}:
        from fastloop.adapters.torchvision_chain import prepare

        prepare()
    if "filter" in names:
        from fastloop.adapters.pillow_blur import open_blur

        open_blur()


def _make_call(seam: Any, name: str, before: Any) -> Any:
    # Imported now: most programs have no torchvision.
    if name == "filter":
        from fastloop.adapters.pillow_blur import make_filter as make
    else:
        from fastloop.adapters.torchvision_compose import make_call as make
    return make(seam, before)


def make_seam(is_strict: bool) -> LateSeam:
    groups = "hooks", "collate"
    return LateSeam("transforms", is_strict, groups, _OWNERS, _prepare, _make_call)


serve_fetches = functools.partial(late_seam.serve_fetches, "transforms", make_seam)
