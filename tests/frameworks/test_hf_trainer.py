"""Hugging Face's Trainer, which makes its loaders itself: the same training behind
fastloop.patch(), over its own datasets, collators and samplers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from framework_runs import Trained, assert_trains_alike, weights
from helpers import bits
from torch.utils.data import IterableDataset, Subset

import fastloop

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

ROWS, WORDS = 22, 20


def tokenizer_of() -> Any:
    words = {"[PAD]": 0, "[MASK]": 1, **{f"w{i}": i for i in range(2, WORDS)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", mask_token="[MASK]"
    )


def ids_of(row: int, length: int) -> list[int]:
    return [2 + (row * 7 + i) % (WORDS - 2) for i in range(length)]


def columns(is_ragged: bool) -> dict[str, list[Any]]:
    lengths = [2 + row * 5 % 7 if is_ragged else 6 for row in range(ROWS)]
    ids = [ids_of(row, length) for row, length in enumerate(lengths)]
    return {"input_ids": ids, "labels": [row % 3 for row in range(ROWS)], "unused": ["text"] * ROWS}


def table(is_ragged: bool = False, with_format: str | None = "torch") -> Any:
    return datasets.Dataset.from_dict(columns(is_ragged)).with_format(with_format)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"input_ids": ids_of(row, 6), "labels": row % 3} for row in range(ROWS))


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 4)
        self.dropout = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(4, WORDS)
        self.seen: list[Any] = []

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None
    ) -> dict[str, torch.Tensor]:
        hidden = self.dropout(self.embedding(input_ids))
        logits = self.head(hidden if labels.ndim > 1 else hidden.mean(1))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        self.seen.append((self.training, input_ids.tolist(), bits(loss)))
        return {"loss": loss, "logits": logits}


def trainer_of(
    folder: Path, dataset: Any, collator: Any = None, held_out: Any = None, **given: Any
) -> Any:
    given = {"save_strategy": "no", "num_train_epochs": 2, **given}
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **given,
    )
    model = Classifier()
    return transformers.Trainer(
        model, arguments, train_dataset=dataset, data_collator=collator, eval_dataset=held_out
    )


def trained(trainer: Any, **given: Any) -> Trained:
    trainer.train(**given)
    loader = trainer.callback_handler.train_dataloader
    return Trained((trainer.model.seen, weights(trainer.model)), loader)


def padding() -> Any:
    return DataCollatorWithPadding(tokenizer_of())


def masking() -> Any:
    return DataCollatorForLanguageModeling(tokenizer_of(), mlm_probability=0.5)


# The dataset, the collator, the arguments, and the path.
CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "torch format": (table, None, {}, "array"),
    "lists": (lambda: table(with_format=None), None, {}, "array"),
    "workers": (
        table,
        None,
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
        "array",
    ),
    "padding": (lambda: table(True), padding, {}, "array"),
    "masking": (lambda: table(True).remove_columns("labels"), masking, {}, "sync"),
    "language": (
        lambda: table(True, None).remove_columns("labels"),
        lambda: DataCollatorForLanguageModeling(tokenizer_of(), mlm=False),
        {"dataloader_num_workers": 2},
        "array",
    ),
    "removed columns": (
        lambda: Subset(table(True), range(1, ROWS)),
        padding,
        {},
        "array",
    ),
    "our padding": (lambda: table(True), lambda: fastloop.PadCollate(return_mask=True), {}, "sync"),
    "by length": (
        lambda: table(True),
        padding,
        {"train_sampling_strategy": "group_by_length"},
        "array",
    ),
    "accumulation": (table, None, {"gradient_accumulation_steps": 4}, "array"),
    "whole batches": (table, None, {"dataloader_drop_last": True}, "array"),
    "stream": (Stream, None, {"max_steps": 8}, "sync"),
    "streamed table": (
        lambda: datasets.Dataset.from_dict(columns(False)).to_iterable_dataset(),
        None,
        {"max_steps": 8},
        "sync",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_alike(case: str, tmp_path: Path) -> None:
    dataset, collator, given, path = CASES[case]

    def train() -> Trained:
        return trained(trainer_of(tmp_path, dataset(), collator and collator(), **given))

    seen, _ = assert_trains_alike(train, path)
    assert len(seen) >= 8


def test_evaluates_alike_with_workers_that_stay(tmp_path: Path) -> None:
    given: dict[str, Any] = {"eval_strategy": "epoch"}
    given |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}

    def train() -> Trained:
        return trained(trainer_of(tmp_path, table(), held_out=table(True).select([1]), **given))

    seen, _ = assert_trains_alike(train, "array")
    assert [is_training for is_training, *_ in seen].count(False) == 2


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_resumes_alike(strategy: str, tmp_path: Path) -> None:
    """In the middle of an epoch, with skip_first_batches() of accelerate."""
    given: dict[str, Any] = {"train_sampling_strategy": strategy}

    def train() -> Trained:
        saves = {"save_strategy": "steps", "save_steps": 4, **given}
        whole = trained(trainer_of(tmp_path, table(True), padding(), **saves))
        resumed = trainer_of(tmp_path, table(True), padding(), **given)
        rest = trained(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        return Trained((whole.results, rest.results), rest.loader)

    whole, rest = assert_trains_alike(train, "array")
    assert (len(whole[0]), len(rest[0])) == (12, 8)
    assert rest[0] == whole[0][4:] and rest[1] == whole[1]


def test_a_loader_of_ours_keeps_its_transform(tmp_path: Path) -> None:
    """As Trainers do whose get_train_dataloader() is overridden."""

    def move(batch: Any) -> Any:
        return {**batch, "input_ids": (batch["input_ids"] + 1) % WORDS}

    class Ours(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            data = table().remove_columns("unused")
            loader = fastloop.DataLoader(data, 4, device="cpu", device_transform=move)
            return self.accelerator.prepare(loader)

    with fastloop.patched():
        trainer = trainer_of(tmp_path, table(), num_train_epochs=1)
        trainer.__class__ = Ours
        trainer.train()
    firsts = [ids[0][0] for _, ids, _ in trainer.model.seen]
    assert firsts == [(ids_of(row, 6)[0] + 1) % WORDS for row in range(0, ROWS, 4)]


def test_numbers_of_updates_go_to_the_log(tmp_path: Path) -> None:
    class Ours(transformers.Trainer):  # type: ignore[misc]
        def log(self, logs: dict[str, float], *args: Any) -> None:
            assert "fastloop/steps" not in logs
            super().log(logs, *args)

    trainer = trainer_of(tmp_path, table())
    trainer.__class__ = Ours
    report = fastloop.report(verbose=False)
    report.on_update(fastloop.log_to(trainer), 0)
    with report:
        trainer.train()
    rows = [row for row in trainer.state.log_history if "fastloop/steps" in row]
    assert rows and all(row["fastloop/steps"] == row["step"] for row in rows)
