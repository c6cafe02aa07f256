"""The seam of transforms: torchvision's ``Compose``, v1 and v2, and Pillow's ``GaussianBlur``.

Imports neither torchvision nor Pillow, nor the rest of what fastloop knows of them: a program that
is patched may have neither.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from fastloop.compat import seams
from fastloop.compat.late_import import after_import, cancel
from fastloop.compat.seams import Function, Seam
from fastloop.compat.torch_parts import before_workers, difference

# Modules, a class of each, and its function that is replaced.
_OWNERS = {
    "torchvision.transforms.transforms": ("Compose", "__call__"),
    "torchvision.transforms.v2._container": ("Compose", "forward"),
    "PIL.ImageFilter": ("GaussianBlur", "filter"),
}

_IN_FETCHES = "it serves fetches of fastloop.DataLoader only, because patch() was not called for it"


class TransformSeam(Seam):
    """A seam that waits for torchvision and Pillow, and that also serves fetches of fastloop's own
    loaders while it is off. The check of each plan, and the battery of blurs, stand for the seam's
    own."""

    def __init__(self, is_strict: bool) -> None:
        super().__init__("transforms", is_strict, lambda is_alone: [], ("hooks", "collate"))
        # Workers live for an epoch, and each would find out anew.
        os.register_at_fork(before=self._prepare)
        before_workers.append(self._prepare)

    def _prepare(self) -> None:
        if self._patches and (self.is_on or self.serves_some):
            names = [patch.name for patch in self._patches]
            with suppress(Exception):  # the transform that needs to know meets the same error
                if names != ["filter"]:
                    from fastloop.adapters.torchvision_chain import prepare

                    prepare()
                if "filter" in names:
                    from fastloop.adapters.pillow_blur import open_blur

                    open_blur()

    def note_left(self, reason: str, begin_ns: int) -> None:
        """Count what Python has done since then. FASTLOOP_STRICT is about torch."""
        self.fallbacks[reason] += 1
        self.fallback_ns[reason] += perf_counter_ns() - begin_ns

    def call_left(self, reason: str, function: Function, *inputs: Any) -> Any:
        """Let torchvision transform an image, and count the call."""
        begin_ns = perf_counter_ns()
        try:
            return function(*inputs)
        finally:
            self.note_left(reason, begin_ns)

    def _put_in(self) -> None:
        self.is_on = True
        self.reset()
        for module in _OWNERS:
            after_import(module, functools.partial(self._arrive, module))

    def serve_fetches(self) -> bool:
        """Serve threads that fetch for fastloop's loaders from now on; see ``Fetch``. Return
        whether there is something to serve."""
        self.serves_some = True
        for module in filter(sys.modules.__contains__, _OWNERS):
            self._why = _IN_FETCHES
            self._put_around(module)
        return bool(self._patches)

    def _arrive(self, module: str) -> None:
        if self.is_on:
            self._put_around(module)

    def _put_around(self, module: str) -> None:
        name, method = _OWNERS[module]
        owner = getattr(sys.modules[module], name)
        found = next((one for one in self._patches if one.owner is owner), None)
        if found is None:
            # Imported now: most programs have no torchvision.
            if method == "filter":
                from fastloop.adapters.pillow_blur import make_filter as make
            else:
                from fastloop.adapters.torchvision_compose import make_call as make
            found = self.add(owner, method, functools.partial(make, self))
        found.put_in(anew=True)

    def take_out(self, why: str = "it was taken out") -> None:
        for module in _OWNERS:
            cancel(module)
        super().take_out(why)
        if self.serves_some:
            self.serve_fetches()


def serve_fetches() -> bool:
    """Serve threads that fetch for fastloop's loaders; see ``TransformSeam.serve_fetches``. With
    ``FASTLOOP=0``, or a torch that fastloop does not know, no thread is served."""
    if os.environ.get("FASTLOOP") == "0":
        return False
    with seams.lock:
        seam: Any = seams.opened.get("transforms")
        if seam is None:
            seam = seams.opened["transforms"] = TransformSeam(is_strict=False)
        return not any(map(difference, seam.groups)) and seam.serve_fetches()
