"""ArrowDataset: the rows of Arrow columns, in Arrow's memory or its mapped files; the same batches
in both loaders; and columns and files that are refused."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same

from fastloop import ArrowDataset, DataLoader, PackCollate, PadCollate, ShuffleSampler

pa = pytest.importorskip("pyarrow")

GRID = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def make(rows: int = 40, seed: int = 0) -> Any:
    """A table with a column of every kind. Two columns have names of ArrayDataset's arguments."""
    draw = np.random.default_rng(seed)
    lists = [draw.integers(0, 99, draw.integers(0, 9)).tolist() for _ in range(rows)]
    sizes = pa.array(draw.integers(0, 9, 6 * rows), pa.int16())
    pairs = pa.FixedSizeListArray.from_arrays(sizes, 2)
    return pa.table(
        {
            "seed": pa.array(draw.integers(0, 9, rows), pa.uint8()),
            "layout": draw.random(rows),
            "half": pa.array(draw.random(rows).astype(np.float16)),
            "flag": draw.random(rows) > 0.5,
            "box": pa.FixedSizeListArray.from_arrays(pairs, 3),
            "pair": pairs[:rows],
            "input_ids": pa.array(lists, pa.list_(pa.int32())),
            "labels": pa.array(lists, pa.large_list(pa.int64())),
            "text": [f"é{number}" for number in range(rows)],
            "raw": pa.array([bytes([number % 9] * (number % 5)) for number in range(rows)]),
            "long": pa.array([f"{number}" for number in range(rows)], pa.large_string()),
        }
    )


CHUNKED = pa.concat_tables([make(30), make(8, 1)[3:3], make(20, 2)[4:17], make(9, 3)[2:]])
NUMBERS = ["seed", "layout", "half", "flag", "box"]
LISTS = ["labels", "seed", "input_ids", "layout"]


def write(path: Path, table: Any, is_stream: bool = True, **how: Any) -> str:
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(str(path), table.schema, **how) as writer:
        writer.write_table(table)
    return str(path)


def open_all(data: Any) -> ArrowDataset:
    """Open all columns, with bytes for the binary column, which would hold images."""
    return ArrowDataset(data, decode={"raw": bytes})


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in sample.items()}


def as_file(tmp_path: Path, is_stream: bool = True) -> str:
    return write(tmp_path / "a.arrow", CHUNKED, is_stream)


@pytest.mark.parametrize("part", [slice(None), slice(7, 45), slice(35, 36), slice(5, 5)])
def test_rows_are_pyarrows(part: slice) -> None:
    table = CHUNKED[part]
    data, rows = open_all(table), table.to_pylist()
    assert len(data) == len(rows)
    assert [plain(data[i]) for i in range(-len(rows), len(rows))] == rows * 2
    assert [plain(sample) for sample in data.__getitems__(range(len(rows)))] == rows
    picked = ArrowDataset(table, ["text", "box"])
    assert [plain(picked[i]) for i in range(len(rows))] == table.select(["text", "box"]).to_pylist()
    if rows:
        dtypes = {name: getattr(data[0][name], "dtype", None) for name in ("half", "flag", "box")}
        assert [*dtypes.values()] == [torch.float16, torch.bool, torch.int16]
    with pytest.raises(IndexError, match="out of bounds"):
        data[len(rows)]


@pytest.mark.parametrize("is_stream", [True, False])
def test_files_follow_one_another(tmp_path: Path, is_stream: bool) -> None:
    first = as_file(tmp_path, is_stream)
    second = write(tmp_path / "b", CHUNKED[5:20], not is_stream)
    rows = CHUNKED.to_pylist()
    assert [plain(row) for row in open_all(first)] == rows
    data = open_all([first, Path(second)])
    assert [plain(data[i]) for i in range(len(data))] == rows + rows[5:20]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    packed = open_all(write(tmp_path / "c", CHUNKED, options=options))
    assert [plain(packed[i]) for i in range(len(packed))] == rows


