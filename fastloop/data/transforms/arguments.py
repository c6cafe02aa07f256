"""The kinds of arguments of image operations: how each is read and how it is encoded for the core.

An operation is a dataclass, and its fields are annotated with these kinds. Readers accept the
values that torchvision's v2 accepts, and return the value of torchvision's attribute.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from ctypes import c_float
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from fastloop._core import IMAGE_LIMITS, INTERPOLATIONS, PADDING_MODES
from fastloop.base import checks


class InterpolationMode(enum.Enum):
    """The ways in which resizes compute pixels, with torchvision's names. Operations take a member
    or its value."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"  # from here on for PIL images only: fastloop's operations refuse these members
    HAMMING = "hamming"
    LANCZOS = "lanczos"


DTYPES = {getattr(torch, name): name for name in ("uint8", "float16", "bfloat16", "float32")}
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # constants of PIL.Image
_MAX_LENGTH = IMAGE_LIMITS["EDGE"]  # the largest edge or padding, in pixels
_MAX_OPS = IMAGE_LIMITS["POLICY_OPS"]
_MAX_TAPS = IMAGE_LIMITS["BLUR"]
_SIZE = "an int >= 1 for a square, or (height, width)"
_CHANNELS = "a number, or one for each channel"
_PADDING = "an int >= 0, (left and right, top and bottom), or (left, top, right, bottom)"


def check(op: object, name: str, holds: object, rule: str, remedy: str = "") -> None:
    """Raise ValueError unless `holds`, a rule on an argument that was read."""
    checks.check_value(f"{type(op).__name__}: {name}", getattr(op, name), holds, rule, remedy)


class Argument:
    """One kind of argument. If None is the default, None is not read.

    Attributes:
        read: called with the argument's name, for example "RandomCrop: size", and the given value;
            returns the attribute, or raises TypeError or ValueError.
        encode: makes the field of fl_image_op from the attribute. None: the core has no such field.
    """

    def __init__(
        self, read: Callable[[str, Any], Any], encode: Callable[[Any], Any] | None = None
    ) -> None:
        self.read, self.encode = read, encode

    def __repr__(self) -> str:
        return "Argument"  # a short text, because help() shows the text for each argument


def _as_list(value: Any) -> Any:
    """Return the numbers of a vector as a list, and any other value unchanged."""
    is_vector = isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 1
    return value.tolist() if is_vector else value


def _read_lengths(name: str, value: Any, low: int, counts: tuple[int, ...], rule: str) -> list[int]:
    value = _as_list(value)
    each = [value] if checks.is_int(value) else value
    checks.check_type(name, value, checks.is_sequence(each), rule)
    checks.check_value(name, value, len(each) in counts, rule)
    return [checks.read_int(name, length, low, _MAX_LENGTH) for length in each]


def _read_size(name: str, value: Any, rule: str = _SIZE) -> Sequence[int]:
    """Return (height, width); a list stays a list."""
    edges = _read_lengths(name, value, 1, (1, 2), rule)
    is_list = len(edges) == 2 and isinstance(_as_list(value), list)
    return edges if is_list else (edges[0], edges[-1])


def _read_resize(name: str, value: Any) -> list[int] | None:
    """Return [shorter edge], [height, width] or None."""
    return None if value is None else _read_lengths(name, value, 1, (1, 2), _SIZE)


def _read_padding(name: str, value: Any) -> int | list[int]:
    lengths = _read_lengths(name, value, 0, (1, 2, 4), _PADDING)
    return lengths[0] if checks.is_int(value) else lengths


