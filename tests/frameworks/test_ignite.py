"""ignite: engines that train, evaluate and stop early, and the loaders that ignite makes itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from framework_trials import assert_same_everywhere, assert_same_patched
from torch.utils.data import Dataset, TensorDataset

engines = pytest.importorskip("ignite.engine", reason="ignite is not installed")
idist = pytest.importorskip("ignite.distributed", reason="ignite is not installed")
from ignite.metrics import Accuracy, Loss


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3) + index % 2, index % 2


def table() -> TensorDataset:
    return TensorDataset(torch.linspace(0, 1, 66).reshape(22, 3), torch.arange(22) % 2)


def run(training: Any, validation: Any, **limits: Any) -> Any:
    """What the engines have seen: losses, metrics, iterations."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = torch.nn.functional.cross_entropy
    trainer = engines.create_supervised_trainer(model, optimizer, loss)
    metrics = {"accuracy": Accuracy(), "loss": Loss(loss)}
    evaluator = engines.create_supervised_evaluator(model, metrics=metrics)
    seen: list[Any] = []

    @trainer.on(engines.Events.ITERATION_COMPLETED)
    def note(engine: Any) -> None:
        seen.append((engine.state.iteration, engine.state.output))

    @trainer.on(engines.Events.EPOCH_COMPLETED)
    def evaluate(engine: Any) -> None:
        evaluator.run(validation)
        seen.append(dict(evaluator.state.metrics))

    trainer.run(training, **limits)
    return seen, list(model.state_dict().values())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [table, Samples])
def test_engines(dataset: Any, workers: int) -> None:
    def program(cls: Any) -> Any:
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        training = cls(dataset(), 4, shuffle=True, **options)
        return run(training, cls(table(), 8), max_epochs=2)

    assert_same_everywhere(program)


def test_epochs_longer_and_shorter_than_the_data() -> None:
    """An engine then goes on with an iterator, or makes another in the middle of an epoch."""

    def program(cls: Any) -> Any:
        training = cls(table(), 4, shuffle=True)
        return [run(training, cls(table(), 8), max_epochs=3, epoch_length=n) for n in (4, 9)]

    assert_same_everywhere(program)


def test_a_deterministic_engine_synchronizes_the_flow_of_data() -> None:
    """It replaces the batch sampler of a loader, and seeds each iteration."""
    deterministic = pytest.importorskip("ignite.engine.deterministic")

    def program(cls: Any) -> Any:
        found: list[Any] = []
        engine = deterministic.DeterministicEngine(lambda _, batch: found.append(batch))
        engine.run(cls(table(), 4, shuffle=True), max_epochs=2)
        return found

    assert_same_everywhere(program)


def test_loaders_that_ignite_makes() -> None:
    def program(_: Any) -> Any:
        training = idist.auto_dataloader(table(), batch_size=4, shuffle=True)
        return run(training, idist.auto_dataloader(Samples(), batch_size=8), max_epochs=2)

    assert_same_patched(program)
