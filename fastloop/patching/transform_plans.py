"""torchvision's ``Compose``, v1 and v2, as one plan of C that draws torchvision's random numbers.

It takes a single image, a tensor of bytes or of PIL, in any dataset and any process. A plan's first
samples are made both ways and compared. docs/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastloop._core import ImageDraws, Snapshot
from fastloop.base.requirements import read_check_interval
from fastloop.data.transforms import torchvision_chain as chains
from fastloop.data.transforms.plan import compile_plan
from fastloop.patching.seams import Function, Seam

is_tracing: Any = vars(torch.jit)["is_tracing"]
# C does not take the image: torchvision may, and nothing has been drawn.
_REFUSALS = BufferError, RuntimeError, TypeError, ValueError
_CHECKED = 3  # samples
# A plan takes about a millisecond. So many are made for sizes of images, where results differ in
# size as they do, and for changes of attributes; then the transform is left to torchvision.
_MOST_PLANS = 16
_BANDS = {"RGB": 3, "L": 1}


class _Plan:
    """A transform for images of a kind.

    Args:
        size: (height, width) of all images; (0, 0): they differ.
    """

    is_left = False  # to torchvision, because C made other images

    def __init__(self, chain: chains.Chain, channels: int, size: tuple[int, int]) -> None:
        self._chain, self._is_tensor = chain, chain.was_tensor
        self._compile = functools.partial(self._compile_for, channels, size)
        self._compile("CHW")
        self.unchecked = _CHECKED
        self.count = 0  # of samples
        self.snapshot = Snapshot(chain.things)
        chain.things.clear()  # the Compose among them may be forgotten
        images: Any = sys.modules.get("torchvision.tv_tensors")
        self._cls = images.Image if chain.is_tv_tensor else None

    def _compile_for(self, channels: int, size: tuple[int, int], out_layout: str) -> None:
        layout = "CHW" if self._is_tensor else "HWC"
        shape = (channels, *size) if self._is_tensor else (*size, channels)
        ops, steps = tuple(self._chain.ops), tuple(self._chain.steps)
        self._plan = compile_plan(ops, shape, layout, out_layout, may_differ=True)
        self._shape = self._plan.core.out_shape if out_layout == "CHW" else None
        self._draws = ImageDraws(self._plan.core, steps, bool(chains.is_fused()), chains.torch_exp)

    def make(self, image: Any, generator: torch.Generator) -> Tensor:
        """Return the transformed image. After one of _REFUSALS nothing is drawn."""
        if not self._is_tensor:
            width, height = image.size
            image = np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, -1)
        out = self._plan.empty() if self._shape is None else torch.empty(self._shape)
        self._draws.apply(image, out, generator)
        return out if self._cls is None else out.as_subclass(self._cls)

    def makes_same(self, image: Any, before: torch.Tensor, after: Tensor, expected: Any) -> bool:
        """Tell whether C makes the expected image of the state before, and leaves that after."""
        if type(expected) not in (Tensor, self._cls) or expected.ndim != 3:
            return False
        if self.unchecked == _CHECKED and expected.stride() != self._plan.empty().stride():
            self._compile("channels_last")
        private = torch.Generator()
        private.set_state(before)
        try:
            found = self.make(image, private)
        except _REFUSALS:
            return False
        return chains.same_bits(expected, found) and torch.equal(private.get_state(), after)


@dataclass(eq=False)
class _Transform:
    """The plans of one Compose.

    Attributes:
        compose: refers to it.
        every: of so many samples one is made both ways; 0: the first ones alone.
        plans: by channels or mode, and by size where that changes the plan; None: left to
            torchvision.
    """

    seam: Seam
    compose: weakref.ref[Any]
    every: int
    plans: dict[Any, _Plan | None] = field(default_factory=dict)
    count: int = 0  # of plans that were made

    def _open(self, kind: Any) -> chains.Chain | None:
        """Return the operations for images of this kind; None: left to torchvision."""
        try:
            if self.count > _MOST_PLANS:
                raise ValueError(f"images or attributes have changed more than {_MOST_PLANS} times")
            if not chains.is_known_release():
                raise ValueError("this version of fastloop does not know this torchvision")
            chain = chains.read_chain(self.compose(), is_tensor=isinstance(kind, int))
            if not chain.is_float:
                raise ValueError("results are bytes, which may share memory with images")
            if chain.is_view:
                raise ValueError("results may share memory with larger tensors; crop earlier")
            if chain.has_other_strides:
                raise ValueError("a tensor that was a PIL image is resized; resize before ToImage")
        except (TypeError, ValueError) as error:
            self.seam.leave("a transform", str(error))
            return None
        return chain

    def _plan_for(self, image: Any) -> _Plan | None:
        is_tensor = type(image) is Tensor
        kind = image.shape[0] if is_tensor else image.mode
        if kind in self.plans:
            return self.plans[kind]
        key = kind, *(image.shape[1:] if is_tensor else image.size[::-1])
        if key not in self.plans:
            if chains.why_not_now():
                return None
            self.count += 1
            if (chain := self._open(kind)) is None:
                return self.plans.setdefault(kind, None)
            channels = kind if is_tensor else _BANDS[kind]
            with suppress(TypeError, ValueError):
                if not chain.has_strides_by_size:
                    return self.plans.setdefault(kind, _Plan(chain, channels, (0, 0)))
            self.plans[key] = None
            with suppress(TypeError, ValueError):  # results differ as sizes of images do
                self.plans[key] = _Plan(chain, channels, key[1:])
        return self.plans[key]

    def serve(self, compose: Any, image: Any, before: Function) -> Any:
        """Return what the Compose makes of an image, by C or by `before`."""
        plan = self._plan_for(image)
        if plan is None or plan.is_left or chains.why_not_now():
            return before(compose, image)
        if not plan.snapshot.is_same():
            self.plans.clear()
            return before(compose, image)
        plan.count += 1
        if plan.unchecked or (self.every and plan.count % self.every == 0):
            return self._check(plan, image, before)
        try:
            result = plan.make(image, torch.default_generator)
        except _REFUSALS:
            return before(compose, image)
        self.seam.native += 1
        return result

    def _check(self, plan: _Plan, image: Any, before: Function) -> Any:
        """Return torchvision's result, and compare it with that of C."""
        generator, compose = torch.default_generator, self.compose()
        state = generator.get_state()
        with chains.leaving_torchvision():
            expected = before(compose, image)
        if plan.makes_same(image, state, generator.get_state(), expected):
            plan.unchecked = max(plan.unchecked - 1, 0)
        elif chains.is_alone():  # no other thread has drawn meanwhile
            plan.is_left = True
            chains.warn_of_other("images", compose, stacklevel=5)
        return expected


def _is_image(image: Any) -> bool:
    if type(image) is Tensor:
        is_bytes = image.dtype is torch.uint8 and image.ndim == 3 and image.numel() > 0
        return is_bytes and image.device.type == "cpu" and image.is_contiguous()
    pillow: Any = sys.modules.get("PIL.Image")
    return pillow is not None and type(image) is pillow.Image and image.mode in _BANDS


def make_call(seam: Seam, before: Function) -> Function:
    known: dict[int, _Transform] = {}  # by id: a Compose need not be hashable
    every = read_check_interval()

    def call(self: Any, *inputs: Any) -> Any:
        if len(inputs) != 1 or not seam.is_on or torch.compiler.is_compiling():
            return before(self, *inputs)
        if not _is_image(inputs[0]) or chains.is_left_alone() or is_tracing():
            return before(self, *inputs)
        found = known.get(id(self))
        if found is None or found.compose() is not self:
            forget = functools.partial(known.pop, id(self))
            ref = weakref.ref(self, lambda _: forget(None))
            found = known[id(self)] = _Transform(seam, ref, every)
        return found.serve(self, inputs[0], before)

    return call