CASES: list[tuple[list[str], Any]] = [
    (NUMBERS, None),
    (LISTS, PadCollate(return_mask=True)),
    ([*LISTS, "box", "pair"], PadCollate(padding_side="left")),
    (LISTS[:3], PackCollate(max_tokens=16)),
    (["text", "raw", "flag"], None),
    (["text", "labels"], PadCollate()),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_both_loaders_have_the_same_batches(
    case: int, workers: int, is_mapped: bool, tmp_path: Path
) -> None:
    names, collate = CASES[case]
    decode = {"raw": bytes} if "raw" in names else "auto"
    data = ArrowDataset(as_file(tmp_path) if is_mapped else CHUNKED, names, decode=decode)
    batches = []
    for kind in (DataLoader, TorchLoader):
        sampler = ShuffleSampler(data, seed=3, num_replicas=1, rank=0)
        loader = kind(data, 7, sampler=sampler, collate_fn=collate, num_workers=workers)
        batches.append(list(loader))
        if kind is DataLoader:
            assert (loader.stats().path == "array") == ("text" not in names), loader.stats().why
    assert_same(*batches)


def test_single_samples_in_both_loaders() -> None:
    data = ArrowDataset(CHUNKED, ["labels", "box"])
    assert_same(*(list(kind(data, batch_size=None)) for kind in (DataLoader, TorchLoader)))
    with pytest.raises(RuntimeError, match=r"(?s)several lengths.*PadCollate"):
        next(iter(DataLoader(data, 4)))


def anonymous_bytes() -> int:
    with open("/proc/self/status") as lines:
        line = next(line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_columns_are_not_copied(tmp_path: Path) -> None:
    data = ArrowDataset(CHUNKED)
    values = data.column("labels").values[0]
    assert np.shares_memory(values, CHUNKED["labels"].chunk(0).values.to_numpy())
    numbers = data._sources["layout"].fields[2].source  # type: ignore[union-attr]
    assert np.shares_memory(numbers, CHUNKED["layout"].chunk(3).to_numpy())

    rows, width = 1000, 8192  # 64 MB
    ids = pa.array(np.arange(rows * width))
    lists = pa.ListArray.from_arrays(np.arange(0, rows * width + 1, width, np.int32), ids)
    path = write(tmp_path / "big", pa.table({"fixed": ids[:rows], "input_ids": lists}))
    del ids, lists
    before = anonymous_bytes()
    data = ArrowDataset(path)
    for batch in DataLoader(data, 2, collate_fn=PadCollate(), sampler=range(0, rows, 2)):
        assert int(batch["input_ids"][0, 0]) == int(batch["fixed"][0]) * width
    assert anonymous_bytes() - before < 16 << 20


def test_a_pickle_is_small_and_opens_the_files_again(tmp_path: Path) -> None:
    data = ArrowDataset(as_file(tmp_path), ["text", "labels"])
    text = pickle.dumps(data)
    assert len(text) < 1000
    again = pickle.loads(text)
    assert [plain(again[i]) for i in range(len(data))] == [plain(data[i]) for i in range(len(data))]
    assert again.explain() == data.explain() and "text: 50 strings" in data.explain()
    assert repr(ArrowDataset(CHUNKED, ["box"])) == "ArrowDataset(50 rows, box)"


# ---- a datasets.Dataset


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset(CHUNKED)
    whole.save_to_disk(tmp_path / "saved")
    mapped = datasets.load_from_disk(str(tmp_path / "saved"))
    some = mapped.shuffle(seed=1).select(range(3, 41)).with_format("torch")
    for given in (whole, mapped, some, some.select([])):
        data = open_all(given)
        rows = given.with_format(None)[:]
        assert len(data) == len(given)
        assert [plain(data[i]) for i in range(len(data))] == [
            dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)
        ]
    data = ArrowDataset(some, LISTS)
    assert data._sources["labels"].file[0].startswith(str(tmp_path))  # type: ignore[union-attr, index]
    assert [row.tolist() for row in data.column("labels")] == some.with_format(None)["labels"][:]
    for names, collate in (CASES[0], CASES[1], CASES[3]):
        batches = []
        for kind in (DataLoader, TorchLoader):
            loader = kind(ArrowDataset(some, names), 5, collate_fn=collate)
            batches.append(list(loader))
        assert_same(*batches)
    again = pickle.loads(pickle.dumps(data))
    assert plain(again[4]) == plain(data[4])


# ---- bad input


CAST: dict[str, Any] = {
    "words of a dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "a string view": pa.array(["a", "b"], pa.string_view()),
    "a binary view": pa.array([b"a", b"b"], pa.binary_view()),
    "binary values of one size": pa.array([b"a", b"b"], pa.binary(1)),
    "a tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), (2,)), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    ),
    "dates": pa.array([1, 2], pa.date32()),
    "times": pa.array([1, 2], pa.timestamp("us")),
    "decimals": pa.array([1, 2], pa.decimal128(5, 2)),
}


@pytest.mark.parametrize("name", CAST)
def test_the_cast_of_the_error_helps(name: str) -> None:
    column = CAST[name]
    with pytest.raises(TypeError, match="cast the column to") as found:
        ArrowDataset(pa.table({"x": column}))
    kind = str(found.value).rsplit(" to ", 1)[1].rstrip(")")
    target = next((t for t in (pa.list_(pa.int32(), 2), pa.float64()) if str(t) == kind), kind)
    decode = {"x": bytes} if "binary" in str(target) else "auto"
    data = ArrowDataset(pa.table({"x": column.cast(target)}), decode=decode)
    assert len(data) == 2 and data[1]["x"] is not None


@pytest.mark.parametrize("kind", ["list_view", "large_list_view"])
def test_list_views_are_refused(kind: str) -> None:
    column = pa.array([[1, 2], [3]], getattr(pa, kind)(pa.int32()))
    text = r"pass pyarrow.array\(column.to_pylist\(\)\) of large_list<item: int32>"
    with pytest.raises(TypeError, match=text):
        ArrowDataset(pa.table({"x": column}))


NULLS = {
    "numbers": pa.array([1, None, None]),
    "texts": pa.array(["a", None]),
    "lists": pa.array([[1], None]),
    "values of lists": pa.array([[1], [None]]),
    "sized lists": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "values of sized lists": pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2)),
}


