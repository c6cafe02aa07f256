"""LoopObserver: what one report is told of a loop, handed to its recorder.

It knows which loader an iterator is of, looks at workers and the GPU once a second, and keeps calls
that lie inside others from being counted twice. Called on the thread of its report.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from fastloop.base.machine import runnable_ns
from fastloop.base.torch_parts import BaseIter
from fastloop.device.prefetch import Prefetcher
from fastloop.tools.report.gpu_usage import GpuUsage
from fastloop.tools.report.gpu_waits import EventPair, GpuWaits
from fastloop.tools.report.loader_source import NONE, READY, LoaderSource, find_inner
from fastloop.tools.report.recorder import StepRecorder

LOOK_NS = 1_000_000_000  # at the GPU
_LOOK_AT_WORKERS_NS = LOOK_NS // 10  # epochs may be short
_MOST_LOOKS = 100  # at batches that the loop makes itself
_MAX_SOURCES = 64
_MAX_LOG = 256  # events that are not told yet


class _Sources:
    """The LoaderSource of each loader and iterator, by address, until that dies."""

    def __init__(self) -> None:
        self.all: list[LoaderSource] = []
        self._found: dict[int, tuple[weakref.ref[Any], LoaderSource]] = {}

    def find(self, owner: Any) -> LoaderSource:
        found = self._found.get(id(owner))
        if found is not None and found[0]() is owner:
            return found[1]
        inner = find_inner(owner)
        if inner is not owner and isinstance(inner, BaseIter):
            source = self.find(inner)
        elif len(self.all) < _MAX_SOURCES:
            source = LoaderSource(owner)
            if isinstance(owner, BaseIter):
                source.use(owner)
            self.all.append(source)
        else:  # a program that makes loaders again and again: the last one stands for them
            source = self.all[-1]
            source.name = "further loaders"
        self.bind(owner, source)
        return source

    def bind(self, owner: Any, source: LoaderSource) -> None:
        key = id(owner)
        self._found[key] = weakref.ref(owner, partial(self._forget, key)), source

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        if key in self._found and self._found[key][0] is reference:
            del self._found[key]


class LoopObserver:
    """Tells a recorder.

    Hooks only write down what happened, because each of them runs between two long computations,
    where caches hold nothing of ours. The recorder reads it some hundred events at a time.

    Args:
        clock: ns that only grow.
        waits: of the GPU for batches.
        usage: of the GPU.
    """

    def __init__(
        self,
        clock: Callable[[], int] = perf_counter_ns,
        waits: GpuWaits | None = None,
        usage: GpuUsage | None = None,
    ) -> None:
        self.thread = get_ident()
        self.elsewhere = 0  # calls on other threads
        self.steps_decided = 0  # taken or skipped
        self.has_silent_skips = False  # an optimizer may skip by itself, on the device
        self.sources = _Sources()
        self.waits = waits or GpuWaits()
        self.usage = usage or GpuUsage()
        self._clock = clock
        self._recorder = StepRecorder(clock())
        self._log: list[tuple[Any, ...]] = []  # methods and their arguments
        self._depth = 0  # of calls inside each other
        self._loading_depth = 0  # of the one that loads for an upload
        self._loading: int | None = None  # ns; None: nothing is uploaded in this call
        self._loading_begin = self._next_look = self._next_look_at_workers = 0
        self._source: LoaderSource | None = None
        self._found = -1, -1  # batches that were there
        self._made_since: tuple[int, int | None] = 0, None  # of a batch that the loop makes itself
        self._looks = 0  # at those

    @property
    def recorder(self) -> StepRecorder:
        """It knows of all events so far."""
        self._read_log()
        return self._recorder

    def _read_log(self) -> None:
        log, self._log = self._log, []
        for method, *args in log:
            method(*args)

    # ---- loaders

    def enter_iter(self) -> bool:
        """False inside another call, which counts as one with it."""
        if self._depth > 0:
            return False
        self._depth = 1
        now = self._clock()
        self._log.append((self._recorder.enter_fetch, now, now))
        return True

    def leave_iter(self, loader: Any, iterator: Any) -> None:
        """Args: iterator: None where iter() has raised."""
        now = self._clock()
        self._depth = 0
        source = self.sources.find(loader)
        if isinstance(iterator, BaseIter):
            self.sources.bind(iterator, source)
            inner = find_inner(iterator)
            self.sources.bind(inner, source)
            source.use(inner)
        end = self._recorder.leave_iter
        self._log.append((end, now, self._clock(), source, iterator is None))

    def enter_next(self, iterator: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            now = self._clock()
            source = self._source = self.sources.find(iterator)
            self._found = source.count_ready()
            if source.workers == 0 and self._looks < _MOST_LOOKS:
                self._made_since = now, runnable_ns("thread-self")
            self._loading = 0 if isinstance(iterator, Prefetcher) else None
            self._loading_depth = 0
            if now >= self._next_look_at_workers:
                self._next_look_at_workers = now + _LOOK_AT_WORKERS_NS
                self._look(source, now)
            if len(self._log) > _MAX_LOG:
                self._read_log()
            if self.waits.is_on:
                self.waits.begin()
            self._log.append((self._recorder.enter_fetch, now, self._clock()))
        elif self._loading is not None and self._loading_depth == 0:
            self._loading_depth, self._loading_begin = self._depth, self._clock()

    def leave_next(self, error: BaseException | None) -> None:
        now = self._clock()
        self._depth -= 1
        if self._loading is not None and self._depth + 1 == self._loading_depth:
            self._loading += now - self._loading_begin
            self._loading_depth = 0
        if self._depth > 0:
            return
        source = self._source
        assert source is not None
        (begin, ran), self._made_since, kind = self._made_since, (0, None), None
        if error is not None:
            kind = StopIteration if isinstance(error, StopIteration) else type(error)
            source.look()
        elif ran is not None:
            source.note_made(now - begin, (runnable_ns("thread-self") or ran) - ran)
            self._looks += 1
        turn = NONE if kind else source.find_turn(*self._found)
        ready = sum(self._found) if turn == READY else min(0, self._found[0])
        pair = self.waits.end() if self.waits.is_on else None
        end = self._recorder.leave_fetch if pair is None else self._leave_fetch
        found = now, self._clock(), source, ready, self._loading, kind, turn
        self._log.append((end, *found) if pair is None else (end, pair, *found))

    def _leave_fetch(self, pair: EventPair, *found: Any) -> None:
        run = self._recorder.leave_fetch(*found)
        self.waits.follow(pair, run, self._recorder.steps)

    def _look(self, source: LoaderSource, now: int) -> None:
        source.look()
        if now >= self._next_look:
            self._next_look = now + LOOK_NS
            self.usage.look()
            self.waits.look()

    # ---- updates

    def enter_update(self, token: int) -> None:
        now = self._clock()
        self._log.append((self._recorder.enter_update, now, self._clock(), token))

    def leave_update(self, token: int) -> None:
        now = self._clock()
        self._log.append((self._recorder.leave_update, now, self._clock(), token))

    def enter_step(self, optimizer: Any) -> None:
        now, token = self._clock(), id(optimizer)
        self.steps_decided += 1
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            self.has_silent_skips = True
        if len(self._log) > _MAX_LOG:
            self._read_log()
        self._log.append((self._recorder.enter_update, now, self._clock(), token))
        self._log.append((self._recorder.note_step, token))

    def note_skip(self, optimizer: Any) -> None:
        """Its step was not called, by a scaler or a Stepper."""
        self.steps_decided += 1
        self._log.append((self._recorder.note_skip, id(optimizer)))

    def enter_closure(self) -> None:
        now = self._clock()
        self._log.append((self._recorder.enter_closure, now, self._clock()))

    def leave_closure(self) -> None:
        now = self._clock()
        self._log.append((self._recorder.leave_closure, now, self._clock()))

    # ---- the end

    def end(self, is_error: bool = False) -> str:
        """As the recorder's."""
        now = self._clock()
        phase = self.recorder.end(now, is_error)
        for source in self.sources.all:
            source.look()
        self.waits.poll(self._recorder.steps)
        self.usage.end()
        return phase
