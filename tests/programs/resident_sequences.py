"""Sequences on a device, whose kernel runs on the CPU: batches are those of the CPU's array path,
bit for bit, of one launch each, or of two with other fields, and what does not fit together is
refused. Needs a core of tests/cuda/build_core.py."""

import ctypes
import itertools
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, RandomSampler, Subset, random_split

from fastloop import (
    ArrayDataset,
    DataLoader,
    LengthBucketBatchSampler,
    PackCollate,
    PadCollate,
    RaggedArray,
    _core,
)
from fastloop.data import columns
from fastloop.data.sequences.column import SequenceOutput

RNG = np.random.default_rng(7)
DTYPES = [
    *(torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64),
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.complex64, torch.float8_e5m2),
]
# Lengths of the sequences: of few, of some that are empty, of one, of none that has elements, of
# many short ones, and of some that several blocks make.
LENGTHS: dict[str, Any] = {
    "some": RNG.integers(0, 12, 41),
    "one": np.array([5]),
    "empty": np.zeros(9, np.int64),
    "short": RNG.integers(0, 3, 200),
    "long": RNG.integers(0, 4000, 9) * RNG.integers(0, 2, 9),
    "equal": np.full(9, 512),
}


def values(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Of any bits; of bools of two."""
    if dtype is torch.bool:
        return torch.from_numpy(RNG.integers(0, 2, count, np.uint8)).bool()
    made = torch.from_numpy(RNG.integers(0, 256, count * dtype.itemsize, np.uint8))
    return made.view(dtype)


def ragged(lengths: Any, dtype: torch.dtype, wide: bool = True) -> RaggedArray:
    """Its first sequence begins behind some values, and the last ends before the last two."""
    offsets = np.append(0, np.cumsum(lengths)) + RNG.integers(1, 9)
    made = RaggedArray(values(dtype, int(offsets[-1]) + 2), offsets.astype("i8" if wide else "i4"))
    return made


def other(array: RaggedArray, dtype: torch.dtype) -> RaggedArray:
    """Sequences of the same lengths, elsewhere among other values."""
    return ragged(array.lengths, dtype)


def datasets(lengths: Any, dtype: torch.dtype) -> dict[str, ArrayDataset]:
    first = ragged(lengths, dtype, wide=False)
    n, second = len(first), other(first, DTYPES[(DTYPES.index(dtype) + 4) % len(DTYPES)])
    y = torch.arange(n)
    return {
        "one": ArrayDataset(first),
        "named": ArrayDataset(input_ids=first, x=second, y=y, label=other(first, torch.int16)),
        "tuple": ArrayDataset(second, y.float(), torch.randn(n, 3, 2), first),
        "labels": ArrayDataset(y=y, position_ids=other(first, torch.uint8), input_ids=first),
        "masked": ArrayDataset(attention_mask=other(first, torch.bool), z=first, labels=second),
        "uneven": ArrayDataset(ragged(lengths[::-1], dtype), second),
        "table": ArrayDataset(input_ids=torch.arange(n * 9).view(n, 9).int(), w=y.short()),
    }


# Fields that hold no sequences, by name or place.
OTHERS: dict[str, set[Any]] = {"named": {"y"}, "tuple": {1, 2}, "labels": {"y"}, "table": {"w"}}
COLLATES: list[Any] = [
    PadCollate(1),
    PadCollate(0, "left", 8, 20, return_mask=True, return_lengths=True),
    PadCollate({"input_ids": 1, 0: 1}, max_length=3, return_mask="seen", return_lengths="sizes"),
    PadCollate(1, "left", return_lengths=True),
    PadCollate(0, pad_to_multiple_of=64, return_mask=True),
    PackCollate(),
    PackCollate(13),
    PackCollate(4000, return_position_ids=False),
    PackCollate(29, return_cu_seqlens=False),
]
SIZES = (1, 7, 1000)


def outcome(loader: Any) -> list[Any]:
    """An epoch, or the error in place of it, and the generator's state."""
    torch.manual_seed(3)
    found: list[Any] = []
    try:
        found += list(loader)
    except (TypeError, ValueError) as error:
        found.append((type(error), str(error)))
    return [*found, torch.get_rng_state()]


def load(dataset: Any, collate: Any, size: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, size, collate_fn=collate, **arguments)


# ---- on the CPU, before tensors are seen on a device

CASES: list[Any] = []
WHICH = itertools.cycle(itertools.product(SIZES, DTYPES))
for (kind, lengths), collate in itertools.product(LENGTHS.items(), COLLATES):
    for _ in range(2):
        size, dtype = next(WHICH)
        size = max(size, len(lengths) // 20)
        for name, data in datasets(lengths, dtype).items():
            expected = outcome(load(data, collate, size, shuffle=True))
            what = f"{kind} {dtype} {name} {size} {collate}"
            CASES.append((data, collate, size, expected, OTHERS.get(name, set()), what))
assert load(CASES[0][0], PadCollate(), 1).stats().path == "array"

DATA = datasets(LENGTHS["some"], torch.uint16)["named"]
BUCKETS = LengthBucketBatchSampler(LENGTHS["some"], 5, seed=1)
WAYS: dict[str, Any] = {
    "buckets": lambda data: {"batch_sampler": BUCKETS},
    "replaced": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, True, 99)},
    "rank 1 of 2": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, 2, 1)},
    "dropped": lambda data: {"batch_size": 4, "drop_last": True, "shuffle": True},
    "a user's": lambda data: {"batch_sampler": [[3, 1], [-1], [0, 0, 7]]},
}
PARTS: dict[str, Any] = {
    "whole": lambda data: data,
    "subset": lambda data: Subset(Subset(data, range(40, 2, -1)), [3, 3, 0, 30, 9, 8, 7, 6, 5]),
    "split": lambda data: random_split(data, [0.3, 0.7], torch.Generator().manual_seed(4))[1],
}
LISTED = [
    (part, way, collate)
    for part, way, collate in itertools.product(PARTS, WAYS, (COLLATES[1], COLLATES[6]))
    if part == "whole" or way in ("replaced", "dropped")
]


