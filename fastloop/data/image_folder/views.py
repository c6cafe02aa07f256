"""The transforms of an ImageFolder, compiled to plans: one transform, or one for each view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastloop.base.checks import check_value, make_message, read_choice, read_function
from fastloop.data.field import read_views
from fastloop.data.transforms.dataset_transform import WHOLE, Pieces, compile_transform, why_not
from fastloop.data.transforms.ops import is_own
from fastloop.data.transforms.plan import OUT_LAYOUTS
from fastloop.data.transforms.split import SplitPlan

_TRANSFORM = "an operation of fastloop.transforms, Compose([...]) of several, or a function"


def _compile(transform: Any, out_layout: str, seed: int) -> tuple[SplitPlan | None, str]:
    """Return the plans, or None and why Python has to run the transform."""
    given = WHOLE if transform is None else read_function("transform", transform, _TRANSFORM)

    def split(pieces: Pieces) -> SplitPlan:
        if len(pieces) > 1 and not is_own(transform):  # torchvision's functions get PIL images
            raise ValueError(next(why_not(p.calls[0]) for p in pieces if not p.ops))
        return SplitPlan(pieces, (0, 0, 3), "HWC", out_layout, seed)

    plans, reason = compile_transform(given, split)
    rule = f"'CHW' if Python runs the transform: {reason}"
    check_value("out_layout", out_layout, plans is not None or out_layout == "CHW", rule)
    return plans, reason


def compile_views(transform: Any, out_layout: str, seed: int) -> tuple[dict[str, SplitPlan], str]:
    """Return the plans by the name of the view, or no plans and why Python has to run the
    transform. The plans of a transform without views have the name "transform"."""
    read_choice("out_layout", out_layout, OUT_LAYOUTS)
    views = read_views(transform, ()) if isinstance(transform, Mapping) else []
    found: dict[str, SplitPlan] = {}
    reason = ""
    for i, name in enumerate(views or ["transform"]):
        each = transform[name] if views else transform
        plans, reason = _compile(each, out_layout, (seed + i) % 2**64)
        if views and (plans is None or each is None):
            rule = "of fastloop.transforms, as each of several views is"
            raise TypeError(make_message(f"transform[{name!r}]", rule, each, reason))
        if plans is not None:
            found[name] = plans
    return found, reason
