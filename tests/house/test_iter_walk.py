"""How far a reader walks who follows one ``iter()`` or ``next()``: the functions of the package
that run, and their files. The ceilings are the numbers of the day on which they were written."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import fastloop
from fastloop import ArrayDataset, DataLoader, PadCollate, RaggedArray, adapters

ROOT = str(Path(fastloop.__file__).parent)
X = torch.arange(80.0).reshape(40, 2)
TEXTS = RaggedArray.from_list([[1] * (i % 5 + 1) for i in range(40)])


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


class Walk(NamedTuple):
    functions: int
    files: int


def walk(call: Callable[[], Any]) -> tuple[Any, Walk]:
    """Return the result of a call, and what ran on this thread."""
    ran: set[tuple[str, int]] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            ran.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        made = call()
    finally:
        sys.setprofile(None)
    return made, Walk(len(ran), len({file for file, _ in ran}))


# By name: the loader, the ceilings of iter() and of next(). Worker processes that are slow to start
# or to answer make the parent wait, which takes a few functions more.
LOADERS: dict[str, tuple[Callable[[], Any], Walk, Walk]] = {
    "tensors": (lambda: DataLoader(TensorDataset(X), 8), Walk(54, 9), Walk(1, 1)),
    "tensors, threads": (
        lambda: DataLoader(TensorDataset(X), 8, num_workers=2),
        Walk(62, 10),
        Walk(5, 2),
    ),
    "sequences": (
        lambda: DataLoader(ArrayDataset(ids=TEXTS), 8, collate_fn=PadCollate(), num_workers=2),
        Walk(97, 17),
        Walk(5, 2),
    ),
    "default collate": (lambda: DataLoader(Squares(), 8), Walk(28, 9), Walk(3, 2)),
    "own collate": (lambda: DataLoader(Squares(), 8, collate_fn=list), Walk(25, 8), Walk(3, 2)),
    "default collate, joined": (
        lambda: DataLoader(ConcatDataset([Subset(Squares(), range(8))] * 2), 8),
        Walk(28, 9),
        Walk(3, 2),
    ),
    "worker processes": (
        lambda: DataLoader(Squares(), 8, num_workers=2),
        Walk(113, 26),  # 104, 21 if no seam is there that patch() has left
        Walk(30, 8),  # 15 to 19, 5 if next() does not wait long
    ),
    "a stream": (lambda: DataLoader(Stream(), 8), Walk(47, 11), Walk(6, 4)),
}


@pytest.mark.parametrize("name", LOADERS)
def test_iter_and_next_run_no_more_functions_in_no_more_files(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of the process may have imported packages whose functions fastloop stands in for.
    monkeypatch.setattr(adapters, "serve_fetches", lambda: False)
    make, most_iter, most_next = LOADERS[name]
    loader = make()
    for _ in range(3):  # the dataset's own code is traced twice, before it is left alone
        list(loader)
    iterator, for_iter = walk(lambda: iter(loader))
    next(iterator)
    _, for_next = walk(lambda: next(iterator))
    list(iterator)
    found = f"iter() {for_iter}, next() {for_next}"
    assert all(a <= b for a, b in zip(for_iter, most_iter, strict=True)), found
    assert all(a <= b for a, b in zip(for_next, most_next, strict=True)), found
