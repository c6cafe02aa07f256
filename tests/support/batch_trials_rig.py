"""What tests of find_batch_size train: a model with all kinds of state, sizes that do not fit, and
a hash over everything that a step may change."""

import hashlib
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fastloop

FEATURES = 6


class Noisy(nn.Module):
    """Buffers that are not saved, a plain number, and a generator of its own change each step."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.calls = 0

    def get_extra_state(self) -> list[int]:
        return [self.calls]

    def set_extra_state(self, state: list[int]) -> None:
        (self.calls,) = state

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = self.seen + 1  # another tensor
        return x + torch.rand_like(x) * random.random() * np.random.rand()


class Training:
    """`limit`: samples from which on a step raises `error`, in the middle of the optimizer's."""

    def __init__(
        self,
        limit: float = float("inf"),
        error: type[BaseException] = torch.OutOfMemoryError,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    ) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        layers = nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), Noisy(), nn.Dropout(), nn.Linear(8, 1)
        self.plain = nn.Sequential(*layers)
        self.model = wrap(self.plain)
        self.optimizer = torch.optim.Adam(self.plain.parameters(), 0.1, amsgrad=True)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = fastloop.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.generator = torch.Generator().manual_seed(5)
        self.limit, self.error = limit, error
        self.sizes: list[int] = []
        self.optimizer.register_step_pre_hook(self._use_memory)

    @property
    def state(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.scaler, self.scheduler, self.generator

    def _use_memory(self, *args: object) -> None:
        if self.sizes[-1] > self.limit:
            raise self.error(f"no room for {self.sizes[-1]} samples\nand more text")

    def step(self, n: int) -> None:
        self.sizes.append(n)
        x = torch.randn(n + 1, FEATURES, generator=self.generator)
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        with torch.no_grad():  # the first half of a step that then fails
            self.plain[0].weight.add_(1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()

    def tensors(self) -> list[Any]:
        parameters = list(self.plain.parameters())
        moments = [self.optimizer.state.get(p) for p in parameters]
        return [*parameters, *(p.grad for p in parameters), *self.plain.buffers(), *moments]

    def digest(self) -> str:
        """Of everything a step changes."""
        plain = [
            (m.training, getattr(m, "calls", None), m.get_extra_state())
            for m in self.plain.modules()
            if isinstance(m, Noisy)
        ]
        states = [self.scaler.state_dict(), self.scheduler.state_dict()]
        states += [{k: v for k, v in g.items() if k != "params"} for g in groups(self.optimizer)]
        random_states = [
            random.getstate(),
            np.random.get_state(),
            torch.get_rng_state(),
            self.generator.get_state(),
        ]
        return digest([self.tensors(), plain, states, random_states])


def groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return optimizer.param_groups


def digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(_as_plain(value))).hexdigest()


def _as_plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _as_plain(entry)) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [_as_plain(entry) for entry in value]
    return repr(value)
