"""What TokenDataset refuses: the type of the error, and a message that names file or argument, what
was wrong and what to do."""

import errno
import os
import pickle
import re
import resource
import struct
from collections.abc import Callable
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import open_files
from token_writers import (
    llmc_header,
    megatron_index,
    some_tokens,
    write_datatrove,
    write_llmc,
    write_megatron,
)

from fastloop import DataLoader, TokenDataset

TOKENS = some_tokens(100)
DTYPES = "uint8, int8, uint16, int16, uint32, int32, int64"


def npy_bytes(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


NPY = npy_bytes(TOKENS)
LLMC = llmc_header(20240520, 1, 100) + TOKENS.tobytes()
RAW = {"dtype": "uint16"}

# The bytes of a file, the arguments, and what the error says behind the name of the file.
FILES: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "raw without a dtype": (
        TOKENS.tobytes(),
        {},
        "must have a header.*dtype=, for example 'uint16'",
    ),
    "raw by format, without a dtype": (TOKENS.tobytes(), {"format": "raw"}, "pass dtype="),
    "raw of odd size": (
        TOKENS.tobytes()[:-1],
        RAW,
        "multiple of 2 bytes.*got 199 .is the file cut",
    ),
    "raw of four bytes, cut": (b"\1" * 102, {"dtype": "uint32"}, "multiple of 4 bytes.*got 102"),
    "empty": (b"", RAW, "must hold at least one token, got none"),
    "empty without a dtype": (b"", {}, "must have a header"),
    "too short for a magic": (b"\x88\xd8\x34", RAW, "multiple of 2 bytes of tokens, got 3"),
    "evaluation examples": (
        llmc_header(20240522, 1, 100),
        RAW,
        "got evaluation examples of llm.c, magic 20240522",
    ),
    "evaluation examples as llmc": (
        llmc_header(20240522, 1, 100),
        {"format": "llmc"},
        "evaluation examples",
    ),
    "an archive": (b"PK\3\4" + bytes(100), RAW, "got an archive .save the tokens with numpy.save"),
    "an index of Megatron": (
        megatron_index([5], 8, 2),
        RAW,
        r"got an index of Megatron .pass the .bin file.*from_megatron\(prefix\)",
    ),
    "llmc, another magic": (bytes(2000), {"format": "llmc"}, "magic 20240520 or 20240801, got 0"),
    "llmc, another version": (
        llmc_header(20240520, 2, 100) + TOKENS.tobytes(),
        {},
        "version 1, got 2",
    ),
    "llama-3, another version": (
        llmc_header(20240801, 1, 50) + TOKENS.tobytes(),
        {},
        "version 7, got 1",
    ),
    "llmc, header cut": (LLMC[:500], {}, "1024 bytes of llm.c's header, got 500 .the file is cut"),
    "llmc, header alone": (LLMC[:1024], {}, "100 tokens of 2 bytes.*got 0 bytes"),
    "llmc, cut": (LLMC[:-2], {}, "tokens of 2 bytes.*got 198 bytes .the file is cut"),
    "llmc, cut to half": (
        LLMC[:-100],
        {},
        "100 tokens of 2 bytes, .*got 100 bytes .the file is cut; or pass dtype='uint8' if",
    ),
    "llmc, twice as long": (
        LLMC + TOKENS.tobytes(),
        {},
        "100 tokens of 2 bytes, .*got 400 bytes .the file is too long; or pass dtype='uint32' if",
    ),
    "llmc, longer than it says": (LLMC + b"\0\0", {}, "100 tokens of 2 bytes, .*got 202 bytes"),
    "llmc, no tokens": (llmc_header(20240520, 1, 0), {}, "must hold at least one token"),
    "llmc, fewer than no tokens": (llmc_header(20240520, 1, -7), {}, "must have -7 tokens"),
    "llmc, most tokens": (llmc_header(20240520, 1, 2**31 - 1), {}, "must have 2147483647 tokens"),
    "llama-3, two bytes a token": (
        llmc_header(20240801, 7, 100) + TOKENS.tobytes(),
        {},
        "100 tokens of 4 bytes, as its header says, got 200 bytes",
    ),
    "llmc, another dtype": (
        LLMC,
        {"dtype": "uint32"},
        "4 bytes, as dtype=.*got 2 .*leave dtype out",
    ),
    "npy, cut": (NPY[:-2], {}, "must have 100 tokens of 2 bytes, as its header says, got 198"),
    "npy, longer": (NPY + b"\0", {}, "header says, got 201 bytes"),
    "npy, header cut": (NPY[:40], {}, "cannot be opened as a .npy file"),
    "npy, magic alone": (NPY[:6], {}, "cannot be opened as a .npy file"),
    "npy, another version": (NPY[:6] + b"\7\7" + NPY[8:], {}, "version"),
    "npy, no npy": (TOKENS.tobytes(), {"format": "npy"}, "cannot be opened as a .npy file"),
    "npy, floats": (npy_bytes(np.zeros(100)), {}, "must have a dtype of uint8, .*got float64"),
    "npy, bool": (npy_bytes(np.zeros(100, bool)), {}, "must have a dtype of uint8, .*got bool"),
    "npy, uint64": (npy_bytes(np.zeros(100, "u8")), {}, "must have a dtype of uint8, .*got uint64"),
    "npy, big-endian": (npy_bytes(np.zeros(100, ">u2")), {}, "must have a dtype of .*got >u2"),
    "npy, objects": (npy_bytes(np.array([1, None])), {}, "objects"),
    "npy, two dimensions": (
        npy_bytes(np.zeros((10, 10), "u2")),
        {},
        r"must be a vector of tokens, got shape \(10, 10\)",
    ),
    "npy, no dimension": (npy_bytes(np.array(7, "u2")), {}, r"shape \(\)"),
    "npy, empty": (npy_bytes(TOKENS[:0]), {}, r"vector of tokens, got shape \(0,\)"),
    "npy, another dtype": (NPY, {"dtype": "int32"}, "must have a dtype of int32, got uint16"),
    "npy, more tokens than bytes": (
        NPY.replace(b"(100,), }", b"(%d,), }" % 10**30)[: len(NPY)],
        {},
        "must have 1000000000000000000000000000000 tokens of 2 bytes, as its header",
    ),
}


