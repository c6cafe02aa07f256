"""Small models under a Stepper, for the tests of its windows."""

from typing import Any

import torch
from helpers import bits
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

import fastloop
from fastloop import Stepper

INF = float("inf")


def model_of(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    return torch.nn.Sequential(*layers).to(dtype)


class Run:
    """A model, its SGD and a stepper."""

    def __init__(self, accumulate: Any = 2, fused: bool = False, **kwargs: Any) -> None:
        self.model = model_of()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9, fused=fused)
        if "schedule" in kwargs:
            kwargs["scheduler"] = StepLR(self.optimizer, 1, kwargs.pop("schedule"))
        self.stepper = Stepper(self.optimizer, accumulate, **kwargs)

    def loss(self, seed: int, size: int = 4) -> Tensor:
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
        return self.model(x).square().mean()

    def micro(self, seed: int = 0, weight: Any = 1, spoil: float = 1.0) -> None:
        with self.stepper.micro(weight):
            self.stepper.backward(self.loss(seed) * spoil)

    def parameters(self) -> bytes:
        return b"".join(bits(p) for p in self.model.parameters())

    def has_gradients(self) -> bool:
        return any(p.grad is not None for p in self.model.parameters())


def scalers() -> list[Any]:
    return [torch.amp.GradScaler, fastloop.GradScaler]
