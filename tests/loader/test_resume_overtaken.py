"""With in_order=False a state says which batches are left, not only how many."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import small_dataset
from torch.utils.data import Dataset

from fastloop import DataLoader, prefetch
from fastloop.loader.resume.left_batches import Left, LeftBatches, read_left, write_left

PATHS = ["process", "thread", "torch"]
N = 21


class Gated(Dataset[int]):
    """Samples below 2 wait for a file."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        while index < 2 and not self.gate.exists():
            time.sleep(0.001)
        return index


def loader_of(gate: Path, path: str = "process", **given: Any) -> DataLoader[Any]:
    given = {"num_workers": 2, "in_order": False, **given}
    return DataLoader(Gated(gate), 2, path=path, **given)


def take(iterator: Iterator[Any], count: int) -> list[list[int]]:
    return [next(iterator).tolist() for _ in range(count)]


def in_twos() -> list[list[int]]:
    return [list(range(at, min(at + 2, N))) for at in range(0, N, 2)]


@pytest.mark.parametrize("path", PATHS)
def test_what_was_overtaken_comes_and_nothing_twice(path: str, tmp_path: Path) -> None:
    loader = loader_of(tmp_path / "gate", path)
    iterator = iter(loader)
    seen = take(iterator, 3)
    state = loader.state_dict()
    assert [0, 1] not in seen
    assert state["not_resumable"] == ""
    assert state["left"].startswith("0,")
    (tmp_path / "gate").touch()
    rest = [batch.tolist() for batch in iterator]
    assert sorted(seen + rest) == in_twos()
    for given in ({"num_workers": 0, "path": "sync"}, {"path": path}, {"in_order": True}):
        other = loader_of(tmp_path / "gate", **given)
        other.load_state_dict(state, strict=True)
        assert sorted(batch.tolist() for batch in other) == sorted(rest)
        assert len(list(other)) == len(in_twos())


@pytest.mark.parametrize("in_order", [False, True])
def test_a_resumed_epoch_is_saved_again(in_order: bool, tmp_path: Path) -> None:
    """After the first of those that were overtaken, and after all of them."""
    iterator = iter(loader := loader_of(tmp_path / "gate"))
    seen = take(iterator, 3)
    state = loader.state_dict()
    (tmp_path / "gate").touch()
    for count in (1, 4):
        loader = loader_of(tmp_path / "gate", in_order=in_order)
        loader.load_state_dict(state, strict=True)
        assert loader.state_dict() == state
        seen += take(iter(loader), count)
        state = loader.state_dict()
    assert state["left"] == "" or not in_order
    loader.load_state_dict(state, strict=True)
    assert sorted(seen + [batch.tolist() for batch in loader]) == in_twos()


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_array_path_goes_on(shuffle: bool) -> None:
    """In blocks of rows, of which those of overtaken batches are taken."""

    def make() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(4)
        return DataLoader(small_dataset(N), 2, shuffle, generator=generator, path="array")

    expected = [batch[0] for batch in make()]
    iterator = iter(loader := make())
    for _ in range(3):
        next(iterator)
    for left, numbers in (("0,2,5", (0, 2)), ("1,5,6,7", (1, 5, 6)), ("9,10,11", (9, 10))):
        other = make()
        other.load_state_dict({**loader.state_dict(), "left": left}, strict=True)
        wanted = [expected[number] for number in (*numbers, *range(int(left.split(",")[-1]), 11))]
        assert all(torch.equal(batch[0], rows) for batch, rows in zip(other, wanted, strict=True))


def test_what_is_read_ahead_is_not_the_users(tmp_path: Path) -> None:
    loader = loader_of(tmp_path / "gate")
    iterator = prefetch(loader, "cpu", depth=3)
    seen = take(iterator, 2)
    state = loader.state_dict()
    (tmp_path / "gate").touch()
    other = loader_of(tmp_path / "gate", "sync", num_workers=0)
    other.load_state_dict(state, strict=True)
    assert sorted(seen + [batch.tolist() for batch in other]) == in_twos()


def test_a_batch_that_raised_is_gone() -> None:
    left = LeftBatches(Left((), 0), 0)
    left.note(1, {0, 2, 3}, 4)  # 1 has come
    left.note(2, {0, 3, 5}, 6)  # 2 has raised, 4 has come
    assert left.after(1) == Left((0, 2, 3), 4)
    assert left.after(2) == Left((0, 3, 5), 6)


def test_left_of_left() -> None:
    """Places of a resumed iterator are of what was left then."""
    left = LeftBatches(Left((3, 8), 11), 9)
    assert [left.after(9 + k) for k in range(4)] == [
        Left((3, 8), 11),
        Left((8,), 11),
        Left((), 11),
        Left((), 12),
    ]
    left.note(10, {0, 2}, 3)
    assert left.after(10) == Left((3, 11), 12)
    for text in ("", "3,8,11"):
        assert write_left(read_left(text, 9), 9) == text


DAMAGES = {
    "x": "no list of numbers",
    "3,": "no list of numbers",
    "3,3": "do not ascend",
    "8,3": "do not ascend",
    "1,2": "fewer than the 3 batches yielded",
    "0,12": "of 11 batches",
}


@pytest.mark.parametrize("text", DAMAGES)
def test_a_damaged_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    iterator = iter(loader := loader_of(tmp_path / "gate"))
    take(iterator, 3)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=DAMAGES[text]):
        loader.load_state_dict({**state, "left": text})
    loader.load_state_dict(state)
