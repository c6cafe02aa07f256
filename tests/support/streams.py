"""Datasets that say where they stand, in the ways of torchdata's protocol."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

State = dict[str, Any]


def share(lengths: list[int]) -> range:
    """The samples of this worker; without workers all."""
    info = get_worker_info()
    worker = 0 if info is None else info.id
    first = sum(lengths[:worker])
    return range(first, sum(lengths) if info is None else first + lengths[worker])


class OfDataset(IterableDataset[Any]):
    """State on the dataset; a generator reads. It counts its epochs."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.at, self.epoch = 0, 0
        self.loaded: int | None = None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.at, self.loaded = self.loaded or 0, None
        for sample in share(self.lengths)[self.at :]:
            self.at += 1
            yield sample, self.epoch
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> State:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: State) -> None:
        self.loaded, self.epoch = state["at"], state["epoch"]


class Reader:
    """An iterator with a state: shuffled by a generator of its own."""

    def __init__(self, samples: range) -> None:
        self.samples = samples
        self.at = 0
        self.generator = torch.Generator().manual_seed(len(samples))

    def __iter__(self) -> "Reader":
        return self

    def __next__(self) -> tuple[int, int]:
        if self.at == len(self.samples):
            raise StopIteration
        self.at += 1
        noise = int(torch.randint(1000, (), generator=self.generator))
        return self.samples[self.at - 1], noise

    def state_dict(self) -> State:
        return {"at": self.at, "generator": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]
        self.generator.set_state(state["generator"])


class OfIterator(IterableDataset[Any]):
    """State on the iterator alone."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return Reader(share(self.lengths))


class OfBoth(OfIterator):
    """The dataset counts its epochs, its iterator the samples."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.epoch += 1
        return super().__iter__()

    def state_dict(self) -> State:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: State) -> None:
        self.epoch = state["epoch"] - 1  # iter() follows


class OwnIterator(OfDataset):
    """The dataset is its own iterator; its state changes in place."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.state = {"at": 0, "epoch": self.epoch}
        self.epoch += 1
        return self

    def __next__(self) -> tuple[int, int]:
        samples = share(self.lengths)
        if self.state["at"] == len(samples):
            raise StopIteration
        self.state["at"] += 1
        return samples[self.state["at"] - 1], self.state["epoch"]

    def state_dict(self) -> State:
        return self.state

    def load_state_dict(self, state: State) -> None:
        self.state = state
        self.epoch = state["epoch"] + 1


class Plain(IterableDataset[Any]):
    """No state at all; its numbers are the worker's."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for sample in share(self.lengths):
            yield sample, int(torch.randint(1000, ()))


class MapWithState(Dataset[Any]):
    """A map-style dataset that counts what it was asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.asked += 1
        return index, self.asked

    def state_dict(self) -> State:
        return {"asked": self.asked}

    def load_state_dict(self, state: State) -> None:
        self.asked = state["asked"]


STREAMS = {
    "dataset": OfDataset,
    "iterator": OfIterator,
    "both": OfBoth,
    "own iterator": OwnIterator,
}
