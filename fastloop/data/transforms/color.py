"""The operations on colours, with names, arguments and defaults of torchvision's v2.

Each is a dataclass, as in ops.py. fastloop computes on uint8 images, with torchvision's bits.
"""

# No `from __future__ import annotations`: operations read their annotations, and the import would
# turn annotations into text.

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from fastloop._core import IMAGE_OPS
from fastloop.data.transforms import arguments as arg
from fastloop.data.transforms.plan import Geometry, GetSize, Numbers, Parts, operation

__all__ = ["ColorJitter", "Grayscale", "RandomGrayscale", "RandomPhotometricDistort"]
__all__ += ["GaussianBlur", "GaussianNoise", "RandomAdjustSharpness"]
__all__ += ["RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize", "RandomInvert"]
__all__ += ["RandomPosterize", "RandomSolarize"]

_STAYS = (math.nan, math.nan)
_FACTORS = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")


@operation
class Color(Geometry):
    """Base of operations that compute pixels of uint8 images.

    Attributes:
        shown: arguments that come first in the text of the operation, as in torchvision's.
        counted: arguments that are the core's numbers for this operation.
    """

    shown: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[tuple[str, ...]] = ()
    bytes_only = "changes the colours of"
    _work = "computes uint8 pixels"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__ = {name: getattr(self, name) for name in self.shown} | vars(self)

    def encode_numbers(self) -> Sequence[float]:
        """Return the core's numbers for this operation."""
        return [getattr(self, name) for name in self.counted]

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        return {**super().encode(get_size), "number": tuple(map(float, self.encode_numbers()))}


class _Applied(Color):
    reported = ("apply",)
    shown = ("p",)


@operation
class _Gated(_Applied):
    """Base of operations with a probability and no other argument."""

    p: arg.Probability = 0.5


class RandomInvert(_Gated):
    """Invert the colours, with probability ``p``."""

    kind = IMAGE_OPS["RandomInvert"]


@operation
class RandomSolarize(_Applied):
    """Invert the numbers from a threshold on, with probability ``p``.

    Args:
        threshold: the smallest number that is inverted, at most 255.
        p: probability.
    """

    kind = IMAGE_OPS["RandomSolarize"]
    counted = ("threshold",)

    threshold: arg.Threshold
    p: arg.Probability = 0.5


@operation
class RandomPosterize(_Applied):
    """Keep the highest bits of each number, with probability ``p``.

    Args:
        bits: the number of bits that are kept, 0 to 8.
        p: probability.
    """

    kind = IMAGE_OPS["RandomPosterize"]
    counted = ("bits",)

    bits: arg.Bits
    p: arg.Probability = 0.5


class RandomAutocontrast(_Gated):
    """Spread the numbers of each channel from 0 to 255, with probability ``p``."""

    kind = IMAGE_OPS["RandomAutocontrast"]
    is_color = True


class RandomEqualize(_Gated):
    """Make all numbers of a channel about as frequent, with probability ``p``."""

    kind = IMAGE_OPS["RandomEqualize"]


@operation
class Grayscale(Color):
    """Make an image grey.

    Args:
        num_output_channels: 1, or 3 for three equal channels.
    """

    kind = IMAGE_OPS["Grayscale"]
    is_random = False
    is_color = True
    counted = ("num_output_channels",)

    num_output_channels: arg.GreyChannels = 1

    def change(self, numbers: Numbers) -> Numbers:
        return Numbers(numbers.values[:1].expand(self.num_output_channels, -1), numbers.dtype)


@operation
class RandomGrayscale(_Applied):
    """Make an image grey, with probability ``p``. The image keeps its number of channels."""

    kind = IMAGE_OPS["RandomGrayscale"]
    is_color = True

    p: arg.Probability = 0.1


class _Jittered(Color):
    is_color = True
    brightness: Any
    contrast: Any
    saturation: Any
    hue: Any

    def encode_numbers(self) -> Sequence[float]:
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        return [number for ends in ranges for number in ends or _STAYS]

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        factors = (None if number != number else number for number in values["number"][:4])
        return dict(zip(_FACTORS, factors, strict=True))


@operation
class ColorJitter(_Jittered):
    """Change brightness, contrast, saturation and hue by random factors, in a random order.

    Args:
        brightness: bounds of the factor, or a number n for [max(0, 1 - n), 1 + n]. None: no change.
        contrast: as brightness.
        saturation: as brightness.
        hue: bounds of the turn of hues, in [-0.5, 0.5], or a number n for [-n, n]. None: no change.
    """

    kind = IMAGE_OPS["ColorJitter"]

    brightness: arg.Jitter = None
    contrast: arg.Jitter = None
    saturation: arg.Jitter = None
    hue: arg.HueJitter = None

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"fn_idx": values["order"], **super().report(values, parts)}


class RandomChannelPermutation(Color):
    """Put the channels in a random order."""

    kind = IMAGE_OPS["RandomChannelPermutation"]

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"permutation": values["order"]}


@operation
class RandomPhotometricDistort(_Jittered):
    """Change brightness, contrast, saturation, hue and the order of channels, each with
    probability ``p``.

    Args:
        brightness: bounds of the factor.
        contrast: bounds of the factor.
        saturation: bounds of the factor.
        hue: bounds of the turn of hues, in [-0.5, 0.5].
        p: probability of each change.
    """

    kind = IMAGE_OPS["RandomPhotometricDistort"]
    shown = ("brightness", "contrast", "hue")

    brightness: arg.Factors = (0.875, 1.125)
    contrast: arg.Factors = (0.5, 1.5)
    saturation: arg.Factors = (0.5, 1.5)
    hue: arg.HueFactors = (-0.05, 0.05)
    p: arg.Probability = 0.5

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        early, permutation = values["is_early"], values["order"] or None
        factors = super().report(values, parts)
        return factors | {"contrast_before": early, "channel_permutation": permutation}


@operation
class RandomAdjustSharpness(_Applied):
    """Change the sharpness, with probability ``p``.

    Args:
        sharpness_factor: a number >= 0: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
        p: probability.
    """

    kind = IMAGE_OPS["RandomAdjustSharpness"]
    is_color = True
    counted = ("sharpness_factor",)

    sharpness_factor: arg.Factor
    p: arg.Probability = 0.5


@operation
class GaussianBlur(Color):
    """Blur an image, reflected at its edges.

    Args:
        kernel_size: an odd number of taps, or (width, height), at most 127 each.
        sigma: bounds of the standard deviation, or a number.
    """

    kind = IMAGE_OPS["GaussianBlur"]

    kernel_size: arg.Taps
    sigma: arg.Sigma = (0.1, 2.0)

    def encode_numbers(self) -> Sequence[float]:
        return tuple(self.sigma)

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        taps: Any = self.kernel_size
        width, height = taps
        return {**super().encode(get_size), "size": (height, width)}

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"sigma": [values["number"][0]] * 2}


@operation
class GaussianNoise(Color):
    """Add normal random numbers.

    Args:
        mean: the mean of the random numbers; 1 is white.
        sigma: the standard deviation of the random numbers.
        clip: keep results within black and white. False: numbers outside wrap around.
    """

    kind = IMAGE_OPS["GaussianNoise"]
    counted = ("mean", "sigma", "clip")
    reported = ("seed",)

    mean: arg.Mean = 0.0
    sigma: arg.NoiseSigma = 0.1
    clip: arg.Flag = True
