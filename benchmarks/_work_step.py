"""What bench_step.py works on: shapes of real models, and gradients as autograd makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """The 161 parameters of ResNet-50 for 1 000 classes, 25.6 million numbers."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, channels, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def gpt2() -> list[Shape]:
    """The 148 parameters of GPT-2 small, 124 million numbers."""
    block: list[Shape] = [(768,), (768,), (768, 2304), (2304,), (768, 768), (768,)]
    block += [(768,), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    return [(50257, 768), (1024, 768), *(block * 12), (768,), (768,)]


MODELS: dict[str, list[Shape]] = {
    "ResNet-50 (161 tensors, 25.6 M)": resnet50(),
    "GPT-2 124M (148)": gpt2(),
    "1 000 x 64x64": [(64, 64)] * 1000,
    "5 000 x 16": [(16,)] * 5000,
}


class _Fresh(torch.autograd.Function):
    """A loss whose gradients are copies of given ones: autograd makes new tensors of them."""

    @staticmethod
    def forward(ctx: Any, source: Sequence[Tensor], *_parameters: Tensor) -> Tensor:
        ctx.source = source
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(gradient.clone() for gradient in ctx.source)


class Model:
    """Parameters, and fresh gradients for them whenever wanted."""

    def __init__(self, shapes: Sequence[Shape], dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
        self._source = [torch.randn(s, generator=generator).to(dtype) for s in shapes]

    @property
    def bytes(self) -> int:
        return sum(p.nbytes for p in self.parameters)

    @property
    def norm(self) -> float:
        return math.sqrt(sum(float(g.float().square().sum()) for g in self._source))

    def backward(self) -> None:
        """As after zero_grad(set_to_none=True) and loss.backward()."""
        for parameter in self.parameters:
            parameter.grad = None
        self.loss().backward()

    def loss(self) -> Tensor:
        """What autograd makes these gradients from."""
        return _Fresh.apply(self._source, *self.parameters)
