"""The search of tune(), over loops whose times are arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fastloop.tools.tune import (
    Batch,
    Budget,
    Measured,
    OutOfTimeError,
    Search,
    Setting,
    Suggestion,
    count_workers,
)

MS = 1e-3


@dataclass(frozen=True)
class Loop:
    """A producer and a consumer of known cost.

    Args:
        switch_s: what each worker beyond the CPUs costs every batch.
        uneven_s: what a batch takes longer at times; queues of 8 batches even it out.
        noise: of measurements, relative.
    """

    load_s: float
    cpu_share: float
    step_s: float
    cpus: float
    step_cpu_share: float = 0.0
    switch_s: float = 0.0
    uneven_s: float = 0.0
    start_s: float = 0.0
    noise: float = 0.0

    @property
    def batch(self) -> Batch:
        return Batch(
            self.load_s,
            self.load_s * self.cpu_share,
            self.step_s,
            self.step_s * self.step_cpu_share,
            1 << 20,
        )

    def measure(self, setting: Setting, draw: Callable[[], float] = lambda: 0.0) -> Measured:
        if setting.workers == 0:
            batch_s, wait_s = self.load_s + self.step_s, self.load_s
        else:
            ready = self.load_s / setting.workers
            cpu_s = self.load_s * self.cpu_share + self.step_s * self.step_cpu_share
            crowd = max(0.0, setting.workers * self.cpu_share - self.cpus)
            batch_s = max(self.step_s, ready, cpu_s / self.cpus)
            batch_s += self.start_s + self.switch_s * crowd
            held = setting.workers * setting.prefetch
            batch_s += self.uneven_s * max(0.0, 1 - held / 8)
            wait_s = batch_s - self.step_s
        return Measured(batch_s * (1 + self.noise * draw()), wait_s)


LOOPS = {
    "the loop is slower than one worker": Loop(2 * MS, 1, 10 * MS, cpus=8),
    "Python on 8 CPUs": Loop(40 * MS, 1, 10 * MS, cpus=8),
    "Python on 2 CPUs": Loop(40 * MS, 1, 10 * MS, cpus=2, switch_s=1 * MS),
    "waiting for files": Loop(80 * MS, 0.05, 5 * MS, cpus=2),
    "loop and workers share CPUs": Loop(20 * MS, 1, 20 * MS, cpus=4, step_cpu_share=1),
    "a sample now and then takes long": Loop(4 * MS, 1, 5 * MS, cpus=4, uneven_s=2 * MS),
    "uneven, and no room for workers": Loop(
        4 * MS, 1, 5 * MS, cpus=1, switch_s=2 * MS, uneven_s=2 * MS
    ),
    "batches that are nothing": Loop(0.05 * MS, 1, 0.1 * MS, cpus=4, start_s=0.2 * MS),
    "only the loader": Loop(30 * MS, 1, 0, cpus=4, switch_s=2 * MS),
    "only the loader, waiting": Loop(30 * MS, 0.1, 0, cpus=2),
}


def best_of_all(loop: Loop) -> float:
    settings = [Setting(0)] + [
        Setting(workers, prefetch)
        for workers in range(1, 4 * int(loop.cpus) + 1)
        for prefetch in (2, 4, 8, 16)
    ]
    return min(loop.measure(setting).batch_s for setting in settings)


@pytest.mark.parametrize("now", [Setting(0), Setting(2, 2), Setting(32, 4)])
@pytest.mark.parametrize("name", LOOPS)
def test_what_is_found_is_within_5_percent_of_a_full_sweep(name: str, now: Setting) -> None:
    loop = LOOPS[name]
    search = Search(loop.batch, Budget(loop.cpus, 1 << 30), loop.measure)
    found = search.run(now)
    assert loop.measure(found).batch_s <= 1.05 * best_of_all(loop), (found, search.measured)
    assert len(search.measured) <= 12
    assert search.is_complete


@pytest.mark.parametrize("name", LOOPS)
def test_noise_of_one_percent_costs_little(name: str) -> None:
    loop = Loop(**{**vars(LOOPS[name]), "noise": 0.01})
    for seed in range(20):
        draw = random.Random(seed)
        search = Search(
            loop.batch,
            Budget(loop.cpus, 1 << 30),
            lambda setting, draw=draw: loop.measure(setting, lambda: draw.uniform(-1, 1)),
        )
        found = search.run(Setting(0))
        assert LOOPS[name].measure(found).batch_s <= 1.08 * best_of_all(LOOPS[name])


def test_the_smallest_of_those_that_are_alike() -> None:
    loop = LOOPS["the loop is slower than one worker"]
    search = Search(loop.batch, Budget(8, 1 << 30), loop.measure)
    assert search.run(Setting(32, 4)) == Setting(1, 2)
    assert Setting(32, 4) in search.measured


def test_what_the_loader_has_is_kept_where_only_the_depth_would_change() -> None:
    loop = LOOPS["the loop is slower than one worker"]
    search = Search(loop.batch, Budget(8, 1 << 30), loop.measure)
    assert search.run(Setting(1, 8)) == Setting(1, 8)


@pytest.mark.parametrize("cpus, most", [(2, 2), (1.5, 1), (0.5, 1)])
@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("path", ["thread", None])
def test_data_in_memory_get_no_more_workers_than_cpus(
    cpus: float, most: int, is_native: bool, path: str | None
) -> None:
    """Though more would be faster, as where other programs want the CPUs. The threads of C then
    wait for one while the loop's own thread seems to wait for data."""
    batch = Batch(4 * MS, (1 if is_native else 4) * MS, 0, 0, 1 << 10, is_native)

    def greedy(setting: Setting) -> Measured:
        return Measured(20 * MS / (1 + setting.workers), 1 * MS)

    search = Search(batch, Budget(cpus, 1 << 30), greedy, paths=(path,))
    assert search.run(Setting(16, 2, path)).workers == most
    others = [setting for setting in search.measured if setting.workers != 16]
    assert max(setting.workers for setting in others) == most


