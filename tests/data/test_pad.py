"""PadCollate: what is written by C is what torch's functions make, bit for bit."""

from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_collates import both, by_torch, core_of
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from fastloop import PackCollate, PadCollate
from fastloop.data.sequences.pad import SequenceCollate

X = [[1, 2, 3], [4], [], [5, 6]]
DTYPES = [
    getattr(torch, name)
    for name in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 bfloat16 float32 float64 complex64 complex128".split()
]


def is_in_c(collate: SequenceCollate, values: list[Any]) -> bool:
    """Whether C takes these values."""
    fill = lambda number: b"\0" * (number % 256 // 8)  # noqa: E731
    result = core_of(collate).pad(values, fill, False, False, 1, -1, False, False, 32)
    return result is not NotImplemented


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "left": {"padding_side": "left"},
    "value": {"padding_value": 7},
    "cut": {"max_length": 2},
    "cut, left": {"max_length": 2, "padding_side": "left"},
    "multiple": {"pad_to_multiple_of": 8},
    "cut and multiple": {"max_length": 2, "pad_to_multiple_of": 4, "padding_side": "left"},
    "beyond": {"max_length": 100},
}


def padded_by_hand(rows: list[list[Any]], **options: Any) -> tuple[Any, Any, Any]:
    """Lists, mask and lengths, as docs/use/text.md says."""
    limit, multiple = options.get("max_length"), options.get("pad_to_multiple_of") or 1
    cut = [row[:limit] for row in rows]
    width = max(map(len, cut))
    while width % multiple:
        width += 1
    padded, mask = [], []
    for row in cut:
        pads, ones = [options.get("padding_value", 0)] * (width - len(row)), [1] * len(row)
        is_left = options.get("padding_side") == "left"
        padded.append(pads + row if is_left else row + pads)
        mask.append([0] * len(pads) + ones if is_left else ones + [0] * len(pads))
    return padded, mask, [len(row) for row in cut]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rows", [X, [[1]], [[]], [[], []], [[1, 2]] * 3], ids=str)
def test_what_is_padded(rows: list[list[int]], options: dict[str, Any]) -> None:
    batch = both(PadCollate(**options, return_mask=True, return_lengths=True), rows)
    assert [part.tolist() for part in batch] == list(padded_by_hand(rows, **options))
    assert [part.dtype for part in batch] == [torch.int64] * 3
    assert batch[0].shape == batch[1].shape


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_kept_as_pad_sequence_keeps_it(dtype: torch.dtype, side: str) -> None:
    rows = [torch.arange(n).to(dtype) for n in (3, 0, 70, 8, 1)]
    collate = PadCollate(1, padding_side=side)
    expected = pad_sequence(rows, batch_first=True, padding_value=1, padding_side=side)
    assert_identical(both(collate, rows), expected)
    assert is_in_c(collate, rows) == (not dtype.is_complex)
    if dtype is not torch.bfloat16:
        assert_identical(both(collate, [row.numpy() for row in rows]), expected)


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), min_size=1, max_size=9),
    st.sampled_from(["right", "left"]),
    st.integers(1, 9) | st.none(),
    st.integers(1, 9) | st.none(),
    st.integers(-(2**63), 2**63 - 1),
)
@settings(deadline=None, max_examples=50)
def test_rows_come_back(
    rows: list[list[int]], side: str, multiple: int | None, limit: int | None, value: int
) -> None:
    collate = PadCollate(value, side, multiple, limit, return_mask=True, return_lengths=True)
    padded, mask, lengths = collate(rows)
    back = [row[keep.bool()].tolist() for row, keep in zip(padded, mask, strict=True)]
    assert back == [row[:limit] for row in rows]
    assert lengths.tolist() == [len(row) for row in back]
    assert (padded[mask == 0] == value).all()
    assert_identical([padded, mask, lengths], by_torch(collate, rows))


