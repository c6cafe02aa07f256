"""What PadCollate and PackCollate refuse, and what their batches are in memory and in loaders."""

import gc
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical
from helpers import TorchLoader, outcome
from sequence_collates import by_torch, core_of
from texts import Ids, Texts

from fastloop import DataLoader, PackCollate, PadCollate

# ---- refusals

ARGUMENTS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "side": (PadCollate, {"padding_side": "top"}, ValueError, "one of 'right', 'left', got 'top'"),
    "value": (
        PadCollate,
        {"padding_value": "0"},
        TypeError,
        "padding_value must be a number, .*got '0'",
    ),
    "value of a key": (
        PadCollate,
        {"padding_value": {"x": None}},
        TypeError,
        "padding_value must .*{'x': None}",
    ),
    "multiple": (PadCollate, {"pad_to_multiple_of": 0}, ValueError, "an int >= 1, got 0"),
    "multiple of 1.5": (PadCollate, {"pad_to_multiple_of": 1.5}, TypeError, "an int >= 1, got 1.5"),
    "multiple of True": (PadCollate, {"pad_to_multiple_of": True}, TypeError, ">= 1, got True"),
    "max_length": (
        PadCollate,
        {"max_length": -1},
        ValueError,
        "max_length must be an int >= 1, got -1",
    ),
    "mask": (
        PadCollate,
        {"return_mask": 1},
        TypeError,
        "return_mask must be True, False or a name, got 1",
    ),
    "lengths": (PadCollate, {"return_lengths": ""}, TypeError, "return_lengths must be .*got ''"),
    **{
        f"max_tokens={wrong}": (
            PackCollate,
            {"max_tokens": wrong},
            ValueError,
            rf"max_tokens must be an int in \[1, 2147483647\], got {wrong}",
        )
        for wrong in (0, 2**31, 2**64)
    },
}