def suggestion(now_s: float, found_s: float, now: Setting, found: Setting) -> Suggestion:
    measured = {now: Measured(now_s, 0), found: Measured(found_s, 0)}
    return Suggestion(now, found, measured, Batch(1, 1, 1, 1, 1))


@pytest.mark.parametrize(
    "now, found, now_s, found_s, text",
    [
        ((2, 2), (2, 2), 1, 1, "keep what you have (num_workers=2, prefetch_factor=2, "),
        ((0, 0), (0, 0), 1, 1, "keep what you have (num_workers=0): nothing that was tried is fas"),
        ((2, 2), (1, 2), 1, 1 / 0.984, "keep what you have, or save workers at the same speed: D"),
        ((2, 2), (3, 2), 1.5, 1, "DataLoader(..., num_workers=3, prefetch_factor=2, persistent_wo"),
        ((9, 2), (2, 2), 1, 1.4, "DataLoader(..., num_workers=2, prefetch_factor=2, persistent_wo"),
    ],
)
def test_no_change_is_advised_that_would_not_help(
    now: tuple[int, int], found: tuple[int, int], now_s: float, found_s: float, text: str
) -> None:
    first = str(suggestion(now_s, found_s, Setting(*now), Setting(*found))).splitlines()[0]
    assert first.startswith(text)
    assert ("x of now" in first) == (now_s == 1.5)


def test_memory_bounds_workers_and_depth() -> None:
    loop = LOOPS["waiting for files"]
    search = Search(loop.batch, Budget(2, 12 << 20), loop.measure)
    search.run(Setting(0))
    assert max(setting.workers * setting.prefetch for setting in search.measured) <= 12


def test_when_time_is_up_the_best_so_far() -> None:
    loop = LOOPS["Python on 8 CPUs"]
    left = 3

    def probe(setting: Setting) -> Measured:
        nonlocal left
        if left == 0:
            raise OutOfTimeError
        left -= 1
        return loop.measure(setting)

    search = Search(loop.batch, Budget(8, 1 << 30), probe)
    found = search.run(Setting(0))
    assert not search.is_complete
    assert found == min(search.measured, key=lambda setting: search.measured[setting].batch_s)


@pytest.mark.parametrize(
    "load_s, cpu_share, step_s, cpus, path, wanted",
    [
        (40 * MS, 1, 10 * MS, 8, None, 5),  # 4 are needed on average
        (40 * MS, 1, 10 * MS, 2, None, 2),  # no more than CPUs
        (80 * MS, 0.05, 5 * MS, 2, "thread", 20),  # what waits shares them
        (80 * MS, 0.05, 5 * MS, 2, "process", 8),  # but processes cost more than CPUs
        (1 * MS, 1, 10 * MS, 8, None, 1),
        (30 * MS, 1, 0, 4, None, 4),
    ],
)
def test_the_closed_form(
    load_s: float, cpu_share: float, step_s: float, cpus: float, path: str | None, wanted: int
) -> None:
    batch = Batch(load_s, load_s * cpu_share, step_s, 0, 1)
    assert count_workers(batch, Budget(cpus, 1 << 30), 2, path)[0] == wanted
