"""``fastloop.tune``: which number of workers and how deep a queue a loop wants, by measuring it."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fastloop.base.memory import available_bytes
from fastloop.base.nested import list_leaves
from fastloop.loader.resume.dataset_epochs import epochs_within
from fastloop.tools.batch_size.snapshot import keep_random_state
from fastloop.tools.doctor.finding import System
from fastloop.tools.doctor.host import usable_cpus
from fastloop.tools.report.loader_source import find_remedy
from fastloop.tools.report.process_usage import pss_bytes, runnable_ns
from fastloop.tools.tune.search import Batch, Budget, Measured, OutOfTimeError, Search, Setting
from fastloop.tools.user_step import check_step, explaining

PATHS = ("auto", "process", "thread")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


@dataclass(frozen=True)
class Suggestion:
    """What ``tune()`` found. ``str()`` of it is the line to paste and the evidence.

    Attributes:
        num_workers, prefetch_factor, path: for the loader. ``prefetch_factor`` is None without
            workers, ``path`` for torch's own loader.
        now: the setting that the loader has.
        found: the suggested one.
        measured: every setting that was tried.
        batch: what making a batch and a step of the loop cost.
        notes: what else is to be known.
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
        """Of the loop, over what it is now."""
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
        batch = self.batch
        step = f"{batch.step_s * 1e3:.3g} ms" if batch.step_s > 0 else "not measured"
        lines = [
            f"DataLoader(..., {self.line})    # {self.speedup:.2f}x of now",
            f"a batch: {batch.load_s * 1e3:.3g} ms to make in this process "
            f"({batch.load_cpu_s * 1e3:.3g} ms of CPU), {batch.bytes / 1e6:.3g} MB; "
            f"a step of the loop: {step}",
            f"{'workers':>7} {'prefetch':>8} {'path':>8} {'ms a step':>10} {'waits':>6} "
            f"{'memory':>9}",
        ]
        for setting, found in self.measured.items():
            marks = [
                name for name, of in (("now", self.now), ("suggested", self.found)) if setting == of
            ]
            memory = "n/a" if found.memory_bytes is None else f"{found.memory_bytes / 1e6:.0f} MB"
            lines.append(
                f"{setting.workers:>7} {setting.prefetch or '-':>8} {setting.path or 'torch':>8} "
                f"{found.batch_s * 1e3:>10.3g} {found.wait_s / found.batch_s:>6.0%} {memory:>9}"
                f"  {', '.join(marks)}".rstrip()
            )
        return "\n".join([*lines, *self.notes])


