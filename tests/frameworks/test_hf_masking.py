"""The seam "texts": DataCollatorForLanguageModeling of transformers masks the same tokens, and
torch's generator has the same state. FASTLOOP_FUZZ is how many random calls are compared."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import mutants
import pytest
import torch
from compare import assert_identical
from torch.utils.data import DataLoader

import fastloop
from fastloop.adapters import originals
from fastloop.compat import verdicts, verification

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from fastloop.adapters import hugging_face_mask

CALLS = int(os.environ.get("FASTLOOP_FUZZ", "300"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
PATH = f"{hugging_face_mask._MODULE}:{hugging_face_mask._CLASS}.torch_mask_tokens"


@pytest.fixture(autouse=True)
def seam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(verdicts, "_read", {})

    def forget() -> None:
        verification.verification_of.cache_clear()
        hugging_face_mask.find_unknown.cache_clear()

    forget()
    with fastloop.patched(["dataloader", "texts"]):
        yield
    forget()


def status() -> Any:
    return fastloop.patch_status().seams["texts"]


def tokenizer_of(cls: Any = PreTrainedTokenizerFast, **given: Any) -> Any:
    core = Tokenizer(WordLevel({f"w{id}": id for id in range(30)}, unk_token="w0"))
    return cls(tokenizer_object=core, **{"pad_token": "w3", "mask_token": "w5", **given})


class Own(PreTrainedTokenizerFast):  # type: ignore[misc]
    def get_special_tokens_mask(self, ids: Any, *args: Any, **named: Any) -> list[int]:
        return [int(id % 2) for id in ids]


def outcome(collator: Any, ids: Any, *args: Any) -> Any:
    """The result or the error, the generator's state behind it, what is in `ids` then, and how
    often the tensors were changed."""
    torch.manual_seed(ids.numel())
    with torch.inference_mode(ids.is_inference()):
        ids = ids.clone()
    try:
        made = collator.torch_mask_tokens(ids, *args)
    except Exception as error:
        return type(error), str(error), torch.get_rng_state(), ids
    versions = [None if each.is_inference() else each._version for each in (ids, *made)]
    return made, torch.get_rng_state(), ids, versions


def collator_of(any_of: random.Random) -> Any:
    special = any_of.sample(
        ["cls_token", "sep_token", "bos_token", "eos_token"], any_of.randrange(3)
    )
    given = {name: f"w{any_of.randrange(30)}" for name in special}
    cls = any_of.choice((*[PreTrainedTokenizerFast] * 6, Own))
    collator = DataCollatorForLanguageModeling(tokenizer_of(cls, **given))
    choices = {
        "mlm_probability": (0.0, 0.15, 0.5, 1.0, 1.5, 1),
        "mask_replace_prob": (0.0, 0.8, 0.5, 1.0, 1),
        "random_replace_prob": (0.0, 0.1, 0.2, 0.5, 1.0, 0),
        "generator": (None, None, None, torch.Generator().manual_seed(4)),
        "whole_word_mask": (False, False, False, True),
    }
    for name in any_of.sample(sorted(choices), any_of.randrange(4)):
        setattr(collator, name, any_of.choice(choices[name]))
    return collator


def test_random_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification.Verification, "is_due", lambda *given: False)
    any_of = random.Random(SEED)
    odd: tuple[Callable[[Any], Any], ...] = (
        lambda t: t.int(),
        lambda t: t[:, ::2],
        lambda t: t.T,
        lambda t: t.to("meta"),
        lambda t: t[0],
        lambda t: t[:0],
        torch.inference_mode()(torch.clone),
    )
    for number in range(CALLS):
        collator = collator_of(any_of)
        ids = torch.randint(0, 30, (any_of.choice((1, 4, 9)), any_of.choice((1, 7, 300))))
        special = torch.randint(0, 2, ids.shape)
        if any_of.random() < 0.1:
            special = any_of.choice((lambda t: t[:1], torch.Tensor.tolist, torch.Tensor.float))(
                special
            )
        if any_of.random() < 0.1:
            ids = any_of.choice(odd)(ids)
        args = any_of.choice(((), (), (special,), (special,)))
        if torch.is_tensor(special) and any_of.random() < 0.5:
            args = (special.bool(),)
        seeds = collator.generator and collator.generator.get_state()
        ours = outcome(collator, ids, *args)
        with verification.running_original():
            if seeds is not None:
                collator.generator.set_state(seeds)
            theirs = outcome(collator, ids, *args)
        try:
            assert_identical(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"seed {SEED}, case {number}: {collator}, {ids}") from error
    assert status().native > CALLS // 5, status()


@pytest.mark.parametrize("workers", (0, 2))
def test_loader(workers: int) -> None:
    any_of = random.Random(SEED)
    rows = [
        {"input_ids": [any_of.randrange(30) for _ in range(any_of.randrange(1, 40))]}
        for _ in range(40)
    ]
    collator = DataCollatorForLanguageModeling(tokenizer_of())

    def play() -> Any:
        torch.manual_seed(2)
        loader = DataLoader(rows, 4, shuffle=True, num_workers=workers, collate_fn=collator)
        return [dict(batch) for _ in range(2) for batch in loader], torch.get_rng_state()

    ours = play()
    fastloop.unpatch()
    assert_identical(ours, play())
    assert status().native > 20


def test_replaced_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def bernoulli(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return plain(*args, **named)

    plain = torch.bernoulli
    collator = DataCollatorForLanguageModeling(tokenizer_of())
    ids = torch.randint(0, 30, (3, 9))
    for _ in range(2):
        collator.torch_mask_tokens(ids)
    before = status().native
    assert before
    monkeypatch.setattr(torch, "bernoulli", bernoulli)
    collator.torch_mask_tokens(ids)
    assert len(calls) == 3 and status().native == before
    assert "torch.bernoulli was replaced" in status().fallbacks


def test_changed_release(monkeypatch: pytest.MonkeyPatch) -> None:
    function = originals.function_of(PATH)
    collator = DataCollatorForLanguageModeling(tokenizer_of())
    for before, after, is_same in (
        ("if special_tokens_mask is None:", "if not torch.is_tensor(special_tokens_mask):", True),
        ("= -100", "= -101", False),
        ("& ~indices_replaced", "& masked_indices", False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(function, "__code__", mutants.replaced(function, before, after))
            patch.setattr(verdicts, "_read", {})
            hugging_face_mask.find_unknown.cache_clear()
            verdict = hugging_face_mask.find_unknown()
            assert (verdict.why == "") is is_same, verdict
            assert verdict.about.startswith("masks: transformers ")
            verification.verification_of.cache_clear()
            native = status().native
            for _ in range(2):
                collator.torch_mask_tokens(torch.randint(0, 30, (3, 9)))
            assert status().native - native == is_same


@pytest.mark.parametrize("mode", (torch.inference_mode, lambda: torch.device("meta")))
def test_first_call_under_a_mode_says_nothing_about_transformers(mode: Any) -> None:
    collator = DataCollatorForLanguageModeling(tokenizer_of())
    ids = torch.ones(3, 4, dtype=torch.int64)
    with mode(), contextlib.suppress(Exception):  # tensors of two devices
        collator.torch_mask_tokens(ids)
    for _ in range(3):
        collator.torch_mask_tokens(ids)
    assert status().native > 0, status()


class Drawing(PreTrainedTokenizerFast):  # type: ignore[misc]
    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        torch.rand(1)
        return super().convert_tokens_to_ids(tokens)


def test_tokenizer_of_a_program_is_called_as_often_as_by_transformers() -> None:
    collator = DataCollatorForLanguageModeling(tokenizer_of(Drawing))
    ids, special = torch.ones(3, 40, dtype=torch.int64), torch.zeros(3, 40, dtype=torch.int64)
    for _ in range(3):
        ours = outcome(collator, ids, special)
        with verification.running_original():
            assert_identical(ours, outcome(collator, ids, special))
    assert status().native == 0
