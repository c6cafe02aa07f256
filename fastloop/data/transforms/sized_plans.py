"""Plans for images of different sizes: one for all where results have one size whatever the image
has, else one for each size that comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastloop.data.transforms.plan import Geometry, Plan, Values, compile_plan

_TRIAL = (512, 512, 3)  # an image that any chain goes with, if sizes of results differ
_KEPT = 64  # plans for sizes that came


class SizedPlans:
    """The plans of one chain for RGB images, height by width by channel.

    Args:
        ops: the chain.
        out_layout: of results.
        seed: of random parameters.

    Raises:
        TypeError, ValueError: what cannot be for any image.
    """

    def __init__(self, ops: Sequence[Geometry | Values], out_layout: str, seed: int) -> None:
        self._arguments = tuple(ops), out_layout, seed
        self.ops = tuple(ops)
        self.whole: Plan | None = None  # for all images
        self._by_size: dict[tuple[int, ...], Plan] = {}
        try:
            self.whole = self._compile((0, 0, 3))
        except ValueError:
            self._compile(_TRIAL)  # where this raises too, it is not that sizes of results differ

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.ops)

    def _compile(self, shape: tuple[int, ...]) -> Plan:
        ops, out_layout, seed = self._arguments
        return compile_plan(ops, shape, "HWC", out_layout, seed, may_differ=True)

    def of(self, shape: tuple[int, ...]) -> Plan:
        """The plan for an image of this shape."""
        if self.whole is not None:
            return self.whole
        plan = self._by_size.get(shape)
        if plan is None:
            if len(self._by_size) >= _KEPT:
                self._by_size.clear()
            plan = self._by_size[shape] = self._compile(shape)
        return plan

    def write(
        self, image: Any, out: torch.Tensor | None, index: int, epoch: int, view: int
    ) -> torch.Tensor:
        """The result for one image, in the memory of ``out`` or in its own."""
        plan = self.of(image.shape)
        if out is None:
            out = plan.empty()
        plan.write(image, out, index, epoch, view)
        return out

    def __reduce__(self) -> tuple[type[SizedPlans], tuple[Any, ...]]:
        return SizedPlans, self._arguments