@pytest.mark.parametrize(("content", "arguments", "text"), FILES.values(), ids=FILES)
def test_a_file_that_is_not_as_it_should_be(
    tmp_path: Path, content: bytes, arguments: dict[str, Any], text: str
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"x.bin' .*{text}"):
        TokenDataset(path, 10, **arguments)


def changed(index: bytes, at: int, *numbers: int, form: str = "q") -> bytes:
    part = struct.pack(f"<{len(numbers)}{form}", *numbers)
    return index[:at] + part + index[at + len(part) :]


# Of a .bin file of 200 bytes with two documents of 30 and 70 tokens.
INDEX = megatron_index([30, 70], 8, 2)
INDICES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "must begin with MMIDIDX"),
    "another magic": (b"TNTIDX\0\0\0" + INDEX[9:], "must begin with MMIDIDX"),
    "header cut": (INDEX[:33], "34 bytes of an index's header, got 33"),
    "another version": (changed(INDEX, 9, 2), "version 1, got 2"),
    "floats": (megatron_index([30, 70], 6, 4), "the dtype code of an integer type, got 6"),
    "no such code": (megatron_index([30, 70], 9, 2), "the dtype code of an integer type, got 9"),
    "cut": (INDEX[:-1], "must have 2 sequences and 3 ends.*got .* .the file is cut"),
    "longer": (INDEX + b"\0", "must have 2 sequences"),
    "sequences without end": (changed(INDEX, 18, 2**63 - 1), "have 9223372036854775807 sequences"),
    "sequences below zero": (changed(INDEX, 18, -1), "must have 18446744073709551615 sequences"),
    "documents without end": (changed(INDEX, 26, 2**61), "ends, as its header says"),
    "both without end": (changed(INDEX, 18, 2**60, 2**60), "ends, as its header says"),
    "no end at all": (megatron_index([30, 70], 8, 2, documents=[]), "must have ends of documents"),
    "a length below zero": (changed(INDEX, 34, -30, form="i"), "has sequence 0 of -30 tokens"),
    "a length beyond the file": (changed(INDEX, 38, 71, form="i"), "sequence 1 of 71 tokens.*200"),
    "a sequence that begins elsewhere": (
        changed(INDEX, 50, 62),
        "has sequence 1 of 70 tokens at byte 62; it must begin at byte 60",
    ),
    "a sequence below zero": (changed(INDEX, 42, -2), "at byte -2;"),
    "documents that begin late": (
        megatron_index([30, 70], 8, 2, [1, 1, 2]),
        "sequence 0 on, got 1",
    ),
    "falling ends": (megatron_index([30, 70], 8, 2, [0, 2, 1]), "ends that rise to the last"),
    "ends beyond the last": (megatron_index([30, 70], 8, 2, [0, 1, 3]), "up to sequence 3"),
    "ends before the last": (megatron_index([30, 70], 8, 2, [0, 1, 1]), "must have ends that rise"),
    "another file's": (megatron_index([30, 60], 8, 2), "sequences of 200 bytes.*got 180"),
    "of another width": (megatron_index([30, 70], 1, 1), "as the .bin file has, got 100"),
}


