"""The arguments of the windows of a TokenDataset, read and checked against the files."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.base.checks import make_message, read_choice, read_int, read_optional_int
from fastloop.data.tokens.files import DTYPES, OpenTokens, read_dtype

# The dtypes of tokens that each dtype of samples can hold. C checks whether each token of int64
# or uint32 fits int32.
_FITTING = {
    "int64": DTYPES,
    "int32": DTYPES,
    "uint16": ("uint8", "uint16"),
    "uint32": ("uint8", "uint16", "uint32"),
}
_MOST = 2**31 - 1  # of lengths, in tokens
_INT64_MAX = 2**63 - 1


@dataclass
class WindowArguments:
    """The arguments of TokenDataset that say what its windows are; ``Windows`` in C takes the same.

    Raises:
        TypeError, ValueError: an argument that cannot be.
    """

    seq_len: int
    mode: str = "strided"
    stride: Any = None  # once read, an int
    targets: str | None = "shift"
    out_dtype: Any = torch.int64  # once read, a name
    eos_id: int | None = None
    return_docs: bool = False
    vocab_size: int | None = None
    io: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        read_choice("mode", self.mode, ("strided", "random", "jittered"))
        read_choice("targets", self.targets, ("shift", "same", None))
        read_choice("io", self.io, ("auto", "pread", "mmap"))
        self.seq_len = read_int("seq_len", self.seq_len, 1, _MOST)
        if self.stride is not None and self.mode == "random":
            raise ValueError(make_message("stride", "None with mode='random'", self.stride))
        self.stride = read_optional_int("stride", self.stride, 1, _MOST) or self.seq_len
        self.vocab_size = read_optional_int("vocab_size", self.vocab_size, 1, _INT64_MAX)
        most = _INT64_MAX if self.vocab_size is None else self.vocab_size - 1
        self.eos_id = read_optional_int("eos_id", self.eos_id, 0, most)
        self.out_dtype = read_dtype("out_dtype", self.out_dtype, tuple(_FITTING))
        self.return_docs = bool(self.return_docs)
        self.seed = read_int("seed", self.seed, 0, 2**64 - 1)

    @property
    def shortest(self) -> int:
        """The tokens of the shortest file that has a window."""
        need = self.seq_len + (self.targets == "shift")
        return need + (self.stride - 1 if self.mode == "jittered" else 0)

    def describe(self) -> str:
        """Return a line about the windows, for people."""
        stride = "" if self.mode == "random" else f", one every {self.stride} tokens"
        kind = f"{self.seq_len} tokens of {self.out_dtype}, targets {self.targets}"
        return f"{kind}, {self.mode}{stride}"

    def check_files(self, opened: Sequence[OpenTokens]) -> None:
        """Refuse files that do not go with the arguments, by a ValueError."""
        for file, _, ends, _ in opened:
            if file.dtype not in _FITTING[self.out_dtype]:
                raise ValueError(
                    f"out_dtype must hold the tokens of {file.path!r}, which are {file.dtype}, got "
                    f"{self.out_dtype} (pass torch.int64)"
                )
            most = np.iinfo(file.dtype).max
            if self.eos_id is not None and self.eos_id > most:
                rule = f"at most {most} for {file.path!r}, whose tokens are {file.dtype}"
                raise ValueError(make_message("eos_id", rule, self.eos_id))
            if self.return_docs and self.eos_id is None and ends is None:
                raise ValueError(
                    f"eos_id must be given with return_docs=True, because {file.path!r} has no "
                    "index of documents"
                )
        longest = max((each.file for each in opened), key=operator.attrgetter("tokens"))
        if longest.tokens < self.shortest:
            raise ValueError(
                f"paths must have a file of {self.shortest} tokens for seq_len={self.seq_len}, "
                f"mode={self.mode!r} and targets={self.targets!r}, but the longest, "
                f"{longest.path!r}, has {longest.tokens} (pass a shorter seq_len)"
            )
