"""Files of tokens as the tools that users have write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Tokens = np.ndarray[Any, np.dtype[Any]]
MEGATRON_CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}


def some_tokens(count: int, dtype: Any = np.uint16, seed: int = 0) -> Tokens:
    most = min(np.iinfo(dtype).max, 2**31 - 1)
    return np.random.default_rng(seed).integers(0, most, count, dtype, endpoint=True)


def llmc_header(magic: int, version: int, tokens: int) -> bytes:
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, tokens
    return header.tobytes()


def write_llmc(path: Path, tokens: Tokens) -> Path:
    """llm.c's write_datafile: gpt-2 for uint16, llama-3 for uint32. Forks write uint8 as gpt-2."""
    magic, version = (20240801, 7) if tokens.dtype == np.uint32 else (20240520, 1)
    path.write_bytes(llmc_header(magic, version, len(tokens)) + tokens.tobytes())
    return path


def megatron_index(
    lengths: Sequence[int],
    code: int,
    width: int,
    documents: Sequence[int] | None = None,
    modes: bytes = b"",
) -> bytes:
    """Megatron's _IndexWriter: `documents` are numbers of sequences, with the 0 that leads them."""
    if documents is None:
        documents = range(len(lengths) + 1)
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * width
    return b"".join(
        (
            b"MMIDIDX\x00\x00",
            struct.pack("<QBQQ", 1, code, len(lengths), len(documents)),
            np.array(lengths, np.int32).tobytes(),
            pointers.astype(np.int64)[: len(lengths)].tobytes(),
            np.array(documents, np.int64).tobytes(),
            modes,
        )
    )


def write_megatron(
    prefix: Path, tokens: Tokens, lengths: Sequence[int], documents: Sequence[int] | None = None
) -> Path:
    """Megatron's IndexedDatasetBuilder; the prefix."""
    code = MEGATRON_CODES[tokens.dtype.str[1:]]
    Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
    index = megatron_index(lengths, code, tokens.itemsize, documents)
    Path(f"{prefix}.idx").write_bytes(index)
    return prefix


def write_datatrove(path: Path, tokens: Tokens, ends: Sequence[int]) -> Path:
    """datatrove's TokenizedFile: ends in tokens, and a text beside."""
    path.write_bytes(tokens.tobytes())
    Path(f"{path}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    Path(f"{path}.metadata").write_text(f"gpt2|{tokens.itemsize}\n{len(tokens)}\n{len(tokens)} T")
    return path
