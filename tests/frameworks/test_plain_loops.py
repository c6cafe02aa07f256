"""How people write loops over torch's loader: each loop gets the same from fastloop."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_everywhere, train, two_epochs
from time_limits import limit
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.workers.processes import ProcessIter

N = 23
Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Scene:
    boxes: torch.Tensor
    name: str


def table() -> TensorDataset:
    return TensorDataset(torch.arange(2.0 * N).reshape(N, 2), torch.arange(N) % 3)


class Each(Dataset[Any]):
    """Sample i is what a function makes of i."""

    def __init__(self, make: Callable[[int], Any], length: int = N) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def image(index: int) -> tuple[torch.Tensor, int]:
    """As transforms do: bytes, a flip, a crop, floats."""
    pixels = torch.full((3, 9, 9), index % 256, dtype=torch.uint8) + torch.arange(9)
    if torch.rand(1) < 0.5:
        pixels = pixels.flip(-1)
    top = int(torch.randint(0, 3, (1,)))
    return pixels[:, top : top + 6].float().div(255), index % 3


def noise(index: int) -> tuple[float, float, int]:
    return random.random(), np.random.rand(), index


def words(index: int) -> dict[str, Any]:
    return {"ids": torch.arange(index % 5 + 1), "text": "w" * index, "y": index % 2}


def nested(index: int) -> dict[str, Any]:
    return {"a": [torch.ones(2) * index, (index, float(index))], "b": {"c": np.float32(index)}}


def fails_at_7(index: int) -> int:
    if index == 7:
        raise LookupError(f"no sample {index}")
    return index


class Many(Each):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.make(index) for index in indices]


class Growing(Each):
    """Has one more sample whenever it is measured."""

    def __len__(self) -> int:
        self.length += 1
        return self.length


class Stream(IterableDataset[Any]):
    """Shared out among workers, shuffled in a buffer."""

    def __init__(self, length: int = N) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        buffer: list[int] = []
        for i in range(first, self.length, step):
            buffer.append(i)
            if len(buffer) > 3:
                yield buffer.pop(int(torch.randint(len(buffer), (1,)))), torch.rand(2)
        yield from ((i, torch.zeros(2)) for i in buffer)


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class Backwards(Sampler[int]):
    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(range(N - 1, -1, -1))


class Pairs(Sampler[list[int]]):
    """Batches of a sampler that has no sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        for i in torch.randperm(N - 1).tolist():
            yield [i, i + 1]


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    ids = pad_sequence([s["ids"] for s in samples], batch_first=True, padding_value=-1)
    return {"ids": ids, "text": [s["text"] for s in samples]}


def without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


def scenes(samples: list[Scene]) -> list[Scene]:
    return samples


