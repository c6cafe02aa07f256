"""The seam of torchvision's ``Compose``, v1 and v2: images that a native plan makes.

Imports neither torchvision nor the rest of what fastloop knows of it: a program that is patched may
have no torchvision.
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

# Modules of torchvision with a class Compose, and its function that runs the operations.
_COMPOSES = {
    "torchvision.transforms.transforms": "__call__",
    "torchvision.transforms.v2._container": "forward",
}

_IN_FETCHES = "it serves fetches of fastloop.DataLoader only, because patch() was not called for it"


class TransformSeam(Seam):
    """A seam that waits for torchvision, and that also serves fetches of fastloop's own loaders
    while it is off. The check of each plan stands for the seam's own."""

    def __init__(self, is_strict: bool) -> None:
        super().__init__("transforms", is_strict, lambda is_alone: [], ("hooks", "collate"))
        # Workers live for an epoch, and each would find out anew.
        os.register_at_fork(before=self._prepare)
        before_workers.append(self._prepare)

    def _prepare(self) -> None:
        if self._patches and (self.is_on or self.serves_some):
            from fastloop.adapters.torchvision_chain import prepare

            with suppress(Exception):  # the transform that needs to know meets the same error
                prepare()

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
        for module in _COMPOSES:
            after_import(module, functools.partial(self._arrive, module))

    def serve_fetches(self) -> bool:
        """Serve threads that fetch for fastloop's loaders from now on; see ``Fetch``. Return
        whether torchvision is there."""
        self.serves_some = True
        for module in filter(sys.modules.__contains__, _COMPOSES):
            self._why = _IN_FETCHES
            self._put_around(module)
        return bool(self._patches)

    def _arrive(self, module: str) -> None:
        if self.is_on:
            self._put_around(module)

    def _put_around(self, module: str) -> None:
        owner = sys.modules[module].Compose
        found = next((one for one in self._patches if one.owner is owner), None)
        if found is None:
            # Imported now: most programs have no torchvision.
            from fastloop.adapters.torchvision_compose import make_call

            found = self.add(owner, _COMPOSES[module], functools.partial(make_call, self))
        found.put_in(anew=True)

    def take_out(self, why: str = "it was taken out") -> None:
        for module in _COMPOSES:
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
