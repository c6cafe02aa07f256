"""StepRecorder: where the time of a training loop goes, from what happens at its borders.

It is told of batches that are taken, of optimizers that step, and of nothing else. Each nanosecond
between two such events is added to one counter, so the parts of a step sum to the step. Which
batches were trained on is known when an optimizer steps: until then they wait in a window.
docs/report.md draws it. It has no clock: events bring their times, so they may be told later.
Keeps a fixed number of steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from fastloop.tools.report.loader_source import NONE, LoaderSource

CAPACITY = 16_384  # steps that are kept, 72 bytes each
_MAX_RUNS = 64  # of loaders without a step between
NOT_MEASURED = -1


class Step(NamedTuple):
    """One step. Times in ns of the host's clock; NOT_MEASURED where nothing was measured.

    Attributes:
        end: when it was over, since the report began.
        wait: in next() of its loaders.
        upload: of next(), what copying to the device took the host.
        compute: from the batch to the optimizer, and between optimizers: forward and backward.
        update: unscaling, clipping, the optimizers' steps.
        other: after the last of these.
        gpu_wait: between the end of the GPU's earlier work and the batch.
        ready: batches that were ready when the last one was taken; 0: not the one whose turn it
            was.
        is_first: of an epoch. Its first batch is not in ``wait``.
    """

    end: int
    wait: int
    upload: int
    compute: int
    update: int
    other: int
    gpu_wait: int
    ready: int
    is_first: int

    @property
    def total(self) -> int:
        parts = (self.wait, self.upload, self.compute, self.update, self.other)
        return sum(part for part in parts if part != NOT_MEASURED)


_WIDTH = len(Step._fields)
_GPU_WAIT = Step._fields.index("gpu_wait")


class StepRing:
    """The last steps, in memory that does not grow."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._cells = array("q", bytes(8 * _WIDTH * capacity))
        self._capacity = capacity
        self.count = 0  # of all steps there were

    def append(self, step: tuple[int, ...]) -> int:
        """Its number."""
        begin = self.count % self._capacity * _WIDTH
        self._cells[begin : begin + _WIDTH] = array("q", step)
        self.count += 1
        return self.count - 1

    def add_gpu_wait(self, number: int, ns: int) -> None:
        """Once it is known, if the step is still there."""
        if self.count - number <= self._capacity:
            at = number % self._capacity * _WIDTH + _GPU_WAIT
            self._cells[at] = max(self._cells[at], 0) + ns

    @property
    def first(self) -> int:
        """The number of the oldest step that is still there."""
        return max(0, self.count - self._capacity)

    def __iter__(self) -> Iterator[Step]:
        for number in range(self.first, self.count):
            begin = number % self._capacity * _WIDTH
            yield Step(*self._cells[begin : begin + _WIDTH])


class Run:
    """The batches of one loader in a window, and the time after each."""

    __slots__ = (
        "began_at", "compute", "fetches", "has_begun", "has_ended", "is_over", "last_at", "ready",
        "source", "start", "step", "upload", "wait",
    )  # fmt: skip

    def __init__(self, source: LoaderSource) -> None:
        self.source = source
        self.start = 0  # iter() and the first batch after it
        self.wait = self.compute = self.fetches = 0
        self.upload = self.ready = NOT_MEASURED
        self.has_begun = False  # by iter(), in this window
        self.has_ended = False  # by StopIteration
        self.began_at = self.last_at = 0  # numbers of events
        self.is_over = False  # it is known which step its batches were for:
        self.step: int | None = None  # None: there is none

    def total(self) -> int:
        return self.start + self.wait + max(self.upload, 0) + self.compute


class Totals:
    """Seconds of the whole run, in ns. Their sum is the time since it began."""

    def __init__(self) -> None:
        self.before = 0  # the first batch was asked for
        self.first_batch = 0
        self.steps = 0
        self.between_epochs = 0
        self.validation = 0
        self.unfinished = 0
        self.after = 0
        self.measuring = 0