@pytest.mark.parametrize(("index", "text"), INDICES.values(), ids=INDICES)
def test_an_index_of_megatron_that_is_not_as_it_should_be(
    tmp_path: Path, index: bytes, text: str
) -> None:
    prefix = write_megatron(tmp_path / "x", TOKENS, [30, 70])
    Path(f"{prefix}.idx").write_bytes(index)
    with pytest.raises(ValueError, match=f"x.idx' .*{text}"):
        TokenDataset.from_megatron(prefix, 10)


ENDS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "must end with the last token, got token 0 for 200 bytes"),
    "cut": (struct.pack("<2Q", 30, 100)[:-1], "a multiple of 8 bytes, got 15 .the file is cut"),
    "falling": (struct.pack("<3Q", 30, 20, 100), "document 1 up to token 20 after token 30"),
    "beyond the end": (struct.pack("<2Q", 30, 101), "got token 101 for 200 bytes"),
    "far beyond the end": (struct.pack("<2Q", 30, 2**62), "document 1 up to token 46116860"),
    "below zero": (struct.pack("<2q", -1, 100), "document 0 up to token 18446744073709551615"),
    "before the end": (struct.pack("<2Q", 30, 99), "got token 99 for"),
}


@pytest.mark.parametrize(("index", "text"), ENDS.values(), ids=ENDS)
def test_an_index_of_datatrove_that_is_not_as_it_should_be(
    tmp_path: Path, index: bytes, text: str
) -> None:
    path = write_datatrove(tmp_path / "x.ds", TOKENS, [30, 100])
    Path(f"{path}.index").write_bytes(index)
    with pytest.raises(ValueError, match=f"x.ds.index' .*{text}"):
        TokenDataset(path, 10)


def test_what_lies_beside_tokens_is_not_tokens(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "x.ds", TOKENS, [30, 100])
    for name in ("x.ds.index", "x.ds.metadata"):
        with pytest.raises(ValueError, match=f"{name}' must be a file of tokens.*x.ds'"):
            TokenDataset(tmp_path / name, 10, dtype="uint16")


def test_an_index_says_another_dtype(tmp_path: Path) -> None:
    prefix = write_megatron(tmp_path / "x", TOKENS, [100])
    with pytest.raises(ValueError, match=r"x.idx' must have tokens of dtype='int32', got uint16"):
        TokenDataset.from_megatron(prefix, 10, dtype="int32")
    path = write_datatrove(tmp_path / "x.ds", TOKENS, [100])
    with pytest.raises(ValueError, match=r"for 200 bytes of tokens"):
        TokenDataset(path, 10, dtype="uint32")