class MixUp:
    """A collate that draws, as an object."""

    def __call__(self, samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        share = torch.distributions.Beta(0.4, 0.4).sample()
        return share * x + (1 - share) * x.roll(1, 0), y


def seed_worker(worker: int) -> None:
    random.seed(torch.initial_seed() % 2**32)
    np.random.seed(torch.initial_seed() % 2**32 + worker)


def weights() -> torch.Tensor:
    return torch.arange(1.0, N + 1)


# Name: a dataset, and what a loader of it is given.
LOADERS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "table": lambda: (table(), {"shuffle": True}),
    "table in order": lambda: (table(), {"drop_last": True}),
    "table of samples": lambda: (table(), {"batch_size": None}),
    "table of one": lambda: (table(), {"batch_size": 1, "shuffle": True}),
    "table at once": lambda: (table(), {"batch_size": 100}),
    "own generator": lambda: (
        table(),
        {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    ),
    "collate by name": lambda: (table(), {"collate_fn": default_collate, "shuffle": True}),
    "pinned": lambda: (table(), {"pin_memory": True}),
    "weighted": lambda: (table(), {"sampler": WeightedRandomSampler(weights(), 30)}),
    "replacement": lambda: (
        table(),
        {"sampler": RandomSampler(table(), replacement=True, num_samples=31)},
    ),
    "part": lambda: (table(), {"sampler": SubsetRandomSampler(range(4, 19))}),
    "one of two ranks": lambda: (table(), {"sampler": DistributedSampler(table(), 2, 1, seed=4)}),
    "list as sampler": lambda: (table(), {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]}),
    "own sampler": lambda: (table(), {"sampler": Backwards()}),
    "batches": lambda: (
        table(),
        {"batch_sampler": BatchSampler(SequentialSampler(table()), 5, True)},
    ),
    "own batches": lambda: (table(), {"batch_sampler": Pairs()}),
    "list of batches": lambda: (table(), {"batch_sampler": [[1, 2], [3], [4, 5, 6]]}),
    "lists of indices": lambda: (
        table(),
        {"batch_size": None, "sampler": BatchSampler(RandomSampler(table()), 4, False)},
    ),
    "split": lambda: (
        random_split(table(), [15, 8], torch.Generator().manual_seed(1))[0],
        {"shuffle": True},
    ),
    "subset of subset": lambda: (
        Subset(Subset(table(), range(2, 20)), [0, 5, 3, 3]),
        {"shuffle": True},
    ),
    "concatenated": lambda: (ConcatDataset([table(), table()]), {"shuffle": True}),
    "stacked": lambda: (StackDataset(x=table(), y=Each(int)), {"shuffle": True}),
    "tensor": lambda: (torch.arange(12.0).reshape(6, 2), {"shuffle": True}),
    "array": lambda: (np.arange(12.0).reshape(6, 2), {"shuffle": True}),
    "list": lambda: ([(torch.ones(2) * i, i) for i in range(9)], {"shuffle": True}),
    "range": lambda: (range(9), {}),
    "texts": lambda: (["a", "bc", "def"] * 3, {"batch_size": 4}),
    "tuples by name": lambda: (Each(lambda i: Pair(torch.ones(2) * i, i)), {}),
    "nested": lambda: (Each(nested), {"shuffle": True}),
    "images": lambda: (Each(image), {"shuffle": True}),
    "python's and NumPy's numbers": lambda: (Each(noise), {"worker_init_fn": seed_worker}),
    "many at once": lambda: (Many(image), {"shuffle": True}),
    "padded": lambda: (Each(words), {"collate_fn": pad}),
    "scenes": lambda: (
        Each(lambda i: Scene(torch.ones(i % 4, 4), str(i))),
        {"collate_fn": scenes},
    ),
    "some are none": lambda: (
        Each(lambda i: None if i % 3 == 1 else (i, torch.rand(2))),
        {"collate_fn": without_none},
    ),
    "mixed up": lambda: (table(), {"collate_fn": MixUp(), "shuffle": True}),
    "an error": lambda: (Each(fails_at_7), {}),
    "ragged": lambda: (Each(lambda i: torch.ones(i)), {}),
    "complex and bool": lambda: (
        Each(lambda i: (torch.tensor(1j * i), torch.tensor(i % 2 == 0), i > 3)),
        {},
    ),
    "gradients": lambda: (Each(lambda i: torch.ones(2, requires_grad=True) * i), {}),
    "growing": lambda: (Growing(int), {}),
    "empty": lambda: (Each(int, 0), {}),
    "stream": lambda: (Stream(), {}),
    "stream of samples": lambda: (Stream(), {"batch_size": None}),
    "stream with a length": lambda: (SizedStream(), {"drop_last": True}),
    "chain": lambda: (ChainDataset([Stream(5), Stream(6)]), {}),
}
IN_WORKERS = {
    "table": {"num_workers": 2},
    "images": {"num_workers": 2, "prefetch_factor": 4},
    "python's and NumPy's numbers": {"num_workers": 2, "persistent_workers": True},
    "nested": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1},
    "weighted": {"num_workers": 2},
    "one of two ranks": {"num_workers": 2},
    "own batches": {"num_workers": 2},
    "padded": {"num_workers": 2},
    "scenes": {"num_workers": 1, "in_order": False},
    "mixed up": {"num_workers": 2},
    "many at once": {"num_workers": 3, "multiprocessing_context": "fork"},
    "an error": {"num_workers": 2},
    "ragged": {"num_workers": 2},
    "some are none": {"num_workers": 2, "timeout": limit(200)},
    "stream": {"num_workers": 2, "persistent_workers": True},
    "stream of samples": {"num_workers": 2},
    "stream with a length": {"num_workers": 2},
    "own generator": {"num_workers": 2, "persistent_workers": True},
}
TABLES = ("table", "own generator", "weighted", "replacement", "part", "split", "own sampler")


def make_loader(cls: Any, name: str, more: dict[str, Any] | None = None) -> Any:
    dataset, options = LOADERS[name]()
    return cls(dataset, **{"batch_size": 4} | options | (more or {}) | _sizes(options))


