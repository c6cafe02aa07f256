"""``%load_ext fastloop`` and ``%unload_ext fastloop``: torch patched for the rest of a notebook, at
once if it is imported already."""

from __future__ import annotations

import os
import sys

from fastloop.patching.names import SEAMS
from fastloop.patching.program import import_bootstrap

_on_before: set[str] = set()  # when the extension was loaded


def load() -> None:
    if os.environ.get("FASTLOOP") == "0":
        print("fastloop: FASTLOOP=0 is set, so torch stays as it is", file=sys.stderr)
        return
    _on_before.clear()
    _on_before.update(_find_on())
    import_bootstrap().arm(",".join(SEAMS), is_loud=True)


def unload() -> None:
    import_bootstrap().disarm()
    patching = sys.modules.get("fastloop.patching.patch")
    if patching is not None:
        print(f"fastloop: {patching.patch_status()}", file=sys.stderr)
        patching.unpatch([name for name in SEAMS if name not in _on_before])


def _find_on() -> set[str]:
    patching = sys.modules.get("fastloop.patching.patch")
    seams = {} if patching is None else patching.patch_status().seams
    return {name for name, seam in seams.items() if seam.is_on}
