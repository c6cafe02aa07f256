"""Asks torchvision about its policies, perspectives and blurs: results whose last bit depends on
torch and on the machine."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from fastloop._core import policy_strengths
from fastloop.base.checks import refuse_if
from fastloop.data.transforms.policy import NAMES

_SIZES = (1, 1), (28, 28), (32, 32), (96, 64), (224, 224), (333, 500)  # height, width
_SIGNED = NAMES[1:10]
_MIXED = *NAMES[1:6], *NAMES[10:14], *NAMES[6:10]  # in AugMix's order; the last four: all_ops
_BINS = 10  # of AutoAugment and AugMix


@cache
def rounds_positions() -> bool:
    """Tell whether torch rounds each product and each sum of the positions that tensors are sampled
    at, as fastloop does. On a CPU of Intel's it does not."""
    generator = torch.Generator().manual_seed(1)
    for count in (1, 81, 32 * 32, 224 * 224):
        grid = torch.randn(1, count, 3, generator=generator)
        matrix = torch.randn(1, 3, 2, generator=generator)
        x, y, z = (grid[0, :, k, None] * matrix[0, k] for k in range(3))
        if not torch.equal(torch.bmm(grid, matrix)[0], (x + y) + z):
            return False
    return True


def _strengths_of(op: Any, height: int, width: int) -> dict[str, tuple[Any, bool]]:
    """Return the strengths of a policy's operations, and whether they have a sign."""
    bins = getattr(op, "num_magnitude_bins", getattr(op, "_PARAMETER_MAX", _BINS))
    whole = "_AUGMENTATION_SPACE" if getattr(op, "all_ops", True) else "_PARTIAL_AUGMENTATION_SPACE"
    table = getattr(op, whole, None)
    if table is None:  # v1
        size = () if type(op).__name__ == "TrivialAugmentWide" else ((height, width),)
        found: dict[str, tuple[Any, bool]] = op._augmentation_space(bins, *size)
        return found
    functions = [function for function, _ in table.values()]
    is_replaced = any(function.__module__ != type(op).__module__ for function in functions)
    refuse_if(is_replaced, f"{type(op).__name__}._AUGMENTATION_SPACE was replaced")
    return {
        name: (function(bins, height, width), is_signed)
        for name, (function, is_signed) in table.items()
    }


def check_strengths(op: Any, own: Any) -> None:
    """Refuse a policy of torchvision that fastloop's operation `own` does not equal on this
    machine."""
    name = type(op).__name__
    spec = {"kind": own.kind, **own.encode(tuple)}
    for size in _SIZES:
        strengths = dict(zip(NAMES, policy_strengths(spec, *size), strict=True))
        space = _strengths_of(op, *size)
        names = _MIXED[: 13 if op.all_ops else 9] if name == "AugMix" else NAMES[:-1]
        is_same = name == "AutoAugment" or [*space] == [*names]
        for key, (values, is_signed) in space.items():
            ends = values is not None and values.ndim > 0
            numbers = tuple(values.tolist()) if ends else (0.0,) * len(strengths[key])
            is_same &= numbers == strengths[key] and is_signed == (key in _SIGNED)
        refuse_if(not is_same, f"fastloop does not know the strengths of {name} here")
    if name == "AutoAugment":
        policies = getattr(op, "_policies", None) or op.policies
        is_altered = policies != op._get_policies(op.policy)
        refuse_if(is_altered, f"the policies of {name} were replaced")


def find_coefficients(height: int, width: int, *corners: int) -> tuple[float, ...]:
    """Return torch's coefficients of a perspective that takes the corners of an image to
    `corners`."""
    x, y = width - 1, height - 1
    ends = [[*corners[k : k + 2]] for k in range(0, 8, 2)]
    find: Any = sys.modules["torchvision.transforms.functional"]._get_perspective_coeffs
    try:
        return tuple(find([[0, 0], [x, 0], [x, y], [0, y]], ends))
    except RuntimeError as error:  # torchvision meets it again, and raises it
        raise ValueError(f"RandomPerspective: {error}") from None


def find_weights(is_v1: bool, taps: int, sigma: float) -> tuple[float, ...]:
    """Return torch's weights of a blur with so many taps, from the middle one outwards."""
    module = "_functional_tensor" if is_v1 else "v2.functional._misc"
    find: Any = sys.modules[f"torchvision.transforms.{module}"]._get_gaussian_kernel1d
    weights: list[float] = find(taps, sigma, torch.float32, torch.device("cpu")).tolist()
    refuse_if(weights != weights[::-1], "the weights of GaussianBlur differ from side to side")
    return tuple(weights[taps // 2 :])