def test_an_index_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())
    with pytest.raises(FileNotFoundError, match=r"x.idx"):
        TokenDataset.from_megatron(tmp_path / "x", 10)
    with pytest.raises(FileNotFoundError, match=r"y.bin"):
        TokenDataset.from_megatron(tmp_path / "y", 10)
    with pytest.raises(FileNotFoundError, match=r"x.bin.index"):
        TokenDataset(tmp_path / "x.bin", 10, format="datatrove")
    with pytest.raises(ValueError, match=r"x' must end with .bin, got '' .pass"):
        TokenDataset(write_llmc(tmp_path / "x", TOKENS), 10, format="megatron")


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe' must be a regular file, got a FIFO .write the"):
        TokenDataset(tmp_path / "pipe", 10, dtype="uint16")
    with pytest.raises(ValueError, match=r"/dev/zero' must be .*got a character device"):
        TokenDataset("/dev/zero", 10, dtype="uint16")
    with pytest.raises(IsADirectoryError, match=r"Is a directory") as error:
        TokenDataset(tmp_path, 10, dtype="uint16")
    assert error.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing"):
        TokenDataset(tmp_path / "nothing", 10, dtype="uint16")
    with pytest.raises(FileNotFoundError, match=r"No file matches this pattern.*nothing-"):
        TokenDataset(tmp_path / "nothing-*", 10, dtype="uint16")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(OSError, match=r"loop"):
        TokenDataset(tmp_path / "loop", 10, dtype="uint16")


def test_an_index_that_is_no_regular_file(tmp_path: Path) -> None:
    """Without waiting for its other end."""
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())
    os.mkfifo(tmp_path / "x.idx")
    with pytest.raises(ValueError, match=r"x.idx' must be .*got a FIFO"):
        TokenDataset.from_megatron(tmp_path / "x", 10)
    assert len(TokenDataset(tmp_path / "x.bin", 10, dtype="uint16")) == 9


def test_paths_that_are_none() -> None:
    for paths in (None, 3, {"a.bin"}, b"a.bin"):
        with pytest.raises(TypeError, match=r"paths must be a path, a pattern .*, got"):
            TokenDataset(paths, 10)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not NoneType"):
        TokenDataset([None], 10)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"paths must be .* a list of at least one"):
        TokenDataset([], 10)
    for prefix in (None, [3]):
        with pytest.raises(TypeError, match=r"not (NoneType|int)"):
            TokenDataset.from_megatron(prefix, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        TokenDataset(["a\0b"], 10)
    with pytest.raises(IsADirectoryError):
        TokenDataset("", 10)


# An argument, a value that it cannot have, and the rule in "NAME must be RULE, got VALUE".
ARGUMENTS: list[tuple[str, Any, type[Exception], str]] = [
    ("seq_len", "10", TypeError, "an int in [1, 2147483647]"),
    ("seq_len", 10.0, TypeError, "an int in [1, 2147483647]"),
    ("seq_len", np.array([8, 9]), TypeError, "an int in [1, 2147483647]"),
    ("seq_len", 0, ValueError, "an int in [1, 2147483647]"),
    ("seq_len", 2**31, ValueError, "an int in [1, 2147483647]"),
    ("stride", 0, ValueError, "an int in [1, 2147483647]"),
    ("format", "bin", ValueError, "one of 'auto', 'raw', 'npy', 'llmc', 'megatron', 'datatrove'"),
    ("dtype", "float32", ValueError, f"one of {DTYPES}"),
    ("dtype", torch.float16, ValueError, f"one of {DTYPES}"),
    ("dtype", None, ValueError, f"one of {DTYPES}"),
    ("dtype", "u17", ValueError, f"one of {DTYPES}"),
    ("dtype", ">u2", ValueError, f"one of {DTYPES}"),
    ("mode", "shuffle", ValueError, "one of 'strided', 'random', 'jittered'"),
    ("targets", "next", ValueError, "one of 'shift', 'same', None"),
    ("targets", True, ValueError, "one of 'shift', 'same', None"),
    ("io", "aio", ValueError, "one of 'auto', 'pread', 'mmap'"),
    ("out_dtype", torch.int16, ValueError, "one of int64, int32, uint16, uint32"),
    ("out_dtype", float, ValueError, "one of int64, int32, uint16, uint32"),
    ("eos_id", -1, ValueError, "an int in [0, 9223372036854775807]"),
    ("eos_id", True, TypeError, "an int in [0, 9223372036854775807]"),
    ("vocab_size", 0, ValueError, "an int in [1, 9223372036854775807]"),
    ("seed", -1, ValueError, "an int in [0, 18446744073709551615]"),
    ("seed", 2**64, ValueError, "an int in [0, 18446744073709551615]"),
    ("seed", None, TypeError, "an int in [0, 18446744073709551615]"),
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())
    return tmp_path / "x.bin"


@pytest.mark.parametrize(("name", "value", "kind", "rule"), ARGUMENTS, ids=str)
def test_an_argument_that_cannot_be(
    raw: Path, name: str, value: Any, kind: type[Exception], rule: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(f'{name} must be {rule}, got {value!r}')}"):
        TokenDataset(raw, **{"seq_len": 10, "dtype": "uint16", name: value})


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"stride": 5, "mode": "random"}, "stride must be None with mode='random', got 5"),
    ({"eos_id": 9, "vocab_size": 9}, r"eos_id must be an int in \[0, 8\], got 9"),
    (
        {"return_docs": True},
        "eos_id must be an int with return_docs=True, got None .'.*x.bin' has no index of doc",
    ),
    (
        {"seq_len": 100},
        "file of 101 tokens for seq_len=100, .*got 100 in the longest, .*x.bin' .pass a shorter",
    ),
    (
        {"mode": "jittered", "seq_len": 60},
        "file of 120 tokens for seq_len=60, mode='jittered', got 100 in the longest",
    ),
]


