"""A battery of images: torchvision and fastloop do one operation to each image, and the results are
compared. The operation has the program's parameters. All code that runs is the library's.
"""

from __future__ import annotations

import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fastloop.compat.verification import is_alone, running_original

_SIZES = (1, 1), (9, 9), (13, 17), (32, 32), (30, 21), (5, 40)
_COUNT = {False: 128, True: 256}  # images; of code that fastloop does not know: True
_WORDS = 0.0, 0.5, 1 - 2**-24  # numbers at the ends of comparisons


def _state_of(number: float) -> torch.Tensor:
    """Return the state of a generator of torch that draws this uniform number again and again."""
    y = int(min(number, _WORDS[-1]) * 2**24)
    # The word that the generator's output function makes `y` of.
    y ^= y >> 18
    y ^= (y << 15) & 0xEFC60000
    t = y
    for _ in range(5):
        t = y ^ ((t << 7) & 0x9D2C5680)
    y = t
    for _ in range(3):
        t = y ^ (t >> 11)
    words = np.full(624, t & 0xFFFFFFFF, "<u8").tobytes()
    state = struct.pack("<QiiQ", 0, 624, 1, 0) + words + bytes(40)
    return torch.from_numpy(np.frombuffer(state, np.uint8).copy())


def _states_of(op: Any, count: int) -> Iterator[torch.Tensor]:
    for seed in range(count):
        yield torch.Generator().manual_seed(seed).get_state()
    for number in (*_WORDS, getattr(op, "p", 0.0)):
        if number == 0 and type(op).__name__ == "AugMix":
            continue  # torch would reject normal numbers made of zeros for ever
        for _ in range(2 * len(_SIZES)):
            yield _state_of(number)


def images_of(op: Any) -> Iterator[Any]:
    """Yield arrays of bytes [H, W, C], noise and flat ones, of small sizes and the operation's."""
    numbers, size = np.random.default_rng(7), getattr(op, "size", None)
    edges = [edge for edge in np.ravel(size if size is not None else []).tolist() if edge]
    most = int(max(edges, default=24))
    sizes = *_SIZES, (most, most), (most + 5, most + 2)
    while True:
        for height, width in sizes:
            image: Any
            kind, shape = numbers.integers(4), (height, width, int(numbers.choice((1, 3))))
            if kind == 0:
                image = np.zeros(shape) + numbers.integers(0, 256, shape[2])
            elif kind == 1:
                image = numbers.choice(numbers.integers(0, 256, 2), shape)
            elif kind == 2:
                image = numbers.normal(100, 25, shape).clip(0, 255)
            else:
                image = numbers.integers(0, 256, shape)
            yield np.ascontiguousarray(image, dtype=np.uint8)


class _Native:
    """The plans of an operation, by the shape of images."""

    def __init__(self, chain: Any, form: str) -> None:
        self._chain, self._form, self._plans = chain, form, dict[Any, Any]()

    def take(self, array: Any) -> tuple[Any, Any]:
        """Return an image as torchvision takes it, and as fastloop takes it."""
        if self._form == "PIL":
            pixels = array[:, :, 0] if array.shape[2] == 1 else array
            return (sys.modules["PIL.Image"].fromarray(pixels),) * 2
        image = torch.from_numpy(array).permute(2, 0, 1).contiguous()
        return image / 255 if self._form == "floats" else image.clone(), image

    def make(self, array: Any, image: Any, generator: torch.Generator) -> Any:
        if array.shape not in self._plans:
            is_pil, out_layout = self._form == "PIL", "HWC" if self._chain.makes_pil else "CHW"
            given = (array.shape, "HWC") if is_pil else (tuple(image.shape), "CHW")
            self._plans[array.shape] = self._chain.compile(*given, out_layout)
        plan, draws = self._plans[array.shape]
        out = plan.empty()
        draws.apply(image, out, generator)
        return out


def _or_error(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _is_same(made: Any, out: torch.Tensor) -> bool:
    is_tensor = isinstance(made, torch.Tensor)
    if not is_tensor and getattr(made, "mode", None) not in ("RGB", "L"):
        return False
    made = made.as_subclass(torch.Tensor) if is_tensor else torch.from_numpy(np.array(made))
    is_like = made.dtype is out.dtype and made.numel() == out.numel()
    is_like &= made.shape == out.shape[: made.ndim]  # images of PIL may have no third axis
    return is_like and torch.equal(made.reshape(out.shape), out)


def find_difference(op: Any, chain: Any, form: str, is_unknown: bool) -> str:
    """Return in which case an operation differs from fastloop's, or "".

    Args:
        chain: fastloop's operation, as a ``Chain``.
        form: of images before the operation: "PIL", "bytes" or "floats", which are bytes / 255.
    """
    name, native, count = type(op).__name__, _Native(chain, form), 0
    private, arrays = torch.Generator(), images_of(op)
    with running_original(), warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        for state in _states_of(op, _COUNT[is_unknown]):
            array = next(arrays)
            given, image = native.take(array)
            torch.set_rng_state(state)
            private.set_state(state)
            made = _or_error(op, given)
            out = _or_error(native.make, array, image, private)
            if isinstance(out, Exception):  # torchvision makes the image, or raises
                continue
            is_same = not isinstance(made, Exception) and _is_same(made, out)
            if not is_same or not torch.equal(torch.get_rng_state(), private.get_state()):
                if not is_alone():
                    raise RuntimeError("a different thread may draw numbers")
                return f"an image of {name} differs"
            count += 1
    return "" if count >= 2 * len(_SIZES) else f"no image of {name} can be compared"
