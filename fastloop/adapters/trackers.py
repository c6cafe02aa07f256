"""Trackers of experiments: they get the numbers of a report's updates beside the program's own.

A tracker is the user's object, so nothing is imported here. Each function below is a callback of
``Report.on_update()``, which the thread that trains calls between two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from fastloop.base.checks import make_message


def log_to(tracker: Any) -> Callable[[Any], None]:
    """Return a callback for ``Report.on_update()`` that logs numbers to a tracker. For example:

        report = fastloop.report()
        report.on_update(fastloop.log_to(SummaryWriter("runs")), every=10)

    The names are those of ``Update.to_dict()``.

    Args:
        tracker: one of these objects. TensorBoard: a ``SummaryWriter``. Weights & Biases: a run;
            the numbers go with your next ``run.log()``, so your steps do not change.
            MLflow: the module ``mlflow``, for the active run. Lightning: a ``Trainer``, for its
            loggers. transformers: a ``Trainer``, for what it reports to. accelerate: an
            ``Accelerator``, for its trackers.

    Raises:
        TypeError: ``tracker`` is none of these.
    """
    kinds = type(tracker).__mro__
    names = [tracker.__name__] if isinstance(tracker, ModuleType) else [k.__module__ for k in kinds]
    for begin, log in _LOGS.items():
        if any(f"{name}.".startswith(begin) for name in names):
            return partial(log, tracker)
    rule = "a SummaryWriter, a run of wandb, the module mlflow, a Trainer or an Accelerator"
    raise TypeError(make_message("tracker", rule, tracker))


def _log_tensorboard(writer: Any, update: Any) -> None:
    for name, number in update.to_dict().items():
        writer.add_scalar(name, number, update.steps)


def _log_wandb(run: Any, update: Any) -> None:
    run.log(update.to_dict(), commit=False)


def _log_mlflow(mlflow: Any, update: Any) -> None:
    if mlflow.active_run() is not None:  # without a run, log_metrics() would begin one
        mlflow.log_metrics(update.to_dict(), step=update.steps, synchronous=False)


def _log_lightning(trainer: Any, update: Any) -> None:
    for logger in () if update.is_last else trainer.loggers:  # by then loggers are closed
        logger.log_metrics(update.to_dict(), step=trainer.global_step)


def _log_transformers(trainer: Any, update: Any) -> None:
    if not update.is_last:  # by then the trainer's callbacks have closed their files
        # The log() of a class below may empty its own sums, or meet the other ranks.
        base = next(k for k in type(trainer).__mro__ if k.__module__ == "transformers.trainer")
        base.log(trainer, update.to_dict())  # type: ignore[attr-defined]


def _log_accelerate(accelerator: Any, update: Any) -> None:
    accelerator.log(update.to_dict(), step=update.steps)


# By how the name of the module begins that defines a tracker's class or a class below.
_LOGS = {
    "torch.utils.tensorboard.": _log_tensorboard,
    "tensorboardX.": _log_tensorboard,
    "wandb.": _log_wandb,
    "mlflow.": _log_mlflow,
    "lightning.pytorch.trainer.": _log_lightning,
    "pytorch_lightning.trainer.": _log_lightning,
    "transformers.trainer.": _log_transformers,
    "accelerate.accelerator.": _log_accelerate,
}