@pytest.mark.parametrize(("changes", "text"), TOGETHER, ids=str)
def test_arguments_that_do_not_go_together(raw: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TokenDataset(raw, **{"seq_len": 10, "dtype": "uint16", **changes})


def test_tokens_that_samples_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(400))
    for wide, narrow in (("uint32", "uint16"), ("int64", "uint32"), ("int32", "uint32")):
        with pytest.raises(ValueError, match=f"that holds {wide}, .*x.bin', got '{narrow}'"):
            TokenDataset(tmp_path / "x.bin", 10, dtype=wide, out_dtype=narrow)


def test_a_token_of_documents_that_files_cannot_hold(tmp_path: Path) -> None:
    """As when eos_id is that of another tokenizer: there would be no documents."""
    path = write_llmc(tmp_path / "x.bin", TOKENS)
    assert len(TokenDataset(path, 10, eos_id=2**16 - 1)) == 9
    with pytest.raises(
        ValueError,
        match=r"eos_id must be .*0, 65535\], got 128001 .the tokens of .*x.bin' are uint16",
    ):
        TokenDataset(path, 10, eos_id=128001)


@pytest.mark.parametrize("make", [lambda d: d[3], lambda d: d.__getitems__([0, 3])])
def test_a_token_outside_the_vocabulary(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    """Targets count, and the token that only they have."""
    tokens = np.arange(100, dtype=np.uint16)
    path = write_llmc(tmp_path / "x.bin", tokens)
    make(TokenDataset(path, 10, vocab_size=41))
    with pytest.raises(ValueError, match=r"x.bin.*token 40 must be in \[0, 39\], got 40"):
        make(TokenDataset(path, 10, vocab_size=40))
    with pytest.raises(ValueError, match=r"x.bin.*token 33 must be in \[0, 32\], got 33"):
        make(TokenDataset(path, 10, vocab_size=33))


def test_a_token_below_zero(tmp_path: Path) -> None:
    tokens = np.arange(100, dtype=np.int32)
    tokens[7] = -100
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    assert TokenDataset(tmp_path / "x.bin", 10, dtype="int32")[0][0][7] == -100
    with pytest.raises(ValueError, match=r"x.bin.*token 7 must be .*got -100"):
        TokenDataset(tmp_path / "x.bin", 10, dtype="int32", vocab_size=1000)[0]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_a_token_below_zero_of_a_large_vocabulary(tmp_path: Path, dtype: str) -> None:
    """Not taken for the token that has its bits without a sign."""
    tokens = np.full(100, -5, dtype)
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    dataset = TokenDataset(tmp_path / "x.bin", 64, dtype=dtype, vocab_size=2**33)
    with pytest.raises(ValueError, match=r"x.bin.*token 0 must be .*got -5"):
        dataset[0]


def test_a_token_too_large_for_int32(tmp_path: Path) -> None:
    tokens = np.arange(100, dtype=np.uint32)
    tokens[7] = 2**31
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    dataset = TokenDataset(tmp_path / "x.bin", 10, dtype="uint32", out_dtype=torch.int32)
    assert dataset[1][0].dtype == torch.int32
    with pytest.raises(ValueError, match=r"x.bin.*token 7 must be .*got 2147483648"):
        dataset[0]


META = torch.zeros(9, dtype=torch.int32, device="meta")
BUFFERS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "floats": (np.zeros(9), np.array([0, 9]), TypeError, f"a dtype of {DTYPES}, got float64"),
    "a list": ([1, 2], np.array([0, 2]), TypeError, "values must be a numpy.ndarray.*got list"),
    "two dimensions": (np.zeros((3, 3), "u2"), [0, 9], ValueError, r"got shape \(3, 3\)"),
    "gaps": (np.zeros(9, "u2")[::2], [0, 5], ValueError, "values must be contiguous, got strides"),
    "meta": (META, [0, 9], TypeError, "values must be a dense CPU tensor, got .*on meta"),
    "offsets of floats": (TOKENS, np.array([0.0, 9.0]), TypeError, "int64, got float64"),
    "offsets of uint64": (TOKENS, np.array([0, 9], "u8"), TypeError, "int64, got uint64"),
    "one offset": (TOKENS, np.array([0]), ValueError, "offsets must hold at least one token"),
    "no offset": (TOKENS, np.array([], "i8"), ValueError, r"a vector of n \+ 1 offsets"),
    "falling": (TOKENS, np.array([0, 9, 8, 10]), ValueError, r">= offsets\[1\]=9, got 8"),
    "beyond": (TOKENS, np.array([0, 101]), ValueError, r"lie in \[0, 100\], .*got 0 to 101"),
    "below zero": (TOKENS, np.array([-1, 10]), ValueError, "offsets must lie in .*got -1 to 10"),
    "no tokens": (TOKENS, np.array([5, 5]), ValueError, "offsets must hold at least one token"),
}


