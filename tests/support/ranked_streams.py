"""Streams that ranks and their workers share, with states of what is left."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

SAMPLES = 120


class Fixed(IterableDataset[int]):
    """Each worker of each rank has its share, and counts how far it is. It cannot be divided."""

    def __init__(self) -> None:
        self.left: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        if self.left is None:
            info = get_worker_info()
            workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
            place = dist.get_rank() * workers + worker
            self.left = list(range(SAMPLES))[place :: dist.get_world_size() * workers]
        while self.left:
            yield self.left.pop(0)
        self.left = None

    def state_dict(self) -> Any:
        return {"left": self.left}

    def load_state_dict(self, state: Any) -> None:
        self.left = state["left"]


class Divided(Fixed):
    """Its state is what is left, which it deals out anew."""

    asked: list[tuple[int, int]]

    def reshard_state_dict(self, states: list[Any], num_workers: int) -> list[Any]:
        vars(self).setdefault("asked", []).append((len(states), num_workers))
        left = sorted(chain.from_iterable(state["left"] for state in states))
        return [{"left": left[worker::num_workers]} for worker in range(num_workers)]