LISTS: dict[str, tuple[list[Any], torch.dtype, bool]] = {
    "ints": ([[1, -2], [2**63 - 1]], torch.int64, True),
    "tuples": ([(1, 2), (3,)], torch.int64, True),
    "lists and tuples": ([[1, 2], (3,)], torch.int64, True),
    "floats": ([[0.1, 1e300], [-0.0, float("nan")]], torch.float32, True),
    "bools": ([[True, False], [True]], torch.bool, True),
    "a float among ints": ([[1, 2], [3, 0.5]], torch.float32, True),
    "ints among floats": ([[0.5], [2**53 + 1, True]], torch.float32, True),
    "ints among bools": ([[True], [], [2]], torch.int64, True),
    "floats among bools": ([[True], [2.5]], torch.float32, True),
    "empty first": ([[], [1.5]], torch.float32, True),
    "all empty": ([[], []], torch.int64, True),
    "NumPy ints": ([[np.int32(1)], [np.int64(2), 3]], torch.int64, False),
    "NumPy floats": ([[np.float64(1)], [2]], torch.float32, False),
    "0-d tensors": ([[torch.tensor(1), 2], [3]], torch.int64, False),
    "a huge int among floats": ([[1.5, 2**64], [2]], torch.float32, False),
}


@pytest.mark.parametrize(("rows", "dtype", "is_covered"), LISTS.values(), ids=LISTS)
def test_lists_of_numbers(rows: list[Any], dtype: torch.dtype, is_covered: bool) -> None:
    collate = PadCollate()
    batch = both(collate, [{"x": row} for row in rows])["x"]
    assert batch.dtype is dtype
    flat: list[float] = [float(number) for row in rows for number in row]
    if dtype is torch.int64:
        flat = [int(number) for row in rows for number in row]
    mask = PadCollate(return_mask=True)([{"x": row} for row in rows])["attention_mask"]
    assert_identical(batch[mask.bool()], torch.tensor(flat, dtype=dtype))
    assert is_in_c(collate, rows) == is_covered


@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_get_the_default_dtype(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        batch = both(PadCollate(0.1), [[0.1, 2], [0.3]])
    finally:
        torch.set_default_dtype(before)
    assert_identical(batch, torch.tensor([[0.1, 2], [0.3, 0.1]], dtype=default))


def _unaligned() -> Any:
    return np.frombuffer(b"\0" + np.arange(5, dtype=np.int32).tobytes(), np.uint8)[1:].view("i4")


STRIDED: dict[str, Callable[[], Any]] = {
    "every second": lambda: np.arange(10, dtype=np.int16)[::2],
    "backwards": lambda: np.arange(5, dtype=np.uint8)[::-1],
    "read-only": lambda: np.frombuffer(np.arange(5, dtype=np.int32).tobytes(), np.int32),
    "unaligned": _unaligned,
    "a column": lambda: torch.arange(15, dtype=torch.int32).view(5, 3)[:, 1],
    "repeated": lambda: torch.ones(1, dtype=torch.int8).expand(4),
    "one": lambda: np.arange(3, dtype=np.uint32)[:1],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("name", ["input_ids", "x"])
def test_arrays_of_any_strides(make: Callable[[], Any], name: str) -> None:
    value = make()
    plain = value.tolist()
    batch = both(PadCollate(), [{name: value}, {name: value[:1]}])[name]
    assert batch.tolist() == [plain, plain[:1] + [0] * (len(plain) - 1)]
    kept = getattr(torch, str(value.dtype).removeprefix("torch."))
    assert batch.dtype is (torch.int64 if name == "input_ids" else kept)
    assert is_in_c(PadCollate(), [value])


@pytest.mark.parametrize("dtype", DTYPES[:-2], ids=str)
def test_integers_of_known_names_come_out_as_int64(dtype: torch.dtype) -> None:
    most = torch.tensor([1] if dtype.is_floating_point or dtype is torch.bool else [-1])
    row = most.to(dtype)
    is_integer = not dtype.is_floating_point and dtype is not torch.bool
    for name in ("input_ids", "token_type_ids", "special_tokens_mask"):
        batch = both(PadCollate(), [{name: row}, {name: row[:0]}])[name]
        assert batch.dtype is (torch.int64 if is_integer else dtype)
        assert batch[0, 0] == (row.to(torch.int64) if is_integer else row)[0]


def test_padding_values_by_name() -> None:
    names = (
        "input_ids labels attention_mask token_type_ids position_ids special_tokens_mask "
        "decoder_input_ids other"
    ).split()
    samples: list[Any] = [{name: [3] for name in names}, {name: [] for name in names}]
    batch = both(PadCollate(5), samples)
    assert [batch[name][1].item() for name in names] == [5, -100, 0, 0, 0, 1, 5, 5]
    batch = both(PadCollate({"labels": -1, "token_type_ids": 2, "other": 9}), samples)
    assert [batch[name][1].item() for name in names] == [0, -1, 0, 2, 0, 1, 0, 9]
    batch = both(PadCollate({1: 9}), [([1], [2]), ([], [])])
    assert [part[1].item() for part in batch] == [0, 9]
    assert both(PadCollate({0: 8}), [[1], []]).tolist() == [[1], [8]]


def test_mask_and_lengths_are_of_the_main_field() -> None:
    samples = [{"x": [9], "input_ids": [1, 2], "n": 3}, {"x": [9, 9, 9], "input_ids": [1], "n": 4}]
    batch = both(PadCollate(return_mask=True, return_lengths=True), samples)
    assert list(batch) == ["x", "input_ids", "n", "attention_mask", "lengths"]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["lengths"].tolist() == [2, 1]
    assert batch["x"].shape == (2, 3)
    assert_identical(batch["n"], torch.tensor([3, 4]))
    batch = both(PadCollate(return_mask="m", return_lengths="l"), [{"y": 1, "x": [9]}])
    assert list(batch) == ["y", "x", "m", "l"]
    batch = both(PadCollate(return_mask=True, return_lengths=True), [(3, [1, 2], [5])])
    assert [part.tolist() for part in batch] == [[3], [[1, 2]], [[5]], [[1, 1]], [2]]


def test_a_mask_of_the_samples_is_kept() -> None:
    samples = [{"x": [1, 2], "attention_mask": [0, 1], "lengths": 7}]
    samples.append({"x": [1], "attention_mask": [1], "lengths": 8})
    batch = both(PadCollate(9, return_mask=True, return_lengths=True), samples)
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 0]]
    assert batch["lengths"].tolist() == [7, 8]
    masks = [{"x": [1, 2], "m": np.array([1, 1], np.int8)}, {"x": [1], "m": np.array([1], np.int8)}]
    batch = both(PadCollate(9, return_mask="m"), masks)
    assert_identical(batch["m"], torch.tensor([[1, 1], [1, 0]]))


