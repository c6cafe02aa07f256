"""The normal numbers of GaussianNoise a second time, in NumPy, from
docs/internals/augmentations.md alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
F = np.float32
LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1)
LOG += (-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)


def philox(key: int, blocks: int) -> list[np.ndarray[Any, Any]]:
    """The four words of blocks 0, 1, ..."""
    a = np.arange(blocks, dtype=np.uint64)
    b, c, d = (np.zeros(blocks, np.uint64) for _ in "bcd")
    low, high, word = key & 0xFFFFFFFF, key >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a = (right >> np.uint64(32)) ^ b ^ np.uint64(low)
        c = (left >> np.uint64(32)) ^ d ^ np.uint64(high)
        b, d = right & word, left & word
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return [a, b, c, d]


def log(x: Floats) -> Floats:
    part, exponent = np.frexp(x)  # in [0.5, 1)
    part, exponent = part * F(2), exponent - 1
    is_large = part > F(1.41421356)
    part = np.where(is_large, part * F(0.5), part).astype(F) - F(1)
    e = (exponent + is_large).astype(F)
    total = np.full_like(part, F(LOG[0]))
    for term in LOG[1:]:
        total = total * part + F(term)
    square = part * part
    total = total * (part * square) + e * F(-2.12194440e-4)
    return (part + (total - square * F(0.5))) + e * F(0.693359375)


def circle(part: Floats) -> tuple[Floats, Floats]:
    """Cosine and sine."""
    quarters = part * F(4)
    quadrant = (quarters + F(0.5)).astype(np.int32)
    t = (quarters - quadrant.astype(F)) * F(1.57079633)
    square = t * t
    s = square * F(-1.9515295891e-4) + F(8.3321608736e-3)
    s = (s * square + F(-1.6666654611e-1)) * (square * t) + t
    c = square * F(2.443315711809948e-5) + F(-1.388731625493765e-3)
    c = (c * square + F(4.166664568298827e-2)) * (square * square) + (F(1) - square * F(0.5))
    is_odd = quadrant & 1 != 0
    x, y = np.where(is_odd, s, c), np.where(is_odd, c, s)
    return np.where((quadrant + 1) & 2 != 0, -x, x), np.where(quadrant & 2 != 0, -y, y)


def normal(seed: int, count: int) -> Floats:
    words = philox(seed, count // 4 + 1)
    numbers = np.empty((len(words[0]), 4), F)
    for pair in (0, 2):
        length = np.sqrt(log(((words[pair] >> np.uint64(8)) + 1).astype(F) * F(2**-24)) * F(-2))
        x, y = circle((words[pair + 1] >> np.uint64(8)).astype(F) * F(2**-24))
        numbers[:, pair], numbers[:, pair + 1] = length * x, length * y
    return numbers.reshape(-1)[:count]
