"""TRL's collator of SFT over a datasets.Dataset: fastloop's batches equal TRL's."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
import torch
from compare import assert_identical
from torch.utils.data import DataLoader

import fastloop

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")
sft = pytest.importorskip("trl.trainer.sft_trainer")

LOADERS = int(os.environ.get("FASTLOOP_FUZZ", "40"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))


def rows_of(any_of: random.Random, rows: int) -> dict[str, list[Any]]:
    """Rows of pieces; `seq_lengths` says how long the pieces are."""
    pieces = [[any_of.randint(1, 6) for _ in range(any_of.randint(1, 4))] for _ in range(rows)]
    ids = [[any_of.randrange(50) for _ in range(sum(lengths))] for lengths in pieces]
    columns: dict[str, list[Any]] = {"text": ["words"] * rows, "input_ids": ids}
    if any_of.random() < 0.5:
        columns["labels"] = [[any_of.choice((-100, id)) for id in row] for row in ids]
    if any_of.random() < 0.5:
        columns["seq_lengths"] = pieces
    return columns


def play(cls: Any, dataset: Any, **options: Any) -> Any:
    torch.manual_seed(5)
    loader = cls(dataset, **options)
    found = [list(loader), torch.get_rng_state()]
    if cls is fastloop.DataLoader:
        assert loader.stats().path == "array", loader.stats().why
    return found


def test_random_rows_and_options() -> None:
    any_of = random.Random(SEED)
    for number in range(LOADERS):
        columns = rows_of(any_of, any_of.choice((5, 23)))
        given: dict[str, Any] = {"padding_free": any_of.random() < 0.5}
        if not given["padding_free"]:
            given["pad_to_multiple_of"] = any_of.choice((None, 1, 8))
            given["return_position_ids"] = any_of.random() < 0.5 and "seq_lengths" not in columns
        collator = sft.DataCollatorForLanguageModeling(any_of.choice((0, 7)), **given)
        dataset = datasets.Dataset.from_dict(columns)
        if any_of.random() < 0.5:
            dataset = dataset.shuffle(seed=3)
        options = {"batch_size": any_of.choice((1, 4)), "shuffle": True, "collate_fn": collator}
        try:
            ours = play(fastloop.DataLoader, dataset, num_workers=any_of.choice((0, 2)), **options)
            assert_identical(ours, play(DataLoader, dataset, **options))
        except AssertionError as error:
            text = f"seed {SEED}, case {number}: {list(columns)}, {given}"
            raise AssertionError(f"{text}: {error}") from None


@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ({"input_ids": [[1], []]}, {}, "empty lists"),
        ({"input_ids": [[1, 2], [3]], "labels": [[1], [3]]}, {}, "longer or shorter"),
        ({"input_ids": [[1, 2], [3]]}, {"pad_to_multiple_of": 4}, "with pad_to_multiple_of"),
        ({"input_ids": [[1, 2], [3]], "seq_lengths": [[1], [1]]}, {}, "has other sums"),
        ({"input_ids": [[1, 2], [3]], "seq_lengths": [[0, 2], [1]]}, {}, "has other sums"),
    ],
)
def test_left_to_trl(columns: Any, given: Any, text: str) -> None:
    collator = sft.DataCollatorForLanguageModeling(0, padding_free=True, **given)
    dataset = datasets.Dataset.from_dict(columns)
    loader = fastloop.DataLoader(dataset, collate_fn=collator)
    formatted = fastloop.DataLoader(dataset.with_format("torch"), collate_fn=collator)
    assert formatted.stats().path == "sync"
    assert (loader.stats().path, text in loader.stats().why) == ("sync", True), loader.stats().why
