"""The arguments of image operations: read as torchvision's v2 reads them, or refused in a sentence.

Every message names operation, argument and value, and ends with what to pass instead.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class InterpolationMode(enum.Enum):
    """How resizes compute pixels, by torchvision's names. Its values are taken as well."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"  # this and the next ones are for PIL images, and no operation here covers them
    HAMMING = "hamming"
    LANCZOS = "lanczos"


# The number of each is that of fl_interpolation and fl_padding_mode.
INTERPOLATIONS = {"nearest": 0, "nearest-exact": 1, "bilinear": 2, "bicubic": 3}
PADDING_MODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}
DTYPES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
}
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # constants of PIL.Image
_MAX_LENGTH = 2**24  # of an edge or a padding, in pixels: FL_MAX_EDGE


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_int(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def as_list(value: Any) -> Any:
    """The numbers of a vector; anything else as it is."""
    is_vector = isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 1
    return value.tolist() if is_vector else value


def read_flag(op: str, name: str, value: Any) -> bool:
    is_number = isinstance(value, int) and value in (0, 1)
    if not (isinstance(value, np.bool_) or is_number):
        raise TypeError(f"{op}: {name}={value!r} is no bool; pass True or False")
    return bool(value)


def _to_float(value: Any) -> float:
    """As float(), but an int that is too large for it is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: object) -> bool:
    if isinstance(value, (bool, str, bytes)):
        return False
    try:
        _to_float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def read_integer(op: str, name: str, value: Any, low: int, remedy: str) -> int:
    if not _is_int(value):
        raise TypeError(f"{op}: {name}={value!r} is no integer; {remedy}")
    number = operator.index(value)
    if not low <= number <= _MAX_LENGTH:
        raise ValueError(f"{op}: {name}={value!r} is not in [{low}, {_MAX_LENGTH}]; {remedy}")
    return number


def read_size(op: str, size: Any) -> Sequence[int]:
    """(height, width) of a result."""
    remedy = "pass an int for a square, or (height, width)"
    size = as_list(size)
    if _is_int(size):
        edge = read_integer(op, "size", size, 1, remedy)
        return edge, edge
    if not _is_sequence(size):
        raise TypeError(f"{op}: size={size!r} is a {type(size).__name__}; {remedy}")
    if len(size) not in (1, 2):
        raise ValueError(f"{op}: size={size!r} has {len(size)} values; {remedy}")
    edges = [read_integer(op, "size", edge, 1, remedy) for edge in size]
    if len(edges) == 1:
        return edges[0], edges[0]
    return edges if isinstance(size, list) else tuple(edges)


def read_resize(size: Any, max_size: Any) -> list[int] | None:
    """What the size of a Resize is: [shorter edge], [height, width] or, for ``max_size``, None."""
    if max_size is not None:
        read_integer("Resize", "max_size", max_size, 1, "pass the most pixels of the longer edge")
    if size is None:
        if max_size is None:
            raise ValueError(
                "Resize: size=None needs max_size; pass max_size=, the length of the longer edge"
            )
        return None
    size = as_list(size)
    if _is_int(size):
        size = [size]
    edges = list(read_size("Resize", size))[: len(size) if _is_sequence(size) else None]
    if max_size is None:
        return edges
    if len(edges) == 2:
        raise ValueError(
            f"Resize: max_size={max_size} goes with an int as size, the shorter edge, not with "
            f"size={size!r}; leave one of them out"
        )
    if max_size <= edges[0]:
        raise ValueError(
            f"Resize: max_size={max_size} is not larger than size={edges[0]}, the shorter edge; "
            "pass a larger max_size, or size=None"
        )
    return edges


def read_padding(op: str, padding: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom)."""
    remedy = "pass an int, (left and right, top and bottom), or (left, top, right, bottom)"
    padding = as_list(padding)
    if _is_int(padding):
        padding = [padding]
    if not _is_sequence(padding):
        raise TypeError(f"{op}: padding={padding!r} is a {type(padding).__name__}; {remedy}")
    if len(padding) not in (1, 2, 4):
        raise ValueError(f"{op}: padding={padding!r} has {len(padding)} values; {remedy}")
    each = [read_integer(op, "padding", value, 0, remedy) for value in padding]
    left, top, right, bottom = each * (4 // len(each))
    return left, top, right, bottom


def check_padding_mode(op: str, mode: Any, fill: Any) -> None:
    values = read_fill(op, "fill", fill)
    if not isinstance(mode, str) or mode not in PADDING_MODES:
        names = ", ".join(map(repr, PADDING_MODES))
        raise ValueError(f"{op}: padding_mode={mode!r} is not known; pass one of {names}")
    if mode != "constant" and len(values) > 1:
        raise ValueError(
            f"{op}: fill={fill!r} has a value for each channel, which padding_mode={mode!r} does "
            "not use; leave fill out, or pass padding_mode='constant'"
        )


def read_fill(op: str, name: str, fill: Any) -> tuple[float, ...]:
    """One value for all channels, or one for each."""
    if fill is None:
        return (0.0,)
    fill = as_list(fill)
    each = list(fill) if _is_sequence(fill) else [fill]
    if not each or not all(map(_is_number, each)):
        raise TypeError(
            f"{op}: {name}={fill!r} is no number; pass a number, or a list of one a channel"
        )
    return tuple(map(_to_float, each))


def read_interpolation(op: str, interpolation: Any, antialias: Any) -> str:
    """Its name; also of an InterpolationMode of torchvision's or a constant of Pillow's."""
    value = getattr(interpolation, "value", interpolation)
    name = _PILLOW.get(value) if isinstance(value, int) else value
    if not isinstance(name, str) or name not in INTERPOLATIONS:
        names = ", ".join(map(repr, INTERPOLATIONS))
        raise ValueError(
            f"{op}: interpolation={interpolation!r} is not covered; pass one of {names}"
        )
    is_on = isinstance(antialias, (bool, np.bool_)) and antialias
    if not is_on and name in ("bilinear", "bicubic"):
        raise ValueError(
            f"{op}: antialias={antialias!r} is not covered, because C resizes with the integer "
            "algorithm that torch has for antialias=True; leave it out"
        )
    return name


def check_probability(op: str, p: Any) -> None:
    if not _is_number(p):
        raise TypeError(f"{op}: p={p!r} is no number; pass a probability between 0 and 1")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{op}: p={p!r} is no probability; pass a number between 0 and 1")


def check_range(op: str, name: str, value: Any, low: float, high: float) -> None:
    """(min, max) with low <= min <= max <= high; 0 only where low is 0."""
    if not _is_sequence(value) or len(value) != 2 or not all(map(_is_number, value)):
        raise TypeError(f"{op}: {name}={value!r} are not two numbers; pass (min, max)")
    least, most = map(_to_float, value)
    if not (math.isfinite(least) and math.isfinite(most) and least <= most):
        raise ValueError(f"{op}: {name}={value!r} is no range; pass (min, max), min <= max")
    if least < low or most > high or most <= 0 or (name == "ratio" and least <= 0):
        bound = f"between {low:g} and {high:g}" if math.isfinite(high) else "above 0"
        raise ValueError(f"{op}: {name}={value!r} is out of range; pass numbers {bound}")


def check_dtype(dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"ToDtype: dtype={dtype!r} is no torch.dtype; pass torch.float32, say")
    if dtype not in DTYPES:
        names = ", ".join(f"torch.{name}" for name in DTYPES.values())
        raise ValueError(f"ToDtype: dtype={dtype} is not covered; pass one of {names}")


def read_statistics(name: str, values: Any) -> list[float]:
    """The means or the standard deviations of a Normalize."""
    remedy = "pass a list of one number a channel, or of one for all"
    try:
        each = [] if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        each = []
    if not each or not all(map(_is_number, each)):
        raise TypeError(f"Normalize: {name}={values!r} are no numbers; {remedy}")
    numbers = [_to_float(value) for value in each]
    as_computed = torch.tensor(numbers, dtype=torch.float32, device="cpu")
    if not as_computed.isfinite().all():
        raise ValueError(f"Normalize: {name}={values!r} is not finite in float32; {remedy}")
    if name == "std" and not as_computed.all():
        raise ValueError(
            f"Normalize: std={values!r} has a zero in float32, by which images would be divided; "
            "pass the standard deviation of each channel"
        )
    return numbers
