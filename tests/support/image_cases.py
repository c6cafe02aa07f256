"""Random chains of operations on random images, by a seed: what the tests of fastloop.transforms
and of their reference run through."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from image_draws import Op, Size

MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
PADDINGS = ("constant", "edge", "reflect", "symmetric")
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Case:
    """A chain, and the size of the images that it is for."""

    ops: list[Op]
    channels: int
    size: Size
    layout: str
    out_layout: str

    def images(self, count: int, seed: int) -> torch.Tensor:
        """uint8 [count, C, H, W]"""
        generator = torch.Generator().manual_seed(seed)
        shape = (count, self.channels, *self.size)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.channels = self.random.choice(CHANNELS)
        self.size: Size = (self.length(), self.length())
        self.is_float = False

    def length(self) -> int:
        """1 comes often."""
        return self.random.choice((1, self.random.randint(2, 12), self.random.randint(13, 70)))

    def fill(self) -> Any:
        one = self.random.choice((0, self.random.randint(0, 255)))
        each = tuple(self.random.randint(0, 255) for _ in range(self.channels))
        return self.random.choice((one, each))

    def sides(self, mode: str) -> tuple[int, int, int, int]:
        """A padding that the mode can give the image."""
        lack = {"reflect": 1, "symmetric": 0}.get(mode)
        y, x = ((n - lack if lack is not None else 9) for n in self.size)
        left, right = (self.random.randint(0, min(9, x)) for _ in range(2))
        top, bottom = (self.random.randint(0, min(9, y)) for _ in range(2))
        return left, top, right, bottom

    def pad(self) -> Op:
        mode = self.random.choice(PADDINGS)
        left, top, right, bottom = padding = self.sides(mode)
        args = {"padding": padding, "padding_mode": mode}
        if mode == "constant":
            args["fill"] = self.fill()
        self.size = (self.size[0] + top + bottom, self.size[1] + left + right)
        return "Pad", args

    def random_crop(self) -> Op:
        mode = self.random.choice(PADDINGS)
        left, top, right, bottom = padding = self.sides(mode)
        most = (self.size[0] + top + bottom, self.size[1] + left + right)
        self.size = tuple(self.random.choice((1, n, self.random.randint(1, n))) for n in most)
        args = {"size": self.size, "padding": padding, "padding_mode": mode}
        if mode == "constant":
            args["fill"] = self.fill()
            if self.random.random() < 0.3:
                self.size = (self.size[0] + self.random.randint(0, 9), self.size[1])
                args |= {"pad_if_needed": True, "size": self.size}
        return "RandomCrop", args

    def center_crop(self) -> Op:
        self.size = (self.length(), self.length())
        return "CenterCrop", {"size": self.size}

    def resize(self) -> Op:
        self.size = tuple(self.random.choice((n, self.length())) for n in self.size)
        return "Resize", {"size": self.size, "interpolation": self.random.choice(MODES)}

    def resize_edge(self) -> Op:
        edge = max(self.length(), 2)
        long = int(edge * max(self.size) / min(self.size))
        args = {"size": edge, "interpolation": self.random.choice(MODES)}
        if long > 200:
            args["max_size"] = long = 200
            edge = int(200 * edge / int(edge * max(self.size) / min(self.size)))
        if edge == 0:
            return self.resize()
        self.size = (long, edge) if self.size[1] <= self.size[0] else (edge, long)
        return "Resize", args

    def resized_crop(self) -> Op:
        self.size = (self.length(), self.length())
        return "RandomResizedCrop", {
            "size": self.size,
            "interpolation": self.random.choice(MODES),
            "scale": self.random.choice(((0.08, 1.0), (0.5, 0.5), (0.001, 0.01))),
        }

    def horizontal_flip(self) -> Op:
        return "RandomHorizontalFlip", {"p": self.random.choice((0.5, 1.0))}

    def vertical_flip(self) -> Op:
        return "RandomVerticalFlip", {"p": self.random.choice((0.5, 1.0))}

    def erase(self) -> Op:
        return "RandomErasing", {"p": self.random.choice((0.7, 1.0)), "value": self.fill()}

    def values(self) -> list[Op]:
        dtype = self.random.choice(DTYPES)
        if dtype is torch.uint8:
            return []
        ops: list[Op] = [("ToDtype", {"dtype": dtype, "scale": self.random.random() < 0.8})]
        if self.random.random() < 0.7:
            mean, std = (
                tuple(self.random.uniform(0.1, 0.9) for _ in range(self.channels)) for _ in "ms"
            )
            ops.append(("Normalize", {"mean": mean, "std": std}))
        return ops


GEOMETRY = (
    *("pad", "random_crop", "center_crop", "resize", "resize_edge", "resized_crop"),
    *("horizontal_flip", "vertical_flip"),
)


def make_case(seed: int) -> Case:
    maker = _Maker(seed)
    size = maker.size
    count = maker.random.choice((0, 1, 1, 2, 3, 4))
    ops: list[Op] = [getattr(maker, maker.random.choice(GEOMETRY))() for _ in range(count)]
    values = maker.values()
    if maker.random.random() < 0.3:  # what moves or fills may come after what changes values
        late = getattr(maker, maker.random.choice(("horizontal_flip", "pad", "random_crop")))()
        values.insert(maker.random.randint(0, len(values)), late)
    if maker.random.random() < 0.3:
        values.append(maker.erase())
        if maker.random.random() < 0.5 and values[-2:-1] and values[-2][0] == "Normalize":
            values[-2:] = reversed(values[-2:])
    ops += values or [maker.horizontal_flip()]
    layouts = maker.random.choice(("CHW", "HWC")), maker.random.choice(("CHW", "HWC"))
    out_layout = maker.random.choice((layouts[1], "channels_last"))
    return Case(ops, maker.channels, size, layouts[0], out_layout)
