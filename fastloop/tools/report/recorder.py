"""StepRecorder: divides a training loop's time into parts, computed from events.

An event is a batch that the loop takes or an optimizer that steps. Each nanosecond between two
events goes to one counter, so the parts of a step sum to the step. Only an optimizer's step tells
which batches were trained on. Until then batches wait in a window; docs/internals/tools.md has a
drawing. Each event brings its time, so the recorder needs no clock and may read events later. The
recorder's memory does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fastloop.tools.report.loader_source import NONE, WAITS_NS, LoaderSource

_BOUNDS = np.array(WAITS_NS)
CAPACITY = 16_384  # steps that are kept, 64 bytes each
NOT_MEASURED = -1
# The parts of a run. The times of all parts sum to the time since the start.
PARTS = "before first_batch steps between_epochs validation unfinished after measuring".split()


class Step(NamedTuple):
    """One step. Times are ns of the host's clock; NOT_MEASURED if unknown.

    Attributes:
        end: the end of the step, counted from the beginning of the report.
        data_wait: the time in next() of the loaders, without the first batch of an epoch.
        host_to_device: the host's part of copying to the device, in next().
        forward_backward: the time from the batch to the optimizer, and between optimizers.
        clip_optimizer: the time of unscaling, clipping and the optimizers' steps.
        other: the time after the last update.
        gpu_wait: the time from the end of the GPU's earlier work to the batch.
        is_first: whether this step is the first of an epoch.
    """

    end: int
    data_wait: int
    host_to_device: int
    forward_backward: int
    clip_optimizer: int
    other: int
    gpu_wait: int
    is_first: int

    @property
    def total(self) -> int:
        return sum(part for part in self[1:6] if part != NOT_MEASURED)


PHASES = Step._fields[1:6]
Error = type[BaseException] | None  # the class of the exception that ended a call


class StepRing:
    """The last steps, in memory that does not grow."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        # NumPy writes the fields of rows one by one, which takes five times as long.
        self._numbers = np.zeros((capacity, len(Step._fields)), np.int64)
        self._rows = self._numbers.view([(name, np.int64) for name in Step._fields]).ravel()
        self.count = 0  # all steps so far, also steps that were overwritten

    def append(self, step: tuple[int, ...]) -> None:
        self._rows[self.count % len(self._rows)] = step
        self.count += 1

    def extend(self, new: Any) -> None:
        """Append steps: int64 numbers, a row for each step."""
        self.count += len(new)
        new = new[-len(self._rows) :]
        begin = (self.count - len(new)) % len(self._rows)
        room = len(self._rows) - begin
        self._numbers[begin : begin + len(new)] = new[:room]
        self._numbers[: len(new[room:])] = new[room:]

    def add_gpu_wait(self, number: int, ns: int) -> None:
        """Add `ns` to the GPU's wait of a step, if the ring still has the step."""
        if number >= self.first:
            row = self._rows[number % len(self._rows)]
            row["gpu_wait"] = max(int(row["gpu_wait"]), 0) + ns

    @property
    def first(self) -> int:
        """The number of the oldest step in the ring."""
        return max(0, self.count - len(self._rows))

    def to_array(self) -> Any:
        """Return the steps in the ring, the oldest first, as an array with the fields of Step."""
        return np.roll(self._rows[: self.count], -self.count)

    def copy_last(self, most: int) -> StepRing:
        """Return a copy that holds the last steps, at most `most`."""
        size = min(most, self.count, len(self._rows))
        ring, numbers = StepRing(size), np.arange(self.count - size, self.count)
        ring._rows[numbers % max(size, 1)] = self._rows[numbers % len(self._rows)]
        ring.count = self.count
        return ring

    def __iter__(self) -> Iterator[Step]:
        return (Step(*row) for row in self.to_array().tolist())


class Run:
    """The batches of one loader in a window, and the time after each."""

    # Values at first. The class has them, because every step makes an object.
    start = 0  # the ns of iter() and of the first batch
    wait = compute = fetches = 0
    upload = NOT_MEASURED
    has_begun = has_ended = False  # in this window, by iter() and by an exception
    began_at = last_at = 0  # the numbers of iter() and the latest call, as events
    step: int | None = None  # the step that used the batches; None if not known yet

    def __init__(self, source: LoaderSource) -> None:
        self.source = source

    def total(self) -> int:
        return self.start + self.wait + max(self.upload, 0) + self.compute


