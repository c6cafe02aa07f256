"""The parameters of augmentations a second time, from the contract of
docs/internals/augmentations.md alone: what `ArrayDataset.params` says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from image_draws import Key, Params, Words, below, unit

FACTORS = ("brightness", "contrast", "saturation", "hue")
DISTORTED = ((0.875, 1.125), (0.5, 1.5), (0.5, 1.5), (-0.05, 0.05))


def gate(words: Words, args: dict[str, Any], p: float = 0.5) -> Params:
    return {"apply": unit(words.block(0)[0]) < args.get("p", p)}


def uniform(word: int, ends: Sequence[float]) -> float:
    return float(np.float32(ends[0] + unit(word) * (ends[1] - ends[0])))


def order(words: Sequence[int], count: int) -> tuple[int, ...]:
    """Fisher's and Yates's shuffle."""
    at = list(range(count))
    for k in range(count - 1):
        other = k + below(words[k], count - k)
        at[k], at[other] = at[other], at[k]
    return tuple(at)


def color_jitter(words: Words, args: dict[str, Any], _channels: int) -> Params:
    told: Params = {"fn_idx": order(words.block(1), 4)}
    for word, name in zip(words.block(0), FACTORS, strict=True):
        ends = args.get(name)
        told[f"{name}_factor"] = None if ends is None else uniform(word, ends)
    return told


def photometric_distort(words: Words, args: dict[str, Any], channels: int) -> Params:
    p, told = args.get("p", 0.5), {}
    blocks = zip(FACTORS, DISTORTED, words.block(0), words.block(1), strict=True)
    for name, ends, applied, word in blocks:
        factor = uniform(word, args.get(name, ends))
        told[f"{name}_factor"] = factor if unit(applied) < p else None
    early, permuted, _, _ = words.block(2)
    told["contrast_before"] = unit(early) < 0.5
    shuffled = order(words.block(3), channels)
    return told | {"channel_permutation": shuffled if unit(permuted) < p else None}


def rotation(words: Words, args: dict[str, Any], _channels: int) -> Params:
    return {"angle": uniform(words.block(0)[0], args["degrees"])}


def affine(words: Words, args: dict[str, Any], _channels: int) -> Params:
    """Of an image of (4, 5)."""
    angle, x, y, scale = words.block(0)
    x_shear, y_shear, _, _ = words.block(1)
    most = [share * n for share, n in zip(args.get("translate", (0, 0)), (5, 4), strict=True)]
    moved = (round(uniform(word, (-n, n))) for word, n in zip((x, y), most, strict=True))
    shear = [*args.get("shear", (0, 0)), 0, 0]
    return {
        "angle": uniform(angle, args["degrees"]),
        "translate": tuple(moved),
        "scale": uniform(scale, args.get("scale", (1, 1))),
        "shear": (uniform(x_shear, shear[:2]), uniform(y_shear, shear[2:4])),
    }


POLICY_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def policy(v2: Any, name: str, words: Words, size: tuple[int, int]) -> list[tuple[str, float]]:
    """What a policy of default arguments draws for images of this size, by v2's tables."""
    made, drawn = getattr(v2, name)(), []
    steps: list[tuple[str, int, int]]  # operation, magnitude, word of the sign
    if name == "RandAugment":
        blocks = [words.block(0), words.block(1)]
        steps = [(POLICY_OPS[below(block[0], 14)], 9, block[1]) for block in blocks]
    elif name == "TrivialAugmentWide":
        op, at, sign, _ = words.block(0)
        steps = [(POLICY_OPS[below(op, 14)], below(at, 31), sign)]
    else:
        pair = made._policies[below(words.block(0)[0], 25)]
        both = [(step, words.block(1 + k)) for k, step in enumerate(pair)]
        steps = [(op, at, block[1]) for (op, p, at), block in both if unit(block[0]) <= p]
    for op, at, sign in steps:
        make, is_signed = made._AUGMENTATION_SPACE[op]
        magnitudes = make(10 if name == "AutoAugment" else 31, *size)
        magnitude = 0.0 if magnitudes is None else float(magnitudes[at])
        drawn.append((op, -magnitude if is_signed and unit(sign) <= 0.5 else magnitude))
    return drawn


DRAWS: dict[str, Callable[[Words, dict[str, Any], int], Params]] = {
    **dict.fromkeys(
        ("RandomInvert", "RandomSolarize", "RandomPosterize", "RandomAutocontrast"),
        lambda words, args, _: gate(words, args),
    ),
    **dict.fromkeys(
        ("RandomEqualize", "RandomAdjustSharpness"), lambda words, args, _: gate(words, args)
    ),
    "GaussianNoise": lambda words, *_: {"seed": words.block(0)[1] << 32 | words.block(0)[0]},
    "RandomRotation": rotation,
    "RandomAffine": affine,
    "GaussianBlur": lambda words, args, _: {
        "sigma": [uniform(words.block(0)[0], args.get("sigma", (0.1, 2.0)))] * 2
    },
    "Grayscale": lambda _words, _args, _channels: {},
    "RandomGrayscale": lambda words, args, _: gate(words, args, 0.1),
    "ColorJitter": color_jitter,
    "RandomChannelPermutation": lambda words, _, channels: {
        "permutation": order(words.block(0), channels)
    },
    "RandomPhotometricDistort": photometric_distort,
}


def draw_choice(words: Words, shares: Sequence[float]) -> int:
    """Which of several transforms is applied."""
    at, end = unit(words.block(0)[0]), 0.0
    for chosen, share in enumerate(shares):
        end += share / sum(shares)
        if at < end:
            return chosen
    return len(shares) - 1


def draw_order(words: Words, count: int) -> tuple[int, ...]:
    blocks = [words.block(block) for block in range((count + 2) // 4)]
    return order([word for block in blocks for word in block], count)


def draw_augmentation(name: str, args: dict[str, Any], key: Key, channels: int) -> Params:
    """The parameters of the first operation of this name in a chain."""
    return {"op": name, **DRAWS[name](Words(key, name, 0), args, channels)}
