"""Columns of Arrow as C reads them: the numbers that pyarrow gives, in Arrow's own memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from fastloop._core import arrow_lists, arrow_rows, int_lists

pa = pytest.importorskip("pyarrow")
NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)]
NUMBERS += ["int64", "float32", "float64", "bool_"]
GRID = np.arange(72) % 5 % 2


def tensors(kind: str) -> Any:
    """Lists of one length in an extension type."""
    values = pa.array(GRID, getattr(pa, kind)())
    shape = pa.fixed_shape_tensor(values.type, (3, 2))
    return pa.ExtensionArray.from_storage(shape, pa.FixedSizeListArray.from_arrays(values, 6))


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("part", [slice(None), slice(3, 11), slice(11, 12), slice(5, 5)])
def test_rows_are_pyarrows(kind: str, part: slice) -> None:
    numbers = GRID.astype(kind.rstrip("_"))
    pairs = pa.list_(pa.large_list(getattr(pa, kind)()))
    for array, shape in (
        (pa.array(numbers), (72,)),
        (pa.array(numbers.reshape(-1, 3, 2).tolist(), pairs), (12, 3, 2)),
        (
            pa.array(
                numbers.reshape(-1, 4).tolist(), pa.list_(pa.from_numpy_dtype(numbers.dtype), 4)
            ),
            (18, 4),
        ),
    ):
        expected = numbers.reshape(shape)[part]
        sliced = array[part]
        if expected.size == 0 and pa.types.is_list(array.type):
            with pytest.raises(ValueError, match="lists of different length"):
                arrow_rows(sliced)
            continue
        found = arrow_rows(sliced)
        assert found.dtype == expected.dtype and not found.flags.writeable
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(arrow_rows(tensors("float32")), GRID.reshape(12, 6))


def test_memory_is_arrows_and_lives_as_long() -> None:
    array = pa.array(np.arange(8))
    address, found = array.buffers()[1].address, arrow_rows(array[2:])
    assert found.ctypes.data == address + 16
    lists = pa.array([[1, 2], [3]])
    values, _ = arrow_lists([lists])
    assert values.ctypes.data == lists.values.buffers()[1].address
    memory = np.arange(3.0)
    gone = weakref.ref(memory, lambda _: None)
    found = arrow_rows(pa.array(memory))
    del memory
    gc.collect()
    assert gone() is not None and found.tolist() == [0, 1, 2]
    del found
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if "int" in kind])
def test_lists_are_pyarrows(make: Any, kind: str) -> None:
    rows: list[list[int]] = [[1, 2], [], [3], [4, 5, 6], [], [7], [8, 9], []]
    whole = pa.array(rows, make(getattr(pa, kind)()))
    other = pa.array(rows[::-1], whole.type)
    for chunks in ([whole], [whole[2:6], other, whole[1:2], whole[4:4], other[3:]]):
        values, ends = arrow_lists(chunks)
        assert values.dtype == kind
        found = [values[begin:end].tolist() for begin, end in ends.reshape(-1, 2)]
        assert found == [row for chunk in chunks for row in chunk.to_pylist()]
        assert int_lists(values, ends.reshape(-1, 2)) == found
        least = -(2 ** (values.itemsize * 8 - 1)) if kind[0] == "i" else 0
        extremes = np.array([least, -least - 1 if least else 2 ** (values.itemsize * 8) - 1], kind)
        assert int_lists(extremes, np.array([[0, 2], [1, 2]])) == [
            extremes.tolist(),
            extremes[1:].tolist(),
        ]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (np.arange(3), np.array([[0, 4]])),
        (np.arange(3), np.array([[-1, 2]])),
        (np.arange(3), np.array([[2, 1]])),
        (np.arange(3), np.array([0, 1])),
        (np.arange(3), np.array([[0, 1]], np.int32)),
        (np.arange(6)[::2], np.array([[0, 1]])),
        (np.arange(3, dtype=np.uint64), np.array([[0, 1]])),
        (np.arange(3.0), np.array([[0, 1]])),
        ([1, 2], np.array([[0, 1]])),
    ],
)
def test_int_lists_refuses_other_arrays(values: Any, ends: Any) -> None:
    with pytest.raises(ValueError, match="must be those of arrow_lists"):
        int_lists(values, ends)


def offsets_of(*numbers: int) -> Any:
    """Lists of a damaged file: pyarrow has seen other offsets."""
    values, memory = pa.array(np.arange(4)), np.zeros(4, np.int32)
    buffers = [None, pa.py_buffer(memory)]
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 3, buffers, children=[values])
    memory[:] = numbers
    return lists


REFUSED: dict[str, tuple[Any, str]] = {
    "nulls": (pa.array([1, None]), "null values"),
    "null lists": (pa.array([[1], None]), "null values"),
    "nulls in lists": (pa.array([[1], [None]]), "null values"),
    "strings": (pa.array(["a"]), "values of string"),
    "large ints": (pa.array([1], pa.uint64()), "values of uint64"),
    "words of a dictionary": (pa.array(["a"]).dictionary_encode(), "values of dictionary"),
    "dates": (pa.array([1], pa.date32()), "values of tdD"),
    "lengths": (pa.array([[1], [2, 3]]), "lists of different length"),
    "offsets that fall": (offsets_of(0, 2, 1, 3), "lists of different length"),
    "lists beyond": (offsets_of(0, 2, 4, 6), "lists beyond its values"),
}
REFUSED_LISTS: dict[str, tuple[Any, str]] = {
    **{name: REFUSED[name] for name in ("null lists", "nulls in lists", "lists beyond")},
    "offsets that fall": (offsets_of(0, 2, 1, 3), "offsets that fall"),
    "below the first": (offsets_of(-1, 0, 1, 2), "lists beyond its values"),
    "numbers": (pa.array([1, 2]), "no lists of integers"),
    "floats": (pa.array([[1.5]]), "no lists of integers"),
    "lists in lists": (pa.array([[[1]]]), "values of"),
    "nothing": (pa.array([[], []], pa.list_(pa.int64())), "empty lists alone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_refused(name: str) -> None:
    array, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        arrow_rows(array)


@pytest.mark.parametrize("name", REFUSED_LISTS)
def test_lists_that_are_refused(name: str) -> None:
    array, text = REFUSED_LISTS[name]
    with pytest.raises(ValueError, match=text):
        arrow_lists([array])


def test_nulls_beside_a_slice_do_not_count() -> None:
    assert arrow_rows(pa.array([None, 1, 2])[1:]).tolist() == [1, 2]
    values, ends = arrow_lists([pa.array([[None], [1, 2]])[1:]])
    assert (values.tolist(), ends.tolist()) == ([1, 2], [0, 2])


@pytest.mark.parametrize("call", [arrow_rows, lambda other: arrow_lists([other])])
def test_other_objects_are_refused(call: Any) -> None:
    with pytest.raises(AttributeError):
        call(np.arange(3))
    with pytest.raises((TypeError, ValueError)):
        call(type("Odd", (), {"__arrow_c_array__": lambda self: (1, 2)})())


def test_values_that_are_a_slice_themselves() -> None:
    inner = pa.array(np.arange(9))[3:]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), inner)
    assert arrow_rows(lists).tolist() == [[3, 4], [5, 6]]
    values, ends = arrow_lists([lists[1:]])
    assert values[slice(*ends)].tolist() == [5, 6]


def test_chunks_of_several_types_are_refused() -> None:
    chunks = [pa.array([[1, 2]], pa.list_(getattr(pa, kind)())) for kind in ("int32", "int64")]
    with pytest.raises(ValueError, match="lists of several types"):
        arrow_lists(chunks)
    assert type(arrow_lists(chunks[:1])[0].base) is tuple
