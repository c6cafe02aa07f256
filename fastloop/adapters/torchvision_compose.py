"""torchvision's ``Compose``, v1 and v2, as native plans that draw torchvision's random numbers, and
calls of the operations that fastloop does not know.

A single image is taken, a tensor of bytes or of PIL, in any dataset and any process.
docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters import torchvision_parts
from fastloop.adapters.torchvision_parts import Parts, find_kind
from fastloop.compat.verification import runs_original
from fastloop.data.collate import fetch

is_tracing: Any = vars(torch.jit)["is_tracing"]


@dataclass(eq=False)
class _Transform:
    """One Compose.

    Attributes:
        left: kinds of images for which torchvision does all, and why.
    """

    seam: Any
    parts: Parts
    left: dict[Any, str] = field(default_factory=dict)

    def serve(self, compose: Any, image: Any, kind: Any, before: Callable[..., Any]) -> Any:
        """Return what the Compose makes of an image, by plans or by `before`."""
        if why := self.left.get(kind, "") or chains.find_obstacle(plans=self.parts.plans):
            return self.seam.call_left(why, before, compose, image)
        try:
            is_same = self.parts.read(compose)
        except Exception as error:  # attributes may be anything that torchvision does not look at
            self.left[kind] = str(error)
            return self.seam.call_left(str(error), before, compose, image)
        if not is_same:
            return before(compose, image)
        begin_ns = perf_counter_ns()
        made, plans = self.parts.run(image, lambda: before(compose, image))
        if plans == 0:
            self.left[kind] = self.parts.why
            self.seam.note_left(self.parts.why, begin_ns)
        return made


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    torchvision_parts.counter = seam
    known: dict[int, _Transform] = {}  # by id: a Compose need not be hashable

    def call(*inputs: Any, **named: Any) -> Any:
        is_ours = len(inputs) == 2 and not named and (seam.is_on or fetch.is_served)
        if not is_ours or torch.compiler.is_compiling() or runs_original() or is_tracing():
            return before(*inputs, **named)
        self, image = inputs
        kind, _, why = find_kind(image)
        if kind is None:
            return seam.call_left(why, before, self, image) if why else before(self, image)
        found = known.get(id(self))
        if found is None:
            found = known[id(self)] = _Transform(seam, Parts(seam))
            weakref.finalize(self, known.pop, id(self), None)
        return found.serve(self, image, kind, before)

    return call
