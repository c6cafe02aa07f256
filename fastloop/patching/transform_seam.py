"""The seam of transforms: torchvision's ``Compose``, v1 and v2, once torchvision is imported."""

from __future__ import annotations

import functools
import sys
from collections import Counter

from fastloop.base.late_import import after_import, cancel
from fastloop.patching.seams import Seam

# Modules with a class Compose, and its function that runs the operations.
_PLACES = {
    "torchvision.transforms.transforms": "__call__",
    "torchvision.transforms.v2._container": "forward",
}


class TransformSeam(Seam):
    """A seam that waits for torchvision. The check of each plan stands for the seam's own."""

    def __init__(self, is_strict: bool) -> None:
        super().__init__("transforms", is_strict, lambda is_alone: [], ("hooks", "collate"))

    def leave(self, what: str, reason: str) -> None:
        """Count a transform that C does not do. FASTLOOP_STRICT is about torch."""
        self.left[reason] += 1

    def _put_in(self) -> None:
        self.is_on = True
        self.native, self.left, self.served = 0, Counter(), {}
        for module in _PLACES:
            after_import(module, functools.partial(self._arrive, module))

    def _arrive(self, module: str) -> None:
        if not self.is_on:
            return
        owner = sys.modules[module].Compose
        place = next((place for place in self._places if place.owner is owner), None)
        if place is None:
            # Imported now: most programs have no torchvision.
            from fastloop.patching.transform_plans import make_call

            place = self.add(owner, _PLACES[module], functools.partial(make_call, self))
        place.put_in(anew=True)

    def take_out(self, why: str = "it was taken out") -> None:
        for module in _PLACES:
            cancel(module)
        super().take_out(why)
