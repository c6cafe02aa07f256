"""epochs_ahead=1: random walks over everything that a program may do, in every state of an epoch
and of the next one. After each step batches and generators are compared with torch's loader. A walk
that resumes is compared with a fastloop loader without epochs_ahead."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from epoch_steps import Noisy, Own, generators, make, values
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset, sampler
from workers import is_running, wait_until

from fastloop import DataLoader
from fastloop.data import epochs
from fastloop.loader.arrays import ahead, iterator

pytestmark = [
    pytest.mark.usefixtures("one_thread"),  # for forks
    pytest.mark.filterwarnings("ignore:.*takes its place", "ignore:the loaded state is at the end"),
]

# By way: the dataset, further arguments, and what else happens. A handler that raises while a
# process starts, as a dead worker's successor does, ends the loader.
WAYS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "processes": (Noisy, {}, "interrupt"),
    "processes that die": (Own, {"on_worker_death": "restart"}, "kill kill"),
    "threads": (Own, {"path": "thread"}, "interrupt"),
    "threads, new iterators": (Own, {"path": "thread", "persistent_workers": False}, "interrupt"),
    "array": (lambda: TensorDataset(torch.arange(23)), {}, "interrupt"),
    "array, new iterators": (
        lambda: TensorDataset(torch.arange(23)),
        {"persistent_workers": False},
        "interrupt",
    ),
}
# Files with generator functions: an exception within such a function would end its generator.
SAMPLERS = [module.__file__ for module in (sampler, iterator, ahead, epochs)]
STEPS = "take take take rest rest open drop draw seed validate close close"
RESUMED = "save save load"
STATES = [("rest", "rest"), ("rest", "open")]
KINDS = ["sequential", "shuffle", "generator", "weights"]


class StopError(Exception):
    """What the handler of a signal raises."""


@contextmanager
def handler() -> Iterator[None]:
    def stop(_: int, frame: FrameType | None) -> None:
        """Raise, but not in a sampler: that would end its generator, with torch's loader too."""
        while frame is not None and frame.f_code.co_filename not in SAMPLERS:
            frame = frame.f_back
        if frame is None:
            raise StopError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


