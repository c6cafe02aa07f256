"""Sequences of an ArrayDataset on the array path: the same batches as of the collate over samples,
bit for bit, in each epoch, from every kind of memory, and the same errors."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import N, TorchLoader, assert_same
from helpers import epoch as items_of
from torch.utils.data import (
    BatchSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop import (
    ArrayDataset,
    DataLoader,
    PackCollate,
    PadCollate,
    RaggedArray,
    ShuffleSampler,
    _core,
)
from fastloop.data.sequences.column import SequenceOutput
from fastloop.loader.arrays.iterator import ArrayConfig

LENGTHS = np.random.default_rng(4).integers(0, 30, N)
LENGTHS[[0, 7, 8]] = 0, 1, 29
OFFSETS = np.append(0, np.cumsum(LENGTHS)) + 2
TOTAL = int(OFFSETS[-1]) + 3
VALUES = np.random.default_rng(5).integers(-100, 100, TOTAL)


def ragged(dtype: Any = np.int64, offsets: Any = OFFSETS) -> RaggedArray:
    return RaggedArray(VALUES.astype(dtype), offsets)


def tensors(dtype: torch.dtype) -> RaggedArray:
    return RaggedArray(torch.from_numpy(VALUES).to(dtype), OFFSETS)


Y = np.arange(N)
DATASETS: dict[str, Any] = {
    "one": lambda: ArrayDataset(input_ids=ragged()),
    "int32": lambda: ArrayDataset(input_ids=ragged(np.int32, OFFSETS.astype(np.int32)), label=Y),
    "masked": lambda: ArrayDataset(
        input_ids=ragged(np.uint16), attention_mask=ragged(np.uint8), labels=ragged(np.int8)
    ),
    "no names": lambda: ArrayDataset(x=ragged(np.int16), label=ragged(np.float64)),
    "places": lambda: ArrayDataset(ragged(np.uint8), Y.astype(np.float32), ragged(np.bool_)),
    "one place": lambda: ArrayDataset(ragged(np.float16)),
    "tensors": lambda: ArrayDataset(
        input_ids=tensors(torch.int32), scores=tensors(torch.bfloat16), z=tensors(torch.complex64)
    ),
    "positions": lambda: ArrayDataset(position_ids=ragged(np.uint32), input_ids=ragged()),
    "unsigned": lambda: ArrayDataset(labels=ragged(np.uint64), lengths=Y),
    "images": lambda: ArrayDataset(Y.repeat(12).reshape(N, 2, 2, 3), ragged()),
    "pieces": lambda: ArrayDataset(
        input_ids=RaggedArray(np.concatenate([VALUES, VALUES]), np.append(0, OFFSETS))[1:], y=Y
    ),
}
COLLATES: dict[str, Any] = {
    "pad": lambda: PadCollate(),
    "all": lambda: PadCollate(1, "left", 8, 20, return_mask=True, return_lengths=True),
    "named": lambda: PadCollate(
        {"input_ids": 5, 0: 1, 2: 1}, max_length=9, return_mask="seen", return_lengths="sizes"
    ),
    "pack": lambda: PackCollate(),
    "rows": lambda: PackCollate(max_tokens=33),
    "bare rows": lambda: PackCollate(64, return_position_ids=False, return_cu_seqlens=False),
}


def load(
    dataset: Any, collate: Any, workers: int = 0, path: str = "array", **more: Any
) -> DataLoader[Any]:
    return DataLoader(dataset, collate_fn=collate, num_workers=workers, path=path, **more)


def check(dataset: Any, collate: Any, workers: int, epochs: int = 1, **more: Any) -> None:
    """Against torch's loader with the same collate."""
    theirs = TorchLoader(dataset, collate_fn=collate, **more)
    ours = load(dataset, collate, workers, **more)
    for epoch in range(epochs):
        torch.manual_seed(epoch)
        wanted = list(theirs)
        torch.manual_seed(epoch)
        got = list(ours)
        assert len(got) == len(wanted) > 0
        for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
            assert_same(a, b, f"batch {k}")
    ours.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", COLLATES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_batches_are_those_of_the_collate(dataset: str, collate: str, workers: int) -> None:
    check(DATASETS[dataset](), COLLATES[collate](), workers, batch_size=7, shuffle=True)