@pytest.mark.parametrize(("kind", "given", "error", "text"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(kind: Any, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(**given)


PAD, PACK = PadCollate(), PackCollate(4)
BATCHES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "nothing": (PAD, [], ValueError, "the batch has no samples"),
    "numbers": (PAD, [1, 2], TypeError, "sample 0 must be a dict or a tuple .*got a int"),
    "2-D": (PAD, [np.ones((2, 3))], TypeError, r"sample 0 must .*got a ndarray of shape \(2, 3\)"),
    "no sequence": (
        PAD,
        [{"a": 1}],
        TypeError,
        r"samples must have a field with .*, got fields \['a'\]",
    ),
    "no field": (PAD, [{}], TypeError, r"samples must have a field with .*, got fields \[\]"),
    "a key less": (
        PAD,
        [{"x": [1]}, {"y": [1]}],
        KeyError,
        "sample 1 must be a dict with .*'x.*, got a dict",
    ),
    "no dict": (PAD, [{"x": [1]}, [1]], TypeError, "sample 1 must be a dict with 'x'.* got a list"),
    "no tuple": (
        PAD,
        [([1], 2), 3],
        TypeError,
        "sample 1 must be a tuple or list of 2 .*got a int",
    ),
    "fewer": (
        PAD,
        [([1], 2), ([1],)],
        ValueError,
        "sample 1 must be .* of 2 fields, .*got 1 fields",
    ),
    "a number": (
        PAD,
        [{"x": [1]}, {"x": 5}],
        TypeError,
        "'x' of sample 1 must be a list of numbers, .*a int",
    ),
    "None": (
        PAD,
        [([1],), (None,)],
        TypeError,
        "item 0 of sample 1 must be a list of .*NoneType",
    ),
    "2-D later": (
        PAD,
        [np.ones(2), np.ones((2, 2))],
        TypeError,
        r"must be a list of .* of shape \(2, 2\)",
    ),
    "text": (PAD, [[1], [2, "a"]], TypeError, "item 0 of sample 1 cannot be a tensor"),
    "nested": (PAD, [{"x": [1, [2]]}], TypeError, "'x' of sample 0 cannot be a tensor"),
    "too large": (PAD, [{"x": [1]}, {"x": [2**63]}], TypeError, "'x' of sample 1 cannot be a te"),
    "objects": (PAD, [np.array([None])], TypeError, "item 0 of sample 0 cannot be a tensor"),
    "big-endian": (PAD, [np.ones(2, ">f4")], TypeError, "item 0 of sample 0 cannot be a tensor"),
    "dtypes": (
        PAD,
        [{"x": np.ones(2)}, {"x": np.ones(2, int)}],
        TypeError,
        "'x' of sample 1 must be a ndarray of float64, as in sample 0, got a ndarray of int",
    ),
    "a list among arrays": (
        PAD,
        [np.ones(2, int), [1]],
        TypeError,
        "item 0 of sample 1 must be a ndarray of int64, as in sample 0, got a list of int",
    ),
    "padding of a byte": (
        PadCollate(-1),
        [{"x": np.ones(2, np.uint8)}],
        ValueError,
        "the padding of 'x' of sample 0 must be an int in .0, 255. for uint8, got -1 .or give",
    ),
    "half": (PadCollate(0.5), [[1]], ValueError, "must be an int in .* for int64, got 0.5"),
    "nan": (
        PadCollate(float("nan")),
        [[1]],
        ValueError,
        "must be an int in .* for int64, got nan",
    ),
    "2 as a bool": (
        PadCollate(2),
        [[True]],
        ValueError,
        "must be an int in .0, 1. for bool, got 2",
    ),
    "too long": (
        PACK,
        [{"input_ids": [1]}, {"input_ids": [1] * 5}],
        ValueError,
        "sample 1 of the batch must have at most max_tokens=4 tokens, got 5 .cut the sample",
    ),
    "lengths differ": (
        PACK,
        [{"input_ids": [1], "x": [1]}, {"input_ids": [1], "x": [1, 2]}],
        ValueError,
        "'x' of sample 1 must have 1 elements, as 'input_ids' has, got 2",
    ),
    "no length": (
        PACK,
        [{"x": [1]}, {"x": 5}],
        TypeError,
        "'x' of sample 1 must be a list of numbers, .*a int",
    ),
    "2-D packed": (
        PACK,
        [{"x": [1]}, {"x": np.ones((1, 2))}],
        TypeError,
        "sample 1 must be a list of numbers",
    ),
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
    with pytest.raises(
        ValueError, match=r"at most 2147483647 tokens, as cu_seqlens counts, got 2147483648"
    ):
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
    core = core_of(PadCollate())

    def fill(number: int) -> bytes:
        values[0].clear()
        gc.collect()
        return b"\0" * 8

    assert core.pad(values, fill, False, False, 1, -1, False, False, 32) is NotImplemented


@pytest.mark.parametrize("values", [[[1000], [2, 3]], [torch.ones(1), torch.ones(2)], [[1], "no"]])
def test_the_core_keeps_no_references_to_values(values: list[Any]) -> None:
    core = core_of(PadCollate())

    def counts() -> list[int]:
        return [sys.getrefcount(value) for value in values]

    before = counts()
    for _ in range(3):
        core.pad(values, lambda number: b"\0" * (number % 256 // 8), 0, 0, 1, -1, 1, 1, 32)
    assert counts() == before


def test_the_core_refuses_places_that_do_not_fit() -> None:
    core = core_of(PadCollate())

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
        with pytest.raises(ValueError, match=r"fit|at least 0"):
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
def test_workers_of_a_fork_server() -> None:
    collate = PadCollate(return_mask=True)
    loader = DataLoader(
        Texts(), 8, collate_fn=collate, num_workers=1, multiprocessing_context="forkserver"
    )
    assert_identical(list(loader), list(TorchLoader(Texts(), 8, collate_fn=collate)))


def test_an_error_in_a_worker_says_what_is_wrong() -> None:
    loader = DataLoader(Texts(), 8, collate_fn=PackCollate(3), num_workers=1)
    with pytest.raises(ValueError, match=r"sample 4 of the batch must have .* got 4"):
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
