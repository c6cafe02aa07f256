"""Updates: tells callbacks what a loop does while the loop runs.

The observer of an open report calls ``tell()`` on the thread that trains, between two steps. An
update is computed from totals, in constant time; only the verdict looks at single steps, and at
most every 10 seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from fastloop.base.checks import check_callable, look_up, read_number
from fastloop.tools.report.files import say
from fastloop.tools.report.loader_source import NONE, OTHERS, READY, LoaderSource
from fastloop.tools.report.observer import NEVER, LoopObserver
from fastloop.tools.report.ranks import Ranks
from fastloop.tools.report.summary import FEW_STEPS, WARM_UP, summarize
from fastloop.tools.scalars import ScalarLog

_JUDGE_NS = 10_000_000_000  # the time between two verdicts
_MIN_STEPS = 10  # a verdict is about this many new steps at least, so it is not about the warm-up
_MAX_STEPS = 1_000  # a verdict is about this many of the last steps at most
_FOUND = READY, OTHERS, NONE
# The names of metrics that differ from the names of attributes.
NAMES = {"skipped": "skipped_steps", "queue": "queue_depth", "restarts": "worker_restarts"}
_NUMBERS = "cpu_wait", "has_silent_skips", "elsewhere", "usage"


@dataclass(frozen=True)
class LoaderUpdate:
    """The numbers of a loader since the report was opened. Unknown numbers are None.

    Attributes:
        name: the loader's ``name``; without one, the dataset's class and the line of the program
            that called ``iter()``.
        trains: whether an optimizer has stepped on the loader's batches.
        batches: the number of batches.
        samples: the samples in these batches, and in batches that wait.
        waits: the seconds in ``next()``, without the first batch of each epoch, by what
            ``next()`` found: ``"none"`` no batch, ``"others"`` only later batches, ``"ready"`` the
            batch that was due.
        wait_counts: the number of these waits, by the same keys: waits up to 0.1 ms, up to 1, 10
            and 100 ms, 1 and 10 s, and longer waits.
        first_batch_seconds: the seconds in ``iter()`` and until the first batch of each epoch.
        queue: the batches that were ready when the latest batch was asked for.
        workers: the workers that are alive.
        restarts: the dead workers that were replaced.
        uploaded_bytes: the bytes that fastloop has copied to a device, alignment included.
        slots_lent: the blocks of batch memory whose tensors are alive.
    """

    name: str
    trains: bool
    batches: int
    samples: int | None
    waits: dict[str, float]
    wait_counts: dict[str, tuple[int, ...]]
    first_batch_seconds: float
    queue: int | None
    workers: int | None
    restarts: int
    uploaded_bytes: int
    slots_lent: int | None


@dataclass(frozen=True)
class Update:
    """The numbers of a loop, for a callback of ``Report.on_update()``. Unknown numbers are None.

    The *period* is the time since the callback's update before. ``samples``,
    ``first_batch_seconds``, ``queue``, ``workers`` and ``restarts`` are sums over the loaders that
    the loop trains on.

    Attributes:
        seconds: since the report was opened.
        steps, skipped, batches: all steps, skipped steps and batches of steps until now.
        samples: see ``LoaderUpdate``.
        step_seconds: the seconds in steps until now.
        first_batch_seconds: the seconds until the first batches of epochs, which are in no step.
        steps_per_second: the steps in the period over its seconds.
        wait_share: the share of the period's step time in which the loop waited for data.
        causes: the parts of ``wait_share``, with the keys of ``LoaderUpdate.waits``.
        queue, workers, restarts: see ``LoaderUpdate``.
        scale: the scale of the scaler that stepped last. Copied from a device without waiting, so
            scale and norm may be those of the update before.
        gradient_norm: the norm that ``clip_grad_norm_()``, ``unscale_and_clip_()`` or a ``Stepper``
            found last, before clipping.
        device_busy: the share of time in which a kernel ran on the GPU, once a second on average.
        verdict: as the report's ``kind``, about the last steps: ``"input-bound"``, ``"partly
            input-bound"``, ``"not input-bound"`` or ``"unknown"``. A verdict is made every 10
            seconds at most.
        next: the one change that would help most; None if a faster loader cannot help.
        gain: the number of times as fast as now that the loop can be at most with that change.
        text: the verdict in words.
        ranks: on rank 0 of several ranks, the share of each step in which each rank waits for data,
            in the last 10 to 20 seconds; {} without other ranks.
        slowest_rank: the rank that loses most, if that is 10 % of each step more than other ranks.
        slowest_text: what the slowest rank does, in words; "" without one.
        loaders: a ``LoaderUpdate`` for each loader.
        is_last: whether the report is closed.
    """

    seconds: float
    steps: int
    skipped: int
    batches: int
    samples: int | None
    step_seconds: float
    first_batch_seconds: float
    steps_per_second: float
    wait_share: float | None
    causes: dict[str, float]
    queue: int | None
    workers: int | None
    restarts: int | None
    scale: float | None
    gradient_norm: float | None
    device_busy: float | None
    verdict: str
    next: str | None
    gain: float | None
    text: str
    ranks: dict[int, float]
    slowest_rank: int | None
    slowest_text: str
    loaders: tuple[LoaderUpdate, ...]
    is_last: bool

    def to_dict(self) -> dict[str, float]:
        """Return the known numbers by the names of metrics, for a tracker of experiments: for
        example, ``fastloop/wait_share``. docs/api/tools.md lists the names, which never change."""
        found = {NAMES.get(name, name): value for name, value in vars(self).items()}
        if self.wait_share is not None:
            found |= {f"wait_share_{name}": share for name, share in self.causes.items()}
        numbers = {name: one for name, one in found.items() if type(one) in (int, float)}
        return {f"fastloop/{name}": one for name, one in numbers.items()}


class _Totals(NamedTuple):
    """Numbers that only grow; times are ns."""

    time: int
    steps: int = 0
    in_steps: int = 0
    waited: int = 0
    waits: tuple[int, ...] = (0, 0, 0)  # of loaders that the loop trains on


@dataclass(eq=False)  # callbacks that equal each other are two
class _Callback:
    call: Callable[[Update], object]
    every: int  # ns
    before: _Totals
    due: int = NEVER  # ns


class Updates:
    """The callbacks of one report, and what the report knows about ranks."""

    def __init__(self) -> None:
        self._callbacks: list[_Callback] = []
        self._process = os.getpid()
        self._observer: Any = None
        self._verdict: dict[str, Any] = {"kind": "unknown", "next": None, "ceiling": None}
        self._verdict["text"] = "NO VERDICT: the loop has just begun."
        self._next_verdict = 0
        self._scalars = ScalarLog(capacity=1)
        self._numbers: dict[str, Any] = {"scale": None, "gradient_norm": None}

    def add(self, call: Callable[[Update], object], every: float) -> None:
        check_callable("fn", call)
        ns = round(min(read_number("every", every, 0) * 1e9, NEVER))
        self._callbacks.append(_Callback(call, ns, _Totals(0)))
        if self._observer is not None:
            self._begin(self._callbacks[-1])

    def open(self, observer: LoopObserver) -> None:
        """Let the observer call the callbacks."""
        self._observer, self._began = observer, observer.clock()
        self.ranks = Ranks(observer)
        observer.next_update = self._began
        self._judged = _copy(observer)
        observer.update = self.tell
        observer.meet = self.ranks.watch
        for callback in self._callbacks:
            self._begin(callback)

    def _begin(self, callback: _Callback) -> None:
        callback.before = self._read(self._observer.clock())
        callback.due = callback.before.time + callback.every
        self._observer.next_update = min(self._observer.next_update, callback.due)

    def close(self) -> None:
        """Call each callback once more."""
        self.tell(self._observer.clock(), is_last=True)
        self.ranks.close()
        self._observer.scaler = self._observer.norm = None

    def tell(self, now: int, is_last: bool = False) -> None:
        """Call the callbacks whose time has come. An exception of a callback is printed once, and
        ends only the callback's own calls."""
        observer = self._observer
        if os.getpid() != self._process:  # a forked child has a copy of the report
            observer.next_update = NEVER
            return
        # What a callback does, for example validate, is not a part of the loop.
        thread, observer.thread = observer.thread, 0
        try:
            self._tell(now, is_last)
        except Exception as error:  # a fault here must not end the training
            self._callbacks.clear()
            self.ranks.close()
            with suppress(Exception):  # the error's repr may raise
                say(f"fastloop: an update failed with {error!r}; no further updates")
        finally:
            observer.thread = thread
            observer.next_update = min(self.ranks.due, *(one.due for one in self._callbacks), NEVER)

    def _tell(self, now: int, is_last: bool) -> None:
        if is_last or now >= self.ranks.due:
            self.ranks.exchange(now)
        due = [one for one in self._callbacks if is_last or now >= one.due]
        if due:
            self._judge(now, is_last)
            totals, loaders = self._read(now), tuple(map(_describe, self._observer.sources))
            self._read_scalars(totals.steps)
        made: dict[_Totals, Update] = {}  # by the totals that the period began with
        for callback in due:
            before, callback.before, callback.due = callback.before, totals, now + callback.every
            if before not in made:
                made[before] = self._make(totals, before, loaders, is_last)
            self._call(callback, made[before])

    def _call(self, callback: _Callback, update: Update) -> None:
        try:
            callback.call(update)
        except Exception as error:
            self._callbacks.remove(callback)
            with suppress(Exception):  # a tracker's repr may raise
                what = f"{callback.call!r} of on_update() raised {error!r}"
                say(f"fastloop: {what}; no further calls")

    def _read_scalars(self, step: int) -> None:
        """Send scale and norm on their way, and read what has arrived. Never waits."""
        if self._observer.waits.is_capturing():  # a question about an event ends a capture
            return
        numbers = {
            "scale": look_up(self._observer.scaler, "_scale"),
            "gradient_norm": self._observer.norm,
        }
        if known := {name: value for name, value in numbers.items() if value is not None}:
            with suppress(Exception):  # a device nobody can copy from
                self._scalars.push(step, known)
        self._numbers |= self._scalars.last()
        if self._observer.norm is None:  # the latest step's norm is unknown
            self._numbers["gradient_norm"] = None

    def _read(self, now: int) -> _Totals:
        recorder = self._observer.recorder
        training = [source.waits.values() for source in self._observer.sources if source.trains]
        waits = tuple(map(sum, zip(*training, strict=True))) or (0, 0, 0)
        return _Totals(now, recorder.current, recorder.totals.steps, recorder.waited, waits)

    def _make(
        self, now: _Totals, before: _Totals, loaders: tuple[LoaderUpdate, ...], is_last: bool
    ) -> Update:
        recorder, verdict = self._observer.recorder, self._verdict
        spent, in_steps = now.time - before.time, now.in_steps - before.in_steps
        waits = [max(b - a, 0) for a, b in zip(before.waits, now.waits, strict=True)]
        parts = {name: ns / max(sum(waits), 1) for name, ns in zip(_FOUND, waits, strict=True)}
        training = [loader for loader in loaders if loader.trains]
        waited = (now.waited - before.waited) / max(in_steps, 1)
        ranks = self.ranks.compare()
        share = waited if training and in_steps > 0 else None
        names = "samples", "queue", "workers", "restarts"
        return Update(
            seconds=(now.time - self._began) / 1e9,
            steps=now.steps,
            skipped=recorder.skipped,
            batches=recorder.batches,
            step_seconds=now.in_steps / 1e9,
            first_batch_seconds=sum(loader.first_batch_seconds for loader in training),
            steps_per_second=(now.steps - before.steps) * 1e9 / spent if spent > 0 else 0.0,
            wait_share=share,
            causes={name: part * waited for name, part in parts.items()},
            verdict=verdict["kind"],
            next=verdict["next"],
            gain=verdict["ceiling"] if verdict["next"] else None,
            text=verdict["text"],
            ranks=ranks.waits,
            slowest_rank=ranks.slowest,
            slowest_text=ranks.text,
            scale=self._numbers["scale"],
            gradient_norm=self._numbers["gradient_norm"],
            device_busy=self._observer.usage.busy,
            loaders=loaders,
            is_last=is_last,
            **{name: _sum(getattr(loader, name) for loader in training) for name in names},
        )

    def _judge(self, now: int, is_last: bool) -> None:
        """Make a verdict about the steps since the verdict before, if it is time."""
        observer, before = self._observer, self._judged
        count = observer.recorder.steps.count - before.recorder.steps.count
        is_missing = is_last and self._verdict["kind"] == "unknown"
        # A single late batch is a large share of few short steps.
        least = WARM_UP + FEW_STEPS if now < self._began + _JUDGE_NS else _MIN_STEPS
        if (now < self._next_verdict or count < least) and not is_missing:
            return
        self._next_verdict, self._judged = now + _JUDGE_NS, _copy(observer)
        recent = _copy(observer, min(count, _MAX_STEPS))
        recent.recorder.subtract(before.recorder)
        for source, old in zip(recent.sources, before.sources, strict=False):
            source.subtract(old)
        if recent.cpu_wait is not None:
            recent.cpu_wait -= before.cpu_wait or 0
        self._verdict = summarize(recent, is_brief=True)["verdict"]


def _copy(observer: LoopObserver, most: int = 0) -> SimpleNamespace:
    """Return the numbers that ``summarize()`` reads, with the last steps, at most `most`."""
    return SimpleNamespace(
        recorder=observer.recorder.copy(most),
        sources=[source.copy() for source in observer.sources],
        **{name: getattr(observer, name) for name in _NUMBERS},
    )


def _describe(source: LoaderSource) -> LoaderUpdate:
    samples, restarts, lent = source.count_shared()
    return LoaderUpdate(
        name=source.label,
        trains=source.trains,
        batches=source.batches,
        samples=samples if source.path == "array" else None,
        waits={found: ns / 1e9 for found, ns in source.waits.items()},
        wait_counts={found: tuple(counts) for found, counts in source.counts.items()},
        first_batch_seconds=source.first_batch / 1e9,
        queue=source.queued if source.queued >= 0 else None,
        workers=source.count_alive(),
        restarts=restarts,
        uploaded_bytes=source.count_uploaded(),
        slots_lent=lent,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
