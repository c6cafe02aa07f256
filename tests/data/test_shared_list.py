"""SharedList: a list of samples that processes share. It reads as a list, starts in any process
without a copy, and is gone with its last reference."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run_script

import fastloop
from fastloop import SharedList


def files() -> list[str]:
    """The lists in memory that this process has open or mapped."""
    gc.collect()
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of listdir() itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [text for text in [*links, *maps] if "fastloop list" in text]


def sample(draw: random.Random) -> Any:
    record = {"path": f"{draw.random()}.jpg", "label": 3}
    texts = "x" * draw.randrange(100), b"", b"\x00" * draw.randrange(5000)
    return draw.choice([None, draw.random(), record, (1, [2, "drei"]), *texts])


def test_it_reads_as_a_list() -> None:
    draw = random.Random(7)
    for length in (0, 1, 2, 50):
        items = [sample(draw) for _ in range(length)]
        shared: SharedList[Any] = SharedList(iter(items))
        assert len(shared) == length and list(shared) == items == shared[:]
        for _ in range(200):
            a, b = draw.randrange(-60, 60), draw.randrange(-60, 60)
            step = draw.choice([None, 1, -1, 3, -7])
            assert shared[a:b:step] == items[a:b:step]
            if -length <= a < length:
                assert shared[a] == items[a] == shared[np.int64(a)] == shared[torch.tensor(a)]
            else:
                with pytest.raises(IndexError, match=f"index {a} is out of bounds for {length} s"):
                    shared[a]
    assert repr(SharedList("abc".split())) == f"SharedList(1 samples, {shared_bytes('abc')} bytes)"


def shared_bytes(item: object) -> int:
    data = len(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
    return data + -data % 8 + 16


def test_arrays_and_tensors_come_back() -> None:
    items = [np.arange(5), torch.arange(6).view(2, 3)]
    shared: SharedList[Any] = SharedList(items)
    assert np.array_equal(shared[0], items[0]) and torch.equal(shared[1], items[1])
    shared[0][:] = 9
    assert shared[0].tolist() == [0, 1, 2, 3, 4]  # each read makes a new object


@pytest.mark.parametrize("items", [5, None, "abc", b"abc", {"a": 1}])
def test_items_that_are_no_samples_are_refused(items: Any) -> None:
    with pytest.raises(TypeError, match="items must be an iterable of samples, got"):
        SharedList(items)
    assert not files()


def test_a_sample_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"items must be picklable, got items\[1\] of type function"
    ):
        SharedList([1, lambda: 0])

    def broken() -> Any:
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        SharedList(broken())
    assert not files()


@pytest.mark.parametrize("index", ["1", 1.0, None, True, [0]])
def test_an_index_of_another_type_is_refused(index: Any) -> None:
    with pytest.raises(TypeError, match="index must be an int or a slice, got"):
        SharedList([1, 2])[index]


class Named(SharedList[int]):
    name = ""


def test_pickles_and_copies_take_the_samples_along() -> None:
    first = Named([1, 2, 3])
    first.name = "mine"
    for other in (pickle.loads(pickle.dumps(first)), copy.copy(first), copy.deepcopy(first)):
        assert type(other) is Named and other.name == "mine" and list(other) == [1, 2, 3]
    again = pickle.loads(pickle.dumps(first))
    del first, other
    assert list(again) == [1, 2, 3]
    del again
    assert not files()


def test_the_memory_goes_with_the_last_reference() -> None:
    shared: SharedList[Any] = SharedList(["x" * 1000] * 1000)
    assert len(files()) == 3 and shared.nbytes > 1_000_000  # a mapping and its descriptors
    iterator = iter(shared)
    next(iterator)
    del shared
    assert len(files()) == 3
    del iterator
    assert not files()


def test_it_is_a_dataset() -> None:
    shared: SharedList[Any] = SharedList([{"x": i, "y": str(i)} for i in range(10)])
    for loader in (fastloop.DataLoader, torch.utils.data.DataLoader):
        batches = list(loader(shared, 4))
        assert batches[1]["x"].tolist() == [4, 5, 6, 7] and batches[2]["y"] == ["8", "9"]
        batches = list(loader(torch.utils.data.Subset(shared, [7, 1]), 2))
        assert batches[0]["x"].tolist() == [7, 1]


@pytest.mark.parametrize("loader", ["fastloop", "torch.utils.data"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_map_the_same_memory(tmp_path: Path, loader: str, method: str) -> None:
    """However they start, and inside a dataset, too."""
    run_script(
        tmp_path,
        """
import os, sys
import torch
import torch.utils.data
import fastloop
torch.set_num_threads(1)


class Inside(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i], inode(), os.getpid()


def inode():
    lines = [line for line in open("/proc/self/maps") if "fastloop list" in line]
    assert len(lines) == 1, lines
    return int(lines[0].split()[4])


def main(loader, method):
    samples = fastloop.SharedList(range(20))
    batches = list(loader(Inside(samples), 5, num_workers=2, multiprocessing_context=method))
    assert sum((batch[0].tolist() for batch in batches), []) == list(range(20))
    assert {number for batch in batches for number in batch[1].tolist()} == {inode()}
    assert os.getpid() not in {pid for batch in batches for pid in batch[2].tolist()}


if __name__ == "__main__":
    main(eval(sys.argv[1]).DataLoader, sys.argv[2])
""",
        loader,
        method,
    )


def test_a_worker_copies_a_list_of_objects_but_no_shared_list(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import gc, os
import fastloop


def grown(samples):
    # Bytes of this worker's own after it has read every sample.
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.disable()
        for first in (len(samples) - 500, 0):
            before = own()
            for i in range(first, len(samples)):
                samples[i]["label"]
        os.write(write, str(own() - before).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(read, 100))


def own():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty"))


samples = [{"path": f"{i}.jpg", "label": str(i + 1000)} for i in range(50_000)]
shared = fastloop.SharedList(samples)
for _ in shared:  # pages that one process alone has mapped would count as its own
    pass
assert grown(samples) > 4 << 20, grown(samples)
assert grown(shared) < 1 << 20, grown(shared)
""",
    )
