"""The setting of a loader that a loop wants: arithmetic, and a search over measurements.
docs/tune.md has the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

ALIKE = 0.03  # settings that are closer to the best than this are as good: the smallest is taken
_SPARE = 1.2  # workers for each one that is needed on average
_MOST_WORKERS = 64
_MOST_PER_CPU = 4  # processes, each of which takes memory and its share of a CPU; threads wait free
_LEAST_CPU = 0.02  # of a batch's time, so that waiting alone does not want endless workers
_DEEPEST = 16


@dataclass(frozen=True, order=True)
class Setting:
    """A setting of a loader. Smaller ones take less of the machine.

    Attributes:
        workers: ``num_workers``.
        prefetch: ``prefetch_factor``; 0 without workers.
        path: ``path`` of fastloop's loader; None for torch's.
    """

    workers: int
    prefetch: int = 0
    path: str | None = None


@dataclass(frozen=True)
class Batch:
    """The cost of one batch.

    Attributes:
        load_s: seconds to make it in this process, nothing else running.
        load_cpu_s: of those, seconds on a CPU.
        step_s: seconds that the loop works on a batch that is there.
        step_cpu_s: of those, seconds on a CPU.
        bytes: of its tensors.
    """

    load_s: float
    load_cpu_s: float
    step_s: float
    step_cpu_s: float
    bytes: int


@dataclass(frozen=True)
class Budget:
    """CPUs and bytes of memory that workers and their batches may take."""

    cpus: float
    ram_bytes: int


@dataclass(frozen=True)
class Measured:
    """A loop over a loader of one setting, once it runs.

    Attributes:
        batch_s: seconds a batch, work of the loop included.
        wait_s: of those, seconds the loop waited for the batch.
        memory_bytes: memory of its workers; None if it was not measured.
    """

    batch_s: float
    wait_s: float
    memory_bytes: int | None = None


class OutOfTimeError(Exception):
    """There is no time for another measurement."""


def most_workers(batch: Batch, budget: Budget, prefetch: int, path: str | None = None) -> int:
    """Return how many workers CPUs and memory have room for; those that mostly wait share a CPU."""
    loop = batch.step_cpu_s / batch.step_s if batch.step_s > 0 else 0.0
    cpus = max(1.0, budget.cpus - loop)
    share = min(1.0, max(_LEAST_CPU, batch.load_cpu_s / batch.load_s)) if batch.load_s > 0 else 1.0
    by_memory = budget.ram_bytes // max(1, batch.bytes * (prefetch + 1))
    by_kind = _MOST_WORKERS if path == "thread" else math.ceil(_MOST_PER_CPU * budget.cpus)
    return max(1, min(_MOST_WORKERS, by_kind, math.ceil(cpus / share), by_memory))


def wanted_workers(batch: Batch, budget: Budget, prefetch: int, path: str | None = None) -> int:
    """Return how many workers make batches as fast as the loop takes them, and a fifth more."""
    most = most_workers(batch, budget, prefetch, path)
    if batch.step_s <= 0:
        return most
    return max(1, min(most, math.ceil(_SPARE * batch.load_s / batch.step_s)))


class Search:
    """Finds a setting with few measurements.

    Args:
        probe: measures a setting; may raise OutOfTimeError.
        prefetch: the first ``prefetch_factor``.
        paths: values of ``path`` to try with workers.
    """

    def __init__(
        self,
        batch: Batch,
        budget: Budget,
        probe: Callable[[Setting], Measured],
        prefetch: int = 2,
        paths: Sequence[str | None] = (None,),
    ) -> None:
        self._batch, self._budget, self._probe = batch, budget, probe
        self._prefetch, self._paths = prefetch, paths
        self.measured: dict[Setting, Measured] = {}
        self.is_complete = False

    def run(self, now: Setting) -> Setting:
        """Return the smallest setting that is as good as the best one found.

        Args:
            now: the loader's setting, which is measured first, for comparison.
        """
        try:
            self._measure(now)
            if now.workers > 0:  # without them all paths are the same
                self._measure(Setting(0, 0, self._paths[0]))
            for path in self._paths:
                self._climb(path)
            self._deepen()
            self.is_complete = True
        except OutOfTimeError:
            pass
        return self.best()

    def best(self) -> Setting:
        """Return the smallest setting that is as good as the fastest one measured."""
        most_s = min(found.batch_s for found in self.measured.values()) * (1 + ALIKE)
        return min(setting for setting, found in self.measured.items() if found.batch_s <= most_s)

    def _measure(self, setting: Setting) -> Measured:
        if setting not in self.measured:
            self.measured[setting] = self._probe(setting)
        return self.measured[setting]

    def _climb(self, path: str | None) -> None:
        """Go from the closed form in steps of a quarter, up or else down, as long as it helps."""
        most = most_workers(self._batch, self._budget, self._prefetch, path)
        start = wanted_workers(self._batch, self._budget, self._prefetch, path)
        here = self._measure(Setting(start, self._prefetch, path))
        for direction in (1, -1):
            workers, last = start, here
            while 1 <= (workers := workers + direction * max(1, workers // 4)) <= most:
                found = self._measure(Setting(workers, self._prefetch, path))
                if not self._is_worth(found, last, direction):
                    break
                last = found
            if last is not here:
                return  # it was uphill there

    @staticmethod
    def _is_worth(found: Measured, last: Measured, direction: int) -> bool:
        """Accept more workers for a shorter time, fewer for one that is not longer."""
        if direction > 0:
            return found.batch_s < last.batch_s * (1 - ALIKE)
        return found.batch_s <= last.batch_s * (1 + ALIKE / 2)

    def _deepen(self) -> None:
        """Try deeper queues while the loop waits although batches come fast enough on average: some
        of them take longer than others."""
        best = self.best()
        while best.workers > 0 and 0 < best.prefetch < _DEEPEST:
            found = self.measured[best]
            if found.wait_s < ALIKE * found.batch_s:
                return
            deeper = replace(best, prefetch=2 * best.prefetch)
            held = deeper.workers * deeper.prefetch * self._batch.bytes
            if held > self._budget.ram_bytes or not self._is_worth(self._measure(deeper), found, 1):
                return
            best = deeper
