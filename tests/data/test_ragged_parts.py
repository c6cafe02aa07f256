"""A RaggedArray of several parts: one array to its users, without a copy of the values."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same

from fastloop import ArrayDataset, DataLoader, PackCollate, PadCollate, RaggedArray


def parts_of(dtype: Any = np.int32, seed: int = 0, count: int = 5) -> list[tuple[Any, Any]]:
    draw, made = np.random.default_rng(seed), []
    for part in range(count):
        lengths = draw.integers(0, 6, draw.integers(0, 9))
        offsets = np.append(0, np.cumsum(lengths)) + draw.integers(0, 3)
        values = np.arange(offsets[-1] + 2, dtype=dtype) + dtype(40 * part)
        made.append((values, offsets.astype(np.int32) if part % 2 else offsets))
    return made


def sequences_of(parts: list[tuple[Any, Any]]) -> list[list[int]]:
    return [v[a:b].tolist() for v, o in parts for a, b in itertools.pairwise(o)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64, np.complex128])
def test_parts_are_one_array_without_a_copy(dtype: Any) -> None:
    for seed in range(12):
        parts = parts_of(dtype, seed)
        array, expected = RaggedArray.from_parts(parts), sequences_of(parts)
        assert [each.tolist() for each in array] == expected
        assert array.lengths.tolist() == list(map(len, expected)) and len(array) == len(expected)
        assert array._offsets is None  # they take memory, and loaders do without
        assert array.offsets.tolist() == [0, *np.cumsum(array.lengths).tolist()]
        assert [each.tolist() for each in array[2:7]] == expected[2:7]
        assert [each.tolist() for each in array[::-2]] == expected[::-2]
        for copy in (pickle.loads(pickle.dumps(array[1:])), array[1:].to("cpu")):
            assert [each.tolist() for each in copy] == expected[1:]
            assert copy._pairs is None
        again = RaggedArray.from_parts([array[:3], array[3:], parts[0]])
        assert [each.tolist() for each in again] == expected + sequences_of(parts[:1])
        if any(map(len, expected)):
            values, _ = next(p for p in parts if np.diff(p[1]).any())
            values += 1
            row = expected.index(next(s for s in expected if s))
            assert array[row].tolist() == [x + 1 for x in expected[row]], "no copy"


def test_chunks_of_arrow_at_unaligned_addresses() -> None:
    pa = pytest.importorskip("pyarrow")
    memory = pa.py_buffer(b"x" + np.arange(6).tobytes()).slice(1)
    unaligned = pa.Array.from_buffers(pa.int64(), 6, [None, memory])
    chunks = [pa.ListArray.from_arrays([0, 2, 6], unaligned), pa.array([[10, 11], [12]])]
    array = RaggedArray.from_arrow(pa.chunked_array(chunks))
    assert [each.tolist() for each in array] == [[0, 1], [2, 3, 4, 5], [10, 11], [12]]


@pytest.mark.parametrize("collate", [PadCollate(), PackCollate(max_tokens=16)])
@pytest.mark.parametrize("workers", [0, 1])
def test_parts_in_loaders(collate: Any, workers: int, tmp_path: Path) -> None:
    parts = [part for part in parts_of(seed=3, count=9) if len(part[1]) > 1]
    names = []
    for i, (values, _) in enumerate(parts):
        names.append(tmp_path / f"{i}.npy")
        np.save(names[-1], values)
    whole = RaggedArray.from_list(sequences_of(parts), torch.int32)
    mapped = RaggedArray.from_parts([(n, o) for n, (_, o) in zip(names, parts, strict=True)])
    assert mapped.file is not None
    for array in (RaggedArray.from_parts(parts), mapped):
        batches = []
        for ids in (array, whole):
            data = ArrayDataset(input_ids=ids, label=torch.arange(len(whole)))
            loader = DataLoader(data, 4, collate_fn=collate, num_workers=workers)
            batches.append(list(loader))
            assert loader.stats().path == "array"
        assert_same(*batches)


def test_parts_that_do_not_fit() -> None:
    one = np.arange(4), [0, 4]
    for parts, error, text in (
        ([], ValueError, "parts must be a sequence of at least one pair"),
        ([one, (np.arange(4.0), [0, 4])], TypeError, "values of parts must be of dtype int64, got"),
        ([one, (np.arange(4), [0, 5])], ValueError, r"offsets must lie in \[0, 4\]"),
    ):
        with pytest.raises(error, match=text):
            RaggedArray.from_parts(parts)
    array = RaggedArray.from_parts([one, (torch.arange(4), [1, 1, 3]), (np.arange(0), [0, 0])])
    assert [each.tolist() for each in array] == [[0, 1, 2, 3], [], [1, 2], []]
    nothing = RaggedArray.from_parts([(np.arange(0), [0, 0])] * 3)
    assert [each.tolist() for each in nothing] == [[], [], []]
    assert len(RaggedArray.from_parts([(np.arange(3), [0])] * 2)) == 0


def test_chunks_of_an_arrow_column_are_not_copied() -> None:
    pa = pytest.importorskip("pyarrow")
    chunks = [pa.array([[i, i + 1], [], [i]], pa.list_(pa.int64())) for i in range(200)]
    chunks[3] = pa.array([[1], [2], [3, 4]], pa.list_(pa.int64()))[1:]
    column = pa.chunked_array(chunks)
    before = pa.total_allocated_bytes()
    array = RaggedArray.from_arrow(column)
    assert [each.tolist() for each in array] == column.to_pylist()
    assert pa.total_allocated_bytes() == before
    for row, chunk in ((0, 0), (9, 3), (590, 197)):
        begin, end = array._bounds[row]
        assert np.shares_memory(array._field.source[begin:end], chunks[chunk].flatten().to_numpy())
    del column, chunks
    assert array[-1].tolist() == [199], "the memory lives as long as the array"


def test_parts_may_be_far_from_each_other() -> None:
    memory = np.zeros(1 << 32, np.uint8)  # of which pages that are written have memory
    parts = []
    for at in (0, (1 << 31) - 4, (1 << 32) - 8):
        memory[at : at + 8] = at % 251 + np.arange(8, dtype=np.uint8) % 4
        parts.append((memory[at : at + 8], np.array([0, 3, 8], np.int32)))
    array, expected = RaggedArray.from_parts(parts), sequences_of(parts)
    assert [row.tolist() for row in array] == [list(row) for row in expected]
