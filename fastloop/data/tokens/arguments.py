"""What the windows of a TokenDataset are: its arguments, checked, and how many windows there are.

Every message names argument and value, and ends with what to pass instead.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop.data.tokens.files import TokenFile, read_dtype

MODES = ("strided", "random", "jittered")
TARGETS = ("shift", "same", None)
IO = ("auto", "pread", "mmap")
# Types of tokens that each type of samples can hold. Tokens that may not fit int32 are checked as
# they are read.
_ANY = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"))
_FITTING = {
    "int64": _ANY,
    "int32": _ANY,
    "uint16": frozenset(("uint8", "uint16")),
    "uint32": frozenset(("uint8", "uint16", "uint32")),
}
_MOST = 2**31 - 1  # of lengths, in tokens


class WindowArguments(NamedTuple):
    """As `_core.Windows` takes them; the names are those of TokenDataset's arguments."""

    seq_len: int
    stride: int
    mode: str
    targets: str | None
    out_dtype: str
    eos_id: int | None
    return_docs: bool
    vocab_size: int | None
    io: str
    seed: int

    @property
    def need(self) -> int:
        """Tokens that a window takes."""
        return self.seq_len + (self.targets == "shift")

    @property
    def shortest(self) -> int:
        """Tokens of the shortest file that has a window."""
        return self.need + (self.stride - 1 if self.mode == "jittered" else 0)

    def describe(self) -> str:
        each = {
            "strided": f"one every {self.stride} tokens",
            "jittered": f"one every {self.stride} tokens from an offset of the epoch",
            "random": "each at a random token",
        }[self.mode]
        names = {
            "shift": "and the next token of each",
            "same": "and a copy as targets",
            None: "without targets",
        }
        return f"{self.seq_len} tokens of {self.out_dtype} {names[self.targets]}, {each}"


def read_window_arguments(
    seq_len: Any,
    *,
    mode: Any = "strided",
    stride: Any = None,
    targets: Any = "shift",
    out_dtype: Any = torch.int64,
    eos_id: Any = None,
    return_docs: bool = False,
    vocab_size: Any = None,
    io: Any = "auto",
    seed: Any = 0,
) -> WindowArguments:
    """TypeError or ValueError for what cannot be, without a look at the files."""
    check_choice("mode", mode, MODES)
    check_choice("targets", targets, TARGETS)
    check_choice("io", io, IO)
    length = _read_int("seq_len", seq_len, 1, _MOST, "pass the tokens of a sample")
    if stride is not None and mode == "random":
        raise ValueError(f"stride={stride!r} with mode='random', which has none; leave it out")
    step = length
    if stride is not None:
        step = _read_int("stride", stride, 1, _MOST, "pass the tokens from one window to the next")
    if vocab_size is not None:
        vocab_size = _read_int("vocab_size", vocab_size, 1, 2**63 - 1, "pass the tokens there are")
    if eos_id is not None:
        most = 2**63 - 1 if vocab_size is None else vocab_size - 1
        eos_id = _read_int("eos_id", eos_id, 0, most, "pass the token that ends a document")
    name = read_dtype(out_dtype, "out_dtype", tuple(_FITTING))
    number = _read_int("seed", seed, 0, 2**64 - 1, "pass an integer that is")
    return WindowArguments(
        length, step, mode, targets, name, eos_id, bool(return_docs), vocab_size, io, number
    )


def check_choice(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if not isinstance(value, (str, type(None))) or value not in known:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}")


def _read_int(name: str, value: Any, least: int, most: int, remedy: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no integer; {remedy}")
    if not least <= number <= most:
        raise ValueError(f"{name}={number} is not in [{least}, {most}]; {remedy}")
    return number


def check_files(
    arguments: WindowArguments, files: tuple[TokenFile, ...], have_ends: list[bool]
) -> None:
    """ValueError for files that do not go with the arguments."""
    for file, has_ends in zip(files, have_ends, strict=True):
        if file.dtype not in _FITTING[arguments.out_dtype]:
            raise ValueError(
                f"{file.path!r} has tokens of {file.dtype}, which out_dtype={arguments.out_dtype} "
                "cannot hold; pass torch.int64"
            )
        most = np.iinfo(file.dtype).max
        if arguments.eos_id is not None and arguments.eos_id > most:
            raise ValueError(
                f"eos_id={arguments.eos_id}, but tokens of {file.path!r} are {file.dtype}, at most "
                f"{most}; pass the token that ends a document there"
            )
        if arguments.return_docs and arguments.eos_id is None and not has_ends:
            raise ValueError(
                f"return_docs=True, but {file.path!r} has no index of documents; pass eos_id="
            )
    longest = max(files, key=operator.attrgetter("tokens"))
    if longest.tokens < arguments.shortest:
        raise ValueError(
            f"seq_len={arguments.seq_len} with mode={arguments.mode!r} and targets="
            f"{arguments.targets!r} takes files of {arguments.shortest} tokens, and the longest, "
            f"{longest.path!r}, has {longest.tokens}; pass a shorter seq_len"
        )