@pytest.mark.parametrize(("values", "offsets", "kind", "text"), BUFFERS.values(), ids=BUFFERS)
def test_buffers_that_cannot_be(
    values: Any, offsets: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        TokenDataset.from_buffers(values, offsets, 2)


def test_an_index_outside_the_dataset(tmp_path: Path) -> None:
    dataset = TokenDataset(write_llmc(tmp_path / "x.bin", TOKENS), 10)
    assert len(dataset) == 9
    for index in (9, -10, 2**63, -(2**63)):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for a length of 9"):
            dataset[index]
        with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
            dataset.__getitems__([0, index])
    for item in ("0", 1.0, slice(2), None):
        with pytest.raises(
            TypeError, match=rf"^index must be an int, got {re.escape(repr(item))}$"
        ):
            dataset[item]


def test_a_file_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = write_llmc(tmp_path / "x.bin", TOKENS)
    dataset = TokenDataset(path, 10)
    last = dataset[8]
    os.truncate(path, 1024 + 2 * 90)
    with pytest.raises(OSError, match=r"1204") as error:
        dataset[8]
    assert error.value.filename == str(path)
    write_llmc(path, TOKENS)
    assert all(map(torch.equal, dataset[8], last))
    os.remove(path)
    assert all(map(torch.equal, dataset[8], last))


def test_a_mapped_array_whose_file_was_cut(tmp_path: Path) -> None:
    """An error, where reading the array would end the process."""
    (tmp_path / "x.bin").write_bytes(TOKENS.tobytes())
    mapped = np.memmap(tmp_path / "x.bin", np.uint16, "r")
    dataset = TokenDataset.from_buffers(mapped, np.array([0, 100]), 10)
    assert dataset[0][0].tolist() == TOKENS[:10].tolist()
    os.truncate(tmp_path / "x.bin", 0)
    with pytest.raises(OSError, match="values"):
        dataset[0]


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_mapped_array_whose_file_ends_in_a_page(tmp_path: Path, workers: int | None) -> None:
    """The kernel reads zeros between the end of a file and the end of its last page."""
    path = tmp_path / "x.bin"
    path.write_bytes(TOKENS.tobytes())
    mapped = np.memmap(path, np.uint16, "r")
    dataset = TokenDataset.from_buffers(mapped, np.array([0, 90]), 10)
    os.truncate(path, 180)  # what lies behind the documents is not missed
    batches: Any = [dataset[7]] if workers is None else DataLoader(dataset, num_workers=workers)
    assert list(batches)[-1][0].flatten().tolist() == TOKENS[70:80].tolist()
    os.truncate(path, 178)
    with pytest.raises(OSError, match="2 bytes cannot be read: the file has") as error:
        dataset[7] if workers is None else list(batches)
    assert error.value.filename == "values"


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    path = write_llmc(tmp_path / "x.bin", TOKENS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_files()
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 20, None)), hard))
    try:
        dataset = TokenDataset([path] * 15, 10)  # each takes one descriptor, and never more
        assert dataset[134][0].tolist() == dataset[8][0].tolist()
        del dataset
        for files in (25, 40):
            with pytest.raises(OSError, match="Too many open files") as error:
                TokenDataset([path] * files, 10)
            assert error.value.errno == errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == before