@pytest.mark.parametrize("collate", [PadCollate(), PackCollate()], ids=repr)
def test_label_comes_out_as_labels_beside_input_ids(collate: Any) -> None:
    for key in ("label", "label_ids"):
        batch = both(collate, [{key: 1, "input_ids": [1]}, {key: 0, "input_ids": [2]}])
        assert list(batch)[:2] == ["labels", "input_ids"]
        assert batch["labels"].tolist() == [1, 0]
    both_there = {"label": 1, "label_ids": 2, "input_ids": [1]}
    assert list(both(collate, [both_there]))[:3] == ["labels", "label_ids", "input_ids"]
    kept = {"label": 1, "labels": [2], "input_ids": [1]}
    assert list(both(collate, [kept]))[:3] == ["label", "labels", "input_ids"]
    assert "label" in both(collate, [{"label": 1, "x": [1]}])
    sequences = [{"label": [1, 2], "input_ids": [3, 4]}, {"label": [1], "input_ids": [3]}]
    assert both(PadCollate(), sequences)["labels"].tolist() == [[1, 2], [1, -100]]


Pair = namedtuple("Pair", "x y")
SAMPLES: dict[str, tuple[list[Any], list[Any]]] = {
    "tuples": ([([1, 2], 3), ([4], 5)], [[[1, 2], [4, 0]], [3, 5]]),
    "lists of fields": ([[[1, 2], 3], [[4], 5]], [[[1, 2], [4, 0]], [3, 5]]),
    "a number first": ([[3, [1, 2]], [5, [4]]], [[3, 5], [[1, 2], [4, 0]]]),
    "named tuples": ([Pair([1, 2], 3), Pair([4], 5)], [[[1, 2], [4, 0]], [3, 5]]),
    "tuples of tuples": ([((1, 2), 3), ((4,), 5)], [[[1, 2], [4, 0]], [3, 5]]),
    "arrays in tuples": (
        [(np.arange(2), torch.arange(1)), (np.arange(1), torch.arange(2))],
        [[[0, 1], [0, 0]], [[0, 0], [0, 1]]],
    ),
}


