"""RaggedArray: what its rows are, what it shares, how it pickles, and what it refuses."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from fastloop import ArrayDataset, DataLoader, PadCollate, RaggedArray, transforms

VALUES = np.arange(10, 22)
OFFSETS = [2, 5, 5, 9, 12]
ROWS = [[12, 13, 14], [], [15, 16, 17, 18], [19, 20, 21]]


def rows_of(array: RaggedArray) -> list[list[Any]]:
    return [row.tolist() for row in array]


def npy(path: Path, values: Any = VALUES) -> Path:
    np.save(path / "values.npy", values)
    return path / "values.npy"


def read_only(values: Any) -> Any:
    values = values.copy()
    values.flags.writeable = False
    return values


SOURCES: dict[str, Callable[[Path], Any]] = {
    "array": lambda path: VALUES.copy(),
    "tensor": lambda path: torch.from_numpy(VALUES.copy()),
    "path": npy,
    "str": lambda path: str(npy(path)),
    "memmap": lambda path: np.load(npy(path), mmap_mode="r"),
    "writable memmap": lambda path: np.load(npy(path), mmap_mode="r+"),
    "read-only": lambda path: read_only(VALUES),
    "backwards": lambda path: VALUES[::-1].copy()[::-1],
    "every second": lambda path: np.repeat(VALUES, 2)[::2],
}
IS_COPIED = {"path", "str", "memmap", "writable memmap", "read-only", "backwards"}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_of_all_sources(source: str, dtype: str, tmp_path: Path) -> None:
    array = RaggedArray(SOURCES[source](tmp_path), np.array(OFFSETS, dtype))
    assert len(array) == 4
    assert rows_of(array) == ROWS
    assert [array[i].tolist() for i in range(-4, 0)] == ROWS
    assert {row.dtype for row in array} == {torch.int64}
    assert array.offsets.dtype == dtype
    assert array.lengths.tolist() == [3, 0, 4, 3]
    assert array.lengths.dtype == np.int64
    assert repr(array) == "RaggedArray(4 sequences of int64, 10 values)"
    assert (array.file is not None) == (source in ("path", "str", "memmap", "writable memmap"))


@pytest.mark.parametrize("source", SOURCES)
def test_rows_share_memory_with_plain_values_only(source: str, tmp_path: Path) -> None:
    array = RaggedArray(SOURCES[source](tmp_path), OFFSETS)
    array[0][1] = -1
    assert (array[0][1] == 13) == (source in IS_COPIED)


def test_offsets_are_copied() -> None:
    offsets = np.array(OFFSETS)
    array = RaggedArray(VALUES, offsets)
    offsets[:] = 0
    assert rows_of(array) == ROWS
    with pytest.raises(ValueError, match="read-only"):
        array.offsets[0] = 1


@pytest.mark.parametrize(
    "offsets",
    [torch.tensor(OFFSETS), tuple(OFFSETS), list(np.array(OFFSETS)), list(torch.tensor(OFFSETS))],
)
def test_offsets_of_other_types(offsets: Any) -> None:
    assert rows_of(RaggedArray(VALUES, offsets)) == ROWS


def test_slices_are_of_the_same_values() -> None:
    array = RaggedArray(VALUES.copy(), OFFSETS)
    assert rows_of(array[1:3]) == ROWS[1:3]
    assert rows_of(array[1:][1:]) == ROWS[2:]
    assert rows_of(array[-2:]) == ROWS[-2:]
    assert rows_of(array[3:1]) == []
    array[2:][0][0] = -1
    assert array[2][0] == -1


@pytest.mark.parametrize("source", SOURCES)
def test_several_rows(source: str, tmp_path: Path) -> None:
    array = RaggedArray(SOURCES[source](tmp_path), OFFSETS)
    assert rows_of(array[::2]) == ROWS[::2]
    assert rows_of(array[::-1]) == ROWS[::-1]
    assert rows_of(array[[3, -4, 3]]) == [ROWS[3], ROWS[0], ROWS[3]]
    assert rows_of(array[torch.tensor([2, 0])]) == [ROWS[2], ROWS[0]]
    assert rows_of(array[np.array([True, False, False, True])]) == [ROWS[0], ROWS[3]]
    assert rows_of(array[torch.tensor([2])]) == [ROWS[2]]
    for wrong in ([[0, 1]], [0.5], np.zeros((1, 1), int)):
        with pytest.raises(TypeError, match=r"index must be an integer, a slice or a .*got shape"):
            array[wrong]
    none = array[np.empty(0, int)]
    assert (len(none), none.values.dtype) == (0, torch.int64)


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for a length of 4"):
        RaggedArray(VALUES, OFFSETS)[index]


@pytest.mark.parametrize("source", SOURCES)
def test_pickles(source: str, tmp_path: Path) -> None:
    array = RaggedArray(SOURCES[source](tmp_path), OFFSETS)
    for part in (array, array[1:], array[:2]):
        assert rows_of(pickle.loads(pickle.dumps(part))) == rows_of(part)


def test_a_view_pickles_no_more_than_it_shows() -> None:
    for values in (np.zeros(100_000), torch.zeros(100_000)):
        array = RaggedArray(values, [0, 10, 100_000])
        assert len(pickle.dumps(array)) > 400_000
        assert len(pickle.dumps(array[:1])) < 2_000


def test_an_opened_file_pickles_as_its_path(tmp_path: Path) -> None:
    array = RaggedArray(npy(tmp_path, np.zeros(100_000)), [0, 10, 100_000])
    assert len(pickle.dumps(array)) < 2_000
    assert len(pickle.loads(pickle.dumps(array))[1]) == 99_990


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = npy(tmp_path, np.arange(100_000))
    array = RaggedArray(path, [0, 10, 100_000])
    os.truncate(path, 4096)
    assert array[0].tolist() == list(range(10))
    with pytest.raises(OSError, match=r"values\[10:100000\].*has become"):
        array[1]


# ---- from_list


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))))
def test_lists_come_back(rows: list[list[int]]) -> None:
    array = RaggedArray.from_list(rows)
    assert rows_of(array) == rows
    assert array.values.dtype == torch.int64


LISTS: dict[str, tuple[Any, Any, torch.dtype]] = {
    "ints": ([[1, 2], (3,)], None, torch.int64),
    "floats": ([[1, 2.5], [3]], None, torch.float32),
    "bools": ([[True], [False]], None, torch.bool),
    "bools and ints": ([[True], [2]], None, torch.int64),
    "NumPy's ints": ([[np.int32(1)], [np.int64(2)]], None, torch.int64),
    "ints of one type of NumPy's": ([[np.int32(1)], [np.int32(2)]], None, torch.int64),
    "nothing": ([], None, torch.int64),
    "empty": ([[], []], None, torch.int64),
    "int32": ([[1], [2]], torch.int32, torch.int32),
    "uint16": ([[1], [2]], np.uint16, torch.uint16),
    "by name": ([[1], [2]], "float64", torch.float64),
    "arrays": ([np.array([1, 2], np.int16), np.array([], np.int16)], None, torch.int16),
    "tensors": ([torch.tensor([1], dtype=torch.bfloat16)], None, torch.bfloat16),
    "array as bfloat16": ([np.array([1.5], np.float32)], torch.bfloat16, torch.bfloat16),
    "0-d tensors": ([[torch.tensor(1), 2]], None, torch.int64),
    "of everything": ([[1], np.array([2, 3]), torch.tensor([4])], None, torch.int64),
}


@pytest.mark.parametrize(("rows", "dtype", "expected"), LISTS.values(), ids=LISTS)
def test_from_list(rows: Any, dtype: Any, expected: torch.dtype) -> None:
    array = RaggedArray.from_list(rows, dtype)
    assert rows_of(array) == [list(torch.as_tensor(row).tolist()) for row in rows]
    assert {row.dtype for row in array} <= {expected}
    assert str(array.values.dtype).removeprefix("torch.") == str(expected).removeprefix("torch.")


BAD_LISTS: dict[str, tuple[Any, str]] = {
    "text": ([["a"]], r"sequences\[0\] must be a list of numbers, .*got a list"),
    "None": ([[1, None]], r"sequences\[0\] cannot be a tensor: .*NoneType"),
    "too large": ([[1, 2**64]], r"sequences\[0\] cannot be a tensor"),
    "beyond int64": ([[1], [2**63]], r"sequences\[1\] cannot be a tensor"),
    "both signs beyond int64": ([[2**63, -1]], r"sequences\[0\] cannot be a tensor"),
    "nested": ([[[1], [2]]], r"sequences\[0\] must be a list of numbers"),
    "nested in places": ([[1, [2]]], r"sequences\[0\] cannot be a tensor"),
    "one sequence": ([1, 2], r"sequences\[0\] must be a list of numbers, .*got a int"),
    "no sequence": ([[1], None], r"sequences\[1\] must be a list .*got a NoneType"),
    "0-D": ([torch.tensor(3)], r"sequences\[0\] must be .*got a Tensor of shape \(\)"),
    "a number": (5, "is not iterable"),
    "2-D": ([np.zeros(2), np.zeros((2, 3))], r"sequences\[1\] must be .*of shape \(2, 3\)"),
}


@pytest.mark.parametrize(("rows", "text"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_from_list_refuses(rows: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        RaggedArray.from_list(rows)


@pytest.mark.parametrize("dtype", ["uint16", torch.uint16])
def test_from_list_refuses_what_the_dtype_does_not_have(dtype: Any) -> None:
    for odd in (-100, 2**16):
        with pytest.raises(ValueError, match=f"dtype must .* such as {odd}, got .*uint16"):
            RaggedArray.from_list([[1, odd]], dtype)


# ---- from_arrow


@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        ([[1.0, 2.5]], "2.5"),
        ([[1], [float("nan")]], "nan"),
        ([np.array([3.5])], "3.5"),
        ([torch.tensor([1.5], dtype=torch.bfloat16)], "1.5"),
        ([[float("inf")]], "inf"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, "int32", np.uint8, torch.bool])
@pytest.mark.filterwarnings("error")
def test_from_list_cuts_no_float(rows: Any, odd: str, dtype: Any) -> None:
    with pytest.raises(
        ValueError, match=f"dtype must be a dtype that holds every number .* such as {odd}, got "
    ):
        RaggedArray.from_list(rows, dtype)


def test_from_list_takes_whole_floats_for_integers() -> None:
    rows = [[1.0, 2.0], [float(2**53)]]
    assert rows_of(RaggedArray.from_list(rows, torch.int64)) == [[1, 2], [2**53]]


def test_values_that_are_resized_give_no_short_row() -> None:
    values = torch.arange(10)
    ragged = RaggedArray(values, [0, 3, 10])
    values.resize_(5)
    assert ragged[0].tolist() == [0, 1, 2]
    with pytest.raises(
        ValueError, match=r"sequence 1 must be values\[3:10\], got values that were resized to 5"
    ):
        ragged[1]


def test_an_arrow_column_of_one_chunk_is_not_copied() -> None:
    pa = pytest.importorskip("pyarrow")
    column = pa.array([[9], *ROWS, [8, 8]], pa.list_(pa.int32()))
    array = RaggedArray.from_arrow(column)
    assert rows_of(array) == [[9], *ROWS, [8, 8]]
    address = column.values.buffers()[1].address
    assert array.values.__array_interface__["data"][0] == address
    sliced = RaggedArray.from_arrow(pa.chunked_array([column[1:5]]))
    assert rows_of(sliced) == ROWS
    assert sliced.values.__array_interface__["data"][0] == address + 4
    assert rows_of(sliced[1:]) == ROWS[1:]


@pytest.mark.parametrize("values", ["int32", "uint16", "float32", "bool_"])
@pytest.mark.parametrize("lists", ["list_", "large_list"])
def test_arrow_columns(lists: str, values: str) -> None:
    pa = pytest.importorskip("pyarrow")
    kind = getattr(pa, lists)(getattr(pa, values)())
    rows = [[True, False], [], [True]] if values == "bool_" else [[1, 0], [], [1]]
    chunks = [pa.array(rows, kind), pa.array([], kind), pa.array([rows[0], *rows], kind)[1:]]
    assert rows_of(RaggedArray.from_arrow(pa.chunked_array(chunks))) == rows + rows
    assert rows_of(RaggedArray.from_arrow(chunks[0])) == rows
    empty = RaggedArray.from_arrow(pa.chunked_array([], kind))
    assert len(empty) == 0
    assert empty.values.dtype.name == values.strip("_")


def test_arrow_columns_that_are_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    for column, kind, text in (
        (
            pa.array([[1], None]),
            ValueError,
            "got 1 null lists and 0 null values .fill or",
        ),
        (
            pa.array([[1], [None]]),
            ValueError,
            "no nulls, got 0 null lists and 1 null values",
        ),
        (pa.array([1, 2]), TypeError, "column must be a pyarrow .*of int64"),
        (pa.array([["a"]]), TypeError, "column must be a pyarrow .*of list<item: string>"),
        (pa.array([[1]], pa.list_(pa.int64(), 1)), TypeError, "fixed_size_list"),
        ([[1]], TypeError, "column must be a pyarrow .*got list of no Arrow type"),
    ):
        with pytest.raises(kind, match=text):
            RaggedArray.from_arrow(column)


def test_nulls_outside_of_a_slice_do_not_matter() -> None:
    pa = pytest.importorskip("pyarrow")
    column = pa.array([[None], [1, 2], [3]])
    assert rows_of(RaggedArray.from_arrow(column[1:])) == [[1, 2], [3]]


# ---- refusals


BAD: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "offsets of floats": (VALUES, np.array([0.0, 1]), TypeError, r"float64.*astype\('int64'\)"),
    "offsets of uint64": (
        VALUES,
        np.array([0, 1], np.uint64),
        TypeError,
        "offsets must be int32 or int64, got uint64",
    ),
    "offsets of int16": (VALUES, torch.tensor([0, 1], dtype=torch.int16), TypeError, "got int16"),
    "no offsets": (VALUES, [], ValueError, r"a vector of n \+ 1 offsets .*got shape \(0,\)"),
    "2-D offsets": (
        VALUES,
        np.zeros((2, 2), int),
        ValueError,
        r"offsets must be .*got shape \(2, 2\)",
    ),
    "offsets None": (VALUES, None, TypeError, "offsets must be int32 or int64, got object"),
    "offsets of text": (VALUES, ["a"], TypeError, "offsets must be int32 or int64, got <U1"),
    "offsets of listed floats": (
        VALUES,
        [0, 3.0],
        TypeError,
        "offsets must be int32 or int64, got float64",
    ),
    "negative": (VALUES, [-1, 3], ValueError, r"lie in \[0, 12\], .*got -1 to 3"),
    "a negative array": (VALUES, np.array([-1, 3]), ValueError, r"lie in \[0, 12\], .*got -1 to 3"),
    "falling": (
        VALUES,
        [0, 5, 3, 6],
        ValueError,
        r"offsets\[2\] must be >= offsets\[1\]=5, got 3",
    ),
    "lengths": (VALUES, [5, 2, 4], ValueError, r"if you have lengths, pass .*cumsum\(lengths\)"),
    "beyond": (VALUES, [0, 13], ValueError, r"offsets must lie in \[0, 12\], .*got 0 to 13"),
    "huge": (VALUES, [0, 2**62], ValueError, f"lie in .*got 0 to {2**62}"),
    "beyond int64": (VALUES, [0, 2**63], TypeError, "offsets must be int32 or int64"),
    "2-D values": (
        VALUES.reshape(3, 4),
        [0, 3],
        ValueError,
        r"\(3, 4\) .pass values.reshape\(-1\)",
    ),
    "values of lists": ([1, 2], [0, 2], TypeError, "values must be a numpy.ndarray.*got list"),
    "objects": (np.array([[1], [1, 2]], object), [0, 2], TypeError, r"object.*from_list\(rows\)"),
    "text": (
        np.array(["a"]),
        [0, 1],
        TypeError,
        "values must have a dtype that torch has, got <U1",
    ),
    "no file": ("/nowhere.npy", [0, 1], OSError, "values: No such file"),
}


@pytest.mark.parametrize(("values", "offsets", "kind", "text"), BAD.values(), ids=BAD)
def test_refusals(values: Any, offsets: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        RaggedArray(values, offsets)


# ---- as a field


@pytest.mark.parametrize(
    ("source", "workers"), [*((source, 0) for source in SOURCES), ("array", 1), ("path", 1)]
)
def test_a_field_of_a_dataset_in_both_loaders(source: str, workers: int, tmp_path: Path) -> None:
    data = ArrayDataset(
        ids=RaggedArray(SOURCES[source](tmp_path), OFFSETS), label=torch.arange(4.0)
    )
    assert_same(data[2], {"ids": torch.tensor(ROWS[2]), "label": torch.tensor(2.0)})
    assert rows_of(data[1:3]["ids"]) == ROWS[1:3]
    ours, theirs = (
        list(cls(data, 3, collate_fn=PadCollate(return_mask=True), num_workers=workers))
        for cls in (DataLoader, TorchLoader)
    )
    assert_same(ours, theirs)
    assert ours[0]["ids"].tolist() == [[12, 13, 14, 0], [0, 0, 0, 0], [15, 16, 17, 18]]


def test_a_dataset_with_ragged_rows_prints_and_pickles() -> None:
    data = ArrayDataset(RaggedArray(VALUES, OFFSETS), np.arange(4))
    assert "RaggedArray(4 sequences of int64, 10 values)" in repr(data)
    assert "RaggedArray(4 sequences" in data.explain()
    assert_same(pickle.loads(pickle.dumps(data))[2], data[2])


def test_a_field_has_no_transforms_and_must_have_the_length_of_others() -> None:
    array = RaggedArray(VALUES, OFFSETS)
    with pytest.raises(
        TypeError, match="field 'ids' must be images to have a transform, got a RaggedArray"
    ):
        ArrayDataset(ids=array, transform=lambda row: row)
    with pytest.raises(ValueError, match="field 'ids' has 4, field 'y' has 3"):
        ArrayDataset(ids=array, y=np.arange(3))
    with pytest.raises(
        TypeError, match=r"field 'ids' must be .*got list .*or RaggedArray.from_list\(rows\)"
    ):
        ArrayDataset(ids=[[1, 2], [3]])


def test_a_field_beside_images_with_transforms() -> None:
    images = np.zeros((4, 3, 5, 5), np.uint8)
    flip = {"image": transforms.RandomHorizontalFlip(1.0)}
    data = ArrayDataset(ids=RaggedArray(VALUES, OFFSETS), image=images, transform=flip)
    assert data[2]["ids"].tolist() == ROWS[2]
    assert rows_of(data[[2, 0]]["ids"]) == [ROWS[2], ROWS[0]]
    with pytest.raises(TypeError, match=r"to have a transform.*transform={'image': ...}"):
        ArrayDataset(ids=RaggedArray(VALUES, OFFSETS), image=images, transform=flip["image"])


def test_torchs_default_collate_says_that_rows_differ() -> None:
    data = ArrayDataset(RaggedArray(VALUES, OFFSETS))
    for arguments in ({}, {"num_workers": 1}, {"path": "torch"}):
        with pytest.raises(
            RuntimeError, match=r"(equal size|resizable)(.|\n)*pass collate_fn=fastloop.PadColl"
        ):
            list(DataLoader(Subset(data, range(4)), 4, **arguments))
    with pytest.raises(RuntimeError) as raised:
        list(DataLoader([torch.zeros(1), torch.zeros(2)], 2))
    assert "fastloop" not in str(raised.value)
