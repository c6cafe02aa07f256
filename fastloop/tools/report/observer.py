"""LoopObserver: watches the loop of one report by hooks, and hands events to a recorder.

An observer knows which loader an iterator belongs to, looks at workers and the GPU from time to
time, and counts nested calls once. An observer runs on the thread that opened the report;
``hooks.py`` tells it the events.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from fastloop._core import StepLog
from fastloop.base.checks import look_up
from fastloop.base.machine import scheduled_ns
from fastloop.compat.torch_parts import BaseIter
from fastloop.device.upload import Prefetcher, loading_iterator
from fastloop.tools.report.gpu import EventPair, GpuUsage, GpuWaits
from fastloop.tools.report.loader_source import NONE, LoaderSource
from fastloop.tools.report.recorder import Error, StepRecorder

_LOOK_AT_GPU_NS = 1_000_000_000
_LOOK_NS = 100_000_000  # at workers, because epochs may be short, and whether CUDA is in use
_MAX_SOURCES = 64
NEVER = 1 << 62  # ns


def _nothing() -> None:
    """Stand for an iterator that is gone."""


class LoopObserver(StepLog):
    """Writes down the events of a loop, and lets the recorder read the events later.

    Hooks run between two long computations, when caches hold none of fastloop's data. Therefore
    the log is native, and the recorder reads some hundred events at a time. If a batch needs no
    look at a queue, an upload or CPU times, its hook runs no Python at all; nor does an optimizer's
    hook from the optimizer's second step on.

    Args:
        clock: returns ns that only grow.
        cuda: the module ``torch.cuda``, or a test's substitute.

    Attributes:
        elsewhere: the number of calls on other threads.
        depth: the number of nested calls.
        steps_decided: the number of steps that were taken or skipped.
        has_silent_skips: whether an optimizer may skip steps on the device, unseen by the host.
        cpu_wait: ns in which the thread was ready to run and had no CPU; None if unknown.
        meet: called with an optimizer before its first step.
        update, next_update: a function of the time, called between two steps once the time is
            ``next_update``. The function sets its next time. Its own time is a cost of measuring.
        next_look: the time to look at whatever changes slowly.
        norm: the norm of the latest clipping or boundary of a Stepper; None if unknown.
        scaler: the scaler that stepped last; None if there is none.
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns, cuda: Any = torch.cuda) -> None:
        self.thread, self.has_silent_skips = get_ident(), False
        self.elsewhere = 0
        self.meet: Callable[[Any], None] = lambda optimizer: None
        self.update: Callable[[int], None] = lambda now: None
        self.next_update = NEVER
        self.sources: list[LoaderSource] = []
        self._bound: Any = WeakIdKeyDictionary()  # the LoaderSource of each loader and iterator
        self.waits, self.usage = GpuWaits(cuda), GpuUsage(cuda)
        self.clock = clock
        self.cpu_wait: int | None = None
        self._scheduled = scheduled_ns()
        self._opened_at = clock()
        new = self._recorder = StepRecorder(self._opened_at)
        own = clock if clock is not perf_counter_ns else None  # the log's clock is the same
        methods = new.enter_fetch, new.leave_fetch, new.enter_step, new.leave_update
        self.start(own, *methods, new.note_gradient, new.note_steps)
        self._loading_depth = 0  # the depth of the call that loads
        self._loading: int | None = None  # ns; None if this call uploads nothing
        self._loading_begin = self._next_look_at_gpu = 0
        self._has_gpu = False
        self._loader: Any = None  # the loader whose iter() is running
        self._source: LoaderSource | None = None  # the source of the latest next()
        self.norm: Any = None
        self.scaler: Any = None
        self._deciding: list[tuple[Any, int, bool]] = []  # optimizers that a scaler steps or skips
        # The optimizers that have stepped, by id. An id may become another optimizer's.
        self._met: dict[int, weakref.ref[Any]] = {}

    @property
    def recorder(self) -> StepRecorder:
        """The recorder, after it has read all events so far."""
        self.read()
        return self._recorder

    # ---- loaders

    def lookup_source(self, owner: Any) -> LoaderSource:
        """Return the LoaderSource of a loader or an iterator. A new owner gets a new source."""
        source: LoaderSource | None = self._bound.get(owner)
        if source is not None:
            return source
        inner = loading_iterator(owner)
        if inner is not owner and isinstance(inner, BaseIter):
            source = self.lookup_source(inner)
        elif len(self.sources) < _MAX_SOURCES:
            self.sources.append(source := LoaderSource(owner))
            if isinstance(owner, BaseIter):
                source.use(owner)
        else:  # the program makes loaders again and again, so one source stands for the rest
            source = self.sources[-1]
            source.name = "further loaders"
        self._bound[owner] = source
        return source

    def enter_iter(self, token: object, args: Any, kwargs: Any) -> None:
        """Note iter(). Inside a call that is noted already, iter() is a part of that call."""
        self.depth += 1
        if self.depth == 1:
            (self._loader,) = args
            self.note(self._recorder.enter_fetch, self.clock())

    def leave_iter(self, token: object, iterator: Any, error: object) -> None:
        now = self.clock()
        self.depth -= 1
        if self.depth > 0:
            return
        source, self._loader = self.lookup_source(self._loader), None
        if isinstance(iterator, BaseIter):
            inner = loading_iterator(iterator)
            self._bound[iterator] = self._bound[inner] = source
            source.use(inner)
            source.use_uploads(iterator)
        self.note(self._recorder.leave_iter, now, source)

    def enter_next(self, token: object, args: Any, kwargs: Any) -> None:
        """Note next(). If the iterator uploads, the first next() inside is the loading."""
        now = self.clock()
        self.depth += 1
        if self.depth > 1:
            if self._loading is not None and self._loading_depth == 0:
                self._loading_depth, self._loading_begin = self.depth, now
            return
        (iterator,) = args
        self._look(iterator, now)
        if self._has_gpu:
            self.waits.begin()
        self.note(self._recorder.enter_fetch, now)

    def _look(self, iterator: Any, now: int) -> None:
        """Look at the iterator before next() and, from time to time, at whatever changes slowly.
        Tell the log whether the iterator's next batches need a look."""
        source = self._source
        if source is None or not source.uses(iterator):  # uses() is faster than the look-up
            source = self._source = self.lookup_source(iterator)
        self._loading = 0 if isinstance(iterator, Prefetcher) else None
        self._loading_depth = 0
        is_plain = source.begin_batch(now) and self._loading is None
        if now >= self.next_look:
            # A look costs more than a step, and divides the steps that are read as an array.
            is_often = source.num_workers > 0 or now < self._opened_at + _LOOK_AT_GPU_NS
            self.next_look = now + (_LOOK_NS if is_often else _LOOK_AT_GPU_NS)
            # If an update comes soon, the look waits for it: at the update's step the log has just
            # been read, and there is nothing to read again.
            if abs(self.next_update - self.next_look) < _LOOK_NS:
                self.next_look = self.next_update
            self._look_around(source, now)
        is_plain = is_plain and not self._has_gpu
        self.expect_batches(iterator if is_plain else None, (source, None, None, NONE))

    def _look_around(self, source: LoaderSource, now: int) -> None:
        self.read()  # a source looks at each batch until its first batches are counted
        self._has_gpu = self.waits.is_used()
        source.look()
        if now >= self._next_look_at_gpu:
            self._next_look_at_gpu = now + _LOOK_AT_GPU_NS
            self.usage.look()
            self._look_at_cpus()

    def leave_next(self, token: object, batch: object, error: Error) -> None:
        """Note the end of next(), and the type of the exception, if any."""
        now = self.clock()
        self.depth -= 1
        if self._loading is not None and self.depth + 1 == self._loading_depth:
            self._loading += now - self._loading_begin
            self._loading_depth = 0
        if self.depth > 0:
            return
        source: Any = self._source
        turn = source.end_batch(now, error is not None)
        pair = self.waits.end() if self._has_gpu else None
        # The log has the end of the step before, and not yet the batch, so the update's time lies
        # between the two times of the batch.
        if now >= self.next_update:
            self.update(now)
        method = self._recorder.leave_fetch if pair is None else partial(self._leave_fetch, pair)
        self.note(method, now, source, self._loading, error, turn)

    def _leave_fetch(self, pair: EventPair, *found: Any) -> None:
        run = self._recorder.leave_fetch(*found)
        self.waits.follow(pair, run, self._recorder.steps)

    # ---- updates

    def enter_update(self, token: object, args: Any, kwargs: Any) -> None:
        self.note(self._recorder.enter_update, self.clock(), id(token))

    def leave_update(self, token: object, result: object, error: object) -> None:
        if type(result) is torch.Tensor:  # not a DTensor, whose number may need other ranks
            # A captured norm has no number before a replay, and graphs share their memory.
            self.norm = None if self.waits.is_capturing() else result
        self.note(self._recorder.leave_update, self.clock(), id(token))

    def enter_scaler_step(self, token: object, args: Any, kwargs: Any) -> None:
        """Note a method of a GradScaler or a Boundary that may call or skip an optimizer's
        step."""
        own = look_up(args[0], "_optimizer")
        optimizer = (*args[1:], kwargs.get("optimizer"))[0] if own is None else own
        if own is None:  # a Boundary calls its scaler
            self.scaler = args[0]
        self._deciding.append((optimizer, self.steps_decided, own is not None))
        self.enter_update(token, args, kwargs)

    def leave_scaler_step(self, token: object, result: object, error: object) -> None:
        optimizer, decided, is_boundary = self._deciding.pop()
        # A Boundary returns its norm first; a scaler returns what the optimizer returns.
        norm = result[0] if is_boundary and isinstance(result, tuple) else None
        self.leave_update(token, norm, error)
        if error is None and self.steps_decided == decided:
            # No optimizer has stepped inside the call, so the step was skipped.
            self.steps_decided += 1
            self.note(self._recorder.note_skip, self.clock(), id(optimizer))

    def enter_step(self, optimizer: Any) -> None:
        self.steps_decided += 1
        if self._met.get(id(optimizer), _nothing)() is not optimizer:
            self._meet(optimizer)
        self.expect_steps(optimizer)
        self.note(self._recorder.enter_step, self.clock(), id(optimizer))

    def _meet(self, optimizer: Any) -> None:
        """Look at an optimizer before its first step."""
        self._met[id(optimizer)] = weakref.ref(optimizer)
        skips = look_up(optimizer, "_step_supports_amp_scaling", False)
        self.has_silent_skips = self.has_silent_skips or skips
        self.meet(optimizer)

    def note_device_gradient(self) -> None:
        """Note a gradient on CUDA, in backward(), on any thread."""
        self.waits.note_gradient()

    def leave_step(self, optimizer: Any) -> None:
        now = self.clock()
        if now >= self.next_update and self._source is None:
            self.update(now)  # without a loader, no batch comes between two steps
        self.note(self._recorder.leave_update, now, id(optimizer))

    def enter_closure(self, token: object, args: Any, kwargs: Any) -> None:
        self.note(self._recorder.enter_closure, self.clock())

    def leave_closure(self, token: object, result: object, error: object) -> None:
        self.note(self._recorder.leave_closure, self.clock())

    def _look_at_cpus(self) -> None:
        if (now := scheduled_ns()) and self._scheduled:
            self.cpu_wait = now[1] - self._scheduled[1]

    def end(self) -> None:
        """Stop recording."""
        self._look_at_cpus()
        self.recorder.end(self.clock())
        for source in self.sources:
            source.look()
        self.waits.poll(self._recorder.steps)
