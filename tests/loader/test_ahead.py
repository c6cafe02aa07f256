"""epochs_ahead=1: whatever a program does between two epochs, batches and generators are torch's;
what is foreseen, what is dropped and what is declined; deaths and ends while batches are ahead."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from epoch_steps import KINDS, STEPS, Noisy, Own, ahead, make, run, values
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from workers import Gate

from fastloop import DataLoader, patched, stats
from fastloop.cli.run import _read_options
from fastloop.loader.ahead import Forecast

pytestmark = pytest.mark.usefixtures("one_thread")  # for forks
np.random.get_state()


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_is_torchs(kind: str) -> None:
    steps = random.Random(kind).choices(STEPS, k=22) + ["all"] * 3
    how = {"num_workers": 3 if kind in ("shuffle", "weights") else 2}
    loader = ahead(kind, **how)
    assert run(loader, steps) == run(make(TorchLoader, kind, **how), steps)
    loader.close()


def test_a_run_of_threads_has_torchs_indices() -> None:
    steps = random.Random(1).choices(STEPS, k=40)
    loader = ahead("shuffle", Own(), path="thread")
    assert run(loader, steps) == run(make(TorchLoader, "shuffle", Own()), steps)
    assert loader.stats().ahead_hits > 0
    loader.close()


# ---- what is foreseen


def count(loader: Any, steps: str) -> tuple[int, int]:
    run(loader, steps.split())
    stats = loader.stats()
    loader.close()
    return stats.ahead_hits, stats.ahead_drops


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_in_a_row_are_foreseen(kind: str) -> None:
    expected = (1, 1) if kind == "distributed" else (2, 0)  # no set_epoch() is unlike a step of 1
    assert count(ahead(kind), "all all all") == expected


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("shuffle", "all validate all validate all validate all", (2, 1)),
        ("shuffle", "all dropout dropout dropout", (2, 1)),
        ("shuffle", "all seed all seed all all", (0, 1)),
        ("shuffle", "first first all state all", (1, 0)),
        ("sequential", "all seed all draw all validate all", (3, 0)),
        ("generator", "all draw all own all state own all", (2, 1)),
        ("distributed", "set_epoch all set_epoch all set_epoch all set_epoch all", (2, 1)),
    ],
)
def test_what_is_foreseen(kind: str, steps: str, expected: tuple[int, int]) -> None:
    assert count(ahead(kind), steps) == expected


def test_weights_that_change_in_place_are_noticed() -> None:
    sampler = WeightedRandomSampler([1.0] * 23, 20)
    loader = DataLoader(
        Own(), 3, sampler=sampler, num_workers=1, path="thread",
        persistent_workers=True, epochs_ahead=1,
    )  # fmt: skip
    for batch in loader:
        assert batch.max() > 0
    sampler.weights.zero_()[0] = 1
    sampler.replacement = True
    assert [batch.max().item() for batch in loader] == [0] * 7
    assert loader.stats().ahead_drops == 1
    loader.close()


def test_a_sampler_that_is_replaced_is_asked() -> None:
    with ahead("sequential", Noisy(6), path="thread") as loader:
        list(loader)
        loader.batch_sampler.sampler = [np.array([i, i]) for i in range(6)]  # compare to no bool
        assert torch.equal(next(iter(loader))[0], torch.tensor([[0, 0], [1, 1], [2, 2]]))
        assert loader.stats().ahead_drops == 1


def test_equal_indices_of_another_type_are_not_those_foreseen() -> None:
    sampler = SubsetRandomSampler(torch.tensor([3]))  # type: ignore[arg-type]
    with DataLoader(
        Noisy(), sampler=sampler, num_workers=1, path="thread", collate_fn=list,
        persistent_workers=True, epochs_ahead=1,
    ) as loader:  # fmt: skip
        list(loader)
        sampler.indices = [3]
        assert [type(batch[0][0]) for batch in loader] == [int]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


class Stateful(Own):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_what_is_declined_says_why() -> None:
    for kwargs, why in [
        ({"persistent_workers": False, "path": "process"}, "persistent_workers is not True"),
        (
            {"persistent_workers": False, "worker_init_fn": int},
            "worker_init_fn runs as each epoch begins",
        ),
        ({"dataset": Stream(), "num_workers": 1}, "an IterableDataset has no indices"),
        ({"dataset": Stateful(), "num_workers": 1}, "the dataset keeps a state of its own"),
        ({"in_order": False}, "in_order is False"),
        ({"sampler": [3, 1, 2]}, "fastloop does not know the sampler of this BatchSampler"),
        ({"num_workers": 0, "persistent_workers": False}, "no workers of fastloop load it"),
    ]:  # fmt: skip
        arguments = {"dataset": Own(), "num_workers": 2, "persistent_workers": True}
        arguments |= {"path": "thread" if kwargs.get("num_workers") != 0 else "auto", **kwargs}
        with DataLoader(epochs_ahead=1, **arguments) as loader:
            for _ in range(2):
                list(loader)
            stats = loader.stats()
        assert stats.why.endswith(f"; no epoch is read ahead: {why}")
        assert stats.ahead_hits == stats.ahead_drops == 0


def test_a_forecast_that_raises_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Forecast) -> Any:
        raise RuntimeError("no probabilities")

    monkeypatch.setattr(Forecast, "copy_batches", fail)
    with ahead("shuffle", Own(), path="thread") as loader:
        assert sorted(torch.cat([*loader, *loader]).tolist()) == sorted(
            2 * [i * i for i in range(23)]
        )
        assert loader.stats().why.endswith("the sampler has raised RuntimeError")


class OtherState(torch.Generator):
    """A generator whose state, as that of a CUDA device, is none of a CPU's."""

    def get_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)


