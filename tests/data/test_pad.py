"""PadCollate and PackCollate: what is written by C is what torch's functions make, bit for bit."""

import gc
import pickle
from collections import UserDict, namedtuple
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical
from helpers import TorchLoader, outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import Ids, Texts
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from fastloop import DataLoader, PackCollate, PadCollate
from fastloop.data.pad import SequenceCollate

X = [[1, 2, 3], [4], [], [5, 6]]
DTYPES = [
    getattr(torch, name)
    for name in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 bfloat16 float32 float64 complex64".split()
]


def by_torch(collate: SequenceCollate, samples: Any) -> Any:
    return collate.collate(None, samples)


def both(collate: SequenceCollate, samples: Any) -> Any:
    """The batch of C, which torch's functions make too."""
    batch = collate(samples)
    assert_identical(batch, by_torch(collate, samples))
    return batch


def is_in_c(collate: SequenceCollate, values: list[Any]) -> bool:
    """Whether C takes these values."""
    collate([[1]])
    core: Any = collate._own
    result = core.pad(values, lambda n: b"\0" * (n % 256 // 8), False, False, 1, -1, 0, 0, 32)
    return result is not NotImplemented


# ---- padding

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
    """Lists, mask and lengths, as docs/sequences-collate.md says."""
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
    assert is_in_c(collate, rows) == (dtype is not torch.complex64)
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


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
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


# ---- packing


def packed_by_hand(rows: list[list[int]], limit: int | None) -> dict[str, Any]:
    """As docs/sequences-collate.md says."""
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


# ---- refusals

ARGUMENTS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "side": (PadCollate, {"padding_side": "top"}, ValueError, "padding_side='top' is not 'right'"),
    "value": (PadCollate, {"padding_value": "0"}, TypeError, "padding_value is '0', a str; pass a"),
    "value of a key": (PadCollate, {"padding_value": {"x": None}}, TypeError, r"value\['x'\] is N"),
    "multiple": (PadCollate, {"pad_to_multiple_of": 0}, ValueError, "=0 is not at least 1"),
    "multiple of 1.5": (PadCollate, {"pad_to_multiple_of": 1.5}, TypeError, "=1.5 is no integer"),
    "max_length": (PadCollate, {"max_length": -1}, ValueError, "max_length=-1 is not at least 1"),
    "mask": (PadCollate, {"return_mask": 1}, TypeError, "return_mask=1 is no bool and no name"),
    "lengths": (PadCollate, {"return_lengths": ""}, TypeError, "return_lengths='' is no bool"),
    "one name": (
        PadCollate,
        {"return_mask": "x", "return_lengths": "x"},
        ValueError,
        "return_mask and return_lengths have one name, 'x'",
    ),
    "max_tokens": (PackCollate, {"max_tokens": 0}, ValueError, "max_tokens=0 is not at least 1"),
}


@pytest.mark.parametrize(("kind", "given", "error", "text"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(kind: Any, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(**given)


PAD, PACK = PadCollate(), PackCollate(4)
BATCHES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "nothing": (PAD, [], ValueError, "the batch has no samples"),
    "numbers": (PAD, [1, 2], TypeError, "sample 0 is a int; a sample is a dict or a tuple"),
    "2-D": (PAD, [np.ones((2, 3))], TypeError, r"sample 0 is a ndarray of shape \(2, 3\)"),
    "no sequence": (PAD, [{"a": 1}], TypeError, r"no field .* holds sequences \(fields: 'a'\)"),
    "no field": (PAD, [{}], TypeError, r"no field .* \(fields: none\)"),
    "a key less": (PAD, [{"x": [1]}, {"y": [1]}], KeyError, "sample 1 has no 'x', but sample 0"),
    "no dict": (PAD, [{"x": [1]}, [1]], TypeError, "sample 1 is a list, but sample 0 is a dict"),
    "no tuple": (PAD, [([1], 2), 3], TypeError, "sample 1 is a int, but sample 0 is a tuple"),
    "fewer": (PAD, [([1], 2), ([1],)], ValueError, "sample 1 has 1 fields, but sample 0 has 2"),
    "a number": (PAD, [{"x": [1]}, {"x": 5}], TypeError, "'x' of sample 1 is a int, no sequence"),
    "None": (PAD, [([1],), (None,)], TypeError, "place 0 of sample 1 is a NoneType, no sequence"),
    "2-D later": (PAD, [np.ones(2), np.ones((2, 2))], TypeError, r"ndarray of shape \(2, 2\), no"),
    "text": (PAD, [[1], [2, "a"]], TypeError, "place 0 of sample 1 cannot be a tensor"),
    "nested": (PAD, [{"x": [1, [2]]}], TypeError, "'x' of sample 0 cannot be a tensor"),
    "too large": (PAD, [{"x": [1]}, {"x": [2**63]}], TypeError, "'x' of sample 1 cannot be a te"),
    "objects": (PAD, [np.array([None])], TypeError, "place 0 of sample 0 cannot be a tensor"),
    "big-endian": (PAD, [np.ones(2, ">f4")], TypeError, "place 0 of sample 0 cannot be a tensor"),
    "dtypes": (
        PAD,
        [{"x": np.ones(2)}, {"x": np.ones(2, int)}],
        TypeError,
        "'x' of sample 1 is a ndarray of int64, but that of sample 0 is a ndarray of float64; the",
    ),
    "a list among arrays": (
        PAD,
        [np.ones(2, int), [1]],
        TypeError,
        "place 0 of sample 1 is a list of int64, but that of sample 0 is a ndarray of int64",
    ),
    "padding of a byte": (
        PadCollate(-1),
        [{"x": np.ones(2, np.uint8)}],
        ValueError,
        "padding_value=-1 is no uint8, which 'x' of sample 0 holds; pass an integer from 0 to 255",
    ),
    "half": (PadCollate(0.5), [[1]], ValueError, "padding_value=0.5 is no int64"),
    "nan": (PadCollate(float("nan")), [[1]], ValueError, "padding_value=nan is no int64"),
    "2 as a bool": (PadCollate(2), [[True]], ValueError, "padding_value=2 is no bool.*from 0 to 1"),
    "too long": (
        PACK,
        [{"input_ids": [1]}, {"input_ids": [1] * 5}],
        ValueError,
        "sample 1 of the batch has 5 tokens, more than max_tokens=4; cut it, or pass a larger",
    ),
    "lengths differ": (
        PACK,
        [{"input_ids": [1], "x": [1]}, {"input_ids": [1], "x": [1, 2]}],
        ValueError,
        "'x' of sample 1 has 2 elements, but 'input_ids' has 1; sequences of a sample",
    ),
    "no length": (PACK, [{"x": [1]}, {"x": 5}], TypeError, "'x' of sample 1 is a int, no sequence"),
    "2-D packed": (PACK, [{"x": [1]}, {"x": np.ones((1, 2))}], TypeError, "sample 1 is a ndarray"),
}


@pytest.mark.parametrize(("collate", "samples", "kind", "text"), BATCHES.values(), ids=BATCHES)
def test_batches_that_are_refused(
    collate: Any, samples: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        collate(samples)
    assert outcome(lambda: collate(samples)) == outcome(lambda: by_torch(collate, samples))


def test_too_many_tokens_for_cu_seqlens() -> None:
    row = np.broadcast_to(np.int8(1), 2**30)
    with pytest.raises(ValueError, match=r"has 2147483648 tokens, more than cu_seqlens can count"):
        PackCollate()([row, row])


def test_a_width_beyond_all_memory() -> None:
    with pytest.raises(MemoryError):
        PadCollate(pad_to_multiple_of=2**62)([[1], [2]])


# ---- memory


def test_batches_are_the_users_own() -> None:
    for collate in (PadCollate(return_mask=True), PackCollate()):
        batches = [collate([{"input_ids": [i] * 2000}, {"input_ids": [i]}]) for i in range(40)]
        for i, batch in enumerate(batches):
            assert batch["input_ids"].unique().tolist() in ([i], [0, i])
            batch["input_ids"].fill_(-1)
        tensors = [t for b in batches for t in b.values() if isinstance(t, torch.Tensor)]
        assert len({t.data_ptr() for t in tensors}) == len(tensors)


def test_memory_is_used_again() -> None:
    collate = PadCollate()
    addresses = set()
    for _ in range(20):
        batch = collate([[1] * 5000, [2]])
        addresses.add(batch.data_ptr())
        del batch
    assert len(addresses) == 1


def test_a_list_that_changes_meanwhile() -> None:
    """Python code runs while C makes the tensor: here, when the padding is asked for."""
    values = [[1, 2, 3], [4]]
    collate = PadCollate()
    collate([[1]])
    core: Any = collate._own

    def fill(number: int) -> bytes:
        values[0].clear()
        gc.collect()
        return b"\0" * 8

    assert core.pad(values, fill, False, False, 1, -1, False, False, 32) is NotImplemented


def test_the_core_refuses_places_that_do_not_fit() -> None:
    collate = PadCollate()
    collate([[1]])
    core: Any = collate._own

    def pack(starts: Any, lengths: Any, rows: int, width: int) -> None:
        core.pack([[1, 2], [3]], starts, lengths, rows, width, lambda _: b"\0" * 8, 0, 0, 32)

    pack([0, 2], [2, 1], 1, 3)
    for starts, lengths, rows, width in (
        ([0, 1], [2, 1], 1, 3),
        ([0, 3], [2, 1], 1, 3),
        ([-1, 2], [2, 1], 1, 3),
        ([0, 2], [2, 2], 1, 4),
        ([0], [2], 1, 3),
        ([0, 2.0], [2, 1], 1, 3),
        ([0, 2], [2, 1], -1, -3),
        ([0, 2], [2, 1], 2**40, 2**40),
        ([0, 2**64], [2, 1], 1, 3),
    ):
        with pytest.raises(ValueError, match=r"fit|negative"):
            pack(starts, lengths, rows, width)
    for bounds, rows, width in (([0, 2, 1, 3], 1, 3), ([1, 3], 1, 3), ([], 0, 0), ([0, 2], 1, 3)):
        with pytest.raises(ValueError, match="bounds must rise"):
            core.segments(bounds, rows, width, 1, True)
    with pytest.raises(TypeError, match="fill must return the bytes"):
        core.pad([[1]], lambda _: b"\0", False, False, 1, -1, False, False, 32)
    with pytest.raises(ValueError, match="must not be empty"):
        core.pad([], lambda _: b"\0", False, False, 1, -1, False, False, 32)
    with pytest.raises(ZeroDivisionError):
        core.pad([[1]], lambda _: b"\0" * (1 // 0), False, False, 1, -1, False, False, 32)


# ---- in loaders


COLLATES: dict[str, Callable[[], Any]] = {
    "padded": lambda: PadCollate(return_mask=True, return_lengths=True),
    "packed": PackCollate,
    "packed in rows": lambda: PackCollate(max_tokens=16),
}


@pytest.mark.parametrize("make", COLLATES.values(), ids=COLLATES)
@pytest.mark.parametrize("dataset", [Texts(), Ids()], ids=["dicts", "bare"])
@pytest.mark.parametrize("workers", [0, 2])
def test_both_loaders_give_the_same(make: Any, dataset: Any, workers: int) -> None:
    epochs = []
    for cls in (DataLoader, TorchLoader):
        torch.manual_seed(3)
        loader = cls(dataset, 8, shuffle=True, collate_fn=make(), num_workers=workers)
        epochs.append(list(loader))
    assert_identical(*epochs)
    if isinstance(dataset, Texts):
        assert sorted(i for b in epochs[0] for i in b["labels"].tolist()) == list(range(50))


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_build_batches_in_memory_of_theirs(workers: int) -> None:
    for make in COLLATES.values():
        collate = make()
        loader = DataLoader(Texts(), 8, collate_fn=collate, num_workers=workers)
        batches = list(loader)
        stats = loader.stats()
        assert stats.path == ("process" if workers else "sync")
        assert not stats.fallbacks
        assert collate._own is None
        assert not batches[0]["input_ids"].untyped_storage().resizable()


@pytest.mark.slow
def test_spawned_workers() -> None:
    collate = PadCollate(return_mask=True)
    loader = DataLoader(
        Texts(), 8, collate_fn=collate, num_workers=1, multiprocessing_context="spawn"
    )
    assert_identical(list(loader), list(TorchLoader(Texts(), 8, collate_fn=collate)))


def test_an_error_in_a_worker_says_what_is_wrong() -> None:
    loader = DataLoader(Texts(), 8, collate_fn=PackCollate(3), num_workers=1)
    with pytest.raises(ValueError, match="sample 4 of the batch has 4 tokens"):
        list(loader)


def test_pickles_and_prints() -> None:
    for collate in (PadCollate({"x": 1}, "left", 8, 5, "m", True), PackCollate(9, False)):
        collate([{"x": [1, 2]}])
        copy = pickle.loads(pickle.dumps(collate))
        assert repr(copy) == repr(collate)
        assert copy._own is None
        assert_identical(copy([{"x": [1]}, {"x": []}]), collate([{"x": [1]}, {"x": []}]))
    assert repr(PadCollate(return_mask="m")) == (
        "PadCollate(padding_value=0, padding_side='right', pad_to_multiple_of=None, "
        "max_length=None, return_mask='m', return_lengths=False)"
    )
    assert repr(PackCollate(5)) == (
        "PackCollate(max_tokens=5, return_position_ids=True, return_cu_seqlens=True)"
    )


def test_a_subclass_is_called_as_it_is() -> None:
    class Doubling(PadCollate):
        def __call__(self, samples: Any) -> Any:
            return super().__call__(samples) * 2

    batches = list(DataLoader(Ids(), 50, collate_fn=Doubling()))
    assert batches[0].max() == 10
