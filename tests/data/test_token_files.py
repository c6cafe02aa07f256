"""Formats of token files: each is found by its content, and its tokens are those written."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import open_files
from token_writers import (
    Tokens,
    megatron_index,
    some_tokens,
    write_datatrove,
    write_llmc,
    write_megatron,
)

from fastloop import TokenDataset

LENGTH = 10


def all_tokens(dataset: TokenDataset) -> list[int]:
    return [token for i in range(len(dataset)) for token in dataset[i].tolist()]


def check_tokens(dataset: TokenDataset, *files: Tokens) -> None:
    """All windows of a dataset of LENGTH without targets, against slices."""
    expected = [token for file in files for token in file[: len(file) // LENGTH * LENGTH].tolist()]
    assert len(expected) >= LENGTH
    assert all_tokens(dataset) == expected


def write_raw(path: Path, tokens: Tokens) -> Path:
    path.write_bytes(tokens.tobytes())
    return path


def write_npy(path: Path, tokens: Tokens) -> Path:
    with open(path, "wb") as file:
        np.save(file, tokens)
    return path


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "i8"])
@pytest.mark.parametrize("name", ["x.bin", "x.npy", "x"])
def test_raw_files(tmp_path: Path, name: str, dtype: str) -> None:
    """Whatever they are called: raw files of OLMo end with .npy."""
    tokens = some_tokens(57, dtype)
    path = write_raw(tmp_path / name, tokens)
    for given in (dtype, np.dtype(dtype), np.dtype(dtype).type, np.dtype(dtype).name):
        check_tokens(TokenDataset(path, LENGTH, dtype=given, targets=None), tokens)
    by_torch = getattr(torch, np.dtype(dtype).name)
    check_tokens(TokenDataset(str(path), LENGTH, dtype=by_torch, targets=None), tokens)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "i8"])
@pytest.mark.parametrize("name", ["x.npy", "x.bin"])
def test_npy_files(tmp_path: Path, name: str, dtype: str) -> None:
    tokens = some_tokens(57, dtype)
    path = write_npy(tmp_path / name, tokens)
    dataset = TokenDataset(path, LENGTH, targets=None)
    check_tokens(dataset, tokens)
    assert f"npy, 57 tokens of {np.dtype(dtype).name}" in dataset.explain()
    check_tokens(TokenDataset(path, LENGTH, format="npy", dtype=dtype, targets=None), tokens)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_npy(tmp_path: Path, version: tuple[int, int]) -> None:
    tokens = some_tokens(57)
    with open(tmp_path / "x", "wb") as file:
        np.lib.format.write_array(file, tokens, version)
    check_tokens(TokenDataset(tmp_path / "x", LENGTH, targets=None), tokens)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("format", ["auto", "llmc"])
def test_files_of_llmc(tmp_path: Path, format: str, dtype: str) -> None:
    """gpt-2, llama-3, and the forks that write bytes behind the header of gpt-2, if told."""
    tokens = some_tokens(57, dtype)
    path = write_llmc(tmp_path / "x.bin", tokens)
    told = {"dtype": "uint8"} if dtype == "u1" else {}
    dataset = TokenDataset(path, LENGTH, format=format, targets=None, **told)
    check_tokens(dataset, tokens)
    assert f"llmc, 57 tokens of {np.dtype(dtype).name}" in dataset.explain()


def test_a_header_is_tokens_where_the_format_is_raw(tmp_path: Path) -> None:
    path = write_llmc(tmp_path / "x.bin", some_tokens(57))
    dataset = TokenDataset(path, LENGTH, format="raw", dtype="uint16", targets=None)
    assert dataset[0][:2].tolist() == [20240520 % 2**16, 20240520 // 2**16]
    assert len(dataset) == (512 + 57) // LENGTH


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4", "i8"])
def test_files_of_megatron(tmp_path: Path, dtype: str) -> None:
    tokens = some_tokens(57, dtype)
    prefix = write_megatron(tmp_path / "x", tokens, [10, 0, 30, 17], [0, 1, 4])
    check_tokens(TokenDataset.from_megatron(prefix, LENGTH, targets=None), tokens)
    check_tokens(TokenDataset.from_megatron(str(prefix), LENGTH, targets=None), tokens)
    dataset = TokenDataset(f"{prefix}.bin", LENGTH, targets=None)
    check_tokens(dataset, tokens)
    assert "megatron, 57 tokens" in dataset.explain()
    check_tokens(TokenDataset.from_megatron([prefix] * 2, LENGTH, targets=None), tokens, tokens)


def test_a_megatron_index_with_modes(tmp_path: Path) -> None:
    tokens = some_tokens(57)
    prefix = write_megatron(tmp_path / "x", tokens, [57])
    Path(f"{prefix}.idx").write_bytes(megatron_index([57], 8, 2, modes=b"\1"))
    check_tokens(TokenDataset.from_megatron(prefix, LENGTH, targets=None), tokens)


@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_files_of_datatrove(tmp_path: Path, dtype: str) -> None:
    """The index says how wide tokens are."""
    tokens = some_tokens(57, dtype)
    path = write_datatrove(tmp_path / "x.ds", tokens, [10, 10, 40, 57])
    dataset = TokenDataset(path, LENGTH, targets=None)
    check_tokens(dataset, tokens)
    assert f"datatrove, 57 tokens of {np.dtype(dtype).name}" in dataset.explain()
    check_tokens(TokenDataset(path, LENGTH, format="datatrove", targets=None), tokens)
    os.remove(f"{path}.index")
    check_tokens(TokenDataset(path, LENGTH, dtype=dtype, targets=None), tokens)


def test_several_files_are_one_array_of_windows(tmp_path: Path) -> None:
    """In the order of a list, or of the names that go with a pattern; of several formats."""
    files = [some_tokens(count, seed=count) for count in (57, 9, 31, 40)]
    write_raw(tmp_path / "b.bin", files[0])
    write_llmc(tmp_path / "a.bin", files[1])
    write_npy(tmp_path / "d.bin", files[2])
    write_megatron(tmp_path / "c", files[3], [40])
    options: dict[str, Any] = {"dtype": "uint16", "targets": None}
    pattern = TokenDataset(tmp_path / "*.bin", LENGTH, **options)
    check_tokens(pattern, files[1], files[0], files[3], files[2])
    listed = TokenDataset([tmp_path / "d.bin", f"{tmp_path}/[ab].bin"], LENGTH, **options)
    check_tokens(listed, files[2], files[1], files[0])
    assert f"{tmp_path}/a.bin: llmc, 9 tokens of uint16, 0 windows: shorter" in listed.explain()


def test_a_name_may_look_like_a_pattern(tmp_path: Path) -> None:
    tokens = some_tokens(57)
    path = write_raw(tmp_path / "x[1].bin", tokens)
    check_tokens(TokenDataset(path, LENGTH, dtype="uint16", targets=None), tokens)


def test_patterns_go_into_folders(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    tokens = some_tokens(57)
    write_raw(tmp_path / "a" / "b" / "x.bin", tokens)
    found = TokenDataset(tmp_path / "**" / "*.bin", LENGTH, dtype="uint16", targets=None)
    check_tokens(found, tokens)


@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy], ids=["ndarray", "tensor"])
@pytest.mark.parametrize("bounds", ["int32", "int64"])
def test_buffers_are_not_copied(as_given: Callable[[Tokens], Any], bounds: str) -> None:
    tokens = some_tokens(57, np.int32)
    offsets = np.array([3, 20, 20, 48], bounds)
    dataset = TokenDataset.from_buffers(as_given(tokens), as_given(offsets), LENGTH, targets=None)
    check_tokens(dataset, tokens[3:48])
    tokens[3] = 7
    assert dataset[0][0] == 7
    assert "buffers, 45 tokens of int32" in dataset.explain()


def test_buffers_that_are_read_only(tmp_path: Path) -> None:
    tokens = some_tokens(57)
    path = write_npy(tmp_path / "x.npy", tokens)
    mapped = np.load(path, mmap_mode="r")
    ends = np.array([0, 57])
    check_tokens(TokenDataset.from_buffers(mapped, ends, LENGTH, targets=None), tokens)
    frozen = np.frombuffer(tokens.tobytes(), tokens.dtype)
    check_tokens(TokenDataset.from_buffers(frozen, ends, LENGTH, targets=None), tokens)


def test_buffers_of_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = [list(range(20)), [], list(range(20, 57))]
    column = pyarrow.array(rows, pyarrow.list_(pyarrow.int32()))
    dataset = TokenDataset.from_buffers(column.values, column.offsets, LENGTH, targets=None)
    check_tokens(dataset, np.arange(57))
    part = column.slice(2)
    dataset = TokenDataset.from_buffers(part.values, part.offsets, LENGTH, targets=None)
    check_tokens(dataset, np.arange(20, 57))


def test_files_are_closed_with_the_dataset(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.bin", some_tokens(57))
    before = open_files()
    dataset = TokenDataset([path] * 20, LENGTH, dtype="uint16")
    assert open_files() <= before + 20
    del dataset
    assert open_files() == before


def test_files_are_closed_after_an_error(tmp_path: Path) -> None:
    """Those before it, too, while the error still holds on to what was open."""
    good = write_raw(tmp_path / "x.bin", some_tokens(57))
    bad = write_raw(tmp_path / "y.bin", some_tokens(57, np.uint8))
    before = open_files()
    with pytest.raises(ValueError, match=r"y.bin") as error:
        TokenDataset([good, good, bad], LENGTH, dtype="uint16")
    assert open_files() == before
    assert error.tb is not None
