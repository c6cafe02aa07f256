"""The work of the benchmark of sequences: tokens in a file, texts of different length, and who
loads them.

What torch's users write is written as they write it: a Dataset a window, nanoGPT's loop, one fancy
index a batch; `pad_sequence` of tensors or of lists.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import torch
from _harness import Epoch, Epochs, aligned, build_library
from _work import LOADERS, SEED, WORKERS, loader_epoch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import fastloop

VOCABULARY = 50_257


# ---- windows of tokens


def write_tokens(path: Path, count: int) -> None:
    """uint16, without a header. It is in the page cache then."""
    rng = np.random.default_rng(SEED)
    with path.open("wb") as file:
        for begin in range(0, count, 1 << 24):
            size = min(1 << 24, count - begin)
            rng.integers(0, VOCABULARY, size, np.uint16).tofile(file)
        file.flush()
        os.fsync(file.fileno())  # only then can pages be dropped


def is_cached(fd: int, size: int) -> bool:
    """Whether any of some pages of the file is in the page cache."""
    for at in range(0, size, max(size // 64, 1)):
        try:
            os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        return True
    return False


def forget_file(path: Path) -> None:
    """Drops its pages from the page cache. Those that are mapped, or being read, stay: whoever does
    that may be about to end."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(100):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not is_cached(fd, path.stat().st_size):
                return
            sleep(0.02)
    finally:
        os.close(fd)
    raise OSError(f"{path} stays in memory: set TMPDIR to a folder on a disk")


class Windows(Dataset[Any]):
    """What a user of torch writes: a slice of a memmap for each of x and y."""

    def __init__(self, path: Path, length: int) -> None:
        self.tokens, self.length = np.memmap(path, np.uint16, "r"), length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin, end = index * self.length, (index + 1) * self.length
        x = torch.from_numpy(self.tokens[begin:end].astype(np.int64))
        y = torch.from_numpy(self.tokens[begin + 1 : end + 1].astype(np.int64))
        return x, y


