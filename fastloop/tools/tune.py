"""``fastloop.tune``: finds the number of workers, the depth of the queue and the path for a loop.

`Search` chooses settings by arithmetic and by measurements. `_Measurer` measures a loop over copies
of the loader. Afterwards everything that iterating changes is restored. docs/internals/tools.md
gives the reasons.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fastloop.base import checks
from fastloop.base.machine import available_bytes, read_cpus, scheduled_ns
from fastloop.base.nested import list_leaves
from fastloop.base.shown import repr_html
from fastloop.data.columns import epochs_within
from fastloop.tools import text
from fastloop.tools.report.loader_source import find_remedy
from fastloop.tools.user_step import explaining_step, keep_random_state, keep_state

PATHS = ("auto", "process", "thread")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_ALIKE = 0.03  # if times differ by less than this share, the smallest setting is chosen
_SPARE = 1.2  # the workers to start, over the workers that are needed on average
_MOST_WORKERS = 64
_MOST_PER_CPU = 4  # worker processes: each takes memory and a share of a CPU, unlike threads
_LEAST_CPU = 0.02  # the least share of a batch's time on a CPU; bounds workers that only wait
_DEEPEST = 16


class Setting(NamedTuple):
    """A setting of a loader. A smaller setting takes less of the machine.

    Attributes:
        workers: ``num_workers``.
        prefetch: ``prefetch_factor``; 0 without workers.
        path: ``path`` of fastloop's loader; None for torch's.
    """

    workers: int
    prefetch: int = 0
    path: str | None = None


class Batch(NamedTuple):
    """The cost of one batch.

    Attributes:
        load_s: seconds to make the batch in this process, without workers.
        load_cpu_s: the part of ``load_s`` on a CPU.
        step_s: seconds that the loop works on a batch.
        step_cpu_s: the part of ``step_s`` on a CPU.
        bytes: the bytes of the batch's tensors.
        is_native: whether fastloop's threads gather the batch from memory. These threads may wait
            for a CPU, and ``load_cpu_s`` does not show their waiting.
    """

    load_s: float
    load_cpu_s: float
    step_s: float
    step_cpu_s: float
    bytes: int
    is_native: bool = False


class Budget(NamedTuple):
    """CPUs and bytes of memory that workers and their batches may take."""

    cpus: float
    ram_bytes: int


class Measured(NamedTuple):
    """The times of a loop over a loader with one setting, after the workers' start.

    Attributes:
        batch_s: seconds for each batch, the work of the loop included.
        wait_s: the part of ``batch_s`` in which the loop waited for the batch.
    """

    batch_s: float
    wait_s: float


class Suggestion(NamedTuple):
    """The result of ``tune()``. ``str()`` gives the line to paste and the evidence.

    Attributes:
        num_workers, prefetch_factor, path: the suggested arguments of the loader.
            ``prefetch_factor`` is None without workers; ``path`` is None for torch's own loader.
        now: the setting that the loader has.
        found: the suggested setting.
        measured: the times of each setting that was tried.
        batch: the cost of making a batch and of a step of the loop.
        notes: remarks, the most useful remark first.
    """

    now: Setting
    found: Setting
    measured: dict[Setting, Measured]
    batch: Batch
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return repr_html(self)

    @property
    def num_workers(self) -> int:
        return self.found.workers

    @property
    def prefetch_factor(self) -> int | None:
        return self.found.prefetch or None

    @property
    def path(self) -> str | None:
        return self.found.path

    @property
    def speedup(self) -> float:
        """The loop's speed with the suggestion, over the loop's speed now."""
        return self.measured[self.now].batch_s / self.measured[self.found].batch_s

    @property
    def line(self) -> str:
        """Arguments of the loader, to paste."""
        arguments = [f"num_workers={self.num_workers}"]
        if self.num_workers > 0:
            arguments += [f"prefetch_factor={self.prefetch_factor}", "persistent_workers=True"]
        if self.path not in (None, "auto"):
            arguments.append(f"path={self.path!r}")
        return ", ".join(arguments)

    def __str__(self) -> str:
        advice = f"DataLoader(..., {self.line})"  # the line to paste, if one is needed
        if self.found == self.now:
            advice = f"keep what you have ({self.line}): nothing that was tried is faster"
        elif self.speedup >= 1 + _ALIKE:
            advice += f"    # {text.ratio(self.speedup)} of now"
        elif self.speedup > 1 - _ALIKE:
            advice = f"keep what you have, or save workers at the same speed: {advice}"
        else:
            advice += "    # more workers than CPUs are faster only while other programs run"
        batch, rows = self.batch, [["workers", "prefetch", "path", "a step", "waits", ""]]
        for setting, (batch_s, wait_s) in self.measured.items():
            mark = "now" * (setting == self.now) or "suggested" * (setting == self.found)
            row = [str(setting.workers), str(setting.prefetch or "-"), setting.path or "torch"]
            rows.append([*row, text.seconds(batch_s), text.percent(wait_s / batch_s), mark])
        step = text.seconds(batch.step_s) if batch.step_s > 0 else "not measured"
        lines = [
            advice,
            f"a batch: {text.seconds(batch.load_s)} to make in this process "
            f"({text.seconds(batch.load_cpu_s)} of CPU), {text.size(batch.bytes)}; a step: {step}",
        ]
        return "\n".join([*lines, *text.table(rows), *self.notes])


def tune(
    loader: DataLoader[Any],
    step: Callable[[Any], object] | None = None,
    *,
    seconds: float = 20.0,
    paths: Sequence[str] | None = None,
    cpu_budget: float | None = None,
    ram_budget: int | None = None,
) -> Suggestion:
    """Measure a loop over ``loader`` with several numbers of workers and depths of the queue.

    tune() iterates copies of the loader for about ``seconds`` in all, over as many epochs as the
    time allows, and a stream from the start each time. Afterwards the loader, the epochs of
    datasets, the global random generators (Python's, NumPy's and torch's on every device) and the
    generators of samplers and datasets are as before. For example:

        print(fastloop.tune(loader, lambda batch: train_step(copy_of_model, batch)))

    Args:
        loader: any torch ``DataLoader``, fastloop's included.
        step: a function of a batch that does the work of the loop: forward, backward, optimizer.
            The step runs some hundred times, so train a copy of the model. None measures the
            loader alone.
        seconds: about how long to measure. The first two settings are measured in any case.
        paths: values of fastloop's ``path`` to try with workers: ``"auto"``, ``"process"``,
            ``"thread"``. None tries the loader's own path only.
        cpu_budget: the CPUs that the loop and its workers may use. None: the CPUs that the affinity
            and the container's quota allow, divided by the ranks on this machine.
        ram_budget: the bytes that batches made ahead may take. None: half of the available memory
            within the cgroup's limit.

    Raises:
        TypeError: ``loader`` is not a torch ``DataLoader``, or ``step`` cannot be called with a
            batch.
        ValueError: the loader gives no batch, the sampler is an iterator and cannot be iterated
            twice, or an argument is out of its range.
    """
    checks.check_type("loader", loader, isinstance(loader, DataLoader), "a torch DataLoader")
    if step is not None:
        checks.check_callable("step", step, "a function of a batch of the loader")
    checks.read_number("seconds", seconds, 0.01)
    wanted = _read_paths(loader, paths)
    if cpu_budget is None:
        cpu_budget = read_cpus().usable / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cpus = checks.read_number("cpu_budget", cpu_budget, 0.01)
    ram = checks.read_optional_int("ram_budget", ram_budget, 1) or max(1, available_bytes() // 2)
    now = Setting(loader.num_workers, loader.prefetch_factor or 0, checks.look_up(loader, "path"))
    with _unchanged(loader), text.progress("tune") as show:
        measurer = _Measurer(loader, step, seconds, show)
        batch = measurer.measure_batch()
        search = Search(batch, Budget(cpus, ram), measurer.measure, now.prefetch or 2, wanted)
        found = search.run(now)
    return Suggestion(now, found, search.measured, batch, tuple(_notes(loader, now, found, search)))


def _read_paths(loader: DataLoader[Any], paths: Sequence[str] | None) -> tuple[str | None, ...]:
    """Return the paths to try. Refuse a loader that cannot be iterated several times, or that
    cannot use a path."""
    for name in ("sampler", "batch_sampler"):
        value, remedy = getattr(loader, name), f"tune() iterates the {name} again; pass a list"
        if isinstance(value, Iterator):
            raise ValueError(checks.make_message(name, "iterable again", value, remedy))
    own = checks.look_up(loader, "path")
    wanted: tuple[Any, ...] = (own,) if paths is None else tuple(paths)
    if paths is not None:
        checks.check_value("paths", paths, own is not None, "None for torch's DataLoader")
        checks.check_value("paths", paths, wanted and {*wanted} <= {*PATHS}, f"some of {PATHS}")
    if "thread" in wanted and isinstance(loader.dataset, IterableDataset):
        rule = "['process'] for an IterableDataset"
        remedy = "each thread would give the whole stream"
        raise ValueError(checks.make_message("paths", rule, [*wanted], remedy))
    return wanted


def _notes(loader: Any, now: Setting, found: Setting, search: Search) -> Iterator[str]:
    remedy, batch = find_remedy(loader.dataset), search.batch
    is_thread, has_workers = found.path == "thread", found.workers > 0
    if remedy:
        yield f"{remedy} may be faster than any number of workers"
    elif has_workers and not is_thread and batch.load_cpu_s < batch.load_s / 2:
        yield (
            "making a batch is mostly waiting, and threads that wait cost little: if the dataset "
            "is safe in threads, try fastloop.DataLoader with paths=['thread']"
        )
    if found.workers != now.workers:
        yield (
            "a different number of workers means different random seeds, so augmentation differs "
            "(fastloop.transforms draw the same)"
        )
    if is_thread:
        yield "several threads call the dataset at a time, so the dataset must be safe in threads"
    if has_workers and isinstance(loader.dataset, IterableDataset):
        yield "each worker iterates a copy of the stream, so the stream must divide data by worker"
    if not search.is_complete:
        yield "the time was up before all settings were tried: pass more seconds"


# ---- the search


class OutOfTimeError(Exception):
    """The time does not suffice for a further measurement."""


def limit_workers(batch: Batch, budget: Budget, path: str | None = None) -> int:
    """Return the largest number of workers that can help. If making a batch keeps a CPU busy, as
    with data in memory, more workers than CPUs cannot help."""
    if batch.is_native or batch.load_cpu_s > 0.9 * batch.load_s:
        return max(1, int(budget.cpus))
    return _MOST_WORKERS if path == "thread" else math.ceil(_MOST_PER_CPU * budget.cpus)


def count_workers(
    batch: Batch, budget: Budget, prefetch: int, path: str | None = None
) -> tuple[int, int]:
    """Return two numbers of workers: the workers that make batches as fast as the loop takes
    batches, and a fifth more; and the most workers that CPUs and memory have room for. Workers that
    mostly wait share a CPU."""
    loop = batch.step_cpu_s / batch.step_s if batch.step_s > 0 else 0.0
    cpus = max(1.0, budget.cpus - loop)
    share = min(1.0, max(_LEAST_CPU, batch.load_cpu_s / batch.load_s)) if batch.load_s > 0 else 1.0
    by_memory = budget.ram_bytes // max(1, batch.bytes * (prefetch + 1))
    most = limit_workers(batch, budget, path)
    most = max(1, min(_MOST_WORKERS, most, math.ceil(cpus / share), by_memory))
    if batch.step_s <= 0:
        return most, most
    return max(1, min(most, math.ceil(_SPARE * batch.load_s / batch.step_s))), most


@dataclass
class Search:
    """Finds a setting with few measurements.

    Attributes:
        batch: the cost of making a batch and of a step.
        budget: the CPUs and memory that workers may take.
        probe: a function that measures a setting; may raise OutOfTimeError.
        prefetch: the first ``prefetch_factor``.
        paths: values of ``path`` to try with workers.
        measured: the times of each setting that was tried.
        is_complete: False if the time was up before the search ended.
    """

    batch: Batch
    budget: Budget
    probe: Callable[[Setting], Measured]
    prefetch: int = 2
    paths: Sequence[str | None] = (None,)
    measured: dict[Setting, Measured] = field(default_factory=dict)
    is_complete: bool = False

    def run(self, now: Setting) -> Setting:
        """Return the smallest setting that is about as fast as the fastest.

        Args:
            now: the loader's setting, which is measured first for comparison.
        """
        with suppress(OutOfTimeError):
            self._measure(now)
            if now.workers > 0:  # without workers all paths are the same
                self._measure(Setting(0, 0, self.paths[0]))
            for path in self.paths:
                self._climb(path)
            self._deepen()
            self.is_complete = True
        best = self._best()
        is_near = self.measured[now].batch_s <= self.measured[best].batch_s * (1 + _ALIKE)
        return now if now.workers == best.workers and is_near else best

    def _best(self) -> Setting:
        """Return the smallest setting that is about as fast as the fastest. If the loader has more
        workers than can help, the loader's own setting does not count."""
        seconds = {setting: found.batch_s for setting, found in self.measured.items()}
        useful = [s for s in seconds if s.workers <= limit_workers(self.batch, self.budget, s.path)]
        most_s = min(seconds[one] for one in useful or seconds) * (1 + _ALIKE)
        return min(one for one in useful or seconds if seconds[one] <= most_s)

    def _measure(self, setting: Setting) -> Measured:
        if setting not in self.measured:
            self.measured[setting] = self.probe(setting)
        return self.measured[setting]

    def _climb(self, path: str | None) -> None:
        """Change the computed number of workers by a quarter at a time while a change helps. If
        more workers do not help, try fewer."""
        start, most = count_workers(self.batch, self.budget, self.prefetch, path)
        here = self._measure(Setting(start, self.prefetch, path))
        # More workers must save time; fewer may take about as long.
        for direction, factor in ((1, 1 - _ALIKE), (-1, 1 + _ALIKE / 2)):
            workers, last = start, here
            while 1 <= (workers := workers + direction * max(1, workers // 4)) <= most:
                found = self._measure(Setting(workers, self.prefetch, path))
                if found.batch_s >= last.batch_s * factor:
                    break
                last = found
            if last is not here:
                return  # more workers helped, so fewer would not

    def _deepen(self) -> None:
        """Try deeper queues while the loop waits. If batches come fast enough on average and some
        batches take longer, a deeper queue helps."""
        best = self._best()
        while best.workers > 0 and 0 < best.prefetch < _DEEPEST:
            found = self.measured[best]
            deeper = best._replace(prefetch=2 * best.prefetch)
            is_even = found.wait_s < _ALIKE * found.batch_s
            is_large = deeper.workers * deeper.prefetch * self.batch.bytes > self.budget.ram_bytes
            less_s = found.batch_s * (1 - _ALIKE)
            if is_even or is_large or self._measure(deeper).batch_s >= less_s:
                return
            best = deeper


# ---- measurements


class _Measurer:
    """Measures a loop over copies of a loader, for `seconds` in all."""

    def __init__(
        self, loader: DataLoader[Any], step: Any, seconds: float, show: Callable[[str], object]
    ) -> None:
        self._loader, self._has_step, self._show = loader, step is not None, show
        self._step = step or (lambda batch: None)
        self._each_s, self._end = seconds / 10, perf_counter() + seconds
        self._count = 0

    def measure_batch(self) -> Batch:
        """Measure the cost of making a batch in this process, and of a step."""
        path = "auto" if checks.look_up(self._loader, "path") else None
        copy: Any = _copy_of(self._loader, Setting(0, 0, path))
        batches = _repeat(copy)
        batch = next(batches)
        is_native = path is not None and copy.stats().path == "array"
        load_s, load_cpu_s = _time(lambda: next(batches), self._each_s / 2)
        step_s = step_cpu_s = 0.0
        if self._has_step:
            with explaining_step(f"tune() called step(batch) with a {type(batch).__name__}"):
                self._step(batch)
            step_s, step_cpu_s = _time(lambda: self._step(batch), self._each_s / 2)
        leaves = (leaf for _, leaf in list_leaves(batch) if isinstance(leaf, torch.Tensor))
        size = sum(leaf.nbytes for leaf in leaves)
        return Batch(load_s, load_cpu_s, step_s, step_cpu_s, size, is_native)

    def measure(self, setting: Setting) -> Measured:
        """Measure the loop with one setting. Raises OutOfTimeError if the time is up."""
        if self._count >= 2 and perf_counter() + self._each_s > self._end:
            raise OutOfTimeError
        self._count += 1
        self._show(f"{setting.workers} workers, prefetch {setting.prefetch}")
        batches = _repeat(_copy_of(self._loader, setting))
        # Batches that workers made before the clock starts must not count, so use them up first.
        for batch in islice(batches, setting.workers * (setting.prefetch + 1) + 1):
            self._step(batch)
        waits: list[float] = []

        def run_step() -> None:
            asked = perf_counter()
            batch = next(batches)
            waits.append(perf_counter() - asked)
            self._step(batch)

        batch_s, _ = _time(run_step, self._each_s)
        return Measured(batch_s, sum(waits) / len(waits))


def _time(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Call a function for `seconds`, and return the mean seconds of a call: on the clock, on a CPU.

    Waiting for a busy CPU counts as being on a CPU, because more workers would wait as well."""
    _synchronize()
    begin, begin_cpu, count = perf_counter(), process_time(), 0
    ran = sum(scheduled_ns() or ())
    while count < 3 or perf_counter() - begin < seconds:
        call()
        count += 1
    _synchronize()
    took, ran = perf_counter() - begin, sum(scheduled_ns() or (ran,)) - ran
    return took / count, max(process_time() - begin_cpu, ran / 1e9) / count


def _synchronize() -> None:
    """Wait for the device, because queued work is part of a measurement."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _repeat(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches epoch after epoch."""
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        checks.refuse_if(is_empty, "loader must give batches, got an empty epoch")


def _copy_of(loader: DataLoader[Any], setting: Setting) -> DataLoader[Any]:
    """Return a copy of the loader with this setting, and without an iterator."""
    copy: DataLoader[Any] = object.__new__(type(loader))
    has_workers = setting.workers > 0
    # _shared belongs to the original loader. setattr() would raise, because loaders refuse changes
    # of some attributes.
    parts = {k: v for k, v in vars(loader).items() if k != "_shared"} | {"_iterator": None}
    parts |= {"num_workers": setting.workers, "prefetch_factor": setting.prefetch or None}
    parts |= {"persistent_workers": has_workers, "timeout": loader.timeout * has_workers}
    if setting.path is not None:
        parts["path"] = setting.path if has_workers else "auto"
    copy.__dict__.update(parts)
    return copy


def _list_generators(loader: DataLoader[Any]) -> list[Any]:
    """Return the generators of a loader, its samplers and its datasets, nested ones included."""
    todo: list[Any] = [loader, loader.batch_sampler]
    for one in todo:
        for value in checks.look_up(one, "__dict__", {}).values():
            is_kept = issubclass(type(value), (*_GENERATORS, Dataset, Sampler))
            if is_kept and not any(value is other for other in todo):
                todo.append(value)
    return [one for one in todo if isinstance(one, _GENERATORS)]


@contextmanager
def _unchanged(loader: DataLoader[Any]) -> Iterator[None]:
    """Restore epochs and random generators after the block, and ignore torch's warning about many
    workers."""
    with ExitStack() as stack:
        for epoch in epochs_within(loader.dataset):
            stack.callback(epoch.begin, epoch.value)
        for generator in _list_generators(loader):
            stack.callback(keep_state(generator))
        stack.callback(keep_random_state())
        stack.enter_context(warnings.catch_warnings())
        # tune() tries more workers than CPUs on purpose.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
