"""Compiled models are fed by patched loaders, and dynamo leaves the loop that feeds them alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from framework_trials import assert_same_everywhere, train
from torch.utils.data import TensorDataset

from fastloop.loader.arrays.iterator import ArrayIter


def loader_of(cls: Any) -> Any:
    dataset = TensorDataset(torch.arange(60.0).reshape(20, 3) / 60, torch.arange(20) % 2)
    return cls(dataset, batch_size=6, shuffle=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model(backend: str) -> None:
    def program(cls: Any) -> Any:
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        return train(torch.compile(model, backend=backend), loader_of(cls))

    assert_same_everywhere(program, ArrayIter)


def test_a_compiled_epoch() -> None:
    """The loop itself is what is compiled; dynamo steps over the loader."""

    def program(cls: Any) -> Any:
        torch._dynamo.reset()
        weight = torch.ones(3)

        @torch.compile(backend="eager")
        def epoch(loader: Any) -> torch.Tensor:
            total = torch.zeros(())
            for x, y in loader:
                total = total + (x @ weight * y).sum()
            return total

        return [epoch(loader_of(cls)) for _ in range(2)]

    assert_same_everywhere(program, ArrayIter)
