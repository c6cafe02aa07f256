"""MDSDataset: rows as the format has them, shards that are decompressed or fetched once, and shards
and indices that are damaged. The writer of this file follows the format's description."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from image_folders import by_pillow, encode, picture

from fastloop import DataLoader, MDSDataset, ShuffleSampler
from fastloop import transforms as T
from fastloop.data.shards.cache import LazyFiles

COLUMNS = {
    "ids": "ndarray:int32",
    "grid": "ndarray:float32:2,3",
    "any": "ndarray",
    "label": "int",
    "weight": "float16",
    "text": "str",
    "raw": "bytes",
    "big": "str_int",
    "real": "str_float",
    "note": "json",
    "image": "png",
}
SIZES = {"int": 8, "float16": 2, "ndarray:float32:2,3": 24}
ROW = dict[str, Any]


def row_of(number: int) -> ROW:
    draw = np.random.default_rng(number)
    dtype = ["uint8", "int64", "float64", "float16"][number % 4]
    shape = [(300,), (2, 3, 4), (1,), (1, 70_000)][number % 4]
    return {
        "ids": draw.integers(0, 99, number % 7 + 1).astype(np.int32),
        "grid": draw.random((2, 3)).astype(np.float32),
        "any": draw.integers(0, 99, shape).astype(dtype),
        "label": number - 3,
        "weight": np.float16(number),
        "text": "é" * (number % 5),
        "raw": bytes(range(number % 9)),
        "big": 10**20 + number,
        "real": number / 7,
        "note": {"n": [number]},
        "image": encode(picture(number, 20, 30), "PNG"),
    }


def encode_array(array: Any, encoding: str) -> bytes:
    _, *how = encoding.split(":")
    parts = []
    if not how:
        kinds = {"u": 0, "i": 1, "f": 2}
        parts.append(bytes([array.itemsize * 8 + kinds[array.dtype.kind]]))
    if len(how) < 2:
        widths = [1 << 8, 1 << 16, 1 << 32]
        kind = sum(max(array.shape) >= width for width in widths)
        parts.append(bytes([array.ndim << 2 | kind]))
        parts.append(np.array(array.shape, f"u{1 << kind}").tobytes())
    return b"".join([*parts, array.tobytes()])


def encode_value(value: Any, encoding: str) -> bytes:
    if encoding.startswith("ndarray"):
        return encode_array(value, encoding)
    if encoding in ("int", "float16"):
        return np.array(value, "int64" if encoding == "int" else encoding).tobytes()
    if encoding == "json":
        return json.dumps(value).encode()
    return value if isinstance(value, bytes) else str(value).encode()


def shard_bytes(rows: list[ROW], columns: dict[str, str]) -> bytes:
    samples = []
    for row in rows:
        values = [encode_value(row[name], kind) for name, kind in columns.items()]
        kinds = zip(values, columns.values(), strict=True)
        sizes = [len(value) for value, kind in kinds if kind not in SIZES]
        samples.append(np.array(sizes, np.uint32).tobytes() + b"".join(values))
    config = json.dumps({"column_names": list(columns)}).encode()
    begin = 4 * (len(rows) + 2) + len(config)
    offsets = np.cumsum([begin, *map(len, samples)]).astype(np.uint32)
    return np.uint32(len(rows)).tobytes() + offsets.tobytes() + config + b"".join(samples)


def write(
    folder: Path, counts: Any = (4, 0, 7, 1), codec: str = "", columns: Any = COLUMNS
) -> Path:
    """Write rows 0, 1, 2, ... to shards with these numbers of rows."""
    folder.mkdir(parents=True)
    shards, first = [], 0
    for number, count in enumerate(counts):
        name = f"shard.{number:05}.mds"
        data = shard_bytes([row_of(n) for n in range(first, first + count)], columns)
        raw, zipped = {"basename": name, "bytes": len(data), "hashes": {}}, None
        if codec:
            pa = pytest.importorskip("pyarrow")
            data = pa.compress(data, {"gz": "gzip"}.get(codec, codec), asbytes=True)
            zipped = {"basename": f"{name}.{codec}", "bytes": len(data), "hashes": {}}
        (folder / (zipped or raw)["basename"]).write_bytes(data)
        shards.append(
            {
                "column_names": list(columns),
                "column_encodings": list(columns.values()),
                "column_sizes": [SIZES.get(kind) for kind in columns.values()],
                "compression": f"{codec}:3" if codec else None,
                "format": "mds",
                "hashes": [],
                "raw_data": raw,
                "samples": count,
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": zipped,
            }
        )
        first += count
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def check_row(found: ROW, number: int) -> None:
    expected = row_of(number)
    for name, value in found.items():
        wanted = expected[name]
        if name == "image":
            assert np.array_equal(value.permute(1, 2, 0), by_pillow(wanted))
        elif isinstance(value, torch.Tensor):
            wanted = np.array(wanted)
            assert value.numpy().dtype == wanted.dtype and np.array_equal(value, wanted), name
        else:
            assert value == wanted and type(value) is type(wanted), name


@pytest.mark.parametrize("codec", ["", "zstd", "gz"])
def test_rows_are_those_that_were_written(codec: str, tmp_path: Path) -> None:
    data = MDSDataset(write(tmp_path / "a", codec=codec), cache_dir=tmp_path / "cache")
    assert len(data) == 12 and list(data[0]) == list(COLUMNS)
    for number in range(12):
        check_row(data[number], number)
        check_row(data[number - 12], number)
    some = MDSDataset(tmp_path / "a", ["label", "text"], tmp_path / "cache")
    assert list(some[5]) == ["label", "text"]
    again = pickle.loads(pickle.dumps(data))
    check_row(again[11], 11)
    assert len(pickle.dumps(data)) < 2000 and "12 rows in 4 shards" in again.explain()
    unpacked = sorted(path.name for path in (tmp_path / "cache").rglob("*.mds"))
    assert unpacked == ([f"shard.{n:05}.mds" for n in (0, 2, 3)] if codec else [])


@pytest.mark.parametrize(("workers", "path"), [(0, "auto"), (1, "auto"), (1, "thread")])
def test_both_loaders_have_the_same_batches(workers: int, path: str, tmp_path: Path) -> None:
    columns = ["grid", "label", "weight", "text", "image"]
    crop = T.Compose([T.RandomCrop((8, 9)), T.ToDtype(torch.float32)])
    data, batches = MDSDataset(write(tmp_path / "a"), columns, tmp_path, crop, seed=2), []
    for kind, given in ((DataLoader, {"path": path}), (TorchLoader, {})):
        data.set_epoch(1)
        sampler = ShuffleSampler(data, seed=3, num_replicas=1, rank=0)
        batches.append(list(kind(data, 5, sampler=sampler, num_workers=workers, **given)))
    assert_same(*batches)
    assert batches[0][0]["image"].shape == (5, 3, 8, 9)


# ---- shards elsewhere


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.mds*") if path.suffix != ".lock")


@pytest.mark.parametrize("codec", ["", "zstd"])
def test_shards_of_a_url_are_fetched_at_their_first_row(codec: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    source = write(tmp_path / "a", (3, 3, 3), codec)
    data = MDSDataset(f"file://{source}", cache_dir=tmp_path / "cache")
    assert names_in(tmp_path / "cache") == []
    for number in (4, 3, 8):
        check_row(data[number], number)
    assert names_in(tmp_path / "cache") == ["shard.00001.mds", "shard.00002.mds"]
    shutil.rmtree(tmp_path / "a")
    check_row(data[5], 5)
    with pytest.raises(OSError, match=r"shard\.00000"):
        data[0]


def test_a_limit_removes_shards_which_come_again(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    source = write(tmp_path / "a", (2,) * 6)
    sizes = [path.stat().st_size for path in source.glob("*.mds")]
    limit, cache = max(sizes) * 2, tmp_path / "cache"
    data = MDSDataset(f"file://{source}", cache_dir=cache, cache_limit=limit)
    for number in [*range(12), *range(0, 12, 5)] * 2:
        check_row(data[number], number)
        assert sum(path.stat().st_size for path in cache.rglob("*.mds")) <= limit


def test_a_file_that_is_removed_before_it_is_opened_is_made_again(tmp_path: Path) -> None:
    path, made = tmp_path / "a", []

    def find(number: int) -> str:
        made.append(number)
        if len(made) in (3, 5):  # before, a different process has removed the file at once
            path.write_bytes(bytes(range(9)))
        return str(path)

    files = LazyFiles(find)
    assert (files.read(7, 2, 3), made) == (b"\2\3\4", [7] * 3)
    path.unlink()
    assert (files.read(7, 0, 1), made) == (b"\0", [7] * 3), "the descriptor is still open"
    assert (files.read(8, 0, 1), made) == (b"\0", [7] * 3 + [8] * 2)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.read(9, 0, 1)


def test_a_table_of_arrow_and_parquet_from_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from fastloop import ArrowDataset, ParquetDataset

    table = pa.table({"x": np.arange(10), "ids": [[n] * n for n in range(10)]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table, tmp_path / "a.parquet")
    for kind, name in ((ArrowDataset, "a.arrow"), (ParquetDataset, "a.parquet")):
        for _ in range(2):
            data = kind(f"file://{tmp_path}/{name}", cache_dir=tmp_path / "cache")  # type: ignore[operator]
            assert data[7]["x"].item() == 7 and data[7]["ids"].tolist() == [7] * 7
    made = [path for path in (tmp_path / "cache").iterdir() if path.suffix == ".arrow"]
    assert len(made) == 2
    for name in "cb":
        shutil.copy(tmp_path / "a.arrow", tmp_path / f"{name}.arrow")
    data = ArrowDataset(f"file://{tmp_path}/*.arrow", cache_dir=tmp_path / "cache")
    assert len(data) == 30 and [path[-7] for path in data._paths] == ["a", "b", "c"]
    with pytest.raises(FileNotFoundError, match=r"No file matches.*x\*\.arrow"):
        ArrowDataset(f"file://{tmp_path}/x*.arrow", cache_dir=tmp_path / "cache")


# ---- bad input


def edit(folder: Path, change: Any) -> Path:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index["shards"])
    path.write_text(json.dumps(index))
    return folder


def test_indices_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        MDSDataset(tmp_path)
    changes: dict[str, tuple[Any, str]] = {
        "none": (list.clear, "it has no shards"),
        "format": (lambda s: s[0].update(format="json"), "is of json 2, not of mds 2"),
        "version": (lambda s: s[0].update(version=3), "is of mds 3"),
        "key": (lambda s: s[1].pop("samples"), "samples"),
        "codec": (lambda s: s[0].update(zip_data=s[0]["raw_data"], compression="snappy"), "snappy"),
        "name": (lambda s: s[0]["raw_data"].update(basename="../x"), r"has the name '\.\./x'"),
        "samples": (lambda s: s[0].update(samples=10**9), "has 1000000000 samples"),
        "lists": (lambda s: s[0].update(column_sizes=[]), "zip"),
    }
    for name, (change, text) in changes.items():
        folder = edit(write(tmp_path / name), change)
        with pytest.raises(ValueError, match=f"read as an index of MDS: .*{text}"):
            MDSDataset(folder)
    for number, text in enumerate(["", "{}", "[1]", '{"shards": 3}']):
        folder = write(tmp_path / str(number))
        (folder / "index.json").write_text(text)
        with pytest.raises(ValueError, match="cannot be read as an index of MDS"):
            MDSDataset(folder)


def test_columns_that_are_refused(tmp_path: Path) -> None:
    for kind in ("pkl", "pil", "list[jpeg]", "jpegarray", "new"):
        columns = {**COLUMNS, "raw": kind}
        folder = write(tmp_path / kind, columns=columns)
        with pytest.raises(
            TypeError, match=r"column 'raw' must be an encoding of bytes, str.*leave"
        ):
            MDSDataset(folder)
        assert MDSDataset(folder, ["label"])[2]["label"].item() == -1
        assert MDSDataset(folder, decode={"raw": bytes})[8]["raw"] == row_of(8)["raw"]
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"columns": ["lable"]}, ValueError, "each of columns must be one of 'ids'"),
        ({"columns": "ids"}, TypeError, "columns must be a list of names"),
        ({"cache_limit": 0}, ValueError, "cache_limit must be an int >= 1"),
        ({"columns": ["ids"], "transform": T.RandomCrop(3)}, ValueError, "transform must be None"),
    ]
    for given, error, text in cases:
        with pytest.raises(error, match=text):
            MDSDataset(tmp_path / "new", **given)


def test_shards_that_are_absent_or_cut(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    path = folder / "shard.00002.mds"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(OSError, match="it is cut") as found:
        MDSDataset(folder)
    assert found.value.filename == str(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00002\.mds"):
        MDSDataset(folder)
    packed = write(tmp_path / "b", codec="zstd")
    data = MDSDataset(packed, cache_dir=tmp_path / "cache")
    path = packed / "shard.00002.mds.zstd"
    contents = bytearray(path.read_bytes())
    contents[2] ^= 255
    path.write_bytes(contents)
    with pytest.raises(OSError, match="the shard cannot be decompressed with zstd") as found:
        data[5]
    assert found.value.filename == str(path)
    os.truncate(path, 100)
    with pytest.raises(OSError, match=r"must have .* bytes, got 100; it is cut"):
        data[5]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00002"):
        data[5]
    check_row(data[11], 11)
    assert names_in(tmp_path / "cache") == ["shard.00003.mds"], "nothing is left of the damaged one"


def test_a_fetched_shard_that_is_damaged_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder, cache = write(tmp_path / "a", codec="zstd"), tmp_path / "cache"
    data = MDSDataset(f"file://{folder}", cache_dir=cache)
    path = folder / "shard.00002.mds.zstd"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(OSError, match="the shard cannot be decompressed with zstd") as found:
        data[5]
    assert "shard.00002.mds" in str(found.value.filename)
    assert names_in(cache) == []


def test_a_shard_without_compression_among_others_is_absent(tmp_path: Path) -> None:
    folder = edit(write(tmp_path / "a", codec="zstd"), lambda s: s[2].update(zip_data=None))
    with pytest.raises(FileNotFoundError) as found:
        MDSDataset(folder, cache_dir=tmp_path / "cache")[5]
    assert found.value.filename == str(folder / "shard.00002.mds")


def test_sizes_that_do_not_fill_the_sample(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", (4,), columns={"raw": "bytes", "text": "str"})
    path = folder / "shard.00000.mds"
    contents = path.read_bytes()
    begin = int(np.frombuffer(contents, np.uint32, 5)[4])  # of row 3: sizes 3 and 6
    assert contents[begin : begin + 8] == bytes([3, 0, 0, 0, 6, 0, 0, 0])
    for sizes in ((1, 6), (3, 4), (3, 2**31)):
        path.write_bytes(contents[:begin] + np.uint32(sizes).tobytes() + contents[begin + 8 :])
        with pytest.raises(
            OSError, match=r"row 3' cannot be decoded: its values have .* bytes of 17"
        ):
            MDSDataset(folder)[3]


def is_damaged(data: MDSDataset, row: int) -> bool:
    try:
        data[row]
    except OSError as error:
        assert "shard.00000.mds" in str(error)
        return True
    return False


def test_damaged_bytes_are_errors(tmp_path: Path) -> None:
    """Any byte may be any other: each read gives a row or an OSError."""
    folder, draw = write(tmp_path / "a", (6,)), np.random.default_rng(0)
    path = folder / "shard.00000.mds"
    whole, faults = path.read_bytes(), 0
    head = 4 * 8
    for trial in range(300):
        contents = bytearray(whole)
        most = head if trial % 3 == 0 else len(whole)
        for at in draw.integers(0, most, 1 + trial % 4):
            contents[at] = draw.integers(0, 256)
        path.write_bytes(contents)
        data = MDSDataset(folder, decode={"image": bytes})
        faults += sum(is_damaged(data, row) for row in range(6))
    assert faults > 100


def test_a_shard_or_an_index_that_changes(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    data = MDSDataset(folder, ["text"], on_error="skip")
    text = pickle.dumps(data)
    os.utime(folder / "shard.00002.mds", ns=(0, 1))
    for found in (data, pickle.loads(text)):
        with pytest.raises(
            OSError, match="the file has changed since the dataset was made"
        ) as error:
            found[6]
        assert error.value.errno == errno.ESTALE
    edit(folder, lambda shards: shards[0].update(size_limit=5))
    with pytest.raises(OSError, match="the index has changed since the dataset was made") as error:
        pickle.loads(text)
    assert error.value.errno == errno.ESTALE