class StepRecorder:
    """Records steps.

    Methods are given the time of their event (``now``), and when the loop went on after it
    (``after``): what is between was measuring. Times are ns that only grow.

    Args:
        now: when it begins.
        capacity: steps that are kept.
    """

    def __init__(self, now: int, capacity: int = CAPACITY) -> None:
        self.steps = StepRing(capacity)
        self.totals = Totals()
        self.skipped = 0
        self.batches = 0  # of steps
        self.apart = {"batches": 0, "wait": 0}  # of those without a step
        self.unfinished_batches = 0
        self.optimizers: set[int] = set()
        self._runs: dict[int, Run] = {}  # by their source
        self._last: Run | None = None  # the one with the latest batch
        self._events = 0
        self._is_fetching = False
        self.has_failed = False  # iter() or next() has raised, and nothing came since
        self._stack: list[int] = []  # what is under way of the update
        self._leave()
        self._begin = self._mark = self._now = now

    def _leave(self) -> None:
        """The window is empty."""
        self._runs.clear()
        self._last = None
        self._update = 0
        self._tail = 0  # forward and backward between two optimizers
        self._lead = 0  # what was before the latest update, where there is no loader
        self._stepped: set[int] = set()  # optimizers
        self._is_updated = False

    # ---- the clock

    def _take(self, now: int, after: int) -> int:
        """The time since the last event."""
        gap = now - self._mark
        self._now, self._mark = now, after
        self.totals.measuring += after - now
        return gap

    # ---- batches

    def enter_fetch(self, now: int, after: int) -> None:
        """iter() or next() of a loader begins: what was since the last event?"""
        gap = self._take(now, after)
        self.has_failed = False
        self._is_fetching = True
        self._stack.clear()  # an optimizer that raised
        last = self._last
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

    def _find_run(self, source: LoaderSource) -> Run:
        run = self._runs.get(id(source))
        if run is None:
            if len(self._runs) == _MAX_RUNS:
                self._set_apart(self._runs.pop(next(iter(self._runs))))
            run = self._runs[id(source)] = Run(source)
        self._events += 1
        run.last_at = self._events
        self._last = run
        return run

    def leave_iter(
        self, now: int, after: int, source: LoaderSource, has_failed: bool = False
    ) -> None:
        """It was iter()."""
        span = self._take(now, after)
        before = self._runs.pop(id(source), None)
        if before is not None:
            self._set_apart(before)
        run = self._find_run(source)
        run.has_begun = True
        run.began_at = run.last_at
        run.start = span
        self._is_fetching = False
        self.has_failed = has_failed

    def leave_fetch(
        self,
        now: int,
        after: int,
        source: LoaderSource,
        ready: int = NOT_MEASURED,
        loading: int | None = None,
        error: type[BaseException] | None = None,
        turn: str = NONE,
    ) -> Run:
        """It was next().

        Args:
            ready: batches that were ready when it was called.
            loading: ns since ``enter_fetch()`` in which no batch was copied to the device;
                None: it is not known.
            error: what it has raised.
            turn: what the loader's ``find_turn()`` says.
        """
        span, is_end = self._take(now, after), error is not None
        run = self._find_run(source)
        run.ready = ready
        source.wait += span
        upload = 0 if loading is None or is_end else span - loading
        if loading is not None:
            run.upload = max(run.upload, 0) + upload
        is_first = run.has_begun and run.fetches == 0
        if is_first and not is_end:
            run.start += span - upload
        else:
            run.wait += span - upload
        run.has_ended = is_end
        if not is_end:
            run.fetches += 1
            source.note_batch(ready, turn, -1 if is_first else span - upload)
        self._is_fetching = False
        self.has_failed = is_end and error is not StopIteration
        return run

    # ---- the optimizer

    def enter_update(self, now: int, after: int, token: int) -> None:
        """Unscaling, clipping or a step begins; inside another one nothing changes."""
        if self._stack or self._is_fetching:
            self._stack.append(token)
            return
        gap = self._take(now, after)
        last = self._last
        if last is None and not self.steps.count and not self._is_updated:
            self.totals.before += gap
        elif last is None:
            self._tail += self._lead
            self._lead = gap
        elif self._is_updated:
            self._tail += gap
        else:
            last.compute += gap
        self._stack.append(token)

    def leave_update(self, now: int, after: int, token: int) -> None:
        if token not in self._stack:
            return
        del self._stack[self._stack.index(token) :]
        if not self._stack and not self._is_fetching:
            self._update += self._take(now, after)
            self._is_updated = True

    def note_step(self, optimizer: int) -> None:
        """Inside an update: this optimizer steps."""
        if not self._runs and optimizer in self._stepped:
            lead, self._lead = self._lead, 0  # without a loader it begins where the last has ended
            self._commit(0, behind=lead)
            self._lead = lead
        self._stepped.add(optimizer)
        self.optimizers.add(optimizer)

    def note_skip(self, optimizer: int) -> None:
        """After an update: a scaler has not called the step of this optimizer."""
        self.note_step(optimizer)
        self.skipped += 1

    def enter_closure(self, now: int, after: int) -> None:
        """Inside an update: the optimizer calls the loop's forward and backward."""
        self._update += self._take(now, after)

    def leave_closure(self, now: int, after: int) -> None:
        self._tail += self._take(now, after)

    # ---- steps

    @property
    def current(self) -> int:
        """The number of the step that what comes now belongs to."""
        is_between = not self._runs and bool(self._stepped)  # without a loader it ends later
        return self.steps.count + is_between

    def _is_trained_on(self, run: Run, last: Run) -> bool:
        """Whether the step that follows `last` is one on the batches of `run`, too."""
        if run is last:
            return True
        if run.has_ended:
            return False
        if run.source.trains:
            return True
        # Two loaders side by side: as many batches of each, and not one after the other.
        is_beside = run.last_at > last.began_at and run.has_begun == last.has_begun
        return is_beside and run.fetches == last.fetches

    def _commit(self, other: int, behind: int = 0) -> None:
        """The window was a step, with `other` at its end, `behind` ns ago."""
        last = self._last
        is_first, wait, compute = False, 0, self._tail + self._lead
        upload = ready = NOT_MEASURED
        if last is None:
            is_first = not self.steps.count
            wait, compute = NOT_MEASURED, NOT_MEASURED
            other += self._tail + self._lead
        else:
            ready = last.ready
            for run in self._runs.values():
                if not self._is_trained_on(run, last):
                    self._set_apart(run)
                    continue
                run.source.trains = True
                run.step, run.is_over = self.steps.count, True
                is_first = is_first or run.has_begun
                self._add_start(run.start)
                wait += run.wait
                compute += run.compute
                self.batches += run.fetches
                if run.upload != NOT_MEASURED:
                    upload = max(upload, 0) + run.upload
        parts = wait, upload, compute, self._update, other
        self.totals.steps += sum(part for part in parts if part != NOT_MEASURED)
        end = self._now - self._begin - behind
        self.steps.append((end, *parts, NOT_MEASURED, ready, is_first))
        self._leave()

    def _add_start(self, ns: int) -> None:
        if self.steps.count == 0:
            self.totals.first_batch += ns
        else:
            self.totals.between_epochs += ns

    def _set_apart(self, run: Run) -> None:
        """There was no step on its batches."""
        run.is_over = True
        if run.fetches == 0:
            self.totals.between_epochs += run.total()
            return
        self.totals.validation += run.total()
        self.apart["batches"] += run.fetches
        self.apart["wait"] += run.wait + run.start

    # ---- the end

    def end(self, now: int, is_error: bool = False) -> str:
        """Nothing is recorded any more.

        Args:
            is_error: an exception has ended the loop.

        Returns:
            The phase in which it came; "" without one, and outside of the loop."""
        gap = self._take(now, now)
        phase = self._find_phase() if is_error else ""
        if phase == "clip+optimizer":
            self._update += gap
        elif phase == "other":
            self._commit(gap)
        elif phase and self._last is not None:
            self._last.compute += gap
        else:
            self.totals.after += gap
            if self._stepped:
                self._commit(0)
        for run in self._runs.values():
            if (run.source.trains or phase) and not run.has_ended:
                self.totals.unfinished += run.total()
                self.unfinished_batches += run.fetches
            else:
                self._set_apart(run)
        self.totals.unfinished += self._update + self._tail + self._lead
        self._leave()
        return phase

    def _find_phase(self) -> str:
        last = self._last
        if self._stack:
            return "clip+optimizer"
        if self._stepped:
            return "other"
        if self.has_failed:
            return "data wait"
        if last is None or last.has_ended:
            return ""
        is_training = last.source.trains or not self.steps.count
        return "forward+backward" if is_training else "validation"

    def elapsed(self) -> int:
        """ns since it began, up to the last event."""
        return self._mark - self._begin