def test_a_generator_of_a_device_is_left_alone() -> None:
    sampler = RandomSampler(range(23), generator=OtherState())
    with DataLoader(
        Own(), 3, sampler=sampler, num_workers=1, path="thread", persistent_workers=True,
        epochs_ahead=1,
    ) as loader:  # fmt: skip
        assert [len(list(loader)) for _ in range(3)] == [8, 8, 8]
        assert loader.stats().ahead_hits == 0


@pytest.mark.parametrize("value", [2, -1, "1", True])
def test_the_argument_is_checked(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="epochs_ahead must be an int"):
        DataLoader(Own(), epochs_ahead=value)


def test_run_asks_for_loaders_of_torchs_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment, program = _read_options(["--ahead", "-c", "pass"])
    assert program == ["-c", "pass"]
    monkeypatch.setenv("FASTLOOP_AHEAD", environment["FASTLOOP_AHEAD"])
    loader = make(TorchLoader, "shuffle", Own())
    with patched(["dataloader"]):
        assert [len(list(loader)) for _ in range(2)] == [8, 8]
    assert stats(loader).ahead_hits == 1


# ---- errors, deaths and ends


class Fault:
    """Acts at an item in the second time that the item is read, and not before."""

    def __init__(self, item: int, act: Callable[[], object]) -> None:
        self.item, self.act, self.times = item, act, torch.zeros(1).share_memory_()

    def __call__(self, i: int) -> None:
        if i == self.item:
            self.times += 1
            if self.times == 2:
                self.act()


def fail() -> None:
    raise KeyError("the sample is bad")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_comes_in_its_epoch() -> None:
    loader = ahead("sequential", Noisy(23, Fault(4, fail)))
    assert len(list(loader)) == 8
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(KeyError, match=r"batch 1 \(indices \[3, 4, 5\]\)"):
        next(iterator)
    assert len(list(iterator)) == 6
    assert loader.stats().ahead_hits == 1
    loader.close()


def test_a_death_ahead_ends_no_epoch() -> None:
    gate, fault = Gate(), Fault(4, die)

    def hook(i: int) -> None:
        fault(i)
        if i == 18:  # in the last batch, by the worker that lives
            gate()

    loader = ahead("sequential", Noisy(21, hook))
    iterator = iter(loader)
    look = iterator._look_for_dead

    def look_and_open() -> Any:
        received = look()
        if not iterator._workers[1].is_alive():
            gate.open()
        return received

    iterator._look_for_dead = look_and_open
    assert len(list(iterator)) == 7
    assert len(list(loader)) == 7  # by new workers
    loader.close()


def test_a_worker_that_died_ahead_is_replaced() -> None:
    fault = Fault(4, die)
    loader = ahead("sequential", Noisy(23, fault), on_worker_death="restart")
    with pytest.warns(RuntimeWarning, match=r"batch 1 \(indices \[3, 4, 5\]\).* takes its place"):
        assert [len(list(loader)) for _ in range(2)] == [8, 8]
    assert (loader.stats().ahead_hits, loader.stats().restarts) == (1, 1)
    loader.close()


def test_a_loaded_state_goes_before_the_forecast() -> None:
    loader, other = ahead("generator"), make(DataLoader, "generator")
    for each in (loader, other):
        torch.manual_seed(1)
        iterator = iter(each)
        next(iterator)
        state = each.state_dict()
        list(iterator)
        each.load_state_dict(state)
    rest, expected = ([values(batch)[0] for batch in each] for each in (loader, other))
    assert rest == expected
    assert len(rest) == 7
    assert loader.stats().ahead_drops == 1
    assert [values(b)[0] for b in loader] == [values(b)[0] for b in other]
    loader.close()
    other.close()


def test_a_second_iter_and_close_while_batches_are_ahead() -> None:
    torch.manual_seed(1)
    loader = ahead("sequential", Own(), path="thread")
    first = iter(loader)
    for _ in range(7):
        next(first)
    assert next(iter(loader)).tolist() == [0, 1, 4]
    assert loader.stats().ahead_hits == 1
    for _ in range(6):
        next(first)  # torch gives the same iterator again
    loader.close()
    assert len(list(loader)) == 8
    loader.close()


