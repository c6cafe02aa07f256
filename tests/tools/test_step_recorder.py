"""What a step is, and that every nanosecond belongs to one part of it: loops under a clock that
only the loop moves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastloop.tools.report.loader_source import NONE, LoaderSource
from fastloop.tools.report.recorder import NOT_MEASURED, StepRecorder

MS = 1_000_000
OPTIMIZER, SECOND = 1, 2


class Loop:
    """A training loop that does nothing but take time."""

    def __init__(self, capacity: int = 1000) -> None:
        self.now = 5 * MS
        self.recorder = StepRecorder(self.now, capacity)

    def work(self, ms: float) -> Loop:
        self.now += round(ms * MS)
        return self

    def _times(self) -> tuple[int, int]:
        """Now, and after a microsecond of measuring."""
        self.now += 1000
        return self.now - 1000, self.now

    def iter(self, source: LoaderSource, ms: float = 1) -> Loop:
        self.recorder.enter_fetch(*self._times())
        self.work(ms).recorder.leave_iter(*self._times(), source)
        return self

    def next(self, source: LoaderSource, ms: float = 2, **found: Any) -> Loop:
        self.recorder.enter_fetch(*self._times())
        loading, error = found.get("loading"), found.get("error")
        self.work(ms).recorder.leave_fetch(*self._times(), source, loading, error, NONE)
        return self

    def stop(self, source: LoaderSource, error: type[BaseException] = StopIteration) -> Loop:
        return self.next(source, 0.5, error=error)

    def step(self, optimizer: int = OPTIMIZER, ms: float = 3) -> Loop:
        self.recorder.enter_update(*self._times(), optimizer)
        self.recorder.note_step(optimizer)
        self.work(ms).recorder.leave_update(*self._times(), optimizer)
        return self

    def end(self) -> None:
        self.recorder.end(self.now)

    def parts(self) -> dict[str, float]:
        """ms of the run, measuring left out, what is 0 left out."""
        ns = {k: v for k, v in vars(self.recorder.totals).items() if v and k != "measuring"}
        return {name: value / MS for name, value in ns.items()}

    def rows(self) -> list[tuple[float, ...]]:
        """(wait, upload, compute, update, other) of each step in ms."""
        return [
            tuple(v if v == NOT_MEASURED else v / MS for v in step[1:6])
            for step in self.recorder.steps
        ]

    def assert_whole(self) -> None:
        """Nothing is lost: parts sum to the time, steps to theirs, to the nanosecond."""
        recorder = self.recorder
        assert sum(vars(recorder.totals).values()) == recorder.elapsed()
        if recorder.steps.first == 0:
            assert sum(step.total for step in recorder.steps) == recorder.totals.steps


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.assert_whole()


def source(name: str = "train") -> LoaderSource:
    return LoaderSource(name)


def test_an_ordinary_epoch(loop: Loop) -> None:
    train = source()
    loop.work(7).iter(train).work(0.5)
    for _ in range(3):
        loop.next(train).work(10).step().work(0.25)
    loop.stop(train).work(4)
    loop.end()
    assert loop.rows() == [(0, -1, 10, 3, 0.25), *[(2, -1, 10, 3, 0.25)] * 2]
    assert [step.is_first for step in loop.recorder.steps] == [1, 0, 0]
    # The first batch: 1 of iter(), 0.5 after it, 2 of next(). The end of the loader: 0.5.
    assert loop.parts() == {
        "before": 7,
        "first_batch": 3.5,
        "steps": 13.25 + 2 * 15.25,
        "between_epochs": 0.5,
        "after": 4,
    }
    assert train.trains and train.batches == 3


def test_a_second_epoch_begins_between_epochs(loop: Loop) -> None:
    train = source()
    for _ in range(2):
        loop.iter(train).next(train).work(10).step().stop(train).work(5)
    loop.end()
    # Twice the end of the loader, 5 of the loop's, iter() and the first batch.
    assert loop.parts()["between_epochs"] == 2 * 0.5 + 5 + 3
    assert loop.parts()["first_batch"] == 3 and loop.parts()["after"] == 5


def test_what_follows_the_last_gradient_is_no_computation(loop: Loop) -> None:
    train = source()
    for _ in range(2):
        for _ in range(2):  # accumulation
            loop.next(train).work(10).recorder.note_gradient(loop.now, loop.now)
            loop.work(4)  # for example, the other ranks
        loop.recorder.note_gradient(loop.now, loop.now)  # a second backward of the batch
        loop.step().work(1)
    loop.next(train).work(10).recorder.note_gradient(loop.now, loop.now)  # no step
    loop.end()
    assert loop.recorder.computed == 2 * (10 + 14) * MS


def test_accumulation_is_one_step(loop: Loop) -> None:
    train = source()
    loop.iter(train).next(train).work(1).step()
    for _ in range(4):
        loop.next(train).work(10)
    loop.step().stop(train).end()
    assert loop.rows()[1] == (8, -1, 40, 3, 0)
    assert loop.recorder.batches == 5


def test_two_optimizers_are_one_step_and_what_is_between_them_is_forward(loop: Loop) -> None:
    train = source()
    loop.next(train).work(10).step().work(5).step(SECOND).work(1).next(train).work(1).step().end()
    assert loop.rows()[0] == (2, -1, 15, 6, 1)


def test_clipping_is_of_the_update_and_no_step(loop: Loop) -> None:
    train, recorder = source(), loop.recorder
    loop.next(train).work(10)
    recorder.enter_update(loop.now, loop.now, 7)
    loop.work(2)
    recorder.enter_update(loop.now, loop.now, 8)  # inside the other
    loop.work(1)
    recorder.leave_update(loop.now, loop.now, 8)
    recorder.leave_update(loop.now, loop.now, 7)
    assert recorder.steps.count == 0
    loop.step().next(train).end()
    assert loop.rows() == [(2, -1, 10, 6, 0)]


def test_a_skipped_step_is_a_step(loop: Loop) -> None:
    train, recorder = source(), loop.recorder
    for _ in range(2):
        loop.next(train).work(10)
        recorder.enter_update(loop.now, loop.now, 9)
        loop.work(1)
        recorder.leave_update(loop.now, loop.now, 9)
        recorder.note_skip(0, 0, OPTIMIZER)
    loop.next(train).end()
    assert loop.rows() == [(2, -1, 10, 1, 0)] * 2 and recorder.skipped == 2


def test_a_closure_is_forward_and_backward(loop: Loop) -> None:
    train, recorder = source(), loop.recorder
    loop.next(train).work(1)
    recorder.enter_update(loop.now, loop.now, OPTIMIZER)
    recorder.note_step(OPTIMIZER)
    recorder.enter_closure(loop.work(2).now, loop.now)
    recorder.leave_closure(loop.work(10).now, loop.now)
    recorder.leave_update(loop.work(3).now, loop.now, OPTIMIZER)
    loop.next(train).end()
    assert loop.rows() == [(2, -1, 11, 5, 0)]


def test_uploads_are_taken_out_of_the_wait(loop: Loop) -> None:
    train = source()
    loop.next(train, 5, loading=2 * MS).work(1).step().next(train).end()
    assert loop.rows() == [(2, 3, 1, 3, 0)]


def exhausted(loop: Loop, valid: LoaderSource) -> None:
    loop.iter(valid)
    for _ in range(4):
        loop.next(valid, 2).work(3)
    loop.stop(valid)


def left_early(loop: Loop, valid: LoaderSource) -> None:
    loop.iter(valid).next(valid).work(3).next(valid).work(3)


def of_one_batch(loop: Loop, valid: LoaderSource) -> None:
    loop.iter(valid).next(valid).work(3)


@pytest.mark.parametrize("validate", [exhausted, left_early, of_one_batch])
@pytest.mark.parametrize("is_between", [False, True], ids=["in the middle", "between epochs"])
def test_validation_is_kept_apart(
    loop: Loop, validate: Callable[[Loop, LoaderSource], None], is_between: bool
) -> None:
    """Fetches of a validation are not charged to the next training step."""
    train, valid = source(), source("valid")
    loop.iter(train)
    for number in range(6):
        if number == 3:
            if is_between:
                loop.stop(train)
            validate(loop, valid)
            if is_between:
                loop.iter(train)
        loop.next(train).work(10).step().work(1)
    loop.stop(train).end()
    assert loop.rows()[1:3] == loop.rows()[4:] == [(2, -1, 10, 3, 1)] * 2
    assert loop.rows()[3] == (0 if is_between else 2, -1, 10, 3, 1)
    batches = {exhausted: 4, left_early: 2, of_one_batch: 1}[validate]
    assert loop.recorder.apart_batches == batches and not valid.trains
    ends = {exhausted: 0.5, left_early: 0, of_one_batch: 0}[validate]
    assert loop.parts()["validation"] == 1 + batches * 5 + ends


def test_a_validation_before_the_first_step_is_none_of_it(loop: Loop) -> None:
    train, valid = source(), source("valid")
    loop.iter(valid).next(valid).work(3).next(valid).work(3)
    loop.iter(train).next(train).work(10).step().next(train).end()
    assert loop.rows() == [(0, -1, 10, 3, 0)] and not valid.trains
    assert loop.parts()["validation"] == 11 and loop.parts()["first_batch"] == 3


def test_evaluating_on_the_loader_that_is_trained_on(loop: Loop) -> None:
    train = source()
    for _ in range(2):
        loop.iter(train).next(train).work(10).step().next(train).work(10).step().stop(train)
        loop.iter(train).next(train).work(5).next(train).work(5).stop(train)
    loop.end()
    assert [step.forward_backward // MS for step in loop.recorder.steps] == [10] * 4
    assert loop.recorder.apart_batches == 4


def test_two_loaders_side_by_side_are_one_step(loop: Loop) -> None:
    a, b = source("a"), source("b")
    loop.iter(a).iter(b)
    for _ in range(3):
        loop.next(a).next(b, 4).work(10).step()
    loop.stop(a).iter(a).next(a).next(b, 4).work(10).step()  # one loader begins again
    loop.next(a).next(b, 4).work(10).step().stop(a).end()
    assert loop.rows()[1:3] == [(6, -1, 10, 3, 0)] * 2
    assert loop.rows()[3:] == [(4, -1, 10, 3, 0), (6, -1, 10, 3, 0)]
    assert a.trains and b.trains and loop.recorder.apart_batches == 0


def test_a_loader_that_has_ended_is_not_of_the_next_ones_step(loop: Loop) -> None:
    a, b = source("a"), source("b")
    loop.next(a).work(10).step().stop(a).next(b).work(10).step().next(b).end()
    assert loop.rows() == [(2, -1, 10, 3, 0)] * 2 and loop.parts()["between_epochs"] == 0.5


def test_the_last_step_of_a_loop_that_takes_one_batch_ahead(loop: Loop) -> None:
    """accelerate and Lightning ask for the next batch before they hand one out."""
    train = source()
    loop.iter(train).next(train)
    for _ in range(2):
        loop.next(train).work(10).step()
    loop.stop(train).work(10).step().work(1).iter(train).end()
    assert loop.rows()[1:] == [(2, -1, 10, 3, 0), (0.5, -1, 10, 3, 1)]


def test_without_a_loader_only_the_update_is_known(loop: Loop) -> None:
    loop.work(20)
    for _ in range(3):
        loop.step().work(10)
    loop.end()
    assert loop.rows() == [*[(-1, -1, -1, 3, 10)] * 2, (-1, -1, -1, 3, 0)]
    assert loop.parts() == {"before": 20, "steps": 29, "after": 10}


def test_a_loop_without_steps_is_all_validation(loop: Loop) -> None:
    train = source()
    loop.iter(train).next(train).work(5).next(train).work(5).stop(train).work(2).end()
    assert loop.recorder.steps.count == 0
    assert loop.parts() == {"validation": 15.5, "after": 2}


def test_a_loop_that_is_left_behind_its_last_batch(loop: Loop) -> None:
    train = source()
    loop.next(train).work(10).step().next(train).work(100).end()
    assert loop.parts() == {"steps": 15, "unfinished": 2, "after": 100}
    assert loop.recorder.unfinished_batches == 1


def test_an_optimizer_that_raised_does_not_hide_the_next_step(loop: Loop) -> None:
    train = source()
    loop.next(train).work(10).recorder.enter_update(loop.now, loop.now, OPTIMIZER)
    loop.recorder.note_step(OPTIMIZER)
    loop.work(1).next(train).work(10).step().next(train).end()
    assert [row[3] for row in loop.rows()] == [0, 3]


def test_old_steps_make_room_for_new_ones() -> None:
    loop, train = Loop(capacity=4), source()
    for number in range(10):
        loop.next(train, number).work(1).step()
    loop.next(train).end()
    steps = loop.recorder.steps
    assert steps.count == 10 and steps.first == 6
    assert [row[0] for row in loop.rows()] == [6, 7, 8, 9]
    steps.add_gpu_wait(5, 1)  # it is gone
    steps.add_gpu_wait(7, 100)
    steps.add_gpu_wait(7, 11)
    assert [step.gpu_wait for step in steps] == [-1, 111, -1, -1]
    loop.assert_whole()


@pytest.mark.parametrize("seed", range(20))
def test_no_nanosecond_is_lost_whatever_happens(seed: int) -> None:
    draw, loop = random.Random(seed), Loop(capacity=5)
    sources = [source(name) for name in "abc"]
    recorder = loop.recorder
    for _ in range(400):
        one = draw.choice(sources)
        kind = draw.randrange(7)
        loop.work(draw.random())
        if kind == 0:
            loop.iter(one, draw.random())
        elif kind < 4:
            loading = draw.choice([None, 0])
            loop.next(one, draw.random(), loading=loading)
        elif kind == 4:
            loop.stop(one, draw.choice([StopIteration, OSError]))
        elif kind == 5:
            loop.step(draw.choice([OPTIMIZER, SECOND]))
        else:
            token = draw.choice([OPTIMIZER, 5])
            enter_or_leave = draw.choice([recorder.enter_update, recorder.leave_update])
            enter_or_leave(*loop._times(), token)
    loop.end()
    loop.assert_whole()


@pytest.mark.parametrize("capacity", [3, 100])
@pytest.mark.parametrize("count", [1, 40])
def test_steps_that_are_read_as_an_array_are_the_same_steps(capacity: int, count: int) -> None:
    def record(is_array: bool) -> tuple[Any, ...]:
        draw, now = random.Random(count), 0
        recorder, train = StepRecorder(0, capacity), source()
        calls: list[tuple[Callable[..., Any], int, int, tuple[Any, ...]]] = []
        for _ in range(count + 2):
            for method, rest in (
                (recorder.enter_fetch, ()),
                (recorder.leave_fetch, (train, None, None, NONE)),
                (recorder.enter_step, (OPTIMIZER,)),
                (recorder.leave_update, (OPTIMIZER,)),
            ):
                after = now + draw.randrange(10**6)
                calls.append((method, now, after, rest))
                now = after + draw.randrange(10**6)
        whole = calls[5:-3] if is_array else []  # from a leave_fetch() to an enter_fetch()
        for method, *times, rest in calls[: 5 if is_array else None]:
            method(*times, *rest)
        if is_array:
            now_of, after_of = np.array([call[1:3] for call in whole]).T
            gaps = now_of - np.append(calls[4][2], after_of[:-1])
            wait, forward, update, other = gaps.reshape(-1, 4).T
            known = {0: now_of[3::4], 1: wait, 3: forward, 4: update, 5: other, 7: 0}
            rows = np.full((count, 8), NOT_MEASURED)
            for column, values in known.items():
                rows[:, column] = values
            sums = [int(part.sum()) for part in (wait, gaps, other, after_of - now_of)]
            recorder.note_steps(bytearray(rows.tobytes()), train, *sums, int(after_of[-1]))
            for method, *times, rest in calls[-3:]:
                method(*times, *rest)
        recorder.end(now)
        numbers = {name: value for name, value in vars(recorder).items() if type(value) is int}
        assert numbers.pop("_events") and recorder.batches == count + 2
        seen = train.wait, train.waits, train.batches, train.first_batch
        return list(recorder.steps), vars(recorder.totals), numbers, seen

    assert record(True) == record(False)
