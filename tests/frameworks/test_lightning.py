"""Lightning's Trainer and Fabric: the same training behind fastloop.patch(), and our class keeps
its arguments where Lightning makes it anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from framework_runs import Samples, Stream, Trained, arrays, assert_trains_alike, weights
from helpers import run_ranks
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import fastloop

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import CombinedLoader
from lightning_runs import Model, fit, loop, trainer_of

pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:lightning.*")


def shuffled(rows: int = 22, **given: Any) -> DataLoader[Any]:
    return DataLoader(arrays(rows), 4, shuffle=True, **given)


def processes() -> DataLoader[Any]:
    return DataLoader(Samples(), 4, True, num_workers=1, persistent_workers=True)


def combined(mode: str) -> CombinedLoader:
    return CombinedLoader({"a": shuffled(), "b": shuffled(9)}, mode)


class Pairs(BatchSampler):
    """A subclass, which Lightning makes anew by its arguments."""


CASES: dict[str, tuple[Callable[[], Trained], str]] = {
    "fit": (lambda: fit(shuffled()), "array"),
    "threads": (lambda: fit(shuffled(num_workers=2)), "array"),
    "samples": (lambda: fit(DataLoader(Samples(), 4, shuffle=True)), "sync"),
    "processes": (lambda: fit(processes()), "process"),
    "stream": (lambda: fit(DataLoader(Stream(), 4)), "sync"),
    "accumulation": (
        lambda: fit(shuffled(), accumulate_grad_batches=4, gradient_clip_val=0.1),
        "array",
    ),
    "validation": (
        lambda: fit(shuffled(), DataLoader(arrays(9), 4), val_check_interval=2),
        "array",
    ),
    "own hooks": (lambda: fit(None, reload_dataloaders_every_n_epochs=1), "array"),
    "part of an epoch": (lambda: fit(shuffled(), limit_train_batches=0.5), "array"),
    "overfit": (lambda: fit(shuffled(), overfit_batches=2), "array"),
    "a dict": (lambda: fit({"a": shuffled(), "b": shuffled(9)}), "array"),
    "the longest": (lambda: fit(combined("max_size")), "array"),
    "in turn": (lambda: fit(combined("max_size_cycle")), "array"),
    "batch sampler": (
        lambda: fit(
            DataLoader(arrays(), batch_sampler=Pairs(RandomSampler(range(22)), 4, False)),
            overfit_batches=3,
        ),
        "array",
    ),
    "fabric": (lambda: loop(shuffled()), "array"),
    "fabric over processes": (lambda: loop(processes()), "process"),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_alike(case: str) -> None:
    train, path = CASES[case]
    assert len(assert_trains_alike(train, path)[0]) >= 4


class SavesAt(pl.Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def test_resumes_alike_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"

    def train() -> Trained:
        path.unlink(missing_ok=True)
        before = fit(shuffled(), callbacks=[SavesAt(3, path)])
        after = fit(shuffled(), path=path)
        return Trained((before.results, after.results), after.loader)

    (seen, _), (resumed, _) = assert_trains_alike(train, "array")
    assert len(seen) == 12 and resumed[0][0] == 3


def test_our_class_goes_on_where_it_was(tmp_path: Path) -> None:
    """Lightning saves the state of the loader, too."""
    path = tmp_path / "middle.ckpt"
    loader = ours()
    whole = fit(loader, callbacks=[SavesAt(3, path)]).loader
    resumed = fit(ours(), path=path).loader
    assert (whole.stats().samples, resumed.stats().samples) == (44, 44 - 12)


def test_predicts_alike() -> None:
    def predict() -> Trained:
        model, trainer = Model(), trainer_of()
        trainer.predict(model, shuffled())
        loader = trainer.predict_dataloaders
        assert type(loader.batch_sampler).__name__ == "_IndexBatchSamplerWrapper"
        return Trained((model.seen, weights(model)), loader)

    assert len(assert_trains_alike(predict, "array")[0]) == 6


class Tuned(Model):
    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(arrays(9), self.batch_size)


def test_tunes_alike(tmp_path: Path) -> None:
    def tune() -> Trained:
        model, trainer = Tuned(batch_size=2), trainer_of(default_root_dir=tmp_path)
        tuner = Tuner(trainer)
        size = tuner.scale_batch_size(model, max_trials=2, steps_per_trial=1)
        found: Any = tuner.lr_find(model, num_training=16)
        trainer.fit(model)
        results = (size, found.results, model.seen, weights(model))
        return Trained(results, trainer.train_dataloader)

    size, found, *_ = assert_trains_alike(tune, "array")
    assert size == 4 and len(found["loss"]) > 10


# ---- our own class, made anew without the shuffling


def ours(**given: Any) -> fastloop.DataLoader[Any]:
    return fastloop.DataLoader(arrays(), 4, shuffle=True, **given)


def test_our_class_made_anew_keeps_its_arguments() -> None:
    given: dict[str, Any] = {
        "device": "cpu",
        "path": "thread",
        "num_workers": 1,
        "device_transform": list,
        "snapshot_every_n_steps": 2,
        "resume": "skip",
        "on_worker_death": "restart",
        "memory_budget": 1 << 20,
        "name": "train",
    }
    loader = ours(**given)
    results, used = fit(loader, overfit_batches=2)
    assert type(used) is fastloop.DataLoader and used is not loader
    assert {name: getattr(used, name) for name in given} == given
    assert fastloop.stats(used).path == "thread" and used.stats().batches >= 4  # or uploaded ahead
    assert len(results[0]) == 4


def test_a_budget_that_was_assigned_is_kept() -> None:
    loader = ours()
    loader.memory_budget = 1 << 20
    assert fit(loader, overfit_batches=2).loader.memory_budget == 1 << 20


def test_numbers_of_updates_go_to_the_loggers() -> None:
    logged: list[Any] = []

    class Logger(DummyLogger):
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            logged.append((step, metrics))

    trainer = trainer_of(logger=Logger(), max_epochs=1)
    report = fastloop.report(verbose=False)
    report.on_update(fastloop.log_to(trainer), 0)
    with report:
        trainer.fit(Model(), shuffled())
    steps = [(step, row["fastloop/steps"]) for step, row in logged]
    assert steps and all(step == number for step, number in steps)


@pytest.mark.slow
def test_two_ranks_train_alike(tmp_path: Path) -> None:
    for output in run_ranks(tmp_path, "lightning_ranks.py"):
        assert output.endswith("all alike\n"), output
