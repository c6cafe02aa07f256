"""ImageFolder on every path: the same bits, and samples that are written where their batch is."""

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TorchLoader, assert_same

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, write_folder
from workers import on_collection

from fastloop import DataLoader, ImageFolder, _core
from fastloop import transforms as T
from fastloop.data.collate import borrow_slots, make_collate

TRAIN = T.Compose(
    [
        T.RandomResizedCrop(64),  # a sample of 48 KB: large enough for slots and long copies
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    ]
)
PATHS: dict[str, dict[str, Any]] = {
    "sync": {"path": "sync"},
    "process": {"path": "process", "num_workers": 2},
    "thread": {"path": "thread", "num_workers": 2},
    "one thread": {"path": "thread", "num_workers": 1},
    "torch": {"path": "torch"},
    "torch, processes": {"path": "torch", "num_workers": 1},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def truth(dataset: Any, epoch: int, **arguments: Any) -> list[Any]:
    """torch's loader gives these batches. The epoch of `dataset` stays unset."""
    other = ImageFolder(dataset.root, dataset.transform, seed=dataset._seed)
    other.set_epoch(epoch)
    return list(TorchLoader(other, **arguments))


@pytest.mark.parametrize("arguments", PATHS.values(), ids=PATHS)
def test_every_path_has_torchs_bits(root: Path, arguments: dict[str, Any]) -> None:
    dataset = ImageFolder(root, TRAIN, seed=3)
    with DataLoader(dataset, 4, shuffle=True, **arguments) as loader:
        for epoch in (0, 1):
            torch.manual_seed(epoch)
            ours = list(loader)
            torch.manual_seed(epoch)
            theirs = truth(dataset, epoch, batch_size=4, shuffle=True)
            assert_same(ours, theirs)
            assert [x.stride() for x, _ in ours] == [x.stride() for x, _ in theirs]
        assert loader.stats().path == arguments["path"]


@pytest.mark.parametrize("workers", [0, 2])
def test_path_auto_takes_no_arrays_and_says_why(root: Path, workers: int) -> None:
    with DataLoader(ImageFolder(root, TRAIN), 4, num_workers=workers) as loader:
        next(iter(loader))
        stats = loader.stats()
    assert stats.path == ("process" if workers else "sync")
    assert stats.why == "the files of an ImageFolder without cache= are decoded in Python"
    with pytest.raises(ValueError, match="path='array' cannot load this: the files of an ImageFo"):
        iter(DataLoader(ImageFolder(root, TRAIN), path="array"))


@pytest.mark.parametrize("arguments", PATHS.values(), ids=PATHS)
def test_errors_are_in_their_place(root: Path, arguments: dict[str, Any]) -> None:
    dataset = ImageFolder(root, TRAIN)
    path = dataset.samples[6][0]
    Path(path).write_bytes(b"no image")
    with DataLoader(dataset, 4, **arguments) as loader:
        batches = iter(loader)
        first = next(batches)
        with pytest.raises(OSError, match=rf"'{path}' cannot be decoded with auto: Pillow: it has"):
            next(batches)
        if arguments.get("num_workers"):
            third = next(batches)
            assert_same(third[0][0], ImageFolder(root, TRAIN)[8][0])
    assert_same(first[0][3], ImageFolder(root, TRAIN)[3][0])


# ---- samples in the batch's memory


@pytest.mark.parametrize("arguments", PATHS.values(), ids=PATHS)
def test_batches_that_are_kept_keep_their_numbers(root: Path, arguments: dict[str, Any]) -> None:
    dataset = ImageFolder(root, TRAIN)
    with DataLoader(dataset, 3, **arguments) as loader:
        kept = [list(loader) for _ in range(4)]
        copies = [[[t.clone() for t in batch] for batch in batches] for batches in kept]
        again = list(loader)
    for epoch in range(4):
        assert_same(copies[epoch], truth(dataset, epoch, batch_size=3))
        assert_same(kept[epoch], copies[epoch])
    assert len(again) == 5
    pointers = {x.data_ptr() for batches in kept for x, _ in batches}
    assert len(pointers) == 20


class Spy:
    """Counts the blocks that are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[bool] = []
        borrow = borrow_slots

        @contextmanager
        def spying(like: Any, count: int) -> Any:
            with borrow(like, count) as places:
                self.found.append(places[0] is not None)
                yield places

        monkeypatch.setattr("fastloop.data.image_folder.encoded.borrow_slots", spying)


def identity(batch: Any) -> Any:
    return batch


class Wrapped(torch.utils.data.Dataset[Any]):
    """Forwards and keeps what it sees, so it must not be lent memory of a batch."""

    def __init__(self, dataset: ImageFolder) -> None:
        self.dataset = dataset
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.dataset.__getitems__(indices)
        self.kept += samples
        return samples


@pytest.mark.parametrize("path", ["sync", "thread"])
def test_who_is_lent_memory(root: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    dataset = ImageFolder(root, TRAIN)
    part = torch.utils.data.Subset(torch.utils.data.Subset(dataset, range(8)), [1, 5, 7])
    workers = 1 if path == "thread" else 0

    def lent(dataset: Any, **arguments: Any) -> set[bool]:
        spy.found.clear()
        with DataLoader(dataset, 2, num_workers=workers, path=path, **arguments) as loader:
            list(loader)
        return set(spy.found)

    assert lent(dataset) == {True}
    assert lent(part) == {True}
    assert lent(dataset, collate_fn=identity) == {False}
    wrapped = Wrapped(dataset)
    assert lent(wrapped) == {False}
    for i, (image, _) in enumerate(wrapped.kept):
        assert image.data_ptr() != wrapped.kept[i - 1][0].data_ptr()
    spy.found.clear()
    list(TorchLoader(dataset, 4))
    dataset.__getitems__([1, 2])
    assert set(spy.found) == {False}


def test_what_a_decoder_loads_is_lent_nothing_of_the_outer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    inner = ImageFolder(root, TRAIN)
    seen: list[Any] = []

    def decode(data: bytes) -> Any:
        if len(seen) < 3:
            seen.append(None)
            seen[-1] = next(iter(DataLoader(inner, 4)))
            spy.found.clear()
            seen.append(inner.__getitems__([0, 1]))
            seen.append(spy.found[:])
        return by_pillow(data)

    outer = ImageFolder(root, TRAIN, decode=decode)
    batches = list(DataLoader(outer, 4))
    outer.set_epoch(0)
    assert_same(batches, list(TorchLoader(ImageFolder(root, TRAIN), 4)))
    inner.set_epoch(0)
    assert_same(seen[1], [inner[0], inner[1]])
    assert seen[2] == [False]


def test_an_error_in_the_middle_of_a_batch_gives_its_memory_back(root: Path) -> None:
    is_failing = True

    def decode(data: bytes) -> Any:
        if is_failing and len(data) == size:
            raise KeyError("x")
        return by_pillow(data)

    dataset = ImageFolder(root, TRAIN, decode=decode)
    size = Path(dataset.samples[2][0]).stat().st_size
    loader = DataLoader(dataset, 14)
    for _ in range(20):
        with pytest.raises(OSError, match="'x'"):
            next(iter(loader))
    is_failing = False
    (batch,) = loader
    assert_same([batch], truth(dataset, 20, batch_size=14))


Change = Callable[[list[Any]], list[Any]]
CHANGES: dict[str, tuple[Change, bool]] = {
    "as they are": (lambda rows: rows, True),
    "another order": (lambda rows: rows[::-1], False),
    "one left out": (lambda rows: rows[1:], False),
    "one twice": (lambda rows: [*rows[:-1], rows[0]], False),
    "one of another": (lambda rows: [*rows[:-1], rows[-1].clone()], False),
    "transposed": (lambda rows: [row.transpose(0, 1) for row in rows], False),
    "another dtype": (lambda rows: [row.view(torch.int32) for row in rows], False),
    "negative": (lambda rows: [torch._neg_view(row) for row in rows], False),
    "an array": (lambda rows: [row.numpy() for row in rows], False),
}


@pytest.mark.parametrize(("change", "is_taken"), CHANGES.values(), ids=CHANGES)
def test_a_block_is_the_stack_of_its_own_rows_only(change: Change, is_taken: bool) -> None:
    collate = make_collate()
    block = collate.block(torch.empty(5, 5), 4)
    assert (block.shape, block.dtype) == ((4, 5, 5), torch.float32)
    block.copy_(torch.arange(100.0).view(4, 5, 5))
    rows = change(list(block.unbind(0)))
    batch = collate([(row, i) for i, row in enumerate(rows)])
    assert_same(batch, torch.utils.data.default_collate([(row, i) for i, row in enumerate(rows)]))
    assert (batch[0].data_ptr() == block.data_ptr()) == is_taken
    again = collate([(row, i) for i, row in enumerate(block.unbind(0))])
    assert again[0].data_ptr() != block.data_ptr()  # a block is for one batch


def test_a_block_is_kept_while_its_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's functions give the interpreter lock up: another thread may then end the batch."""
    is_neg, meanwhile = torch.Tensor.is_neg, [[torch.ones(2)]]

    def end_batch(tensor: torch.Tensor) -> bool:
        if meanwhile:
            collate(meanwhile.pop())
        return is_neg(tensor)

    monkeypatch.setattr(torch.Tensor, "is_neg", end_batch)
    collate = make_collate()
    block = collate.block(torch.empty(2), 3)
    rows = list(block.copy_(torch.arange(6.0).view(3, 2)).unbind(0))
    assert torch.equal(collate(rows), torch.arange(6.0).view(3, 2)) and not meanwhile


@pytest.mark.parametrize("after", range(4))
def test_a_block_begun_while_one_is_made_is_not_left_behind(after: int) -> None:
    """By a finalizer, or by another thread."""
    inner, like, collate = [], torch.empty(2), make_collate()
    with on_collection(lambda: inner.append(weakref.ref(collate.block(like, 2))), after):
        collate.block(like, 3)
    collate([torch.ones(1)])
    assert [block() for block in inner] == [None] * len(inner)


def test_blocks_that_cannot_be() -> None:
    collate = make_collate()
    for like, count in ((torch.empty(2, 3).t(), 2), (torch.empty(2), 0), (torch.empty(2), -1)):
        with pytest.raises(ValueError, match="block: count must be at least 1"):
            collate.block(like, count)
    with pytest.raises(TypeError):
        collate.block([1], 2)


def test_a_block_lives_no_longer_than_its_collate() -> None:
    collate: _core.Collate | None = make_collate()
    assert collate is not None
    block = collate.block(torch.empty(100, 100), 4)
    block.fill_(3)
    del collate
    gc.collect()
    assert block.eq(3).all()


def test_a_thread_that_is_closed_stops_between_two_samples(root: Path) -> None:
    calls: list[int] = []
    has_begun = threading.Event()

    def decode(data: bytes) -> Any:
        calls.append(len(data))
        has_begun.set()
        while not batches._done.is_set:
            time.sleep(0.001)
        return by_pillow(data)

    loader = DataLoader(ImageFolder(root, TRAIN, decode=decode), 14, num_workers=1, path="thread")
    batches: Any = iter(loader)
    has_begun.wait()
    batches.close()
    assert len(calls) == 1


@pytest.mark.slow
def test_skipping_in_threads_warns_once(root: Path) -> None:
    dataset = ImageFolder(root, TRAIN, on_error="skip")
    for row in (0, 5, 9):
        Path(dataset.samples[row][0]).write_bytes(b"no image")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with DataLoader(dataset, 4, num_workers=1, path="thread") as loader:
            assert [len(x) for x, _ in loader] == [4, 4, 4, 2]
    assert len([w for w in caught if "ImageFolder skips" in str(w.message)]) == 1
    assert len(dataset.skipped_files) == 3
