"""PackCollate(layout="jagged"): nested tensors over the memory of packed rows, the same from
samples, from arrays by threads, and from rows of a PackedDataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastloop import ArrayDataset, DataLoader, PackCollate, PackedDataset, RaggedArray
from fastloop.data.sequences.outputs import as_jagged

Torchs = torch.utils.data.DataLoader


def columns(seed: int = 0) -> dict[str, RaggedArray]:
    lengths = np.random.default_rng(seed).integers(0, 30, 120)
    offsets = np.append(0, np.cumsum(lengths))
    tokens = np.arange(offsets[-1], dtype=np.int32) + 1
    return {
        "input_ids": RaggedArray(tokens, offsets),
        "loss_mask": RaggedArray(tokens % 2 == 0, offsets),
    }


def parts(batch: Any) -> dict[str, Any]:
    """The batch with nested tensors as values and offsets."""
    found: dict[Any, Any] = {}
    for key, each in batch.items() if isinstance(batch, dict) else enumerate(batch):
        if isinstance(each, torch.Tensor) and each.is_nested:
            assert each.layout is torch.jagged
            found[key] = each.values().tolist(), each.values().dtype, each.offsets().tolist()
        else:
            found[key] = each.tolist() if isinstance(each, torch.Tensor) else each
    return found


def strided(batch: dict[str, Any], bounds: list[int]) -> dict[str, Any]:
    """What ``parts`` must be for a batch of rows with these bounds of segments."""
    rows = {key: each.view(-1) for key, each in batch.items() if getattr(each, "ndim", 0) == 2}
    return {key: (each.tolist(), each.dtype, bounds) for key, each in rows.items()}


@pytest.mark.parametrize("max_tokens", [None, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_documents(workers: int, max_tokens: Any) -> None:
    data = ArrayDataset(**columns(), score=np.arange(120))
    loader = DataLoader(
        data, 9, collate_fn=PackCollate(max_tokens, layout="jagged"), num_workers=workers
    )
    theirs = Torchs(data, 9, collate_fn=PackCollate(max_tokens, layout="jagged"))
    plain = Torchs(data, 9, collate_fn=PackCollate(max_tokens))
    for ours, other, rows in zip(loader, theirs, plain, strict=True):
        assert list(ours) == list(other) == list(rows)
        assert parts(ours) == parts(other)
        bounds = rows["cu_seq_lens_q"].tolist()
        assert parts(ours).items() >= strided(rows, bounds).items()
        assert max_tokens is not None or ours["input_ids"].size(0) == len(rows["score"])
        total = ours["input_ids"] + ours["labels"]  # they have the same offsets
        assert total.layout is torch.jagged
    assert loader.stats().path == "array"


@pytest.mark.parametrize("max_tokens", [None, 40])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_documents(workers: int, max_tokens: Any) -> None:
    """A component is a piece of a document, or the padding of a row."""
    data = PackedDataset(columns(), 40, window=50, return_doc_ids=True)
    collate = PackCollate(max_tokens, layout="jagged")
    loader = DataLoader(data, 5, collate_fn=collate, num_workers=workers)
    plain, theirs = DataLoader(data, 5), Torchs(data, 5, collate_fn=collate)
    for ours, other, rows in zip(loader, theirs, plain, strict=True):
        assert list(ours) == list(other)
        assert parts(ours) == parts(other)
        bounds, longest = PackedDataset.cu_seqlens(rows["position_ids"])
        assert parts(ours).items() >= strided(rows, bounds.tolist()).items()
        assert ours["max_length_q"] == longest
        assert ours["cu_seq_lens_k"].tolist() == bounds.tolist()
    assert loader.stats().path == "array"


def test_values_are_not_copied() -> None:
    data = PackedDataset(columns(), 40)
    batch: Any = next(iter(DataLoader(data, 4)))
    bounds, longest = PackedDataset.cu_seqlens(batch["position_ids"])
    for key, each in as_jagged(batch, ["labels"], bounds, longest).items():
        values = each.values() if key == "labels" else each
        assert values.data_ptr() == batch[key].data_ptr()
        assert values.untyped_storage().data_ptr() == batch[key].untyped_storage().data_ptr()
    assert "layout='jagged'" in repr(PackCollate(layout="jagged"))


def test_positions_of_samples_begin_segments() -> None:
    samples = [
        {"input_ids": [5, 6, 7, 8], "position_ids": [0, 1, 0, 1]},
        {"input_ids": [], "position_ids": []},
        {"input_ids": [9, 10], "position_ids": [3, 0]},
    ]
    batch = parts(PackCollate(layout="jagged")(samples))
    assert batch["input_ids"] == ([5, 6, 7, 8, 9, 10], torch.int64, [0, 2, 4, 4, 5, 6])
    assert batch["labels"][0] == [-100, 6, -100, 8, -100, -100]
    assert batch["cu_seq_lens_q"] == [0, 2, 4, 4, 5, 6] and batch["max_length_q"] == 2


def test_other_samples() -> None:
    listed: Any = PackCollate(layout="jagged")([([1, 2], 5), ([3], 6)])
    assert listed[0].offsets().tolist() == [0, 2, 3] and listed[1].tolist() == [5, 6]
    bare: Any = PackCollate(layout="jagged", return_cu_seqlens=False)([[1, 2], [3]])
    assert bare[0].values().tolist() == [1, 2, 3] and bare[1].values().tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="layout must be one of 'strided', 'jagged', got 'nested'"):
        PackCollate(layout="nested")


def test_what_threads_leave_to_python() -> None:
    data = PackedDataset(columns(), 40)
    cases: Any = [
        (data, PackCollate(), "takes rows as samples"),
        (data, PackCollate(50, layout="jagged"), "the collate changes rows"),
        (data, PackCollate(layout="jagged", return_cu_seqlens=False), "takes rows as samples"),
        (ArrayDataset(columns()["input_ids"]), PackCollate(layout="jagged"), "nested tensors"),
    ]
    for dataset, collate, why in cases:
        loader = DataLoader(dataset, 5, collate_fn=collate)
        ours, theirs = list(loader), list(Torchs(dataset, 5, collate_fn=collate))
        assert list(map(parts, ours)) == list(map(parts, theirs))
        assert why in loader.stats().why