def test_a_file_that_changed_before_a_worker_opens_it(tmp_path: Path) -> None:
    path = write_llmc(tmp_path / "x.bin", TOKENS)
    os.utime(path, (1e9, 1e9))
    pickled = pickle.dumps(TokenDataset(path, 10))
    assert len(pickle.loads(pickled)) == 9
    os.utime(path, (2e9, 2e9))
    with pytest.raises(
        OSError, match=r"has changed since the dataset was made.*1224 bytes"
    ) as error:
        len(pickle.loads(pickled))
    assert error.value.filename == str(path)
    os.utime(path, (1e9, 1e9))
    path.write_bytes(path.read_bytes() + b"\0\0")
    with pytest.raises(OSError, match=r"had 1224 bytes.* has 1226 bytes.*x.bin"):
        len(pickle.loads(pickled))
    path.write_bytes(b"")
    with pytest.raises(OSError, match=r"had 1224 bytes.* has 0 bytes.*x.bin"):
        len(pickle.loads(pickled))
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=r"x.bin"):
        len(pickle.loads(pickled))


@pytest.mark.parametrize("kind", ["megatron", "datatrove"])
def test_an_index_that_was_replaced_before_a_worker_opens_it(tmp_path: Path, kind: str) -> None:
    """By one of the same layout, so that the documents alone are others."""

    def write(first: int) -> tuple[Path, Path]:
        if kind == "megatron":
            write_megatron(tmp_path / "x", TOKENS, [first, 100 - first])
            return tmp_path / "x.bin", tmp_path / "x.idx"
        write_datatrove(tmp_path / "x.ds", TOKENS, [first, 100])
        return tmp_path / "x.ds", tmp_path / "x.ds.index"

    path, index = write(30)
    os.utime(path, (1e9, 1e9))
    os.utime(index, (1e9, 1e9))
    pickled = pickle.dumps(TokenDataset(path, 10, return_docs=True))
    assert len(pickle.loads(pickled)) == 9
    write(40)
    os.utime(path, (1e9, 1e9))
    with pytest.raises(OSError, match=r"has changed since the dataset was made") as error:
        len(pickle.loads(pickled))
    assert error.value.filename == str(index)


def test_arrays_take_no_options_of_files() -> None:
    for option in ({"format": "raw"}, {"dtype": "uint16"}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(option))}'"):
            TokenDataset.from_buffers(TOKENS, np.array([0, 100]), 10, **option)