def _sizes(options: dict[str, Any]) -> dict[str, Any]:
    return {"batch_size": 1} if "batch_sampler" in options else {}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str) -> None:
    is_table = (name in TABLES or name.startswith("table")) and name != "table of samples"
    kinds = [ArrayIter] if is_table else []  # samples are torch's views
    assert_same_everywhere(lambda cls: two_epochs(make_loader(cls, name)), *kinds)


@pytest.mark.parametrize("name", IN_WORKERS)
def test_loaders_with_workers(name: str) -> None:
    kind = ArrayIter if name in (*TABLES, "one of two ranks", "own batches") else ProcessIter
    assert_same_everywhere(lambda cls: two_epochs(make_loader(cls, name, IN_WORKERS[name])), kind)


# ---- loops


def breaks_off(cls: Any, name: str) -> Any:
    loader = make_loader(cls, name)
    return [[batch for batch, _ in zip(loader, range(3), strict=False)] for _ in range(2)]


def takes_the_first(cls: Any, name: str) -> Any:
    loader = make_loader(cls, name)
    return [next(iter(loader)) for _ in range(3)]


def cycles(cls: Any, name: str) -> Any:
    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    loader = make_loader(cls, name)
    return list(itertools.islice(forever(), 15))


def two_at_once(cls: Any, name: str) -> Any:
    loader = make_loader(cls, name)
    return list(zip(loader, loader, strict=True))


def nests(cls: Any, name: str) -> Any:
    outer, inner = make_loader(cls, name), make_loader(cls, "images")
    return [(batch, next(iter(inner))) for batch in outer]


def validates_between(cls: Any, name: str) -> Any:
    training, validation = make_loader(cls, name), make_loader(cls, "table in order")
    return [list(loader) for _ in range(2) for loader in (training, validation)]


def draws_in_the_loop(cls: Any, name: str) -> Any:
    return [(batch, torch.rand(3)) for batch in make_loader(cls, name)]


def seeds_each_epoch(cls: Any, name: str) -> Any:
    loader = make_loader(cls, name, {"generator": torch.Generator()})
    found = []
    for epoch in range(3):
        loader.generator.manual_seed(epoch)
        found += list(loader)
    return found


def sets_the_epoch(cls: Any, name: str) -> Any:
    loader = make_loader(cls, "one of two ranks")
    found = []
    for epoch in (2, 0):
        loader.sampler.set_epoch(epoch)
        found += [len(loader), *loader]
    return found


def copies(cls: Any, name: str) -> Any:
    loader = make_loader(cls, "table")
    found = list(loader)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        found += list(other)
    return found


def writes_into_batches(cls: Any, name: str) -> Any:
    loader = make_loader(cls, "table")
    kept = []
    for x, y in loader:
        x.add_(y[:, None]).mul_(2)
        kept.append(x)
    return kept, list(loader)


def changes_the_data(cls: Any, name: str) -> Any:
    dataset = table()
    loader, found = cls(dataset, batch_size=4), []
    for x, _ in loader:
        found.append(x)
        dataset.tensors[0].add_(1)
    dataset.tensors = (torch.zeros(5, 2), torch.ones(5))
    return found, list(cls(dataset, batch_size=4))


def reads_its_attributes(cls: Any, name: str) -> Any:
    loader = make_loader(cls, name)
    list(loader)
    sampler, batches = type(loader.sampler), type(loader.batch_sampler)
    return [len(loader), loader.batch_size, loader.drop_last, loader.num_workers, sampler, batches]


LOOPS = [
    breaks_off,
    takes_the_first,
    cycles,
    two_at_once,
    nests,
    validates_between,
    draws_in_the_loop,
    seeds_each_epoch,
    sets_the_epoch,
    copies,
    writes_into_batches,
    changes_the_data,
    reads_its_attributes,
]


@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop: Callable[[Any, str], Any]) -> None:
    for name in ("table", "images"):
        assert_same_everywhere(lambda cls: loop(cls, name))  # noqa: B023


@pytest.mark.parametrize("workers", [0, 2])
def test_training(workers: int) -> None:
    def program(cls: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))
        loader = make_loader(cls, "images", {"num_workers": workers})
        return train(model, loader)

    assert_same_everywhere(program)


@pytest.mark.parametrize("name", ["images", "stream"])
def test_batches_of_several_workers_in_no_order(name: str) -> None:
    def program(cls: Any) -> Any:
        loader = make_loader(cls, name, {"num_workers": 2, "in_order": False})
        return sorted(repr(batch[1].tolist()) for batch in loader)

    assert_same_everywhere(program, ProcessIter)
