"""PackCollate: what is written by C is what torch's functions make, bit for bit."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_collates import both

from fastloop import ArrayDataset, DataLoader, PackCollate, RaggedArray


def packed_by_hand(rows: list[list[int]], limit: int | None) -> dict[str, Any]:
    """As docs/use/text.md says."""
    filled: list[list[list[int]]] = [[]]
    for row in rows:
        fits = [r for r in filled if limit is None or sum(map(len, r)) + len(row) <= limit]
        if not fits:
            filled.append([])
        (fits or filled[-1:])[0].append(row)
    ids, labels, bounds = [], [], [0]
    for segments in filled:
        line, label = [], []
        for row in segments:
            line += row
            label += [-100, *row[1:]][: len(row)]
            bounds.append(bounds[-1] + len(row))
        rest = 0 if limit is None else limit - len(line)
        if rest:
            bounds.append(bounds[-1] + rest)
        ids.append(line + [0] * rest)
        labels.append(label + [-100] * rest)
    flat = [i for a, b in pairwise(bounds) for i in range(b - a)]
    width = len(ids[0])
    positions = [flat[i * width : (i + 1) * width] for i in range(len(ids))]
    longest = max(b - a for a, b in pairwise(bounds))
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": positions,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def lists_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=12),
    st.integers(9, 20) | st.none(),
    st.sampled_from([list, np.array, torch.tensor]),
)
@settings(deadline=None, max_examples=50)
def test_what_is_packed(rows: list[list[int]], limit: int | None, make: Any) -> None:
    values = [make(row) if make is list else make(row, dtype=int) for row in rows]
    batch = both(PackCollate(limit), [{"input_ids": value} for value in values])
    assert lists_of(batch) == packed_by_hand(rows, limit)
    dtypes = [value.dtype for value in list(batch.values())[:5]]
    assert dtypes == [torch.int64] * 3 + [torch.int32] * 2


def test_first_fit() -> None:
    samples = [{"input_ids": [i] * n, "n": n} for i, n in enumerate((3, 4, 1, 0, 2), 1)]
    batch = both(PackCollate(5), samples)
    assert batch["input_ids"].tolist() == [[1, 1, 1, 3, 0], [2, 2, 2, 2, 0], [5, 5, 0, 0, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 4, 4, 5, 9, 10, 12, 15]
    assert batch["max_length_q"] == 4
    assert batch["n"].tolist() == [3, 4, 1, 0, 2]


def test_the_longest_segment_may_be_padding() -> None:
    batch = both(PackCollate(9), [{"input_ids": [1, 2]}])
    assert batch["max_length_k"] == 7
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2, 3, 4, 5, 6]]


def test_fields_beside_input_ids() -> None:
    samples = [
        {"input_ids": [1, 2], "labels": [5, 6], "attention_mask": [1, 1], "w": [0.5, 1.5], "n": 1},
        {"input_ids": [3], "labels": [7], "attention_mask": [1], "w": [2.5], "n": 2},
    ]
    batch = both(PackCollate(4), samples)
    assert list(batch)[:5] == ["input_ids", "labels", "w", "n", "position_ids"]
    assert batch["labels"].tolist() == [[-100, 6, -100, -100]]
    assert batch["w"].tolist() == [[0.5, 1.5, 2.5, 0.0]]
    assert batch["n"].tolist() == [1, 2]
    given = [{"input_ids": [1, 2], "position_ids": [7, 8]}]
    assert both(PackCollate(), given)["position_ids"].tolist() == [[7, 8]]
    scalars = both(PackCollate(), [{"input_ids": [1, 2], "label": 3}])
    assert scalars["labels"].tolist() == [3]
    assert "labels" not in both(PackCollate(), [{"x": [1, 2]}])


def test_small_integers_are_packed_as_int64() -> None:
    row = np.array([65535, 1], np.uint16)
    batch = both(PackCollate(), [{"input_ids": row, "labels": row, "other": row}])
    assert batch["input_ids"].tolist() == [[65535, 1]]
    assert batch["labels"].tolist() == [[-100, 1]]
    assert batch["other"].dtype is torch.uint16


def test_packs_of_tuples_and_bare_sequences_are_lists() -> None:
    ids, labels, positions, bounds, longest = both(PackCollate(), [([1, 2], [3, 4]), ([5], [6])])
    assert (ids.tolist(), labels.tolist()) == ([[1, 2, 5]], [[3, 4, 6]])
    assert (positions.tolist(), bounds.tolist(), longest) == ([[0, 1, 0]], [0, 2, 3], 2)
    assert [str(part) for part in both(PackCollate(), [[1], [2, 3]])] == [
        *("tensor([[1, 2, 3]])", "tensor([[0, 0, 1]])"),
        *("tensor([0, 1, 3], dtype=torch.int32)", "2"),
    ]
    alone = both(PackCollate(return_position_ids=False, return_cu_seqlens=False), [[1], [2, 3]])
    assert alone.tolist() == [[1, 2, 3]]


def test_packs_without_extras() -> None:
    samples = [{"input_ids": [1, 2]}]
    assert list(both(PackCollate(return_cu_seqlens=False), samples)) == [
        *("input_ids", "labels", "position_ids")
    ]
    assert list(both(PackCollate(return_position_ids=False), samples))[2:] == [
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    ]


@pytest.mark.parametrize("path", ["sync", "array"])
@pytest.mark.parametrize("name", ["labels", "input_ids"])
def test_labels_of_bools_cannot_hold_their_padding(path: str, name: str) -> None:
    """It is no argument of PackCollate, so the error advises none. Bare input_ids are labels."""
    rows = RaggedArray.from_list([[True, False], [True]])
    ids = {} if name == "input_ids" else {"input_ids": RaggedArray.from_list([[1, 2], [3]])}
    data = ArrayDataset(**ids, **{name: rows})
    text = "must be an int in .0, 1. for bool, got -100 .or give the field a wider dtype"
    with pytest.raises(ValueError, match=text) as raised:
        list(DataLoader(data, 2, collate_fn=PackCollate(), path=path))
    assert "padding_value" not in str(raised.value)
