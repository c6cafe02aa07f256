"""torchvision's ``Compose``, v1 and v2, as native plans that draw torchvision's random numbers, and
calls of the operations that fastloop does not know.

A single image is taken, a tensor of bytes or of PIL, in any dataset and any process.
docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters import torchvision_parts
from fastloop.adapters.torchvision_parts import Parts, find_kind
from fastloop.compat.verification import runs_original
from fastloop.data.collate import fetch

prepare = chains.prepare
is_tracing: Any = vars(torch.jit)["is_tracing"]


def _serve(parts: Parts, compose: Any, image: Any, kind: Any, before: Callable[..., Any]) -> Any:
    """Return what a Compose makes of an image, by plans or by `before`."""
    seam, left = parts.seam, parts.left
    if why := left.get(kind, "") or chains.find_obstacle(plans=parts.plans):
        return seam.call_left(why, before, compose, image)
    try:
        is_same = parts.read(compose)
    except Exception as error:  # attributes may be anything that torchvision does not look at
        left[kind] = str(error)
        return seam.call_left(str(error), before, compose, image)
    if not is_same:
        return before(compose, image)
    begin_ns = perf_counter_ns()
    made, plans = parts.run(image, lambda: before(compose, image))
    if plans == 0:
        left[kind] = parts.why
        seam.note_left(parts.why, begin_ns)
    return made


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    torchvision_parts.counter = seam
    known: dict[int, Parts] = {}  # by id: a Compose need not be hashable

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
            found = known[id(self)] = Parts(seam)
            weakref.finalize(self, known.pop, id(self), None)
        return _serve(found, self, image, kind, before)

    return call
