"""Checkpoints of frameworks keep the place of a loader: an epoch goes on in its middle with the
batches that were left, and none of those before is loaded."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import fastloop

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration

ROWS = 22


class Counting(Dataset[Any]):
    """Samples of Python that notes what is loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        return torch.tensor(index)


class Labelled(Counting):
    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index).reshape(1).float()}


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """Forget the arguments of the first Accelerator, which accelerate keeps for all."""
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerator_of(**config: Any) -> Any:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    config = {"dataloader_config": DataLoaderConfiguration(**config)}
    return accelerate.Accelerator(cpu=True, **config)


def rows_of(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_accelerates_stateful_loader_under_patch(tmp_path: Path) -> None:
    """With a seedable sampler: without, accelerate's own loader goes on in another order."""

    def make() -> tuple[Any, Any]:
        accelerator = accelerator_of(use_stateful_dataloader=True, use_seedable_sampler=True)
        torch.manual_seed(3)
        return accelerator, accelerator.prepare(DataLoader(Counting(), 4, shuffle=True))

    with fastloop.patched():
        accelerator, loader = make()
        iterator = iter(loader)
        seen = [next(iterator).tolist() for _ in range(3)]
        accelerator.save_state(tmp_path)
        rest = rows_of(iterator)
        again, loader = make()
        again.load_state(tmp_path)
        assert rows_of(loader) == rest
    assert sorted(sum(seen + rest, [])) == list(range(ROWS))  # noqa: RUF017
    assert len(loader.dataset.loaded) == ROWS - 12


@pytest.mark.parametrize("workers", [0, 2])
def test_our_loader_registered_with_accelerate(workers: int, tmp_path: Path) -> None:
    def make() -> tuple[Any, Any]:
        accelerator = accelerator_of()
        generator = torch.Generator().manual_seed(5)
        given = {"shuffle": True, "generator": generator, "num_workers": workers}
        loader = fastloop.DataLoader(Counting(), 4, device="cpu", path="auto", **given)
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    with fastloop.patched():
        accelerator, loader = make()
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        accelerator.save_state(tmp_path)
        rest, following = rows_of(iterator), rows_of(loader)
        again, loader = make()
        loader.generator.manual_seed(9)
        again.load_state(tmp_path)
        assert rows_of(loader) == rest
        assert workers or len(loader.dataset.loaded) == ROWS - 12
        assert rows_of(loader) == following


def test_our_loader_registered_with_accelerate_on_other_ranks(tmp_path: Path) -> None:
    """accelerate writes the state of one rank, which serves any number of them."""

    def make(ranks: int, rank: int) -> tuple[Any, Any]:
        accelerator, data = accelerator_of(), Counting()
        sampler = DistributedSampler(data, ranks, rank)
        loader = fastloop.DataLoader(data, 3, sampler=sampler)
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    had = []
    for rank in (1, 0):  # rank 0 writes
        accelerator, loader = make(2, rank)
        iterator = iter(loader)
        had += rows_of([next(iterator), next(iterator)])
    accelerator.save_state(tmp_path)
    for ranks in (1, 3, 5):
        rest = []
        for rank in range(ranks):
            accelerator, loader = make(ranks, rank)
            accelerator.load_state(tmp_path)
            rest += rows_of(loader)
            assert len(loader.dataset.loaded) == -(-(ROWS - 12) // ranks)
        found = [row for batch in had + rest for row in batch]
        assert set(found) == set(range(ROWS)) and len(found) - ROWS < ranks


class Sum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(x.flatten().int().tolist())
        return {"loss": (x * self.weight).mean()}


def test_the_hugging_face_trainer_loads_nothing_that_it_skips(tmp_path: Path) -> None:
    def trainer_of(**given: Any) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **given,
        )
        return transformers.Trainer(Sum(), arguments, train_dataset=Labelled())

    with fastloop.patched():
        whole = trainer_of(save_strategy="steps", save_steps=4)
        whole.train()
        rest = trainer_of(save_strategy="no")
        rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert fastloop.stats(rest.callback_handler.train_dataloader).path == "sync"
    assert rest.model.seen == whole.model.seen[4:]
    assert len(rest.train_dataset.loaded) == 2 * ROWS - 16