@dataclass(frozen=True)
class Tokens:
    """A file of windows."""

    path: Path
    length: int = 1024
    batch: int = 32

    @property
    def windows(self) -> int:
        return (self.path.stat().st_size // 2 - 1) // self.length

    @property
    def batches(self) -> int:
        return math.ceil(self.windows / self.batch)

    def order(self, is_shuffled: bool = True) -> np.ndarray:
        """The first token of each window of an epoch."""
        rng = np.random.default_rng(SEED)
        order = rng.permutation(self.windows) if is_shuffled else np.arange(self.windows)
        return order * self.length

    def loader(self, who: str, workers: int, **kwargs: Any) -> DataLoader[Any]:
        dataset: Any = (
            fastloop.TokenDataset(self.path, self.length, dtype="uint16", format="raw")
            if who == "fastloop"
            else Windows(self.path, self.length)
        )
        keep = {"num_workers": workers, "persistent_workers": workers > 0}
        return LOADERS[who](dataset, self.batch, **{"shuffle": True, **keep, **kwargs})

    def loaders(self, who: str, **kwargs: Any) -> dict[str, DataLoader[Any]]:
        return {f"workers={n}": self.loader(who, n, **kwargs) for n in WORKERS}

    def nano_gpt(self) -> Epochs:
        """get_batch() of nanoGPT's train.py, as it is (the memmap is made anew each time, against
        growing memory) and with one memmap."""
        kept = np.memmap(self.path, np.uint16, "r")

        def get_batch(data: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
            size = self.length
            ix = torch.randint(len(data) - size, (self.batch,))
            x = torch.stack([torch.from_numpy(data[i : i + size].astype(np.int64)) for i in ix])
            y = torch.stack(
                [torch.from_numpy(data[i + 1 : i + 1 + size].astype(np.int64)) for i in ix]
            )
            return x, y

        def epoch(make: Callable[[], np.ndarray]) -> Epoch:
            def run() -> int:
                for _ in range(self.batches):
                    get_batch(make())
                return self.batches

            return run

        return {
            "as it is": epoch(lambda: np.memmap(self.path, np.uint16, "r")),
            "one memmap": epoch(lambda: kept),
        }

    def fancy_index(self) -> Epochs:
        """One index array a batch, over an array in memory: x and y side by side in one tensor, or
        each contiguous as from the others."""
        data = np.fromfile(self.path, np.uint16)
        begins, places = self.order(), np.arange(self.length + 1)

        def run(is_contiguous: bool) -> Epoch:
            def epoch() -> int:
                for at in range(0, len(begins), self.batch):
                    rows = data[begins[at : at + self.batch, None] + places]
                    if is_contiguous:
                        torch.from_numpy(rows[:, :-1].astype(np.int64))
                        torch.from_numpy(rows[:, 1:].astype(np.int64))
                    else:
                        whole = torch.from_numpy(rows.astype(np.int64))
                        whole[:, :-1], whole[:, 1:]
                return self.batches

            return epoch

        return {"views": run(False), "contiguous": run(True)}

    def assert_same_windows(self) -> None:
        """Raises if batches differ from torch's of the same seed, for any number of workers."""
        for workers in WORKERS:
            loaders = [
                self.loader(who, n, generator=torch.Generator().manual_seed(SEED))
                for who, n in (("fastloop", workers), ("torch", 0))
            ]
            for ours, theirs in zip(*loaders, strict=True):
                if len(ours) != len(theirs) or not all(map(torch.equal, ours, theirs)):
                    raise AssertionError(f"a batch with {workers} workers differs from torch's")


class _Tokens(ctypes.Structure):
    MAX_THREADS = 8  # as in limit_tokens.c
    _fields_ = [
        ("src", ctypes.c_void_p),
        ("x", ctypes.c_void_p * MAX_THREADS),
        ("y", ctypes.c_void_p * MAX_THREADS),
        ("begins", ctypes.c_void_p),
        ("windows", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("fd", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("streaming", ctypes.c_int64),
    ]


class TokenLimit:
    """limit_tokens.c."""

    def __init__(self, tokens: Tokens) -> None:
        self._library = build_library("limit_tokens.c", "-pthread")
        self._tokens = tokens

    def widen(self, threads: Sequence[int] = (1, 2)) -> Epochs:
        """From an array in memory, with plain and with non-temporal stores."""
        data, begins = np.fromfile(self._tokens.path, np.uint16), self._tokens.order()
        stores = {"plain": False, "streaming": True}
        return {
            f"{name} x{n}": self._epoch(n, how, begins, data, src=data.ctypes.data)
            for name, how in stores.items()
            for n in threads
        }

    def pread(self, begins: np.ndarray) -> Epoch:
        """One window after another, by one thread."""
        file = self._tokens.path.open("rb")
        return self._epoch(1, False, begins, file, fd=file.fileno())

    def _epoch(
        self, threads: int, streaming: bool, begins: np.ndarray, kept: object, **source: int
    ) -> Epoch:
        tokens = self._tokens
        rooms = [aligned(tokens.batch * tokens.length * 8) for _ in range(2 * threads)]
        work = _Tokens(
            begins=begins.ctypes.data,
            windows=len(begins),
            batch=tokens.batch,
            length=tokens.length,
            threads=threads,
            streaming=streaming,
            **source,
        )
        addresses = [room.ctypes.data for room in rooms]
        work.x[:threads], work.y[:threads] = addresses[:threads], addresses[threads:]

        def run(_kept: object = (kept, begins, rooms)) -> int:
            if self._library.limit_run(ctypes.byref(work)) != 0:
                raise OSError("limit_tokens could not start a thread, or not read a window")
            return tokens.batches

        return run


# ---- texts of different length


class Texts(Dataset[Any]):
    """What a user of torch has: tensors, or lists as tokenizers give them."""

    def __init__(self, texts: list[Any]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        return self.texts[index]


def pad_tensors(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = pad_sequence(texts, batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


def pad_lists(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    return pad_tensors([torch.tensor(text) for text in texts])


def pad_dicts(texts: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return pad_lists([text["input_ids"] for text in texts])


@dataclass(frozen=True)
class Padding:
    """Texts of 10 to 200 tokens."""

    count: int
    batch: int = 64

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.random.default_rng(SEED).integers(10, 201, self.count)

    @cached_property
    def offsets(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @cached_property
    def values(self) -> np.ndarray:
        return np.random.default_rng(SEED).integers(0, VOCABULARY, self.offsets[-1])

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return list(torch.from_numpy(self.values).split(self.lengths.tolist()))

    @cached_property
    def lists(self) -> list[dict[str, list[int]]]:
        return [{"input_ids": text.tolist()} for text in self.tensors]

    def ragged_loader(self, who: str, workers: int, **kwargs: Any) -> DataLoader[Any]:
        dataset: Any = Texts(self.tensors)
        collate: Any = pad_tensors
        if who == "fastloop":
            ragged = fastloop.RaggedArray(self.values, self.offsets)
            dataset = fastloop.ArrayDataset(input_ids=ragged)
            collate = fastloop.PadCollate(return_mask=True)
        keep = {"num_workers": workers, "persistent_workers": workers > 0, **kwargs}
        return LOADERS[who](dataset, self.batch, shuffle=True, collate_fn=collate, **keep)

    def ragged_loaders(self, who: str) -> dict[str, DataLoader[Any]]:
        return {f"workers={n}": self.ragged_loader(who, n) for n in WORKERS}

    def list_loader(self, who: str, collate: Any, **kwargs: Any) -> DataLoader[Any]:
        return LOADERS[who](
            Texts(self.lists), self.batch, shuffle=True, collate_fn=collate, **kwargs
        )

    def list_epochs(self) -> dict[str, Epochs]:
        """Without workers; fastloop's collate in torch's loader, too."""
        ours = fastloop.PadCollate(return_mask=True)
        return {
            "fastloop": {
                "DataLoader": loader_epoch(self.list_loader("fastloop", ours)),
                "torch's loader": loader_epoch(self.list_loader("torch", ours)),
            },
            "torch": {"pad_sequence": loader_epoch(self.list_loader("torch", pad_dicts))},
        }

    def assert_same_texts(self) -> None:
        """Raises if batches differ from torch's of the same seed."""

        def seeded() -> torch.Generator:
            return torch.Generator().manual_seed(SEED)

        theirs = self.ragged_loader("torch", 0, generator=seeded())
        ours = [self.ragged_loader("fastloop", n, generator=seeded()) for n in WORKERS]
        collate = fastloop.PadCollate(return_mask=True)
        ours.append(self.list_loader("fastloop", collate, generator=seeded()))
        for batch, *others in zip(theirs, *ours, strict=True):
            for other in others:
                if list(other) != list(batch) or not all(
                    torch.equal(other[k], batch[k]) for k in batch
                ):
                    raise AssertionError("a padded batch differs from torch's")