@pytest.mark.parametrize("name", NULLS)
def test_nulls_are_refused(name: str) -> None:
    column = NULLS[name]
    with pytest.raises(TypeError, match=r"column 'x' must have no nulls, got [12] in .*fill_null"):
        ArrowDataset(pa.table({"x": column}))
    assert len(ArrowDataset(pa.table({"x": column})[:1])) == 1, "nulls beside a slice do not count"


def test_other_columns_are_refused() -> None:
    columns = {"a": [{"x": 1}], "b": [[[1]]], "c": [["x"]], "d": pa.nulls(1), "e": [1]}
    table = pa.table(columns)
    for name in "abcd":
        with pytest.raises(TypeError, match=f"column '{name}' must be of num.*leave the column"):
            ArrowDataset(table, [name])
    assert len(ArrowDataset(table, ["e"])) == 1


def test_wrong_arguments(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    other = write(tmp_path / "other", CHUNKED.select(["seed"]))
    cases: list[tuple[Any, Any, Any, str]] = [
        (7, None, TypeError, "data must be a pyarrow.Table, a path"),
        (CHUNKED.to_batches()[0], None, TypeError, "data must be a pyarrow.Table"),
        ([CHUNKED], None, TypeError, "paths must be a path, a pattern"),
        ([], None, ValueError, "paths must be a path, a pattern"),
        (CHUNKED, [], ValueError, "columns must be at least one name"),
        (CHUNKED, "seed", TypeError, "columns must be a list of names, or None, got 'seed'"),
        (CHUNKED, ["sed"], ValueError, "each of columns must be one of 'seed', 'layout'"),
        (twice, None, ValueError, "one column 'x', got several"),
        ([as_file(tmp_path), other], None, ValueError, "files with the same columns"),
    ]
    for data, columns, error, text in cases:
        with pytest.raises(error, match=text):
            ArrowDataset(data, columns)
    with pytest.raises(TypeError, match="column 'seed' must be a column of lists, got uint8"):
        ArrowDataset(CHUNKED).column("seed")


def test_strings_that_are_not_utf8() -> None:
    texts = pa.array([b"a", b"\xff"]).view(pa.string())
    data = ArrowDataset(pa.table({"x": texts}))
    assert data[0] == {"x": "a"}
    with pytest.raises(ValueError, match=r"row 1 of column 'x' must be UTF-8.*cast the column to"):
        data[1]


def test_files_that_are_refused(tmp_path: Path) -> None:
    whole = Path(as_file(tmp_path)).read_bytes()
    bad = {"empty": b"", "text": b"hello, world", "parquet": b"PAR1" + whole}
    bad |= {f"cut at {n}": whole[:n] for n in (5, 300, len(whole) // 2)}
    for name, contents in bad.items():
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=f"{name}' cannot be read as an Arrow file"):
            ArrowDataset(tmp_path / name)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "fifo"):
        with pytest.raises(OSError, match=f"{path}"):
            ArrowDataset(path)


def test_offsets_of_a_damaged_file_are_refused(tmp_path: Path) -> None:
    rows = 1000
    lists = pa.ListArray.from_arrays(np.arange(0, 4 * rows + 1, 4, np.int32), np.arange(4 * rows))
    table = pa.table({"x": lists})
    path = tmp_path / "x"
    for tables in ([table], [table, table]):
        write(path, pa.concat_tables(tables))
        contents = bytearray(path.read_bytes())
        at = contents.index(np.arange(0, 400, 4, np.int32).tobytes()) + 40 * 4
        contents[at : at + 4] = np.int32(3).tobytes()
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=r"offsets\[40\] must be >= offsets\[39\]=156, got 3"):
            ArrowDataset(path)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = as_file(tmp_path)
    data = ArrowDataset(path, ["labels"])
    expected, text = plain(data[20]), pickle.dumps(data)
    loader = DataLoader(data, 4, collate_fn=PadCollate())
    assert len(list(loader)) == 13
    os.rename(write(tmp_path / "new", CHUNKED[::-1]), path)
    assert plain(data[20]) == expected, "the old file is still mapped"
    for use in (lambda: pickle.loads(text), lambda: list(loader)):
        with pytest.raises(OSError, match="has changed since the dataset was made") as found:
            use()
        assert found.value.errno == errno.ESTALE and found.value.filename == path


@pytest.mark.parametrize("name", ["labels", "pair", "box", "text"])
def test_a_file_that_becomes_shorter(name: str, tmp_path: Path) -> None:
    table = pa.concat_tables([make(900, seed) for seed in range(9)])
    path = write(tmp_path / "a", table)
    data = ArrowDataset(path, [name])
    loader = DataLoader(data, 64, collate_fn=PadCollate() if name in ("labels", "pair") else None)
    batches = iter(loader)
    next(batches)
    os.truncate(path, 4096)
    with pytest.raises(OSError, match=path):
        list(batches)
    with pytest.raises(OSError, match=path):
        data[len(data) - 1]