class StepRecorder:
    """Records the steps of one loop.

    Methods take the time of the event (``now``) and the time at which the loop continued
    (``after``). The difference is the cost of measuring. Times are ns that only grow.

    Args:
        now: the time at which recording begins.
        capacity: the number of steps that are kept.

    Attributes:
        totals: the ns of each part in PARTS.
        waited: the ns of data wait in all steps.
        after_update: the ns after the last update in all steps.
        computed: the ns from each batch to the last gradient of its backward(), in all steps.
        skipped: the number of optimizer steps that a scaler skipped.
        batches: the number of batches that steps used.
        apart_batches: the number of batches that no step used.
        unfinished_batches: the number of batches after the last step.
    """

    def __init__(self, now: int, capacity: int = CAPACITY) -> None:
        self.steps = StepRing(capacity)
        self.totals = SimpleNamespace(**dict.fromkeys(PARTS, 0))  # ns
        self.waited = self.after_update = self.computed = self.skipped = 0
        self._gradient_at = 0  # ns
        self.batches = self.apart_batches = self.unfinished_batches = 0
        self._runs: dict[int, Run] = {}  # by the id of the source
        self._events = 0
        self._stack: list[int] = []  # tokens of the updates that are running, the outermost first
        self._empty_window()
        self._begin = self._mark = self._now = now

    def _empty_window(self) -> None:
        self._runs.clear()
        self._last: Run | None = None  # the run of the latest iter() or next()
        self._update = 0
        self._tail = 0  # ns between two updates: forward and backward
        self._computed = 0
        self._stepped: set[int] = set()  # ids of the optimizers that have stepped
        self._is_updated = False

    def _take(self, now: int, after: int) -> int:
        """Return the time from the last event to this event, and begin a new interval."""
        gap = now - self._mark
        self._now, self._mark = now, after
        self.totals.measuring += after - now
        return gap

    # ---- batches

    def enter_fetch(self, now: int, after: int) -> None:
        """Note that iter() or next() of a loader begins. If an optimizer has stepped, a step
        ends."""
        gap, last = self._take(now, after), self._last
        self._stack.clear()  # an update that raised may have left a token
        if self._stepped:
            self._commit(gap)
        elif last is None:
            self.totals.before += gap
        elif last.has_ended:
            self.totals.between_epochs += gap
        elif last.has_begun and last.fetches == 0:
            last.start += gap
        else:
            last.compute += gap

    def _open_run(self, source: LoaderSource) -> Run:
        run = self._runs.get(id(source))
        if run is None:
            run = self._runs[id(source)] = Run(source)
        self._last = run
        self._events += 1
        run.last_at = self._events
        return run

    def leave_iter(self, now: int, after: int, source: LoaderSource) -> None:
        """Note the end of iter()."""
        span = self._take(now, after)
        before = self._runs.pop(id(source), None)
        if before is not None:
            self._set_apart(before)
        run = self._open_run(source)
        run.has_begun, run.began_at, run.start = True, run.last_at, span
        source.first_batch += span

    def leave_fetch(
        self,
        now: int,
        after: int,
        source: LoaderSource,
        loading: int | None,
        error: Error,
        turn: str,
    ) -> Run:
        """Note the end of next(), and return the run of the batch.

        Args:
            loading: ns since ``enter_fetch()`` in which no batch was copied to the device; None if
                unknown.
            error: the exception of next().
            turn: the answer of ``LoaderSource.end_batch()``.
        """
        span, run = self._take(now, after), self._open_run(source)
        source.wait += span
        is_first = run.has_begun and run.fetches == 0
        if loading is not None and error is None:
            run.upload = max(run.upload, 0) + span - loading
            span = loading
        if is_first and error is None:
            run.start += span
            source.first_batch += span
        else:
            run.wait += span
        run.has_ended = error is not None
        if error is None:
            run.fetches += 1
            source.batches += 1
            if not is_first:
                source.note_wait(turn, span)
        return run

    # ---- the optimizer

    def enter_update(self, now: int, after: int, token: int) -> None:
        """Note that unscaling, clipping or a step begins. Nested updates count as one update."""
        if not self._stack:
            gap, last = self._take(now, after), self._last
            if last is None and not self.steps.count and not self._is_updated:
                self.totals.before += gap
            elif last is None or self._is_updated:
                self._tail += gap
            else:
                last.compute += gap
        self._stack.append(token)

    def leave_update(self, now: int, after: int, token: int) -> None:
        """Note that an update ends, and with it every update inside."""
        if token not in self._stack:
            return
        del self._stack[self._stack.index(token) :]
        if not self._stack:
            self._update += self._take(now, after)
            self._is_updated = True

    def enter_step(self, now: int, after: int, optimizer: int) -> None:
        """Note that this optimizer's step begins."""
        self.enter_update(now, after, optimizer)
        self.note_step(optimizer)

    def note_step(self, optimizer: int) -> None:
        """Note that this optimizer steps, inside an update."""
        if not self._runs and optimizer in self._stepped:
            self._commit(0)  # without a loader, the optimizer's next update ends a step
        self._stepped.add(optimizer)

    def note_skip(self, now: int, after: int, optimizer: int) -> None:
        """Note, after an update, that a scaler has skipped this optimizer's step."""
        self.note_step(optimizer)
        self.skipped += 1

    def enter_closure(self, now: int, after: int) -> None:
        """Note that an optimizer calls the loop's forward and backward, inside an update."""
        self._update += self._take(now, after)

    def note_gradient(self, now: int, after: int) -> None:
        """Note that backward() has made its last gradient. What follows may be waiting."""
        self._computed += now - max(self._mark, self._gradient_at)
        self._gradient_at = now

    def leave_closure(self, now: int, after: int) -> None:
        self._tail += self._take(now, after)

    # ---- steps

    @property
    def current(self) -> int:
        """The number of the step that the next event belongs to."""
        is_between = not self._runs and bool(self._stepped)  # without a loader, a step ends later
        return self.steps.count + is_between

    def _is_trained_on(self, run: Run, last: Run) -> bool:
        """Tell whether the step that follows `last` also used the batches of `run`, a run of
        a different loader."""
        if run.has_ended or run.source.trains:
            return not run.has_ended
        # Two loaders that are used side by side take turns, so their counts of batches are equal.
        is_beside = run.last_at > last.began_at and run.has_begun == last.has_begun
        return is_beside and run.fetches == last.fetches

    def _commit(self, other: int) -> None:
        """Turn the window into a step. `other` is the time after the last update."""
        is_first, wait, compute, last = False, 0, self._tail, self._last
        upload = NOT_MEASURED
        if last is None:
            is_first, wait, compute = not self.steps.count, NOT_MEASURED, NOT_MEASURED
            other += self._tail
        else:
            for run in self._runs.values():
                if run is not last and not self._is_trained_on(run, last):
                    self._set_apart(run)
                    continue
                run.source.trains = True
                run.step = self.steps.count
                is_first = is_first or run.has_begun
                if run.start:
                    part = "between_epochs" if self.steps.count else "first_batch"
                    vars(self.totals)[part] += run.start
                wait += run.wait
                compute += run.compute
                self.batches += run.fetches
                if run.upload != NOT_MEASURED:
                    upload = max(upload, 0) + run.upload
        self.waited += max(wait, 0)
        self.after_update += other
        self.computed += self._computed
        parts = wait, upload, compute, self._update, other
        self.totals.steps += sum(parts) - NOT_MEASURED * parts.count(NOT_MEASURED)
        self.steps.append((self._now - self._begin, *parts, NOT_MEASURED, int(is_first)))
        self._empty_window()

    def _set_apart(self, run: Run) -> None:
        """Count a run whose batches no step used."""
        run.step = -1  # no step
        vars(self.totals)["validation" if run.fetches else "between_epochs"] += run.total()
        self.apart_batches += run.fetches

    def note_steps(
        self,
        rows: bytearray,
        source: LoaderSource,
        wait: int,
        in_steps: int,
        other: int,
        measuring: int,
        after: int,
    ) -> None:
        """Note whole steps after an ``enter_fetch()``: in each step ``leave_fetch()``,
        ``enter_step()`` and ``leave_update()`` of the same loader and optimizer, and the next
        ``enter_fetch()``.

        Args:
            rows: the numbers of a Step for each step, but its end is a time.
            wait, in_steps, other: sums over the steps: of data wait, of all parts, of other time.
            measuring: the cost of measuring.
            after: the time at which the loop continued.
        """
        new = np.frombuffer(rows, np.int64).reshape(-1, len(Step._fields))
        self._now, self._mark = int(new[-1, 0]), after
        new[:, 0] -= self._begin
        self.steps.extend(new)
        self.waited += wait
        source.wait += wait
        source.waits[NONE] += wait
        lengths = np.searchsorted(_BOUNDS, new[:, 1])
        for length, count in enumerate(np.bincount(lengths).tolist()):
            source.counts[NONE][length] += count
        self.after_update += other
        self.totals.steps += in_steps
        self.totals.measuring += measuring
        self.batches += len(new)
        source.batches += len(new)

    # ---- the end

    def end(self, now: int) -> None:
        """Stop recording."""
        self.totals.after += self._take(now, now)
        if self._stepped:
            self._commit(0)
        for run in self._runs.values():
            if run.source.trains and not run.has_ended:
                self.totals.unfinished += run.total()
                self.unfinished_batches += run.fetches
            else:
                self._set_apart(run)
        self.totals.unfinished += self._update + self._tail
        self._empty_window()

    def copy(self, most: int = 0) -> StepRecorder:
        """Return a recorder with the numbers until now, and the last steps, at most `most`."""
        new = copy(self)
        new.steps, new.totals = self.steps.copy_last(most), SimpleNamespace(**vars(self.totals))
        return new

    def subtract(self, before: StepRecorder) -> None:
        """Take off the numbers of `before`, an earlier copy. Counts of single steps stay."""
        for part, ns in vars(before.totals).items():
            vars(self.totals)[part] -= ns
        self.batches -= before.batches
        self._begin = before._mark

    def elapsed(self) -> int:
        """Return the ns from the beginning to the last event."""
        return self._mark - self._begin
