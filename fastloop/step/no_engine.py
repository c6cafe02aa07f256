"""NoEngine: the engine's list of gradients where torch's door to tensors is not the one that
fastloop knows. It takes no pass, so that torch's own functions run them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class NoEngine:
    """What fastloop.step.grad_list calls of `_core.GradListBase`."""

    is_plain = False

    def __new__(cls, *_: Any) -> NoEngine:
        return super().__new__(cls)

    def __init__(self) -> None:
        self.tensors: list[Any] = []

    @property
    def dtypes(self) -> set[Any]:
        return {t.dtype for t in self.tensors}

    def collect_groups(self, param_groups: Iterable[Any]) -> bool:
        return self.collect_parameters(p for group in param_groups for p in group["params"])

    def collect_parameters(self, parameters: Iterable[Any]) -> bool:
        return self.collect_tensors(p.grad for p in parameters if p.grad is not None)

    def collect_tensors(self, tensors: Iterable[Any]) -> bool:
        self.tensors = list(tensors)
        return False

    def release(self) -> None:
        self.tensors = []

    def unscale_and_clip(self, *_: Any) -> bool:
        return False

    def clip_parameters(self, pool: Any, parameters: Iterable[Any], *_: Any) -> None:
        self.collect_parameters(parameters)

    def update_scale(self, *_: Any) -> None:
        raise TypeError(f"torch {torch.__version__} updates the scale itself")
