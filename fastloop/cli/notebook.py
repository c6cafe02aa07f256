"""``%load_ext fastloop`` and ``%unload_ext fastloop``: patch torch for the rest of a notebook, at
once if it is imported already."""

from __future__ import annotations

import os
import sys

from fastloop.base.late_import import cancel
from fastloop.cli.start import arm
from fastloop.patching import SEAMS

_on_before: set[str] = set()  # seams that were on when the extension was loaded


def load() -> None:
    if os.environ.get("FASTLOOP") == "0":
        print("fastloop: FASTLOOP=0 is set, so torch is not patched", file=sys.stderr)
        return
    _on_before.clear()
    _on_before.update(_names_on())
    arm(",".join(SEAMS), verbose=True)


def unload() -> None:
    cancel("torch")
    patching = sys.modules.get("fastloop.patching.patch")
    if patching is not None:
        print(f"fastloop: {patching.patch_status()}", file=sys.stderr)
        patching.unpatch(set(SEAMS) - _on_before)


def _names_on() -> set[str]:
    patching = sys.modules.get("fastloop.patching.patch")
    seams = {} if patching is None else patching.patch_status().seams
    return {name for name, seam in seams.items() if seam.is_on}
