"""The work of bench_patched: the digits, a small model, its training by each framework, and short
epochs.

Frameworks make loaders themselves, so the clock of what is waited for is put around the iterators
of torch's class.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

BATCH, CLASSES, SIDE = 32, 10, 8
SEED = 20_260


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1797 images of 8x8 pixels; as many of noise where it is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        rng = np.random.default_rng(SEED)
        pixels, labels = rng.integers(0, 17, (1797, SIDE * SIDE)), rng.integers(0, CLASSES, 1797)
    else:
        pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels).long()


class Model(torch.nn.Module):
    """Called as Hugging Face's Trainer calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(SIDE * SIDE, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)
        )

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layers(pixels), labels)}


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


class Clock:
    """How long was waited for batches, and for how many."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start

    def watch(self, make: Callable[[], Any]) -> _Watched:
        with self.running():
            inner = make()
        return _Watched(inner, self)


class _Watched:
    """An iterator whose user waits by a clock."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        with self._clock.running():
            batch = next(self._inner)
        self._clock.batches += 1
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def watching(clock: Clock) -> Iterator[None]:
    """Whoever iterates a loader of torch's class does so by the clock."""
    inner: Any = DataLoader.__iter__
    torchs: Any = DataLoader
    torchs.__iter__ = lambda loader: clock.watch(lambda: inner(loader))
    try:
        yield
    finally:
        torchs.__iter__ = inner


@dataclass(frozen=True)
class Training:
    work: str
    by_framework: Callable[[int], None]  # given the number of epochs
    make_loader: Callable[[type[DataLoader[Any]]], DataLoader[Any]]  # as the framework's is made

    def by_hand(self, cls: type[DataLoader[Any]], epochs: int, clock: Clock) -> None:
        """The same in a plain loop."""
        loader, model = self.make_loader(cls), Model()
        optimizer = optimizer_of(model)
        for _ in range(epochs):
            for batch in clock.watch(lambda: iter(loader)):
                fields = batch.values() if isinstance(batch, dict) else batch
                model(*fields)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()


def tensor_loader(cls: type[DataLoader[Any]]) -> DataLoader[Any]:
    return cls(TensorDataset(*digits()), BATCH, shuffle=True)


def accelerate_training() -> Training:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def train(epochs: int) -> None:
        model = Model()
        model, optimizer, loader = accelerator.prepare(
            model, optimizer_of(model), tensor_loader(DataLoader)
        )
        for _ in range(epochs):
            for batch in loader:
                accelerator.backward(model(*batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
        accelerator.free_memory()

    return Training("accelerate, digits in tensors", train, tensor_loader)


def lightning_training() -> Training:
    import lightning.pytorch as pl

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _number: int) -> Tensor:
            return self.model(*batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")

    def train(epochs: int) -> None:
        trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, **dict.fromkeys(quiet, False))
        trainer.fit(Module(), tensor_loader(DataLoader))

    return Training("Lightning's Trainer, digits in tensors", train, tensor_loader)


def hugging_face_training(is_collate_torchs: bool) -> Training:
    """Over a datasets.Dataset, with the collate function that the Trainer has by itself, or
    torch's."""
    import datasets
    import transformers

    pixels, labels = digits()
    columns = {"pixels": pixels.numpy(), "labels": labels.numpy()}
    kinds = datasets.Features(
        {
            "pixels": datasets.List(datasets.Value("float32"), length=SIDE * SIDE),
            "labels": datasets.Value("int64"),
        }
    )
    dataset = datasets.Dataset.from_dict(columns, features=kinds).with_format("torch")
    collate: Any = default_collate if is_collate_torchs else transformers.default_data_collator

    def train(epochs: int) -> None:
        with TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=BATCH,
                num_train_epochs=epochs,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
            )
            trainer = transformers.Trainer(
                Model(), arguments, train_dataset=dataset, data_collator=collate
            )
            trainer.train()

    def make_loader(cls: type[DataLoader[Any]]) -> DataLoader[Any]:
        return cls(dataset, BATCH, shuffle=True, collate_fn=collate)

    whose = "torch's collate" if is_collate_torchs else "its own collate"
    return Training(f"Hugging Face's Trainer, digits in a Dataset, {whose}", train, make_loader)


_PACKAGES = {
    "b": ("accelerate",),
    "c": ("transformers", "datasets", "accelerate"),
    "d": ("lightning",),
    "e": ("transformers", "datasets", "accelerate"),
}


def find_missing(row: str) -> str:
    """The packages that the row needs and that are not there."""
    return ", ".join(name for name in _PACKAGES.get(row, ()) if find_spec(name) is None)


FRAMEWORKS: dict[str, Callable[[], Training]] = {
    "b": accelerate_training,
    "c": lambda: hugging_face_training(is_collate_torchs=True),
    "d": lightning_training,
    "e": lambda: hugging_face_training(is_collate_torchs=False),
}


# ---- short epochs: ten batches of 8 rows

TABLE = torch.arange(160.0).view(80, 2)


class Rows(Dataset[Any]):
    """A user's dataset."""

    def __len__(self) -> int:
        return len(TABLE)

    def __getitem__(self, index: int) -> Any:
        return TABLE[index], index


def as_they_come(samples: list[Any]) -> list[Any]:
    return samples


# Datasets with their collate functions; None is torch's default.
SHORT: dict[str, tuple[Dataset[Any], Any]] = {
    "own collate": (Rows(), as_they_come),
    "default collate": (Rows(), None),
    "a table": (TensorDataset(TABLE), None),
}
