"""The operations that turn, shear and tilt images, with names, arguments and defaults of
torchvision's v2."""

# No `from __future__ import annotations`: operations read their annotations, and the import would
# turn annotations into text.

import math
from collections.abc import Sequence
from typing import Any

from fastloop._core import IMAGE_OPS
from fastloop.data.transforms import arguments as arg
from fastloop.data.transforms.color import Color
from fastloop.data.transforms.plan import GetSize, Parts, operation

__all__ = ["RandomAffine", "RandomPerspective", "RandomRotation"]

_NONE = (math.nan,) * 4


class Warp(Color):
    """Base of operations that sample an image at computed coordinates."""

    bytes_only = "samples"
    interpolation: Any
    fill: Any
    center: Any = None
    is_v1 = False  # matrices are computed as in torchvision.transforms, not as in v2

    def _check(self) -> None:
        is_known = self.interpolation in ("nearest", "bilinear")
        arg.check(self, "interpolation", is_known, "'nearest' or 'bilinear'")
        arg.check(self, "fill", all(0 <= number < 256 for number in self.colors), "in [0, 255]")

    @property
    def colors(self) -> tuple[float, ...]:
        return () if self.fill is None else arg.to_floats(self.fill)

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        fill = self.colors * 4 if len(self.colors) == 1 else self.colors
        border = {
            "center": tuple(self.center or _NONE[:2]),
            "border": (*fill, *_NONE)[:4],
            "is_v1": self.is_v1,
        }
        return super().encode(get_size) | border


@operation
class RandomRotation(Warp):
    """Turn an image around its center by a random angle.

    Args:
        degrees: bounds of the angle, or a number n for (-n, n).
        interpolation: ``"nearest"`` or ``"bilinear"``.
        expand: False. True, for results that hold the whole turned image, is not covered.
        center: (x, y). None: the middle.
        fill: the number outside of the image, or one number for each channel. None: 0, and edges
            are not mixed with the 0.
    """

    kind = IMAGE_OPS["RandomRotation"]
    shown = ("degrees", "interpolation", "expand", "fill")

    degrees: arg.Degrees
    interpolation: arg.Interpolation = "nearest"
    expand: arg.Flag = False
    center: arg.Center = None
    fill: arg.Fill = 0

    def _check(self) -> None:
        super()._check()
        arg.check(self, "expand", not self.expand, "False", "pad before, and crop after")

    def encode_numbers(self) -> Sequence[float]:
        return [*self.degrees]

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"angle": values["number"][0]}


@operation
class RandomAffine(Warp):
    """Turn, move, scale and shear an image at random.

    Args:
        degrees: as in RandomRotation.
        translate: the largest move in x and y, as a share of the edges. None: no move.
        scale: bounds of the factor. None: 1.
        shear: bounds of the angle in x, or a number n for (-n, n), or bounds in x and y. None: 0.
        interpolation: as in RandomRotation.
        fill: as in RandomRotation.
        center: as in RandomRotation.
    """

    kind = IMAGE_OPS["RandomAffine"]

    degrees: arg.Degrees
    translate: arg.Translate = None
    scale: arg.Scales = None
    shear: arg.Shears = None
    interpolation: arg.Interpolation = "nearest"
    fill: arg.Fill = 0
    center: arg.Center = None

    def encode_numbers(self) -> Sequence[float]:
        shear = [*(self.shear or (0.0, 0.0)), 0.0, 0.0][:4]
        moved = self.translate or (0.0, 0.0)
        given = self.translate, self.scale, self.shear, (self.shear or ())[2:]
        drawn = sum(1 << k for k, value in enumerate(given) if value)  # fl_drawn_parts
        return [*self.degrees, *moved, *(self.scale or (1, 1)), *shear, drawn]

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        angle, x, y, scale, *shear = values["number"][:6]
        moved = (int(x), int(y))
        return {"angle": angle, "translate": moved, "scale": scale, "shear": tuple(shear)}


@operation
class RandomPerspective(Warp):
    """Tilt an image at random, with probability ``p``.

    Args:
        distortion_scale: the largest move of the corners, from 0 to 1: to the middle.
        p: probability.
        interpolation: as in RandomRotation.
        fill: as in RandomRotation.
    """

    kind = IMAGE_OPS["RandomPerspective"]
    shown = ("p",)
    counted = ("distortion_scale",)

    distortion_scale: arg.Probability = 0.5
    p: arg.Probability = 0.5
    interpolation: arg.Interpolation = "bilinear"
    fill: arg.Fill = 0

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        if not values["applied"]:
            return {"apply": False}
        return {"apply": True, "coefficients": list(values["number"][:8])}
