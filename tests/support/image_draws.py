"""The parameters of fastloop.transforms a second time: what seed, epoch, index and view make of an
operation, written in Python from the contracts fl_philox.h and fl_image_plan.h alone.

An operation is its name in torchvision and its arguments: ("RandomCrop", {"size": (32, 32)}).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Op = tuple[str, dict[str, Any]]
Params = dict[str, Any]
Size = tuple[int, int]  # height, width

# The order of fl_image_op_kind: part of the counter, so of what users can reproduce.
KINDS = (
    *("Pad", "CenterCrop", "RandomCrop", "Resize", "RandomResizedCrop"),
    *("RandomHorizontalFlip", "RandomVerticalFlip", "RandomErasing"),
    *("RandomInvert", "RandomSolarize", "RandomPosterize", "RandomAutocontrast", "RandomEqualize"),
    *("Grayscale", "RandomGrayscale", "ColorJitter", "RandomChannelPermutation"),
    *("RandomPhotometricDistort", "RandomAdjustSharpness", "GaussianBlur"),
    *("RandomApply", "RandomChoice", "RandomOrder", "a branch"),
    *("RandomRotation", "RandomAffine", "RandomPerspective"),
    *("RandAugment", "TrivialAugmentWide", "AutoAugment", "GaussianNoise"),
    "AugMix",
)
TRIES = 10


class Key(NamedTuple):
    seed: int
    epoch: int
    index: int
    view: int = 0


def philox(key: int, counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10, from the paper."""
    low, high = key & 0xFFFFFFFF, key >> 32
    a, b, c, d = counter
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ low, right, left >> 32 ^ d ^ high, left
        b, d = b & 0xFFFFFFFF, d & 0xFFFFFFFF
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return a, b, c, d


def unit(word: int) -> float:
    return (word >> 8) / 2**24


def below(word: int, bound: int) -> int:
    return word * bound >> 32


class Words:
    """The random numbers of one operation for one sample."""

    def __init__(self, key: Key, kind: str, occurrence: int) -> None:
        self._key, self._slot = key, KINDS.index(kind) << 3 | occurrence

    def block(self, number: int) -> tuple[int, int, int, int]:
        seed, epoch, index, view = self._key
        last = view << 24 | self._slot << 16 | number
        return philox(seed, (index & 0xFFFFFFFF, index >> 32, epoch, last))


def pair(value: int | Sequence[int]) -> Size:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


def four(padding: int | Sequence[int] | None) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    if padding is None:
        return 0, 0, 0, 0
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


def _random_crop(args: dict[str, Any], words: Words, size: Size) -> tuple[Params, Size]:
    height, width = pair(args["size"])
    left, top, right, bottom = four(args.get("padding"))
    if args.get("pad_if_needed", False):
        lacking_y = max(0, height - (size[0] + top + bottom))
        lacking_x = max(0, width - (size[1] + left + right))
        left, top, right, bottom = (
            *(left + lacking_x, top + lacking_y),
            *(right + lacking_x, bottom + lacking_y),
        )
    y, x, _, _ = words.block(0)
    params = {
        "top": below(y, size[0] + top + bottom - height + 1),
        "left": below(x, size[1] + left + right - width + 1),
        "padding": (left, top, right, bottom),
    }
    return params | {"height": height, "width": width}, (height, width)


def _between(word: int, ends: Sequence[float]) -> float:
    return ends[0] + unit(word) * (ends[1] - ends[0])


def _ratio(word: int, ratio: Sequence[float]) -> float:
    return math.exp(_between(word, [math.log(end) for end in ratio]))


def _central(ratio: Sequence[float], size: Size) -> Params:
    height, width = size
    if width / height < min(ratio):
        height = round(width / min(ratio))
    elif width / height > max(ratio):
        width = round(height * max(ratio))
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return {"top": top, "left": left, "height": height, "width": width}


def _random_resized_crop(args: dict[str, Any], words: Words, size: Size) -> tuple[Params, Size]:
    scale, ratio = args.get("scale", (0.08, 1.0)), args.get("ratio", (3 / 4, 4 / 3))
    out = pair(args["size"])
    for number in range(TRIES):
        area, log_ratio, y, x = words.block(number)
        target = size[0] * size[1] * _between(area, scale)
        aspect = _ratio(log_ratio, ratio)
        width, height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < width <= size[1] and 0 < height <= size[0]:
            top, left = below(y, size[0] - height + 1), below(x, size[1] - width + 1)
            return {"top": top, "left": left, "height": height, "width": width}, out
    return _central(ratio, size), out


def _random_erasing(args: dict[str, Any], words: Words, size: Size) -> tuple[Params, Size]:
    if unit(words.block(0)[0]) >= args.get("p", 0.5):
        return {"erase": False}, size
    for number in range(1, 1 + TRIES):
        area, log_ratio, y, x = words.block(number)
        target = size[0] * size[1] * _between(area, args.get("scale", (0.02, 0.33)))
        aspect = _ratio(log_ratio, args.get("ratio", (0.3, 3.3)))
        height, width = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if height < size[0] and width < size[1]:
            top, left = below(y, size[0] - height + 1), below(x, size[1] - width + 1)
            params = {"top": top, "left": left, "height": height, "width": width}
            return {"erase": True} | params, size
    return {"erase": False}, size


def _flip(args: dict[str, Any], words: Words, size: Size) -> tuple[Params, Size]:
    return {"flip": unit(words.block(0)[0]) < args.get("p", 0.5)}, size


def _pad(args: dict[str, Any], _words: Words, size: Size) -> tuple[Params, Size]:
    left, top, right, bottom = four(args["padding"])
    return {"padding": (left, top, right, bottom)}, (
        size[0] + top + bottom,
        size[1] + left + right,
    )


def _center_crop(args: dict[str, Any], _words: Words, size: Size) -> tuple[Params, Size]:
    out = pair(args["size"])
    before = [max(0, wanted - n) // 2 for wanted, n in zip(out, size, strict=True)]
    after = [(max(0, wanted - n) + 1) // 2 for wanted, n in zip(out, size, strict=True)]
    top, left = (
        round((n + b + a - wanted) / 2.0)
        for n, b, a, wanted in zip(size, before, after, out, strict=True)
    )
    params = {"top": top, "left": left, "padding": (before[1], before[0], after[1], after[0])}
    return params | {"height": out[0], "width": out[1]}, out


def _resize(args: dict[str, Any], _words: Words, size: Size) -> tuple[Params, Size]:
    wanted, most = args["size"], args.get("max_size")
    if not isinstance(wanted, int) and len(wanted) == 2:
        return {}, pair(wanted)
    short = wanted if isinstance(wanted, int) else wanted[0]
    long = int(short * max(size) / min(size))
    if most is not None and long > most:
        short, long = int(most * short / long), most
    return {}, ((long, short) if size[1] <= size[0] else (short, long))


_DRAWS: dict[str, Callable[[dict[str, Any], Words, Size], tuple[Params, Size]]] = {
    "Pad": _pad,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "Resize": _resize,
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": _flip,
    "RandomVerticalFlip": _flip,
    "RandomErasing": _random_erasing,
}


def draw(ops: Sequence[Op], key: Key, size: Size) -> list[Params]:
    """What `ArrayDataset.params` says of an image of this size, and "out": the size after each."""
    seen: Counter[str] = Counter()
    drawn: list[Params] = []
    for name, args in ops:
        params: Params = {}
        if name in _DRAWS:
            params, size = _DRAWS[name](args, Words(key, name, seen[name]), size)
        seen[name] += 1
        drawn.append({"op": name, **params, "out": size})
    return drawn
