"""PadCollate and PackCollate against the collators of Hugging Face that they stand for."""

from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical

from fastloop import PackCollate, PadCollate

pytestmark = pytest.mark.slow  # importing transformers alone takes a second

IDS = [[5, 6, 7], [8], [9, 10, 11, 12], [1, 2]]
MAKE = {"lists": list, "arrays": np.array, "tensors": torch.tensor}


def samples_of(make: Any, **columns: Any) -> list[dict[str, Any]]:
    return [
        {key: make(row) for key, row in zip(columns, rows, strict=True)}
        for rows in zip(*columns.values(), strict=True)
    ]


def tokenizer_of(side: str) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[PAD]": 0, "a": 1, "[UNK]": 2, "p": 3}, unk_token="[UNK]")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token="p", padding_side=side
    )


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("has_labels", [True, False])
def test_packs_as_with_flattening(make: Any, has_labels: bool) -> None:
    transformers = pytest.importorskip("transformers")
    columns = {"input_ids": IDS, "attention_mask": [[1] * len(row) for row in IDS]}
    if has_labels:
        columns["labels"] = [[token + 100 for token in row] for row in IDS]
    samples = samples_of(make, **columns)
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(samples)
    ours = PackCollate()(samples)
    assert set(ours) == set(theirs)
    assert_identical({key: ours[key] for key in theirs}, theirs)
    theirs = transformers.DataCollatorWithFlattening(return_position_ids=False)(samples)
    ours = PackCollate(return_position_ids=False, return_cu_seqlens=False)(samples)
    assert_identical({key: ours[key] for key in theirs}, theirs)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_pads_as_with_padding(side: str, multiple: int | None, make: Any) -> None:
    transformers = pytest.importorskip("transformers")
    collator = transformers.DataCollatorWithPadding(tokenizer_of(side), pad_to_multiple_of=multiple)
    ones = [[1] * len(row) for row in IDS]
    types = [[0] * len(row) for row in IDS]
    samples = samples_of(
        make, input_ids=IDS, attention_mask=ones, token_type_ids=types, special_tokens_mask=ones
    )
    for i, sample in enumerate(samples):
        sample["label"] = i
    ours = PadCollate(3, side, multiple)(samples)
    theirs = dict(collator(samples))
    assert set(ours) == set(theirs)
    assert_identical({key: ours[key] for key in theirs}, theirs)
    bare = samples_of(make, input_ids=IDS)
    ours = PadCollate(3, side, multiple, return_mask=True)(bare)
    assert_identical(ours, dict(collator(bare)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["DataCollatorForSeq2Seq", "DataCollatorForTokenClassification"])
def test_pads_labels_as_their_collators(side: str, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    collator = getattr(transformers, name)(tokenizer_of(side))
    samples = samples_of(list, input_ids=IDS, labels=[[t % 2 for t in row] for row in IDS])
    ours = PadCollate(3, side, return_mask=True)(samples)
    theirs = dict(collator(samples))
    assert set(ours) == set(theirs)
    assert_identical({key: ours[key] for key in theirs}, theirs)
