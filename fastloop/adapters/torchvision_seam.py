"""The seam of torchvision's ``Compose``, v1 and v2: images that a native plan makes.

Imports neither torchvision nor the rest of what fastloop knows of it: a program that is patched may
have no torchvision.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from contextlib import suppress

from fastloop.compat.late_import import after_import, cancel
from fastloop.compat.seams import Seam
from fastloop.compat.torch_parts import before_workers

# Modules of torchvision with a class Compose, and its function that runs the operations.
_COMPOSES = {
    "torchvision.transforms.transforms": "__call__",
    "torchvision.transforms.v2._container": "forward",
}


class TransformSeam(Seam):
    """A seam that waits for torchvision. The check of each plan stands for the seam's own."""

    def __init__(self, is_strict: bool) -> None:
        super().__init__("transforms", is_strict, lambda is_alone: [], ("hooks", "collate"))
        # Workers live for an epoch, and each would find out anew.
        os.register_at_fork(before=self._prepare)
        before_workers.append(self._prepare)

    def _prepare(self) -> None:
        if self.is_on and self._patches:
            from fastloop.adapters.torchvision_chain import prepare

            with suppress(Exception):  # the transform that needs to know meets the same error
                prepare()

    def leave(self, what: str, reason: str) -> None:
        """Count a transform that torchvision does. FASTLOOP_STRICT is about torch."""
        self.fallbacks[reason] += 1

    def _put_in(self) -> None:
        self.is_on = True
        self.native, self.fallbacks, self.served = 0, Counter(), {}
        for module in _COMPOSES:
            after_import(module, functools.partial(self._arrive, module))

    def _arrive(self, module: str) -> None:
        if not self.is_on:
            return
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