class Counted(Noisy):
    """Samples that tell how often they were read. One thread makes a batch, after the
    earlier batches of that thread."""

    def __init__(self) -> None:
        self.gate, self.times = Event(), Counter[int]()
        super().__init__(12)

    def __getitem__(self, i: int) -> Any:
        if i == 6:
            self.gate.wait()
        self.times[i] += 1
        return self.times[i]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


def test_replies_for_an_epoch_that_was_left_may_come_two_epochs_later() -> None:
    dataset = Counted()
    with ahead("sequential", dataset, num_workers=3, path="thread") as loader:
        for most in (1, 2):
            iterator = iter(loader)
            for _ in range(most):
                next(iterator)
        iterator = iter(loader)
        dataset.gate.set()
        assert [batch.tolist() for batch in iterator] == [[3, 3, 3]] * 4
        assert loader.stats().ahead_hits == 2


class StopError(Exception):
    """What the handler of a signal raises."""


@pytest.mark.parametrize("name", ["_prepare", "_send_noted"])
def test_a_handler_that_raises_loses_no_task(name: str) -> None:
    for turn in range(1, 16):
        with ahead("sequential", Own(), path="thread") as loader:
            iterator = iter(loader)
            before, turns = getattr(iterator, name), iter(range(turn, 0, -1))

            def stop(*args: Any, before: Any = before, turns: Any = turns) -> Any:
                if next(turns, 0) == 1:
                    raise StopError
                return before(*args)

            setattr(iterator, name, stop)
            found = []
            for _ in range(10):
                with suppress(StopError, StopIteration):
                    found.append(next(iterator)[0].item())
            delattr(iterator, name)
            assert len(found) >= 7  # next() was about to return the batch that may be lost
            assert [batch[0].item() for batch in loader] == [i * i for i in range(0, 23, 3)]
            assert loader.stats().ahead_hits == 1


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("most", [1, 9])
def test_a_handler_may_iterate_while_a_task_is_sent_ahead(most: int, is_persistent: bool) -> None:
    squares = [i * i for i in range(0, 23, 3)]
    for turn in range(1, 16):
        with ahead("sequential", Own(), path="thread", persistent_workers=is_persistent) as loader:
            iterator, found, others = iter(loader), list[int](), list[int]()
            before, turns = iterator._prepare, iter(range(turn, 0, -1))

            def take(of: Any, to: list[int], most: int = most) -> None:
                to += [batch[0].item() for batch in islice(of, most)]

            def prepare(
                *args: Any, before: Any = before, turns: Any = turns, take: Any = take,
                each: Any = (iterator, found, loader, others),
            ) -> Any:  # fmt: skip
                prepared = before(*args)
                if next(turns, 0) == 1:
                    take(*each[:2])
                    if most > 1 and not is_persistent:
                        take(*each[2:])
                return prepared

            iterator._prepare = prepare
            take(iterator, found, 9)
            del iterator._prepare
            assert sorted(found) == squares
            assert others in ([], squares)
            for _ in range(2):
                assert [batch[0].item() for batch in loader] == squares


def test_a_handler_that_iterates_keeps_the_random_states_of_workers() -> None:
    def epochs(loader: Any, turn: int = 0) -> list[Any]:
        torch.manual_seed(1)
        iterator, found = iter(loader), list[Any]()
        if turn:
            before, turns = iterator._prepare, iter(range(turn, 0, -1))

            def prepare(*args: Any) -> Any:
                prepared = before(*args)
                if next(turns, 0) == 1:
                    found.append(values(next(iterator)))
                return prepared

            iterator._prepare = prepare
        found += [values(batch) for batch in iterator]
        vars(iterator).pop("_prepare", None)
        torch.rand(3)  # so what was read ahead is dropped
        return sorted(found) + [values(batch) for batch in loader]

    expected = epochs(make(TorchLoader, "shuffle"))
    for turn in range(5, 10):  # orders to keep the states, then tasks that are sent ahead
        with ahead("shuffle") as loader:
            assert epochs(loader, turn) == expected, turn
            assert loader.stats().ahead_drops == 1


def test_a_task_that_a_handler_held_up_goes_before_later_tasks() -> None:
    read: list[int] = []
    with ahead("sequential", Noisy(9, read.append), num_workers=1, path="thread") as loader:
        iterator = iter(loader)
        before, turns = iterator._send_noted, iter(range(2))

        def stop(number: int) -> None:
            if next(turns, None) == 1:
                raise StopError
            before(number)

        next(iterator)  # sends the last task
        iterator._send_noted = stop
        with pytest.raises(StopError):
            list(iterator)  # sends the order to keep states, but not yet the first task ahead
        del iterator._send_noted
        assert len(list(loader)) == 3
        assert loader.stats().ahead_hits == 1
    assert read[:18] == [*range(9), *range(9)]
