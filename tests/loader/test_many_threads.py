"""Eight threads over one loader, one iterator, one dataset and one collate: each batch is right,
and what is counted is counted once. Without the interpreter lock they run side by side."""

import gc
import random
import sys
import threading
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import write_folder
from many_threads import THREADS, run_threads
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset, default_collate

from fastloop import (
    ArrayDataset,
    DataLoader,
    ImageFolder,
    PadCollate,
    RaggedArray,
    TokenDataset,
    _core,
)
from fastloop.data.collate import make_collate
from fastloop.loader.shared import Shared, shared_of
from fastloop.transforms import Compose, RandomCrop, Resize

N = 96  # samples


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    torch.set_num_threads(1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Samples(Dataset[Any]):
    """An image of one number, its number, and a dict with a list of two."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        image = np.full((3, 16, 16), index, np.float32)
        return image, index, {"pair": [float(index), torch.tensor([index, -index])]}


def check_samples(batch: Any) -> list[int]:
    image, number, named = batch
    for row, i in enumerate(number.tolist()):
        assert bool((image[row] == i).all()) and named["pair"][0][row] == i
        assert named["pair"][1][row].tolist() == [i, -i]
    return number.tolist()


def check_rows(batch: Any) -> list[int]:
    x, y = batch
    assert torch.equal(x[:, 0] * 10, y) and torch.equal(x[:, 0], x[:, 99])
    return x[:, 0].tolist()


def rows() -> TensorDataset:
    numbers = torch.arange(N)
    return TensorDataset(numbers[:, None].repeat(1, 100), numbers * 10)


CASES = {
    "array": (rows, check_rows, {"num_workers": 0}),
    "array-ahead": (rows, check_rows, {"num_workers": 2}),
    "sync": (Samples, check_samples, {"path": "sync"}),
    "thread": (Samples, check_samples, {"path": "thread", "num_workers": 2}),
    "process": (Samples, check_samples, {"path": "process", "num_workers": 1}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_iterators_of_one_loader_in_eight_threads(case: str) -> None:
    make, check, options = CASES[case]
    threads = 2 if case == "process" else THREADS
    rounds = 2 if case == "process" else 6
    loader = DataLoader(make(), 5, shuffle=True, **options)

    def work(_: int) -> None:
        for _ in range(rounds):
            kept = []
            for batch in loader:
                kept.append(batch)  # memory that is lent is not written to
                check(batch)
            assert sorted(chain.from_iterable(map(check, kept))) == list(range(N))

    run_threads(work, threads)
    assert loader.stats().batches == threads * rounds * 20
    loader.close()


@pytest.mark.parametrize("case", list(CASES))
def test_eight_threads_share_one_iterator(case: str) -> None:
    make, check, options = CASES[case]
    loader = DataLoader(make(), 3, shuffle=True, **options)
    for _ in range(2 if case == "process" else 8):
        iterator = iter(loader)

        def work(_: int, iterator: Any = iterator) -> list[int]:
            return [i for batch in iterator for i in check(batch)]

        assert sorted(chain.from_iterable(run_threads(work))) == list(range(N))
        assert iterator._num_yielded == 32


def test_no_batch_is_left_out_of_a_count() -> None:
    loader = DataLoader(TensorDataset(torch.arange(3000)), 1)
    iterator = iter(loader)
    run_threads(lambda _: sum(1 for _batch in iterator))
    assert iterator._num_yielded == loader.stats().batches == 3000
    run_threads(lambda _: [loader._shared.add(batches=1) for _ in range(20_000)])
    assert loader.stats().batches == 163_000


@pytest.mark.parametrize("case", [c for c in CASES if c != "process"])
def test_close_meets_seven_threads_in_next(case: str) -> None:
    make, check, options = CASES[case]
    loader = DataLoader(make(), 2, **options)
    for round in range(12):
        iterator, taken = iter(loader), count()

        def work(number: int, iterator: Any = iterator, taken: Any = taken, at: int = round) -> str:
            try:
                for batch in iterator:
                    check(batch)
                    if next(taken) == at and number > 0:
                        iterator.close()
            except RuntimeError as error:
                return str(error)
            return ""

        said = set(run_threads(work))
        assert all("closed" in text for text in said - {""}), said


@pytest.mark.slowest
def test_iterators_die_on_other_threads() -> None:
    """Batches outlive their iterators, whose memory goes back from wherever they die."""
    loader = DataLoader(rows(), 4, num_workers=2)
    kept: list[Any] = []

    def work(number: int) -> None:
        for _ in range(10):
            iterator = iter(loader)
            kept.extend(next(iterator) for _ in range(3))
            taken, kept[:] = kept[:], []  # batches of any thread's die here
            for batch in taken[:20]:
                check_rows(batch)
            if number == 0:
                gc.collect()

    run_threads(work)
    for batch in kept:
        check_rows(batch)


# ---- one dataset


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def datasets(folder: Path) -> dict[str, Any]:
    numbers = np.arange(40 * 300, dtype=np.int64).reshape(40, 300)
    np.save(folder / "rows.npy", numbers)
    write_folder(folder / "images")
    numbers.astype(np.uint16).tofile(folder / "tokens.bin")
    transform = Compose([Resize((16, 16)), RandomCrop(8)])
    return {
        "mapped": ArrayDataset(str(folder / "rows.npy")),
        "arrays": ArrayDataset(x=torch.from_numpy(numbers.copy()), y=numbers[:, 0].copy()),
        "images": ImageFolder(folder / "images", transform=transform),
        "tokens": TokenDataset(str(folder / "tokens.bin"), seq_len=64, dtype="uint16"),
        "ragged": ArrayDataset(RaggedArray(numbers.ravel(), np.arange(0, 12001, 300))),
    }


@pytest.mark.parametrize("name", ["mapped", "arrays", "images", "tokens", "ragged"])
def test_eight_threads_read_one_dataset(name: str, tmp_path: Path) -> None:
    dataset = datasets(tmp_path)[name]
    size = min(len(dataset), 40)
    wanted = [dataset[i] for i in range(size)]
    dataset = datasets(tmp_path)[name]  # nothing in it has been used

    def work(number: int) -> None:
        order = list(range(size))
        random.Random(number).shuffle(order)
        for _ in range(5):
            for i in order:
                assert equal(dataset[i], wanted[i])
            if hasattr(dataset, "__getitems__"):
                assert equal(list(dataset.__getitems__(order)), [wanted[i] for i in order])

    run_threads(work)


# ---- one collate


def test_eight_threads_share_a_collate() -> None:
    collate = make_collate()
    made = {
        n: [(torch.full((3, 40, 40), n), np.full(9, n), n, {"a": float(n)})] * n
        for n in range(2, 10)
    }
    wanted = {n: default_collate(batch) for n, batch in made.items()}

    def work(number: int) -> None:
        kept = []
        for round in range(60):
            n = 2 + (number + round) % 8
            kept.append((n, collate(made[n])))
            if len(kept) > 5:
                kept.pop(0)
            assert all(equal(batch, wanted[n]) for n, batch in kept)

    run_threads(work)


def test_eight_threads_fill_blocks_of_one_collate() -> None:
    """As iterators without workers over an ImageFolder do: each batch is its own or a copy."""
    collate, like, small = make_collate(), torch.zeros(40, 40), torch.zeros(4)

    def work(number: int) -> None:
        for _ in range(20_000):
            collate.block(small, 2)
        for round in range(1000):
            block = collate.block(like, 3).fill_(number * 10000 + round)
            made = collate(list(block.unbind(0)))
            assert made[2, 39, 39] == made[0, 0, 0] == number * 10000 + round

    run_threads(work)


def test_samples_that_change_while_they_are_collated() -> None:
    """What was never there is refused or torch's to make; never is there a crash."""
    collate, pad = make_collate(), PadCollate()
    rows = [list(range(1000, 1050)) for _ in range(20)]
    named = [{"x": 1, "y": torch.zeros(3)} for _ in range(20)]
    ended = threading.Event()

    def change(number: int) -> None:
        draw = random.Random(number)
        while not ended.is_set():
            row = rows[draw.randrange(20)]
            row[:] = [draw.randrange(1000, 10**9) for _ in range(draw.choice((50, 50, 50, 51)))]
            sample = named[draw.randrange(20)]
            sample["y"] = torch.zeros(3)
            sample[f"of thread {number}"] = [1]
            del sample[f"of thread {number}"]
            if number == 0:
                named[:] = [dict(sample) for sample in named]

    def read(made: Any) -> None:
        if isinstance(made, dict):
            assert set(made["x"].tolist()) == {1}
        else:
            numbers = [i for t in made for i in t.reshape(-1).tolist()]
            assert all(i < 60 or 1000 <= i < 10**9 for i in numbers)  # lengths, mask and padding

    def work(number: int) -> None:
        if number < 2:
            return change(number)
        try:
            for _ in range(120):
                for call, batch in ((collate, rows), (collate, named), (pad, rows)):
                    try:
                        made = call(batch)
                    except (RuntimeError, KeyError, ValueError, TypeError):
                        continue
                    read(made)
        finally:
            if number == 2:
                ended.set()

    run_threads(work)


def test_a_registry_that_changes_while_batches_are_collated() -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map as registry

    class Own:
        pass

    collate, ended = make_collate(), threading.Event()

    def work(number: int) -> None:
        if number == 0:
            while not ended.is_set():
                registry[Own] = lambda batch, **_: batch
                del registry[Own]
            return
        try:
            for _ in range(300):
                assert collate([1, 2, 3]).tolist() == [1, 2, 3]
        finally:
            ended.set()

    run_threads(work)
    assert Own not in registry


def test_threads_that_ask_at_once_get_one_shared_state_of_a_loader() -> None:
    for _ in range(200):
        loader = TorchLoader([1])
        found = run_threads(lambda _, o=loader: shared_of.setdefault(o, Shared()), 4)
        assert len({*map(id, found)}) == 1


# ---- one parent end


def test_eight_threads_use_one_parent_end() -> None:
    """next(), close(), stats() and the end of a reply come from any thread."""
    pool = _core.BatchPool(0, is_shared=True)
    parent_end = _core.ParentEnd(pool, torch.Tensor, 2, 8, 1 << 24)

    def work(number: int) -> None:
        worker = number % 2
        for round in range(5000):
            task = round, [number] * 3
            parent_end.submit(worker, b"task", task)
            for found in (parent_end.first_task(worker), parent_end.begun(worker)[1]):
                assert found is None or len(found[1]) == 3
            assert not parent_end.owes(worker) and parent_end.receive(0) is None
            parent_end.is_idle()
            if round % 3 == number % 3:
                parent_end.cancel(worker, is_gone=True)

    run_threads(work)
    for worker in range(2):
        parent_end.cancel(worker, is_gone=True)
    assert parent_end.is_idle() and parent_end.first_task(0) is None
    parent_end.close()
    parent_end.release()
