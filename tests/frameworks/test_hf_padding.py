"""The seam "texts": ``tokenizer.pad()`` of transformers gives the same batches, warnings and
errors. FASTLOOP_FUZZ is how many random calls are compared, FASTLOOP_FUZZ_SEED the seed."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical
from torch.utils.data import DataLoader

import fastloop
from fastloop.compat import verification

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BatchEncoding, DataCollatorForTokenClassification, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import PaddingStrategy

CALLS = int(os.environ.get("FASTLOOP_FUZZ", "300"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
MODEL = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.fixture(autouse=True)
def seam() -> Iterator[None]:
    verification.verification_of.cache_clear()
    with fastloop.patched(["dataloader", "texts"]):
        yield
    verification.verification_of.cache_clear()


def status() -> Any:
    return fastloop.patch_status().seams["texts"]


def tokenizer_of(cls: Any = PreTrainedTokenizerFast, **given: Any) -> Any:
    words = {"[PAD]": 3, **{f"w{i}": i for i in range(4, 20)}}
    core = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    return cls(tokenizer_object=core, **{"pad_token": "[PAD]", **given})


def outcome(call: Any) -> Any:
    """The result, or the error, with warnings and the generator's state."""
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = call()
        except Exception as error:
            made = type(error), str(error)
    if isinstance(made, BatchEncoding):
        made = type(made), {k: v for k, v in vars(made).items() if k != "data"}, dict(made.data)
    told = [str(one.message) for one in caught]
    once = "Creating a tensor from a list"  # torch warns once a process
    return made, [text for text in told if not text.startswith(once)], torch.get_rng_state()


ODD: tuple[Any, ...] = (
    lambda ids: tuple(ids),
    lambda ids: torch.tensor(ids),
    lambda ids: np.array(ids),
    lambda ids: [*ids, 2**70],
    lambda ids: [*ids, 1.5],
    lambda ids: [True, *ids],
    lambda ids: ids[1:],
    lambda ids: [ids],
    lambda ids: None,
    lambda ids: 5,
)


def samples_of(any_of: random.Random, rows: int) -> list[Any]:
    names = any_of.sample([*MODEL[1:], "special_tokens_mask"], any_of.randint(0, 3))
    names = any_of.sample(["input_ids", *names], 1 + len(names))
    shortest = any_of.choice((0, 1, 1))
    samples: list[Any] = []
    is_odd = any_of.random() < 0.02  # a key is no string
    labels = any_of.choice((None, int, float, list, "text", None, bool, np.int64))
    for _ in range(rows):
        length = any_of.randint(shortest, 9)
        row: dict[Any, Any] = {n: [any_of.randrange(20) for _ in range(length)] for n in names}
        if labels is list:
            row["labels"] = [1, 2]
        elif labels is not None:
            row["labels"] = labels if labels == "text" else labels(any_of.randrange(3))
        if is_odd:
            row[5] = 1
        samples.append(row)
    if any_of.random() < 0.15:  # one value is of another kind
        row, name = any_of.choice(samples), any_of.choice(names)
        row[name] = any_of.choice(ODD)(row[name])
    if any_of.random() < 0.03:
        del any_of.choice(samples)[any_of.choice(names)]
    kind = any_of.choice([dict] * 12 + [BatchEncoding])
    return samples if kind is dict else list(map(kind, samples))


def arguments_of(any_of: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {"return_tensors": any_of.choice(("pt",) * 12 + ("np", None))}
    widths = (True, "longest", "max_length")
    others = False, PaddingStrategy.LONGEST, "no such", 1
    choices = {
        "padding": any_of.choice(widths if any_of.random() < 0.9 else others),
        "max_length": any_of.choice((None, 4, 9, 12)),
        "pad_to_multiple_of": any_of.choice((None, 1, 4, 8) if any_of.random() < 0.9 else (0, 2.0)),
        "padding_side": any_of.choice((None, "left", "right", "left", "middle")),
        "return_attention_mask": any_of.choice((None, True, False)),
        "verbose": any_of.random() < 0.5,
    }
    kept = any_of.sample(sorted(choices), any_of.choice((0, 1, 1, 2, 3)))
    return given | {name: choices[name] for name in kept}


def fastloop_off() -> Any:
    return verification.running_original()


def test_random_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification.Verification, "is_due", lambda *given: False)
    any_of = random.Random(SEED)
    for number in range(CALLS):
        names = any_of.choice((MODEL, MODEL[:1], MODEL[::2], ["attention_mask", "input_ids"]))
        side = any_of.choice(("left", "right"))
        given = {"pad_token": None} if any_of.random() < 0.03 else {}
        tokenizer = tokenizer_of(
            model_input_names=names, padding_side=side, model_max_length=11, **given
        )
        samples, arguments = samples_of(any_of, any_of.choice((1, 2, 6))), arguments_of(any_of)
        before = repr(samples)
        ours = outcome(lambda: tokenizer.pad(samples, **arguments))  # noqa: B023
        assert repr(samples) == before
        with fastloop_off():
            theirs = outcome(lambda: tokenizer.pad(samples, **arguments))  # noqa: B023
        try:
            assert_identical(ours, theirs)
        except AssertionError as error:
            text = f"seed {SEED}, case {number}: {samples}, {arguments}, {names}, {side}"
            raise AssertionError(f"{text}: {error}") from None
    assert status().native > CALLS // 8, status()