class Walk:
    """One loader, taken through steps. Only a loader that reads ahead loses workers and is
    interrupted; another one goes on meanwhile as if nothing was.

    Attributes:
        found: what each step gave, and the generators after it.
        states: how often each step met a loader that had read ahead, or had not.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self.loader, self.choices = loader, random.Random(seed)
        self.is_tested = getattr(loader, "epochs_ahead", 0) == 1
        self.iterator: Any = None
        self.state: Any = None
        self.has_killed = False  # two deaths at one batch would raise
        self.found: list[Any] = []
        self.states: Counter[tuple[str, bool]] = Counter()

    def run(self, steps: list[str]) -> list[Any]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        for step in steps:
            self.number = self.choices.randrange(1, 9)
            live = getattr(self.loader, "_iterator", None)  # of persistent workers
            live = live or getattr(getattr(self.loader, "_shared", None), "idle", None)
            self.states[step, bool(getattr(live, "_sent_ahead", 0))] += 1
            given = getattr(self, step)()
            self.found.append((step, given, generators(self.loader)))
        return self.found

    def _iterator(self) -> Any:
        if self.iterator is None:
            self.open()
        return self.iterator

    def open(self) -> None:
        self.iterator, self.has_killed = iter(self.loader), False

    def drop(self) -> None:
        self.iterator = None

    def take(self) -> list[Any]:
        return [values(batch) for batch in islice(self._iterator(), self.number)]

    def rest(self) -> list[Any]:
        found = [values(batch) for batch in self._iterator()]
        self.iterator = None
        return found

    def draw(self) -> None:
        torch.rand(self.number), random.random()

    def seed(self) -> None:
        torch.manual_seed(self.number)

    def validate(self) -> list[Any]:
        return [values(batch) for batch in TorchLoader(Own(), 9, shuffle=True)]

    def save(self) -> None:
        self.state = self.loader.state_dict()

    def load(self) -> None:
        if self.state is not None:
            self.iterator = None
            self.loader.load_state_dict(self.state)

    def close(self) -> None:
        self.iterator = None
        if isinstance(self.loader, DataLoader):
            self.loader.close()
        else:
            self.loader._iterator = None

    def kill(self) -> None:
        iterator = self._iterator()
        if self.is_tested and not self.has_killed and iterator._workers:
            worker = iterator._workers[self.number % len(iterator._workers)]
            if worker.is_alive():
                self.has_killed = True
                os.kill(worker.pid, signal.SIGKILL)
                wait_until(lambda: not is_running(worker.pid))

    def interrupt(self) -> list[Any]:
        """The rest of the epoch, interrupted anywhere in next()."""
        iterator, found = self._iterator(), list[Any]()
        draw = random.Random(self.number)
        with handler():
            while True:
                try:
                    if self.is_tested:
                        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3))
                    batch = next(iterator, None)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    if batch is None:
                        break
                    found.append(values(batch))
                except StopError:
                    found.append("interrupted")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        self.iterator = None
        return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Each interrupt may lose one batch, which next() was about to return."""
    for number, ((step, given, after), (_, wanted, other)) in enumerate(
        zip(found, expected, strict=True)
    ):
        assert after == other, (number, step)
        if step != "interrupt":
            assert given == wanted, (number, step)
            continue
        rest, may_miss = list(wanted), 0
        for batch in given:
            if batch == "interrupted":
                may_miss += 1
                continue
            while rest and rest[0] != batch and may_miss > 0:
                del rest[0]
                may_miss -= 1
            assert rest and rest.pop(0) == batch, (number, step)
        assert len(rest) <= may_miss, (number, step)


def choose_steps(choices: random.Random, names: list[str], part: int, parts: int) -> list[str]:
    """Return random steps, and then one of the `parts` parts of all steps in both states: after two
    whole epochs the next one is read ahead, and a further iter() takes it over."""
    ordered = [(*before, name) for before in STATES for name in sorted({*names})][part::parts]
    choices.shuffle(ordered)
    return [*choices.choices(names, k=30), *chain(*ordered), "rest", "rest"]


def walk(way: str, seed: int, seeds: int = 8) -> Walk:
    make_dataset, how, more = WAYS[way]
    choices = random.Random(f"{way} {seed}")
    kind, is_resumed = choices.choice(KINDS), seed % 2 == 0
    names = f"{STEPS} {more} {RESUMED if is_resumed else ''}".split()
    steps = choose_steps(choices, names, seed // 2, seeds // 2)
    with make(DataLoader, kind, make_dataset(), epochs_ahead=1, **how) as loader:
        tested = Walk(loader, seed)
        tested.run(steps)
        tested.stats = loader.stats()  # type: ignore[attr-defined]
    how = {name: value for name, value in how.items() if name not in ("path", "on_worker_death")}
    model = Walk(make(DataLoader if is_resumed else TorchLoader, kind, make_dataset(), **how), seed)
    assert_same(tested.found, model.run(steps))
    model.close()
    return tested


@pytest.mark.parametrize("way", WAYS)
def test_a_random_walk_is_torchs(way: str) -> None:
    walks = [walk(way, seed) for seed in range(8)]
    hits = sum(each.stats.ahead_hits for each in walks)  # type: ignore[attr-defined]
    drops = sum(each.stats.ahead_drops for each in walks)  # type: ignore[attr-defined]
    assert hits > 0 and drops > 0
    if not way.startswith("array"):
        states = sum((each.states for each in walks), Counter[tuple[str, bool]]())
        steps = {step for step, _ in states}
        missing = [step for step in steps if not states[step, True] or not states[step, False]]
        assert not missing
