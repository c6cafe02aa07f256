"""Rows of Arrow, Parquet and MDS, and the rivals that read them."""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastloop import (
    ArrowDataset,
    DataLoader,
    MDSDataset,
    PackCollate,
    PadCollate,
    ParquetDataset,
    ShuffleSampler,
)

BATCH = 256
Calls = dict[str, tuple[int, Callable[[], object]]]


def make_table(rows: int, mean: int, dtype: Any = np.int32) -> Any:
    import pyarrow as pa

    draw = np.random.default_rng(0)
    ends = np.append(0, np.cumsum(draw.integers(mean // 2, mean * 3 // 2, rows))).astype(np.int32)
    ids = (np.minimum(draw.zipf(1.3, ends[-1]), 50_000) - 1).astype(dtype)
    return pa.table({"input_ids": pa.ListArray.from_arrays(ends, pa.array(ids))})


def anonymous_bytes() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def of_loader(data: Any, collate: Any, shuffle: bool) -> Callable[[], object]:
    sampler = ShuffleSampler(data, shuffle=shuffle, num_replicas=1, rank=0)
    loader = DataLoader(data, BATCH, sampler=sampler, collate_fn=collate)
    return lambda: sum(1 for _ in loader)


def read_each(data: Any, at: list[int]) -> object:
    return [data[i] for i in at]


def read_batches(data: Any, at: list[int]) -> object:
    return [data.__getitems__(at[n : n + 64]) for n in range(0, len(at), 64)]


def token_calls(folder: Path, rows: int) -> Iterator[tuple[str, Calls]]:
    """Rows of lists in a mapped Arrow file of chunks of 1 000 rows, as datasets writes them."""
    import pyarrow as pa

    for mean in (64, 512):
        table, path = make_table(rows, mean), str(folder / f"{mean}.arrow")
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
        del table
        before = anonymous_bytes()
        data = ArrowDataset(path)
        calls: Calls = {}
        for name, collate in (("pad", PadCollate()), ("pack", PackCollate(max_tokens=2048))):
            for order in ("in order", "shuffled"):
                call = of_loader(data, collate, order == "shuffled")
                calls[f"fastloop, batches, {name}, {order}"] = rows, call
                call()
        grown = (anonymous_bytes() - before) / rows
        at = np.random.default_rng(1).integers(0, rows, 2048).tolist()
        calls["fastloop, data[i]"] = len(at), partial(read_each, data, at)
        if importlib.util.find_spec("datasets"):
            import datasets

            theirs = datasets.Dataset.from_file(path)
            for kind in (None, "torch"):
                given, name = theirs.with_format(kind), f"datasets, format {kind}"
                calls[f"{name}, one"] = len(at), partial(read_each, given, at)
                calls[f"{name}, 64 shuffled"] = len(at), partial(read_batches, given, at)
        yield f"{mean} tokens a row, {grown:.0f} B of memory a row", calls


def parquet_calls(folder: Path, tokens: int) -> Iterator[tuple[str, Calls]]:
    """A conversion, for each 1 000 tokens."""
    import pyarrow.parquet as pq

    for dtype, group in ((np.int32, 1000), (np.int32, 100_000), (np.int64, 100_000)):
        path, again = folder / f"{dtype.__name__}-{group}.parquet", iter(range(10**6))
        pq.write_table(make_table(tokens // 1000, 1000, dtype), path, group, compression="zstd")

        def convert(path: Path = path, again: Iterator[int] = again) -> object:
            cache = folder / f"{path.stem}-{next(again)}"
            made = ParquetDataset(path, ["input_ids"], cache)
            for file in cache.iterdir():
                file.unlink()
            return made

        yield (
            f"{dtype.__name__}, groups of {group:,} rows",
            {"ParquetDataset": (tokens // 1000, convert)},
        )


def write_mds(folder: Path, rows: int, size: int) -> None:
    """Write shards of about 64 MiB with one column of bytes."""
    shards, most = [], (1 << 26) // size
    contents = np.random.default_rng(0).bytes(size)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        offsets = 4 * (count + 2) + np.arange(count + 1, dtype=np.uint32) * np.uint32(size + 4)
        data = np.uint32(count).tobytes() + offsets.astype(np.uint32).tobytes()
        data += (np.uint32(size).tobytes() + contents) * count
        raw = {"basename": f"shard.{len(shards):05}.mds", "bytes": len(data), "hashes": {}}
        (folder / raw["basename"]).write_bytes(data)  # type: ignore[operator]
        shard = {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]}
        shard |= {"compression": None, "format": "mds", "hashes": [], "raw_data": raw}
        shards.append(shard | {"samples": count, "size_limit": 1, "version": 2, "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def mds_calls(folder: Path, rows: int) -> Iterator[tuple[str, Calls]]:
    write_mds(folder, rows, 30_000)
    at = np.random.default_rng(1).integers(0, rows, 2048).tolist()
    calls: Calls = {"MDSDataset": (len(at), partial(read_batches, MDSDataset(folder), at))}
    if importlib.util.find_spec("streaming"):
        from streaming import LocalDataset

        calls["LocalDataset"] = len(at), partial(read_each, LocalDataset(str(folder)), at)
    yield "30 000 bytes a row", calls


def compare_columns(rows: list[str], is_quick: bool) -> list[dict[str, Any]]:
    print("| row | what | contestant | us |\n|---|---|---|---|")
    lines: list[dict[str, Any]] = []
    kinds = {
        "k": (token_calls, 20_000 if is_quick else 200_000),
        "l": (parquet_calls, 10**6 if is_quick else 30 * 10**6),
        "m": (mds_calls, 2000 if is_quick else 20_000),
    }
    for row in rows:
        make, size = kinds[row]
        with tempfile.TemporaryDirectory() as folder:
            for what, calls in make(Path(folder), size):
                times: dict[str, list[float]] = {name: [] for name in calls}
                for _ in range(2 if is_quick else 5):
                    for name, (count, call) in calls.items():
                        begin = time.process_time()
                        call()
                        times[name].append((time.process_time() - begin) / count * 1e6)
                for name, us in times.items():
                    shown = f"{statistics.median(us):.3g} ({min(us):.3g} - {max(us):.3g})"
                    print(f"| {row} | {what} | {name} | {shown} |")
                    lines.append({"row": row, "what": what, "contestant": name, "us": us})
    return lines
