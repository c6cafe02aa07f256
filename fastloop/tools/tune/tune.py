"""``fastloop.tune``: measures a loop over copies of a loader with settings that search.py chooses,
and puts back all that iterating changes."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fastloop.base.checks import check_callable, make_message, read_int, read_number
from fastloop.base.machine import available_bytes, pss_bytes, runnable_ns, usable_cpus
from fastloop.base.nested import list_leaves
from fastloop.data.epochs import epochs_within
from fastloop.tools import text
from fastloop.tools.batch_size import explaining_step, keep_random_state
from fastloop.tools.report.loader_source import find_remedy
from fastloop.tools.tune.search import Batch, Budget, Measured, OutOfTimeError, Search, Setting

PATHS = ("auto", "process", "thread")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


@dataclass(frozen=True)
class Suggestion:
    """The result of ``tune()``. ``str()`` of it is the line to paste and the evidence.

    Attributes:
        num_workers, prefetch_factor, path: for the loader. ``prefetch_factor`` is None without
            workers, ``path`` for torch's own loader.
        now: the setting that the loader has.
        found: the suggested one.
        measured: every setting that was tried.
        batch: the cost of making a batch and of a step of the loop.
        notes: remarks, the most useful one first.
    """

    now: Setting
    found: Setting
    measured: dict[Setting, Measured]
    batch: Batch
    notes: tuple[str, ...] = ()

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
        """How many times as fast as now the loop is with the suggestion."""
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
        batch, rows = self.batch, [["workers", "prefetch", "path", "a step", "waits", "memory", ""]]
        for setting, found in self.measured.items():
            mark = "now" * (setting == self.now) or "suggested" * (setting == self.found)
            row = [setting.workers, setting.prefetch or "-", setting.path or "torch"]
            waits = text.percent(found.wait_s / found.batch_s)
            row += [text.seconds(found.batch_s), waits, text.size(found.memory_bytes), mark]
            rows.append([str(cell) for cell in row])
        step = text.seconds(batch.step_s) if batch.step_s > 0 else "not measured"
        lines = [
            f"DataLoader(..., {self.line})    # {text.ratio(self.speedup)} of now",
            f"a batch: {text.seconds(batch.load_s)} to make in this process "
            f"({text.seconds(batch.load_cpu_s)} of CPU), {text.size(batch.bytes)}; a step of the "
            f"loop: {step}",
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
    """Measure a loop over ``loader`` with other numbers of workers and depths of its queue.

    Nothing is changed: the loader, its datasets' epochs, the global random generators (of Python,
    NumPy and torch, on its devices, too) and those of its samplers and datasets are as before.
    Copies of the loader are iterated for about ``seconds`` in all, each over at most some epochs. A
    stream is iterated from its start each time.

    Args:
        loader: any torch ``DataLoader``; fastloop's is measured on its own paths.
        step: is called with each batch, as the loop would do: forward, backward, optimizer. It is
            really run, some hundred times: give it a copy of the model. None: how fast the loader
            can be, whatever the loop does.
        seconds: about how long to measure. A first measurement of each kind is made anyway.
        paths: of fastloop's loader, to try with workers: ``"auto"`` (the one that is chosen by
            itself), ``"process"``, ``"thread"``. None: the loader's own.
        cpu_budget: CPUs that loop and workers may use. None: those that affinity and the
            container's quota allow, shared with the other ranks of this machine.
        ram_budget: bytes that batches made ahead may take. None: half of what is available,
            within the limits of the cgroup.

    Raises:
        TypeError: ``loader`` is not a torch ``DataLoader``, or ``step`` cannot be called with a
            batch.
        ValueError: the loader gives no batch, its sampler is an iterator, which could be used once,
            or an argument is out of its range.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(make_message("loader", "a torch DataLoader", loader))
    if step is not None:
        check_callable("step", step, "a function of a batch of the loader")
    read_number("seconds", seconds, 0.01)
    path = getattr(loader, "path", None)
    wanted = _read_paths(paths, path)
    _check_repeatable(loader, wanted)
    if cpu_budget is None:
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        cpu_budget = usable_cpus() / (int(ranks) if ranks.isdigit() and int(ranks) else 1)
    if ram_budget is None:
        ram_budget = max(1, available_bytes() // 2)
    cpus, ram_bytes = (
        read_number("cpu_budget", cpu_budget, 0.01),
        read_int("ram_budget", ram_budget, 1),
    )
    now = Setting(loader.num_workers, loader.prefetch_factor or 0, path)
    with _unchanged(loader):
        trials = _Trials(loader, step, seconds)
        batch = trials.measure_batch()
        budget = Budget(cpus, ram_bytes)
        search = Search(batch, budget, trials.measure, now.prefetch or 2, wanted)
        found = search.run(now)
    notes = _notes(loader, now, found, search, batch)
    return Suggestion(now, found, search.measured, batch, notes)


def _read_paths(paths: Sequence[str] | None, own: str | None) -> tuple[str | None, ...]:
    if paths is None:
        return (own,)
    if own is None:
        raise ValueError(make_message("paths", "None for torch's DataLoader", paths))
    if isinstance(paths, str) or not paths or not set(paths) <= set(PATHS):
        raise ValueError(make_message("paths", f"some of {PATHS}", paths))
    return tuple(paths)


def _check_repeatable(loader: DataLoader[Any], paths: Sequence[str | None]) -> None:
    for name in ("sampler", "batch_sampler"):
        if isinstance(value := getattr(loader, name), Iterator):
            remedy = "tune() iterates it more than once; pass a list"
            raise ValueError(make_message(name, "iterable again", value, remedy))
    if "thread" in paths and isinstance(loader.dataset, IterableDataset):
        rule, remedy = "['process'] for an IterableDataset", "each thread would give all of it"
        raise ValueError(make_message("paths", rule, list(paths), remedy))


def _notes(
    loader: DataLoader[Any], now: Setting, found: Setting, search: Search, batch: Batch
) -> tuple[str, ...]:
    notes = []
    remedy, is_stream = find_remedy(loader.dataset), isinstance(loader.dataset, IterableDataset)
    if remedy:
        notes.append(f"faster than any number of workers may be {remedy}")
    elif batch.load_cpu_s < batch.load_s / 2 and found.workers > 0 and found.path != "thread":
        notes.append(
            "making a batch is mostly waiting: threads wait at no cost, so try fastloop.DataLoader "
            "with paths=['thread'], if the dataset is safe in threads"
        )
    if found.workers != now.workers:
        notes.append(
            "another number of workers has other random seeds in them: augmentation by Python's, "
            "NumPy's or torch's generators differs (fastloop.transforms do not)"
        )
    if found.path == "thread" and now.path != "thread":
        notes.append("threads call the dataset several at a time: it must be safe for that")
    if found.workers > 0 and is_stream and now.workers == 0:
        notes.append("each worker iterates a stream of its own: it must share them out")
    if not search.is_complete:
        notes.append("time was up before every setting of interest was tried: give more seconds")
    return tuple(notes)


class _Trials:
    """Measures a loop over copies of a loader, for some seconds in all."""

    def __init__(
        self, loader: DataLoader[Any], step: Callable[[Any], object] | None, seconds: float
    ) -> None:
        self._loader, self._step = loader, step or (lambda batch: None)
        self._has_step = step is not None
        self._each_s, self._end = seconds / 10, perf_counter() + seconds
        self._count = 0

    def measure_batch(self) -> Batch:
        """Measure the cost of a batch that is made in this process, and of a step."""
        path = "auto" if hasattr(self._loader, "path") else None
        batches = _repeat(_copy_of(self._loader, Setting(0, 0, path)))
        batch = next(batches)
        load_s, load_cpu_s = _time(lambda: next(batches), self._each_s / 2)
        step_s = step_cpu_s = 0.0
        if self._has_step:
            with explaining_step(f"tune() called step(batch) with a {type(batch).__name__}"):
                self._step(batch)
            step_s, step_cpu_s = _time(lambda: self._step(batch), self._each_s / 2)
        leaves = (leaf for _, leaf in list_leaves(batch) if isinstance(leaf, torch.Tensor))
        return Batch(load_s, load_cpu_s, step_s, step_cpu_s, sum(leaf.nbytes for leaf in leaves))

    def measure(self, setting: Setting) -> Measured:
        """Measure the loop with one setting. Raises OutOfTimeError if time is up."""
        if self._count >= 2 and perf_counter() + self._each_s > self._end:
            raise OutOfTimeError
        self._count += 1
        loader = _copy_of(self._loader, setting)
        batches = _repeat(loader)
        # Batches that workers have made before the clock starts must not count.
        ahead = setting.workers * (setting.prefetch + 1) + 1
        for batch in islice(batches, ahead):
            self._step(batch)
        _synchronize()
        begin, count, wait_s = perf_counter(), 0, 0.0
        while count < 4 or perf_counter() - begin < self._each_s:
            asked = perf_counter()
            batch = next(batches)
            wait_s += perf_counter() - asked
            self._step(batch)
            count += 1
        _synchronize()
        batch_s = (perf_counter() - begin) / count
        return Measured(batch_s, wait_s / count, _memory_of_workers(loader))


def _time(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return the mean seconds of a call, on the clock and on CPUs, of as many as there is time for.

    Waiting for a CPU that others take counts as being on it: more workers would wait as well."""
    _synchronize()
    begin, begin_cpu, count = perf_counter(), process_time(), 0
    ran = runnable_ns("thread-self") or 0
    while count < 3 or perf_counter() - begin < seconds:
        call()
        count += 1
    _synchronize()
    took, ran = perf_counter() - begin, (runnable_ns("thread-self") or ran) - ran
    return took / count, max(process_time() - begin_cpu, ran / 1e9) / count


def _synchronize() -> None:
    """Wait for the device: its queued work counts as part of a measurement."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _repeat(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches epoch after epoch."""
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("loader must give batches, got an empty epoch")


def _copy_of(loader: DataLoader[Any], setting: Setting) -> DataLoader[Any]:
    """Return the same loader with another setting, and without an iterator."""
    copy: DataLoader[Any] = object.__new__(type(loader))
    # Not by setattr(), which loaders refuse for some names; _shared belongs to the original.
    copy.__dict__.update({k: v for k, v in vars(loader).items() if k != "_shared"})
    copy.__dict__.update(
        _iterator=None,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch or None,
        persistent_workers=setting.workers > 0,
        timeout=loader.timeout if setting.workers > 0 else 0,
    )
    if setting.path is not None:
        copy.__dict__["path"] = setting.path if setting.workers > 0 else "auto"
    return copy


def _memory_of_workers(loader: DataLoader[Any]) -> int | None:
    """Return the proportional set size of a loader's worker processes."""
    pids = [worker.pid for worker in getattr(loader._iterator, "_workers", ())]
    found = [pss_bytes(pid) for pid in pids if pid not in (None, os.getpid())]
    return sum(found) if found and None not in found else None  # type: ignore[arg-type]


def _list_generators(loader: DataLoader[Any]) -> list[Any]:
    """Return the generators of a loader and of its samplers and datasets, nested ones included."""
    seen: dict[int, Any] = {}
    todo: list[Any] = [loader, loader.batch_sampler]
    for one in todo:
        for value in getattr(one, "__dict__", {}).values():
            if isinstance(value, (*_GENERATORS, Dataset, Sampler)) and id(value) not in seen:
                seen[id(value)] = value
                todo.append(value)
    return [one for one in todo if isinstance(one, _GENERATORS)]


def _keep(generator: Any) -> Callable[[], object]:
    """Return a function that gives a generator the state that it has now."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())


@contextmanager
def _unchanged(loader: DataLoader[Any]) -> Iterator[None]:
    """Take back what iterating draws and counts."""
    with ExitStack() as stack:
        for epoch in epochs_within(loader.dataset):
            stack.callback(epoch.begin, epoch.value)
        for generator in _list_generators(loader):
            stack.callback(_keep(generator))
        stack.callback(keep_random_state())
        stack.enter_context(warnings.catch_warnings())
        # More workers than CPUs are tried on purpose.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