@pytest.mark.parametrize("collate", ["all", "rows"])
def test_rows_of_equal_length_are_sequences_too(collate: str) -> None:
    table = np.arange(N * 9, dtype=np.int32).reshape(N, 9)
    for values in (table, torch.from_numpy(table), np.zeros((N, 0))):
        check(ArrayDataset(input_ids=values, y=Y), COLLATES[collate](), 1, batch_size=6)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", ["all", "rows"])
def test_epochs_subsets_and_samplers(collate: str, workers: int) -> None:
    dataset = DATASETS["int32"]()
    check(dataset, COLLATES[collate](), workers, epochs=3, batch_size=8, shuffle=True)
    part = Subset(Subset(dataset, list(range(40, 2, -1))), [3, 3, 0, 30, 9])
    check(part, COLLATES[collate](), workers, batch_size=2, drop_last=True)
    sampler: Any = DistributedSampler(dataset, 2, 1)
    check(dataset, COLLATES[collate](), workers, batch_size=4, sampler=sampler)
    batches: Any = BatchSampler(SequentialSampler(dataset), 9, False)
    check(dataset, COLLATES[collate](), workers, batch_sampler=batches)
    lists: Any = [[1], [4, 4, 4], [-1, 0]]
    check(dataset, COLLATES[collate](), workers, batch_sampler=lists)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_without_batches(workers: int) -> None:
    """As they are: of their own length, and of their dtype."""
    for name in ("int32", "places", "tensors"):
        dataset = DATASETS[name]()
        theirs = TorchLoader(dataset, batch_size=None, shuffle=True)
        ours = DataLoader(dataset, batch_size=None, shuffle=True, num_workers=workers, path="array")
        torch.manual_seed(1)
        wanted = list(theirs)
        torch.manual_seed(1)
        for a, b in zip(ours, wanted, strict=True):
            assert_same(a, b)