def listed(data: Any, part: str, way: str, collate: Any) -> list[Any]:
    data = PARTS[part](data)
    return outcome(DataLoader(data, collate_fn=collate, **WAYS[way](data)))


READ = [listed(DATA, *case) for case in LISTED]
SINGLES = list(TorchLoader(DATA, batch_size=None))
HALF: list[Any] = []
for collate in (COLLATES[1], COLLATES[6]):
    loader = load(DATA, collate, 4, shuffle=True, generator=torch.Generator().manual_seed(8))
    iterator = iter(loader)
    HALF.append((collate, [next(iterator) for _ in range(3)], loader.state_dict(), list(iterator)))

# ---- on the device

import as_cuda  # noqa: F401 (tensors are seen on a device from here on)

columns._RESIDENT = ("cpu",)
fake: Any = ctypes.CDLL(_core.__file__)
fake.fake_launches.restype = ctypes.c_int64
moved: dict[int, Any] = {}


def there(data: ArrayDataset) -> ArrayDataset:
    if id(data) not in moved:
        moved[id(data)] = data, data.to("cpu")
    return moved[id(data)][1]


def parts(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [*batch, *batch.values()]
    return list(batch) if isinstance(batch, (list, tuple)) else [batch]


def compare(batch: Any, expected: Any, what: str) -> None:
    assert type(batch) is type(expected), (what, batch, expected)
    pairs = list(zip(parts(batch), parts(expected), strict=True))
    for mine, theirs in pairs:
        assert type(mine) is type(theirs), (what, mine, theirs)
        if not isinstance(mine, torch.Tensor):
            assert mine == theirs, (what, mine, theirs)
            continue
        assert (mine.dtype, mine.shape, mine.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        ), (what, mine, theirs)
        bits = mine.contiguous().flatten().view(torch.uint8)
        assert torch.equal(bits, theirs.contiguous().flatten().view(torch.uint8)), (what, mine)


def compare_all(found: list[Any], expected: list[Any], what: str) -> None:
    assert len(found) == len(expected), (what, found, expected)
    for batch, wanted in zip(found, expected, strict=True):
        compare(batch, wanted, what)


def count_launches(batch: Any, others: set[Any]) -> int:
    """One for its sequences, where any have elements, and one for its other fields."""
    pairs = batch.items() if isinstance(batch, dict) else enumerate(batch)
    made = [part for key, part in pairs if isinstance(part, torch.Tensor) and key not in others]
    return any(part.numel() > 0 for part in made) + bool(others)


for data, collate, size, expected, others, what in CASES:
    loader = load(there(data), collate, size, shuffle=True)
    before = fake.fake_launches()
    compare_all(outcome(loader), expected, what)
    if not any(type(batch) is tuple for batch in expected):  # an error
        launches = sum(count_launches(batch, others) for batch in expected[:-1])
        assert fake.fake_launches() - before == launches, what
        stats = loader.stats()
        assert stats.path == "array" and "tensors on cpu" in stats.why, stats.why
for case, expected in zip(LISTED, READ, strict=True):
    compare_all(listed(there(DATA), *case), expected, str(case[:2]))
for sample, single in zip(DataLoader(there(DATA), None), SINGLES, strict=True):
    compare(sample, single, "a single sample")
for collate, _, state, rest in HALF:
    loader = load(there(DATA), collate, 4, shuffle=True, generator=torch.Generator())
    loader.load_state_dict(state)
    compare_all(list(loader), rest, "resumed")
for collate, begin, _, rest in HALF:
    loader = load(there(DATA), collate, 4, shuffle=True, generator=torch.Generator().manual_seed(8))
    kept = list(loader)  # batches may be kept
    compare_all(kept, [*begin, *rest], "kept")

# ---- memory that stays, and what is refused

both, collate = there(DATA), PadCollate(pad_to_multiple_of=64)
static = [
    {key: (part.data_ptr(), part.clone()) for key, part in batch.items()}
    for batch in load(both, collate, 4, device="cpu", static_buffers=True, drop_last=True)
]
for batch, expected in zip(static, load(both, collate, 4, drop_last=True), strict=True):
    assert {key: place for key, (place, _) in batch.items()} == {
        key: place for key, (place, _) in static[0].items()
    }
    compare({key: part for key, (_, part) in batch.items()}, expected, "static buffers")

offsets, numbers = np.array([0, 2, 5, 9]), torch.arange(9).short()
element = numbers[:1].view(torch.uint8).numpy().tobytes()


def column(output: str = "padded", given: Any = numbers, **more: Any) -> _core.SequenceColumn:
    more.setdefault("padding", bytes(given.itemsize))
    return _core.SequenceColumn(torch.Tensor, offsets, given, SequenceOutput(output, **more))


def send(pieces: torch.Tensor) -> torch.Tensor:
    return pieces.clone()


def empties(**kinds: Any) -> dict[int, Any]:
    made = {"dtype": torch.int16, **kinds}
    return {16: lambda shape: torch.empty(made.get("shape", shape), dtype=made["dtype"])}


def refuse(text: str, function: Any, *arguments: Any) -> None:
    before = fake.fake_launches()
    try:
        function(*arguments)
        raise AssertionError(text)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    assert fake.fake_launches() == before


class Batches:
    """A Gatherer of columns of sequences alone."""

    def __init__(self, columns_of: Any) -> None:
        self._columns = columns_of
        self._open(send, {})

    def _open(self, *sequences: Any) -> _core.Gatherer:
        structure, memory = (None,) * len(self._columns), (None, torch.empty_like)
        return _core.Gatherer(torch.Tensor, memory, structure, self._columns, 0, sequences)

    def make(self, rows: Any, *sequences: Any) -> Any:
        gatherer = self._open(*sequences)
        gatherer.set_rows(torch.zeros(9, dtype=torch.int64), 9)
        return gatherer.take(0, len(rows), 0, False, rows)


batches = Batches((column(),))
rows = np.array([2, 0])
(made,) = batches.make(rows, send, empties())
assert made.tolist() == [[5, 6, 7, 8], [0, 1, 0, 0]]
lengths, padded = Batches((column("lengths", padding=b""), column())).make(
    rows, send, {**empties(), 64: lambda s: torch.empty(s, dtype=torch.int64)}
)
assert lengths.tolist() == [4, 2] and torch.equal(padded, made)
packed = column("packed", main=offsets)
COLUMNS: list[Any] = [(column(), packed), (column(given=numbers.numpy()),)]
COLUMNS.append((column(given=torch.zeros(9, dtype=torch.complex128)),))
for columns_of in COLUMNS:
    refuse(
        "columns must all pad or all pack",
        lambda c=columns_of: Batches(c),
    )
for wrong in (rows.astype("i4"), np.array([3]), np.array([-1]), rows[::-1], rows.reshape(1, 2)):
    refuse("rows must be a contiguous vector", batches.make, wrong, send, empties())
for wrong_send in (lambda pieces: pieces[1:], lambda pieces: pieces.int()):
    refuse("send must return a copy", batches.make, rows, wrong_send, empties())
refuse("must be a torch.Tensor", batches.make, rows, lambda pieces: None, empties())
for kinds in ({"dtype": torch.int32}, {"shape": (2, 3)}, {"shape": (8,)}):
    refuse("empties must make tensors", batches.make, rows, send, empties(**kinds))
refuse("must have values on the CPU", _core.Table, torch.Tensor, ((column(), "x", None),))
for output in ("padded", "packed"):
    columns_of = tuple(column(output, each, main=offsets) for each in (numbers, numbers[:8]))
    changed = Batches(columns_of)
    refuse("of 8 values; the offsets have been changed", changed.make, rows, send, empties())
numbers.resize_(8)
refuse("the values must keep their 9 elements", batches.make, rows, send, empties())
numbers.resize_(9)
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
fake.fake_fail_at(2, 719, False)
try:
    batches.make(rows, send, empties())
    raise AssertionError("a launch that failed was not told")
except torch.AcceleratorError as error:
    assert "cudaErrorLaunchFailure" in str(error)
