"""ParquetDataset: columns are converted to Arrow once, by one process; and Parquet that is damaged,
changed, or does not fit on the disk."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from time_limits import limit

from fastloop import DataLoader, PackCollate, PadCollate, ParquetDataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make(rows: int = 1000, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed)
    ends = np.append(0, np.cumsum(draw.integers(0, 9, rows))).astype(np.int32)
    ids = pa.array(draw.integers(0, 50_000, ends[-1]), pa.int32())
    words = pa.array([f"w{number % 7}" for number in range(rows)])
    return pa.table(
        {
            "input_ids": pa.ListArray.from_arrays(ends, ids),
            "label": draw.integers(0, 9, rows),
            "box": pa.FixedSizeListArray.from_arrays(pa.array(draw.random(2 * rows)), 2),
            "word": words.dictionary_encode(),
        }
    )


def write(path: Path, table: Any, group: int = 300, **how: Any) -> Path:
    pq.write_table(table, path, row_group_size=group, **how)
    return path


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in sample.items()}


def test_rows_are_pyarrows(tmp_path: Path) -> None:
    first, second = make(), make(777, 1)
    write(tmp_path / "a.parquet", first, compression="zstd")
    write(tmp_path / "b.parquet", second, 10**6)
    data = ParquetDataset(tmp_path / "*.parquet", cache_dir=tmp_path / "cache")
    rows = first.to_pylist() + second.to_pylist()
    assert [plain(data[i]) for i in range(len(data))] == rows
    some = ParquetDataset([tmp_path / "b.parquet"], ["word", "label"], tmp_path / "cache")
    assert [list(some[3]), plain(some[-1])["label"]] == [["word", "label"], rows[-1]["label"]]
    again = pickle.loads(pickle.dumps(data))
    assert len(pickle.dumps(data)) < 2000 and plain(again[999]) == rows[999]


@pytest.mark.parametrize("workers", [0, 1])
def test_both_loaders_have_the_same_batches(workers: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", make(200))
    cases: list[tuple[list[str], Any]] = [
        (["label", "box"], None),
        (["input_ids", "label"], PadCollate()),
        (["input_ids"], PackCollate(max_tokens=64)),
        (["word", "label"], None),
    ]
    for names, collate in cases:
        data, batches = ParquetDataset(path, names, tmp_path), []
        for kind in (DataLoader, TorchLoader):
            loader = kind(data, 16, collate_fn=collate, num_workers=workers)
            batches.append(list(loader))
            if kind is DataLoader:
                assert (loader.stats().path == "array") == ("word" not in names)
        assert_same(*batches)


def made(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_ino for p in folder.iterdir() if p.suffix != ".lock"}


def test_a_file_is_converted_once_until_it_changes(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "a.parquet", make(50)), tmp_path / "cache"
    ParquetDataset(path, ["label"], cache)
    before = made(cache)
    assert [name.rsplit("-", 1)[1] for name in before] == ["a.parquet.arrow"]
    old = ParquetDataset(path, ["label"], cache)
    assert made(cache) == before
    ParquetDataset(path, ["label", "box"], cache)
    assert len(made(cache)) == 2, "other columns are another file"
    expected = plain(old[3])
    other = make(50, 7).select(["label"])
    write(path, other)
    assert plain(ParquetDataset(path, ["label"], cache)[3]) == other.to_pylist()[3]
    assert len(made(cache)) == 3 and plain(old[3]) == expected


def test_columns_and_files_that_are_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", make(500)).read_bytes()
    bad = {"empty": b"", "text": b"hello, world", "footer": whole[:4] + whole[400:]}
    bad |= {f"cut at {n}": whole[:n] for n in (4, 300, len(whole) - 1)}
    for name, contents in bad.items():
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=f"{name}' cannot be read as Parquet"):
            ParquetDataset(tmp_path / name, None, tmp_path / "cache")
    with pytest.raises(
        ValueError, match=r"each of columns, for '.*whole', must be one of 'input_ids"
    ):
        ParquetDataset(tmp_path / "whole", ["ids"], tmp_path / "cache")
    for columns, error in (("label", TypeError), (5, TypeError), ([], ValueError)):
        with pytest.raises(error, match="columns must be"):
            ParquetDataset(tmp_path / "whole", columns, tmp_path / "cache")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="absent"):
        ParquetDataset(tmp_path / "absent", None, tmp_path / "cache")
    assert made(tmp_path / "cache") == {}, "nothing is left"
    nested = pa.table({"x": [[[1]]]})
    with pytest.raises(TypeError, match="column 'x' must be of numbers"):
        ParquetDataset(write(tmp_path / "nested", nested), None, tmp_path / "cache")


def test_long_names_and_fifos(tmp_path: Path) -> None:
    """A name may be as long as the system allows. FIFOs in the places of other files do not wait
    for a second process."""
    path, cache = write(tmp_path / ("n" * 255), make(5)), tmp_path / "cache"
    assert len(ParquetDataset(path, ["label"], cache)) == 5
    (arrow,) = made(cache)
    (cache / arrow).unlink()
    for ending in (".lock", ".unfinished"):
        (cache / f"{arrow}{ending}").unlink(missing_ok=True)
        os.mkfifo(cache / f"{arrow}{ending}")
    program = "import sys, fastloop as f; f.ParquetDataset(sys.argv[1], ['label'], sys.argv[2])"
    run = [sys.executable, "-c", program, str(path), str(cache)]
    assert subprocess.run(run, timeout=limit(60), check=False).returncode == 0
    assert list(made(cache)) == [arrow]
    assert len(ParquetDataset(path, ("label",), cache)) == 5 and len(made(cache)) == 1


def test_a_full_disk(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "a", make(20_000)), tmp_path / "cache"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large") as found:
            ParquetDataset(path, None, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.value.errno == errno.EFBIG and made(cache) == {}
    assert len(ParquetDataset(path, None, cache)) == 20_000


PROGRAM = """
import os, signal, sys
from fastloop import ParquetDataset
path, cache, fate = sys.argv[1:]
if fate == "killed":
    os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
data = ParquetDataset(path, None, cache)
print(len(data), int(data[len(data) - 1]["label"]))
"""


def start(path: Path, cache: Path, fate: str) -> Any:
    command = [sys.executable, "-c", PROGRAM, str(path), str(cache), fate]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_processes_leave_no_file_and_others_share_one(tmp_path: Path) -> None:
    table, cache = make(20_000), tmp_path / "cache"
    path = write(tmp_path / "a", table, 2000)
    assert start(path, cache, "killed").wait() == -signal.SIGKILL
    assert [name.rpartition(".")[2] for name in made(cache)] == ["unfinished"]
    results = [child.communicate()[0] for child in [start(path, cache, "") for _ in range(2)]]
    assert results == [f"20000 {table['label'][-1].as_py()}\n"] * 2
    assert [name.rpartition(".")[2] for name in made(cache)] == ["arrow"]