SAMPLERS: dict[str, Any] = {
    "shuffle": lambda dataset: ShuffleSampler(dataset, seed=4),
    "ranks": lambda dataset: DistributedSampler(dataset, 2, 1),
    "weights": lambda dataset: WeightedRandomSampler([1.0] * len(dataset), 9),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_samples_without_batches_by_samplers_of_ints(kind: str, workers: int) -> None:
    """In the middle of the epoch, too."""
    dataset = DATASETS["int32"]()
    sampler = SAMPLERS[kind](dataset)
    wanted = items_of(TorchLoader(dataset, batch_size=None, sampler=sampler))
    loader = DataLoader(dataset, None, sampler=sampler, num_workers=workers, path="array")
    assert_same(items_of(loader), wanted)
    torch.manual_seed(3)
    it = iter(loader)
    for _ in range(4):
        next(it)
    state = loader.state_dict()
    del it
    loader.load_state_dict(state)
    assert_same(items_of(loader), wanted[4:])


@pytest.mark.parametrize("collate", ["all", "rows"])
def test_an_epoch_goes_on_in_its_middle(collate: str) -> None:
    dataset = DATASETS["int32"]()
    loader = load(dataset, COLLATES[collate](), 2, batch_size=8, shuffle=True)
    torch.manual_seed(3)
    it = iter(loader)
    for _ in range(3):
        next(it)
    state = loader.state_dict()
    rest = list(it)
    again = load(dataset, COLLATES[collate](), 0, batch_size=8, shuffle=True)
    again.load_state_dict(state)
    assert_same(list(again), rest)


def test_batches_stay_as_they_are() -> None:
    """Memory that is held is not written again, and sizes differ from batch to batch."""
    dataset, collate = DATASETS["masked"](), COLLATES["all"]()
    wanted = list(TorchLoader(dataset, batch_size=3, collate_fn=collate))
    kept = list(load(dataset, collate, 2, batch_size=3))
    gc.collect()
    assert_same(kept, wanted)


def make_column(
    kind: str, offsets: Any = OFFSETS, values: Any = VALUES, **config: Any
) -> _core.SequenceColumn:
    return _core.SequenceColumn(torch.Tensor, offsets, values, SequenceOutput(kind, **config))


def test_one_sample_keeps_the_dimensions_that_count_no_samples() -> None:
    columns = (
        make_column("positions", main=OFFSETS),
        make_column("bounds", main=OFFSETS, leader=1),
        make_column("longest", main=OFFSETS, leader=2),
        make_column("mask"),
    )
    table = _core.Table(torch.Tensor, tuple((column, "", None) for column in columns))
    pool = _core.BatchPool(table.outputs)
    loader = _core.ArrayLoader(table, pool, ArrayConfig((None,) * 4))
    loader.restart([8], 2, None)
    bounds, mask = torch.tensor([0, 29], dtype=torch.int32), torch.ones(29, dtype=torch.int64)
    assert_same(next(loader), [torch.arange(29)[None], bounds, 29, mask])


WRONG_COLUMNS: dict[str, tuple[str, dict[str, Any], str]] = {
    "output": ("sum", {}, "output must be .*, got sum"),
    "offsets": ("mask", {"offsets": OFFSETS.astype(np.int16)}, "must be int32 or int64"),
    "no offsets": ("mask", {"offsets": OFFSETS[:0]}, "at least one"),
    "triples": ("mask", {"offsets": np.zeros((4, 3), np.int64)}, "or contiguous pairs"),
    "ignored": (
        "padded",
        {"values": VALUES / 2, "ignored": 0},
        "ignored must be None, unless",
    ),
    "strides": ("padded", {"values": VALUES[::2]}, "values must be a contiguous vector"),
    "padding": ("padded", {"padding": bytes(4)}, "must be an element"),
    "widened": ("padded", {"values": VALUES / 2, "is_int64": True}, "must be an element"),
    "multiple": ("mask", {"multiple": 0}, "at least 1"),
    "main": ("packed", {"main": OFFSETS[1:]}, "main must have the length"),
    "leader": (
        "packed",
        {"main": OFFSETS, "leader": -1},
        "leader and max_tokens must be at least 0",
    ),
}


@pytest.mark.parametrize("case", WRONG_COLUMNS)
def test_columns_that_cannot_be(case: str) -> None:
    output, changed, text = WRONG_COLUMNS[case]
    with pytest.raises(ValueError, match=text):
        make_column(output, **{"padding": bytes(8), **changed})


def test_a_device_knows_no_ignored_values() -> None:
    column = make_column("padded", padding=bytes(8), ignored=3)
    with pytest.raises(ValueError, match="without ignored values"):
        _core.Gatherer(torch.Tensor, (None, None), None, (column,), 0, (None, None))


# ---- mapped files


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", ["all", "rows"])
def test_values_of_a_file(tmp_path: Path, collate: str, workers: int) -> None:
    np.save(tmp_path / "v.npy", VALUES.astype(np.int32))
    path = str(tmp_path / "v.npy")
    dataset = ArrayDataset(input_ids=RaggedArray(path, OFFSETS), y=Y)
    check(dataset, COLLATES[collate](), workers, batch_size=7, shuffle=True)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", ["pad", "pack"])
def test_a_file_that_becomes_shorter(tmp_path: Path, collate: str, workers: int) -> None:
    path = str(tmp_path / "v.npy")
    np.save(path, np.zeros(100_000))
    size = os.path.getsize(path)
    dataset = ArrayDataset(x=RaggedArray(path, np.arange(0, 100_001, 1000)))
    for kept, bad in ((16384, 2), (size - 8, 99)):
        with open(path, "r+b") as file:
            file.truncate(size)
        loader = load(dataset, COLLATES[collate](), workers, batch_size=1)
        it = iter(loader)
        next(it)
        os.truncate(path, kept)
        with pytest.raises(OSError, match=rf"field 'x', row {bad} .*become shorter") as error:
            for _ in it:
                pass
        assert error.value.filename == path


# ---- errors, and what is left to other paths


def test_what_cannot_be_packed_is_the_collates_error() -> None:
    short = RaggedArray(VALUES, np.append(OFFSETS[:-1], OFFSETS[-1] - 1))
    for dataset, collate in (
        (DATASETS["int32"](), PackCollate(max_tokens=28)),
        (ArrayDataset(input_ids=ragged(), tags=short), PackCollate()),
        (ArrayDataset(ragged(), short), PackCollate(max_tokens=100)),
    ):
        texts = []
        for path in ("sync", "array"):
            with pytest.raises(ValueError) as error:
                list(load(dataset, collate, path=path, batch_size=8))
            texts.append(str(error.value))
        assert texts[0] == texts[1]


class Padder(PadCollate):
    pass


STRIDED = RaggedArray(np.repeat(VALUES, 2)[::2], OFFSETS)
LEFT_TO_OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "default collate": (DATASETS["one"], {}, "pass PadCollate or PackCollate"),
    "subclass": (DATASETS["one"], {"collate_fn": Padder()}, "collate_fn is not torch's default"),
    "no batches": (DATASETS["one"], {"collate_fn": PadCollate(), "batch_size": None}, "collate_fn"),
    "no sequences": (
        lambda: ArrayDataset(Y),
        {"collate_fn": PadCollate()},
        "samples must have a field with",
    ),
    "value": (
        DATASETS["masked"],
        {"collate_fn": PadCollate({"labels": 0.5})},
        "must be an int in .* for int64, got 0.5",
    ),
    "strides": (lambda: ArrayDataset(STRIDED), {"collate_fn": PadCollate()}, "not contiguous"),
    "tensors": (
        lambda: TensorDataset(torch.zeros(9, 2)),
        {"collate_fn": PackCollate()},
        "the array path of PackCollate needs an ArrayDataset, got a TensorDataset",
    ),
    "lists": (DATASETS["one"], {"batch_size": None, "sampler": [[0, 1]]}, "do not index a Ragged"),
    "name": (
        lambda: ArrayDataset(x=ragged(), max_length_q=Y),
        {"collate_fn": PackCollate()},
        "the name of a field and of an output",
    ),
}


@pytest.mark.parametrize("case", LEFT_TO_OTHERS)
def test_what_is_left_to_other_paths(case: str) -> None:
    make, arguments, text = LEFT_TO_OTHERS[case]
    dataset = make()
    with pytest.raises(ValueError, match=text):
        iter(DataLoader(dataset, path="array", **arguments))
    loader = DataLoader(dataset, **arguments)
    theirs = TorchLoader(dataset, **arguments)
    try:
        wanted = list(theirs)
    except Exception as error:
        with pytest.raises(type(error)):
            list(loader)
    else:
        assert_same(list(loader), wanted)
    assert loader.stats().path == "sync"


def test_stats_say_why() -> None:
    loader = load(DATASETS["one"](), PadCollate(), path="auto", batch_size=4)
    list(loader)
    assert loader.stats().path == "array"
    assert "PadCollate" in loader.stats().why


def test_the_storage_of_values_cannot_be_resized_while_they_are_read() -> None:
    values = torch.arange(1000)
    loader = load(ArrayDataset(RaggedArray(values, np.arange(0, 1001, 10))), PadCollate())
    it = iter(loader)
    next(it)
    with pytest.raises(RuntimeError, match="not resizable"):
        values.resize_(100_000)
    next(it)
