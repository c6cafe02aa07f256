"""torchvision's ``Compose``, v1 and v2, as one plan of C that draws torchvision's random numbers.

It takes a single image, a tensor of bytes or of PIL, in any dataset and any process.
docs/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastloop._core import Snapshot
from fastloop.base.checks import refuse_if
from fastloop.compat.originals import Trial, is_left_alone
from fastloop.data.transforms import torchvision_chain as chains
from fastloop.patching.seams import Function, Seam

is_tracing: Any = vars(torch.jit)["is_tracing"]
_CHECKED = 3  # samples
# A plan takes about a millisecond. So many are made for sizes of images, where results differ in
# size as they do, and for changes of attributes; then the transform is left to torchvision.
_MOST_PLANS = 16
_BANDS = {"RGB": 3, "L": 1}


class _Plan:
    """A transform for images of a kind.

    Args:
        kind: how many channels tensors have, or the mode of PIL images.
        edges: the height and width of all; 0, 0: they differ.
    """

    def __init__(self, compose: Any, chain: chains.Chain, kind: Any, *edges: int) -> None:
        shapes = {"HWC": (*edges, _BANDS.get(kind, kind)), "CHW": (kind, *edges)}
        layout = "HWC" if chain.was_pil else "CHW"
        self._compile = functools.partial(chain.compile, shapes[layout], layout)
        self._plan, self._draws = self._compile("CHW")
        self._shape: Any = self._plan.core.out_shape  # None: results have other strides
        self._cls = sys.modules["torchvision.tv_tensors"].Image if chain.is_tv_tensor else None
        self.trial = Trial(f"images with {compose}", "torchvision's", _CHECKED)
        self.snapshot = Snapshot(chain.things)
        chain.things.clear()  # the Compose among them may be forgotten

    def make(self, image: Any, seam: Seam, generator: torch.Generator) -> Tensor:
        out = torch.empty(self._shape) if self._shape is not None else self._plan.empty()
        self._draws.apply(image, out, generator)
        seam.native += generator is torch.default_generator  # else it is compared
        return out if self._cls is None else out.as_subclass(self._cls)

    def take_strides(self, first: Tensor) -> Tensor:
        """Make results with the strides of the first one."""
        if self.trial.unchecked == _CHECKED and first.stride() != self._plan.empty().stride():
            self._shape, (self._plan, self._draws) = None, self._compile("channels_last")
        return first


@dataclass(eq=False)
class _Transform:
    """The plans of one Compose.

    Attributes:
        plans: by channels or mode, and by size where that changes the plan; None: left to
            torchvision.
    """

    seam: Seam
    plans: dict[Any, _Plan | None] = field(default_factory=dict)
    count: int = 0  # of plans that were made

    def _plan_for(self, compose: Any, image: Any) -> _Plan | None:
        is_tensor = type(image) is Tensor
        kind, *size = image.shape if is_tensor else (image.mode, *image.size[::-1])
        key = kind, *size
        if kind in self.plans or key in self.plans or chains.why_not_now():
            return self.plans.get(kind, self.plans.get(key))
        self.count += 1
        many = f"images or attributes have changed more than {_MOST_PLANS} times"
        try:
            refuse_if(self.count > _MOST_PLANS, many)
            chain = chains.read_chain(compose, is_tensor, is_single=True)
        except (TypeError, ValueError) as error:
            self.seam.leave("a transform", str(error))
            self.plans[kind] = None
            return None
        # For all sizes; or where results differ as sizes do, for this one.
        sizes = {} if chain.has_strides_by_size else {kind: [0, 0]}
        for place, edges in (sizes | {key: size}).items():
            with suppress(TypeError, ValueError):
                self.plans[place] = plan = _Plan(compose, chain, kind, *edges)
                return plan
        self.plans[key] = None
        return None

    def serve(self, compose: Any, image: Any, before: Function) -> Any:
        """Return what the Compose makes of an image, by C or by `before`."""
        plan = self._plan_for(compose, image)
        if plan is None or chains.why_not_now():
            return before(compose, image)
        if not plan.snapshot.is_same():
            self.plans.clear()
            return before(compose, image)
        return plan.trial.run(
            lambda: plan.take_strides(before(compose, image)),
            lambda generator: plan.make(image, self.seam, generator),
        )


def _is_image(image: Any) -> bool:
    if type(image) is Tensor:
        is_bytes = image.dtype is torch.uint8 and image.ndim == 3 and image.numel() > 0
        return is_bytes and image.device.type == "cpu" and image.is_contiguous()
    pillow: Any = sys.modules.get("PIL.Image")
    return pillow is not None and type(image) is pillow.Image and image.mode in _BANDS


def make_call(seam: Seam, before: Function) -> Function:
    known: dict[int, _Transform] = {}  # by id: a Compose need not be hashable

    def call(self: Any, *inputs: Any) -> Any:
        is_ours = len(inputs) == 1 and seam.is_on and not torch.compiler.is_compiling()
        if not is_ours or not _is_image(inputs[0]) or is_left_alone() or is_tracing():
            return before(self, *inputs)
        found = known.get(id(self))
        if found is None:
            found = known[id(self)] = _Transform(seam)
            weakref.finalize(self, known.pop, id(self), None)
        return found.serve(self, inputs[0], before)

    return call