def _encode_padding(padding: int | list[int]) -> tuple[int, ...]:
    """Return (left, top, right, bottom)."""
    each = [padding] if isinstance(padding, int) else padding
    return tuple(each * (4 // len(each)))


def _read_crop_padding(name: str, value: Any) -> list[int] | None:
    """Return [left, right, top, bottom], the order of torchvision's attribute, or None."""
    left, top, right, bottom = _encode_padding(_read_padding(name, value))
    return [left, right, top, bottom] if _as_list(value) else None


def _encode_crop_padding(padding: list[int] | None) -> tuple[int, ...]:
    left, right, top, bottom = padding or [0] * 4
    return left, top, right, bottom


def _each_of(fill: Any) -> Sequence[Any]:
    fill = 0 if fill is None else _as_list(fill)
    return fill if checks.is_sequence(fill) else [fill]


def to_floats(fill: Any) -> tuple[float, ...]:
    """Return the numbers of a fill: one for all channels, or one for each channel."""
    return tuple(map(checks.to_float, _each_of(fill)))


def _read_fill(name: str, value: Any) -> Any:
    each = _each_of(value)
    checks.check_type(name, value, each and checks.are_numbers(each), _CHANNELS)
    return value


def _read_erased(name: str, value: Any) -> list[float]:
    is_noise = isinstance(value, str) or value is None
    remedy = "for noise, erase in the training loop, on the batch"
    checks.check_value(name, value, not is_noise, _CHANNELS, remedy)
    return list(to_floats(_read_fill(name, value)))


def read_interpolation(name: str, value: Any) -> str:
    """Return the name of an interpolation, given as a name, as an InterpolationMode of fastloop or
    torchvision, or as a constant of Pillow."""
    mode = checks.look_up(value, "value", value)
    mode = _PILLOW.get(mode, value) if isinstance(mode, int) else mode
    return str(checks.read_choice(name, mode, tuple(INTERPOLATIONS)))


def _read_flag(name: str, value: Any) -> bool:
    is_flag = isinstance(value, np.bool_) or (isinstance(value, int) and value in (0, 1))
    checks.check_type(name, value, is_flag, "True or False")
    return bool(value)


def _read_unchanged(name: str, value: Any, low: float, high: float) -> Any:
    """Return a number within [low, high] with its type, because texts show the type."""
    checks.read_number(name, value, low, high)
    return value


def read_probability(name: str, value: Any) -> Any:
    return _read_unchanged(name, value, 0, 1)


def _read_range(name: str, value: Any, high: float = math.inf, is_ratio: bool = False) -> Any:
    ends = "0 < min <= max" if is_ratio else "0 <= min <= max and 0 < max"
    rule = f"(min, max) with {ends} " + ("< inf" if high == math.inf else f"<= {high}")
    checks.check_type(name, value, checks.are_numbers(value, 2), rule)
    least, most = map(checks.to_float, value)
    is_range = 0 <= least <= most <= high and 0 < most < math.inf
    checks.check_value(name, value, is_range and not (is_ratio and least == 0), rule)
    return value


def _read_statistics(name: str, value: Any, is_divisor: bool = False) -> list[float]:
    """Return the means or the standard deviations of a Normalize."""
    rule = "one number for each channel, or one for all, finite in float32"
    rule += " and not 0" if is_divisor else ""
    each = _as_list(value)
    checks.check_type(name, value, checks.are_numbers(each) and each, rule)
    numbers = list(map(checks.to_float, each))
    as_computed = [c_float(number).value for number in numbers]
    is_covered = all(map(math.isfinite, as_computed)) and (all(as_computed) or not is_divisor)
    checks.check_value(name, value, is_covered, rule)
    return numbers


def _read_jitter(name: str, value: Any, is_hue: bool = False) -> tuple[float, float] | None:
    """Return the bounds of a factor, or None if the factor always changes nothing."""
    low, high, middle = (-0.5, 0.5, 0.0) if is_hue else (0.0, math.inf, 1.0)
    rule = f"a number >= 0, or (min, max) with {low:g} <= min <= max <= {high:g}"
    ends = value
    if checks.is_number(value):
        ends = (middle - value, middle + value)
        ends = ends if is_hue or value < 0 else (max(0.0, ends[0]), ends[1])
    checks.check_type(name, value, checks.are_numbers(ends, 2), rule)
    least, most = map(checks.to_float, ends)
    checks.check_value(name, value, low <= least <= most <= high and most < math.inf, rule)
    return None if least == most == middle else (least, most)


def _read_factors(name: str, value: Any, is_hue: bool = False) -> Any:
    """Return the bounds of a factor unchanged."""
    checks.check_type(name, value, not (value is None or checks.is_number(value)), "(min, max)")
    _read_jitter(name, value, is_hue)
    return value


def _read_bits(name: str, value: Any) -> int:
    checks.check_type(name, value, checks.is_int(value) and 0 <= value <= 8, "an int in [0, 8]")
    return int(value)


def _read_ends(
    name: str, value: Any, lengths: tuple[int, ...] = (2,), is_symmetric: bool = False
) -> Any:
    """Return bounds, one pair after the other, as floats."""
    rule = " or ".join(f"{length} numbers" for length in lengths) + ", in pairs (min, max)"
    rule += ", or one number >= 0" if is_symmetric else ""
    ends = _as_list(value)
    if is_symmetric and checks.is_number(value):
        ends = (-value, value)
    checks.check_type(name, value, checks.are_numbers(ends), rule)
    numbers = list(map(checks.to_float, ends))
    pairs = zip(numbers[::2], numbers[1::2], strict=False)
    are_pairs = len(numbers) in lengths and all(low <= high for low, high in pairs)
    checks.check_value(name, value, are_pairs, rule)
    return numbers


def _read_pair(
    name: str, value: Any, rule: str, fits: Callable[[Any], bool] = checks.is_number
) -> Any:
    """Return two numbers unchanged."""
    checks.check_type(name, value, checks.are_numbers(value), rule)
    checks.check_value(name, value, len(value) == 2 and all(map(fits, value)), rule)
    return value


def _read_translate(name: str, value: Any) -> Any:
    return _read_pair(name, value, "two numbers n with 0 <= n <= 1, or None", lambda n: 0 <= n <= 1)


def _read_scales(name: str, value: Any) -> Any:
    rule = "two numbers n with 0 < n <= inf, or None"
    _read_ends(name, _read_pair(name, value, rule, lambda n: n > 0))
    return value


def _read_taps(name: str, value: Any) -> Sequence[int]:
    taps = _read_size(name, value, "an odd int, or (width, height)")
    are_odd = all(length % 2 == 1 and length <= _MAX_TAPS for length in taps)
    checks.check_value(name, value, are_odd, f"odd and <= {_MAX_TAPS}")
    return taps


def _read_sigma(name: str, value: Any) -> Any:
    rule = "a number > 0, or (min, max) with 0 < min <= max"
    ends = [value, value] if checks.is_number(value) else value
    checks.check_type(name, value, checks.are_numbers(ends), rule)
    is_range = len(ends) in (1, 2) and 0 < ends[0] <= ends[-1] < math.inf
    checks.check_value(name, value, is_range, rule)
    return [checks.to_float(ends[0]), checks.to_float(ends[-1])]


def _read_ops(name: str, value: Any) -> int:
    is_count = checks.is_int(value) and 0 <= value <= _MAX_OPS
    checks.check_value(name, value, is_count, f"an int in [0, {_MAX_OPS}]")
    return int(value)


def _read_threshold(name: str, value: Any) -> Any:
    checks.check_type(name, value, checks.is_number(value) and value <= 255, "a number <= 255")
    return value


_Lengths = int | Sequence[int]
Size = Annotated[_Lengths, Argument(_read_size, tuple)]
ResizeSize = Annotated[_Lengths | None, Argument(_read_resize)]
LongestEdge = Annotated[
    int | None, Argument(partial(checks.read_optional_int, low=1, high=_MAX_LENGTH))
]
Padding = Annotated[_Lengths, Argument(_read_padding, _encode_padding)]
CropPadding = Annotated[_Lengths | None, Argument(_read_crop_padding, _encode_crop_padding)]
PaddingMode = Annotated[
    str, Argument(partial(checks.read_choice, choices=tuple(PADDING_MODES)), PADDING_MODES.get)
]
Fill = Annotated[float | Sequence[float] | None, Argument(_read_fill)]
Erased = Annotated[Any, Argument(_read_erased)]
Interpolation = Annotated[
    Any, Argument(read_interpolation, lambda how: INTERPOLATIONS.get(how, how))
]
Flag = Annotated[bool, Argument(_read_flag)]
CoreFlag = Annotated[bool, Argument(_read_flag, bool)]  # a flag that the core has as well
Probability = Annotated[float, Argument(read_probability, float)]
Scale = Annotated[Sequence[float], Argument(_read_range, tuple)]
Share = Annotated[Sequence[float], Argument(partial(_read_range, high=1), tuple)]
Ratio = Annotated[Sequence[float], Argument(partial(_read_range, is_ratio=True), tuple)]
Dtype = Annotated[torch.dtype, Argument(partial(checks.read_choice, choices=tuple(DTYPES)))]
Means = Annotated[Any, Argument(_read_statistics)]
Deviations = Annotated[Any, Argument(partial(_read_statistics, is_divisor=True))]
Jitter = Annotated[Any, Argument(_read_jitter)]
HueJitter = Annotated[Any, Argument(partial(_read_jitter, is_hue=True))]
Factors = Annotated[Any, Argument(_read_factors)]
HueFactors = Annotated[Any, Argument(partial(_read_factors, is_hue=True))]
Bits = Annotated[int, Argument(_read_bits)]
Threshold = Annotated[float, Argument(_read_threshold)]
GreyChannels = Annotated[int, Argument(partial(checks.read_choice, choices=(1, 3)))]
Factor = Annotated[float, Argument(partial(_read_unchanged, low=0, high=math.inf))]
Taps = Annotated[_Lengths, Argument(_read_taps)]
Sigma = Annotated[Any, Argument(_read_sigma)]
Degrees = Annotated[Any, Argument(partial(_read_ends, is_symmetric=True))]
Shears = Annotated[Any, Argument(partial(_read_ends, lengths=(2, 4), is_symmetric=True))]
Translate = Annotated[Any, Argument(_read_translate)]
Scales = Annotated[Any, Argument(_read_scales)]
Center = Annotated[Any, Argument(partial(_read_pair, rule="(x, y), or None"))]
Ops = Annotated[int, Argument(_read_ops)]
Magnitude = Annotated[int, Argument(partial(checks.read_int, low=0))]
Bins = Annotated[int, Argument(partial(checks.read_int, low=2, high=2**20))]
Mean = Annotated[float, Argument(partial(_read_unchanged, low=-20, high=20))]
NoiseSigma = Annotated[float, Argument(partial(_read_unchanged, low=0, high=20))]
Severity = Annotated[
    int, Argument(partial(_read_unchanged, low=1, high=IMAGE_LIMITS["MIX_LEVELS"]))
]
Chains = Annotated[int, Argument(partial(checks.read_int, low=1, high=IMAGE_LIMITS["CHAINS"]))]
Depth = Annotated[int, Argument(partial(checks.read_int, high=IMAGE_LIMITS["MIXED"]))]
Positive = Annotated[float, Argument(partial(_read_unchanged, low=1e-6, high=1e6))]