@pytest.mark.parametrize(("samples", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_kinds_of_samples(samples: list[Any], expected: list[Any]) -> None:
    batch = both(PadCollate(), samples)
    assert isinstance(batch, list)
    assert [part.tolist() for part in batch] == expected


def test_bare_sequences_and_mappings() -> None:
    for rows in (X, [np.array(row, int) for row in X], list(map(torch.LongTensor, X))):
        assert both(PadCollate(), rows).tolist() == padded_by_hand(X)[0]
    assert both(PadCollate(), [[], [1.5]]).tolist() == [[0.0], [1.5]]
    batch = both(PadCollate(), [UserDict(x=[1]), UserDict(x=[2, 3])])
    assert type(batch) is dict
    assert batch["x"].tolist() == [[1, 0], [2, 3]]


def test_other_fields_are_torchs() -> None:
    others = {
        "image": torch.rand(2, 3),
        "array": np.ones((2, 2), np.float32),
        "scalar": 2.5,
        "0-d": torch.tensor(3),
        "text": "abc",
        "texts": ["a", "b"],
        "dict": {"a": 1, "b": torch.ones(2)},
        "numpy": np.int16(4),
    }
    samples = [{"x": [1], **others}, {"x": [1, 2], **others}]
    batch = both(PadCollate(), samples)
    expected = default_collate([others, others])
    assert_identical({key: batch[key] for key in others}, expected)
    texts = both(PadCollate(), [([1], "a"), ([2], "b")])
    assert_identical(texts[1], default_collate([([1], "a"), ([2], "b")])[1])


def test_tensors_that_are_more_than_their_numbers() -> None:
    weight = torch.ones(3, requires_grad=True)
    batch = PadCollate()([weight, weight[:1]])
    batch.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 1, 1]
    negative = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert negative.is_neg()
    assert both(PadCollate(), [negative, torch.ones(1)]).tolist() == [[-2.0, 4.0], [1.0, 0.0]]

    class Tagged(torch.Tensor):
        pass

    tagged = torch.ones(2).as_subclass(Tagged)
    assert type(both(PadCollate(), [tagged, tagged[:1]])) is Tagged


def test_a_default_device_is_respected() -> None:
    with torch.device("meta"):
        assert PadCollate()([[1], [2, 3]]).device.type == "meta"


@pytest.mark.parametrize("change", ["resized", "of another stride", "of another shape", "gone"])
def test_what_changes_between_looking_and_writing_is_left_to_torch(change: str) -> None:
    """`fill` stands for all Python code that may run where objects are made."""
    values = [torch.arange(300_000), torch.arange(5)]

    def fill(number: int) -> bytes:
        if change == "resized":
            values[0].resize_(3_000_000)
        elif change == "of another stride":
            values[0].as_strided_((300_000,), (0,))
        elif change == "of another shape":
            values[0].unsqueeze_(0)
        else:
            values[0].untyped_storage().resize_(0)
        return b"\0" * (number % 256 // 8)

    core = core_of(PadCollate())
    assert core.pad(values, fill, False, False, 1, -1, False, False, 32) is NotImplemented
    values = [torch.arange(300_000), torch.arange(5)]
    packed = core.pack(values, [0, 300_000], [300_000, 5], 1, 300_005, fill, False, False, 32)
    assert packed is NotImplemented


@pytest.mark.parametrize("multiple", [2**63 - 1, 2**61, 2**60])
def test_a_width_that_no_memory_has_is_named(multiple: int) -> None:
    """Of 2**60 int64 only two rows are too many."""
    for values in ([[1], [2]], [torch.ones(1).long()] * 2):
        with pytest.raises(MemoryError, match=r"2 padded rows .* 2\^63.* pad_to_multiple_of"):
            PadCollate(pad_to_multiple_of=multiple)(values)
    with pytest.raises(MemoryError, match="out of memory for a tensor of 17592186044416 bytes"):
        PadCollate(pad_to_multiple_of=2**40)([[1], [2]])