def rows_of(count: int = 40) -> list[Any]:
    lengths = [1 + i % 7 for i in range(count)]
    return [{"input_ids": [4 + i % 9] * n, "labels": i % 2} for i, n in enumerate(lengths)]


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_functions_of_a_program_are_served_in_every_process(workers: int) -> None:
    tokenizer = tokenizer_of()

    def collate(samples: Any) -> Any:
        for sample in samples:
            sample["input_ids"] = [*sample["input_ids"], 5]
        return tokenizer.pad(samples, padding="longest", pad_to_multiple_of=8, return_tensors="pt")

    options: dict[str, Any] = {"batch_size": 4, "collate_fn": collate, "num_workers": workers}
    found = list(DataLoader(rows_of(), **options))
    assert status().native >= 10 - 1 - workers and not status().fallbacks
    with fastloop_off():
        assert_identical(found, list(DataLoader(rows_of(), batch_size=4, collate_fn=collate)))


def test_a_fastloop_loader_serves_its_own_fetches_alone() -> None:
    fastloop.unpatch()
    tokenizer, told = tokenizer_of(), []

    def collate(samples: Any) -> Any:
        told.append(status().native)
        return tokenizer.pad(samples, return_tensors="pt")

    list(fastloop.DataLoader(rows_of(), batch_size=4, collate_fn=collate))
    assert told[-1] > told[0]
    before = status().native
    collate(rows_of())
    list(DataLoader(rows_of(), batch_size=4, collate_fn=collate))
    assert status().native == before


def test_a_collator_that_pads_is_served_over_a_list() -> None:
    rows = [{**row, "labels": row["input_ids"][::-1]} for row in rows_of()]
    collator = DataCollatorForTokenClassification(tokenizer_of())
    found = [collator(rows[i : i + 4]) for i in range(0, 40, 4)]
    assert status().native >= 9
    with fastloop_off():
        assert_identical(found, [collator(rows[i : i + 4]) for i in range(0, 40, 4)])


def test_a_function_around_pad_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, told = tokenizer_of(), []

    def collate(samples: Any) -> Any:
        return tokenizer.pad(samples, return_tensors="pt")

    collate(rows_of())
    there = transformers.PreTrainedTokenizerBase.pad

    def pad(self: Any, *args: Any, **named: Any) -> Any:
        told.append(len(args[0]))
        return there(self, *args, **named)

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "pad", pad)
    for collator in (collate, transformers.DataCollatorWithPadding(tokenizer)):
        told.clear()
        list(fastloop.DataLoader(rows_of(), batch_size=8, collate_fn=collator))
        assert told == [8] * 5
    fastloop.unpatch("texts")
    fastloop.patch("texts", verbose=False)
    collate(rows_of())
    assert told == [8] * 5 + [40]


class OwnTokenizer(PreTrainedTokenizerFast):
    def _pad(self, *args: Any, **kwargs: Any) -> Any:
        return super()._pad(*args, **kwargs)


def test_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer_of(OwnTokenizer).pad(rows_of(), return_tensors="pt")
    assert list(status().fallbacks) == ["a OwnTokenizer pads in its own way"]
    tokenizer = tokenizer_of()
    tokenizer.pad(rows_of(), return_tensors="pt")
    own = transformers.PreTrainedTokenizerBase.pad
    assert own.__wrapped__ is not None
    with torch.device("meta"):
        tokenizer.pad(rows_of(), return_tensors="pt")
    assert "a mode watches torch's functions" in status().fallbacks
    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "_pad", lambda *a, **k: a[1])
    with pytest.raises(ValueError, match="Unable to create tensor"):
        tokenizer.pad(rows_of(), return_tensors="pt")
    assert "PreTrainedTokenizerBase._pad was replaced" in status().fallbacks