def tune(
    loader: DataLoader[Any],
    step: Callable[[Any], object] | None = None,
    *,
    seconds: float = 20.0,
    paths: Sequence[str] | None = None,
    cpu_budget: float | None = None,
    ram_budget: int | None = None,
) -> Suggestion:
    """Measures a loop over ``loader`` with other numbers of workers and depths of its queue.

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
        cpu_budget: CPUs that loop and workers may use. None: what affinity and the container's
            quota allow, shared with the other ranks of this machine.
        ram_budget: bytes that batches made ahead may take. None: half of what is available,
            within the limits of the cgroup.

    Raises:
        TypeError: ``loader`` is no torch ``DataLoader``, or ``step`` cannot be called with a batch.
        ValueError: it gives no batch, its sampler is an iterator, which could be used once, or an
            argument is out of its range.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"tune() takes a torch DataLoader, got {type(loader).__name__}")
    if step is not None:
        check_step("step", step, "a batch of the loader")
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds!r}")
    path = getattr(loader, "path", None)
    wanted = _check_paths(paths, path)
    _check_repeatable(loader, wanted)
    budget = Budget(_cpus(cpu_budget), _ram(ram_budget))
    now = Setting(loader.num_workers, loader.prefetch_factor or 0, path)
    with _unchanged(loader):
        trials = _Trials(loader, step, seconds)
        batch = trials.measure_batch()
        search = Search(batch, budget, trials.measure, now.prefetch or 2, wanted)
        found = search.run(now)
    notes = _notes(loader, now, found, search, batch)
    return Suggestion(now, found, search.measured, batch, notes)


def _check_paths(paths: Sequence[str] | None, own: str | None) -> tuple[str | None, ...]:
    if paths is None:
        return (own,)
    if own is None:
        raise ValueError("paths are of fastloop's DataLoader; this one is torch's: leave them out")
    wrong = [path for path in paths if path not in PATHS]
    if wrong or isinstance(paths, str) or not paths:
        raise ValueError(f"paths must be some of {PATHS}, got {paths!r}")
    return tuple(paths)


def _check_repeatable(loader: DataLoader[Any], paths: Sequence[str | None]) -> None:
    for name in ("sampler", "batch_sampler"):
        if isinstance(getattr(loader, name), Iterator):
            raise ValueError(
                f"tune() would use up {name}={getattr(loader, name)!r}, which can be iterated "
                "once; pass a list of what it gives"
            )
    if "thread" in paths and isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "tune() cannot try threads over an IterableDataset, of which each would give all; "
            "pass paths=['process']"
        )


def _cpus(budget: float | None) -> float:
    if budget is None:
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        return usable_cpus(System()) / (int(ranks) if ranks.isdigit() and int(ranks) else 1)
    if not budget > 0:
        raise ValueError(f"cpu_budget must be a positive number of CPUs, got {budget!r}")
    return budget


def _ram(budget: int | None) -> int:
    if budget is None:
        return available_bytes() // 2
    if not budget > 0:
        raise ValueError(f"ram_budget must be a positive number of bytes, got {budget!r}")
    return budget


def _notes(
    loader: DataLoader[Any], now: Setting, found: Setting, search: Search, batch: Batch
) -> tuple[str, ...]:
    notes = []
    remedy = find_remedy(loader.dataset)
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
    if found.workers > 0 and isinstance(loader.dataset, IterableDataset) and now.workers == 0:
        notes.append("each worker iterates a stream of its own: it must share them out")
    if not search.is_complete:
        notes.append("time was up before every setting of interest was tried: give more seconds")
    return tuple(notes)


class _Trials:
    """Measures a loop over copies of a loader.

    Args:
        seconds: for all of it.
    """

    def __init__(
        self, loader: DataLoader[Any], step: Callable[[Any], object] | None, seconds: float
    ) -> None:
        self._loader = loader
        self._step = step if step is not None else lambda batch: None
        self._has_step = step is not None
        self._each_s = seconds / 10
        self._end = perf_counter() + seconds
        self._made = 0

    def measure_batch(self) -> Batch:
        """The cost of a batch that is made in this process, and of a step."""
        batches = _batches(_copy_of(self._loader, Setting(0, 0, self._path_of_none())))
        batch = next(batches)
        load_s, load_cpu_s = _timed(lambda: next(batches), self._each_s / 2)
        step_s = step_cpu_s = 0.0
        if self._has_step:
            with explaining(f"tune() has called step(batch) with a {type(batch).__name__}"):
                self._step(batch)
            step_s, step_cpu_s = _timed(lambda: self._step(batch), self._each_s / 2)
        return Batch(load_s, load_cpu_s, step_s, step_cpu_s, _bytes_of(batch))

    def _path_of_none(self) -> str | None:
        return "auto" if hasattr(self._loader, "path") else None

    def measure(self, setting: Setting) -> Measured:
        if self._made >= 2 and perf_counter() + self._each_s > self._end:
            raise OutOfTimeError
        self._made += 1
        loader = _copy_of(self._loader, setting)
        batches = _batches(loader)
        # What workers have made before the clock starts must not count.
        ahead = setting.workers * (setting.prefetch + 1) + 1
        for batch in islice(batches, ahead):
            self._step(batch)
        _synchronize()
        begin = perf_counter()
        count, wait_s = 0, 0.0
        while count < 4 or perf_counter() - begin < self._each_s:
            asked = perf_counter()
            batch = next(batches)
            wait_s += perf_counter() - asked
            self._step(batch)
            count += 1
        _synchronize()
        batch_s = (perf_counter() - begin) / count
        return Measured(batch_s, wait_s / count, _workers_memory(loader))


def _timed(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Seconds of a call, on the clock and on CPUs, the mean of as many as there is time for. Where
    others take the CPUs, waiting for one counts as being on it: more workers would wait as well."""
    _synchronize()
    begin, begin_cpu, count = perf_counter(), process_time(), 0
    ran = runnable_ns("thread-self") or 0
    while count < 3 or perf_counter() - begin < seconds:
        call()
        count += 1
    _synchronize()
    seconds, ran = perf_counter() - begin, (runnable_ns("thread-self") or ran) - ran
    return seconds / count, max(process_time() - begin_cpu, ran / 1e9) / count


def _synchronize() -> None:
    """Work that the device was given counts as done where a measurement ends."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if count == 0:
            raise ValueError("tune() needs a loader that gives batches, but its epoch is empty")


def _copy_of(loader: DataLoader[Any], setting: Setting) -> DataLoader[Any]:
    """The same loader with another setting, and with nothing under way."""
    copy: DataLoader[Any] = object.__new__(type(loader))
    state = {k: v for k, v in vars(loader).items() if k not in ("_shared", "_iterator")}
    state.update(
        _iterator=None,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch or None,
        persistent_workers=setting.workers > 0,
        timeout=loader.timeout if setting.workers > 0 else 0,
    )
    if setting.path is not None:
        state["path"] = setting.path if setting.workers > 0 else "auto"
    copy.__dict__.update(state)
    return copy


def _bytes_of(batch: Any) -> int:
    leaves = (leaf for _, leaf in list_leaves(batch))
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))


def _workers_memory(loader: DataLoader[Any]) -> int | None:
    """The proportional set size of its worker processes."""
    workers = getattr(loader._iterator, "_workers", ())
    found = [pss_bytes(worker.pid) for worker in workers if worker.pid not in (None, os.getpid())]
    return sum(found) if found and None not in found else None  # type: ignore[arg-type]


def _find_generators(loader: DataLoader[Any]) -> list[Any]:
    """torch's, Python's and NumPy's of a loader, and of its samplers and datasets, which may lie
    inside each other."""
    todo: list[Any] = [loader, loader.batch_sampler]
    seen = {id(of): of for of in todo}
    for of in todo:
        for value in getattr(of, "__dict__", {}).values():
            if isinstance(value, (*_GENERATORS, Dataset, Sampler)) and id(value) not in seen:
                seen[id(value)] = value
                todo.append(value)
    return [of for of in todo if isinstance(of, _GENERATORS)]


def _keep(generator: Any) -> Callable[[], object]:
    """What puts it back as it is now."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())


@contextmanager
def _unchanged(loader: DataLoader[Any]) -> Iterator[None]:
    """What iterating draws and counts is taken back."""
    restores = [keep_random_state(), *map(_keep, _find_generators(loader))]
    epochs = [(epoch, epoch.value) for epoch in epochs_within(loader.dataset)]
    try:
        with warnings.catch_warnings():
            # More workers than CPUs is what is tried.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            yield
    finally:
        for restore in restores:
            restore()
        for epoch, number in epochs:
            epoch.begin(number)
