"""The native log of a report: which calls it serves without Python, and in which order a recorder
hears of them."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastloop
from fastloop._core import StepHook, StepLog
from fastloop.tools.report import hooks
from fastloop.tools.report.observer import NEVER, LoopObserver
from fastloop.tools.report.recorder import StepRecorder

Calls = list[tuple[Any, ...]]


class Log(StepLog):
    """A log whose recorder is a list; the clock counts its readings."""

    def __init__(self) -> None:
        self.heard: Calls = []
        self.now = 0
        names = "enter_fetch", "leave_fetch", "enter_step", "leave_update", "gradient", "steps"
        self.start(self.tick, *(self.method(name) for name in names))
        self.thread, self.next_look, self.next_update = threading.get_ident(), NEVER, NEVER

    def tick(self) -> int:
        self.now += 1
        return self.now

    def method(self, name: str) -> Callable[..., None]:
        return lambda *args: self.heard.append((name, *args))

    def leave_next(self, token: object, batch: object, error: object) -> None:
        self.depth -= 1
        self.heard.append(("left by Python", error))

    def read_all(self) -> Calls:
        self.read()
        heard, self.heard = self.heard, []
        return heard


class Numbers:
    """An iterator whose class gets the hook."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = iter(numbers)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.numbers)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def hooked(log: Log, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Numbers]:
    before = Numbers.__next__

    def slow(self: Numbers) -> int:
        log.heard.append(("slow",))
        return before(self)

    hook = StepHook("next", slow, before)
    hook.serve(log)
    monkeypatch.setattr(Numbers, "__next__", hook)
    return Numbers


def test_next_of_an_expected_iterator_runs_no_python(log: Log, hooked: Any) -> None:
    numbers = hooked(1, 2, 3)
    assert next(numbers) == 1 and log.read_all() == [("slow",)]
    log.expect_batches(numbers, ("x", 7))
    assert next(numbers) == 2 and log.heard == []
    assert log.read_all() == [("enter_fetch", 1, 2), ("leave_fetch", 3, 4, "x", 7)]
    log.expect_batches(None, (0,))
    assert list(numbers) == [3] and log.read_all() == [("slow",)] * 2


def test_the_end_of_an_epoch_is_left_by_python(log: Log, hooked: Any) -> None:
    numbers = hooked()
    log.expect_batches(numbers, (0,))
    with pytest.raises(StopIteration):
        next(numbers)
    assert log.read_all() == [("left by Python", StopIteration), ("enter_fetch", 1, 2)]
    assert log.depth == 0


@pytest.mark.parametrize("is_handling", [False, True], ids=["alone", "in an except"])
def test_an_error_of_leaving_has_the_loop_s_error_as_its_context(
    log: Log, hooked: Any, monkeypatch: pytest.MonkeyPatch, is_handling: bool
) -> None:
    """For example, a handler of a signal raises while a report notes an error of a dataset."""

    def leave(*args: object) -> None:
        log.depth = 0
        raise KeyboardInterrupt

    monkeypatch.setattr(Log, "leave_next", leave)
    numbers, outer = hooked(), LookupError("outer") if is_handling else None
    log.expect_batches(numbers, (0,))
    with pytest.raises(KeyboardInterrupt) as caught:
        try:
            if outer is not None:
                raise outer
            next(numbers)
        except LookupError:
            next(numbers)
    first = caught.value.__context__
    assert isinstance(first, StopIteration) and first.__traceback__ is not None
    assert first.__context__ is outer and caught.value.__cause__ is None


@pytest.mark.parametrize("is_inner", [False, True], ids=["raised alone", "raised in an except"])
def test_an_error_of_leaving_keeps_the_contexts_of_the_loop_s_error(
    log: Log, hooked: Any, monkeypatch: pytest.MonkeyPatch, is_inner: bool
) -> None:
    def leave(*args: object) -> None:
        log.depth = 0
        if not is_inner:
            raise KeyboardInterrupt
        try:
            raise OSError
        except OSError as inner:
            raise KeyboardInterrupt from inner

    def read_broken() -> Iterator[int]:
        try:
            raise KeyError(30)
        except KeyError:
            raise ValueError("the sample is broken")  # noqa: B904
        yield 0

    monkeypatch.setattr(Log, "leave_next", leave)
    numbers = hooked()
    numbers.numbers = read_broken()
    log.expect_batches(numbers, (0,))
    with pytest.raises(KeyboardInterrupt) as caught:
        next(numbers)
    error: Any = caught.value
    kinds = list[type]()
    while (error := error.__context__) is not None:
        kinds.append(type(error))
    assert kinds == [OSError] * is_inner + [ValueError, KeyError]


def test_leaving_takes_no_exception_into_a_generator(log: Log, hooked: Any) -> None:
    """A generator that is resumed later would keep the exception and its frames alive."""
    numbers = hooked()
    log.expect_batches(numbers, (0,))

    def generate() -> Iterator[Any]:
        list(numbers)
        yield sys.exc_info()[1]
        yield sys.exc_info()[1]

    generator = generate()
    try:
        raise LookupError
    except LookupError as error:
        assert next(generator) is error
    assert next(generator) is None


@pytest.mark.parametrize("name", ["next_look", "next_update"])
def test_from_the_time_of_a_look_on_python_serves_the_call(
    log: Log, hooked: Any, name: str
) -> None:
    numbers = hooked(1, 2)
    log.expect_batches(numbers, (0,))
    setattr(log, name, 3)
    assert next(numbers) == 1  # the time comes during the call
    assert log.read_all() == [("left by Python", None), ("enter_fetch", 1, 2)]
    assert next(numbers) == 2 and log.read_all() == [("slow",)]


def test_all_other_calls_go_to_python(log: Log, hooked: Any) -> None:
    numbers, other = hooked(*range(9)), hooked(5)
    log.expect_batches(numbers, (0,))
    assert next(other) == 5
    log.depth = 1  # inside another call
    next(numbers)
    log.depth, log.thread = 0, 0  # a callback is running
    next(numbers)
    log.thread = threading.get_ident()
    thread = threading.Thread(target=next, args=(numbers,))
    thread.start()
    thread.join()
    assert log.read_all() == [("slow",)] * 4
    vars(Numbers)["__next__"].serve(None)
    assert next(numbers) == 3 and log.read_all() == [("slow",)]


def test_an_iterator_at_the_address_of_a_dead_one_is_not_expected(log: Log, hooked: Any) -> None:
    for _ in range(50):  # CPython gives the same memory again
        numbers = hooked(1)
        log.expect_batches(numbers, (0,))
        del numbers
        assert next(hooked(1)) == 1
    assert log.read_all() == [("slow",)] * 50


def test_a_full_log_is_read_in_order(log: Log) -> None:
    for number in range(5000):
        log.note(log.method("event"), number, -number)
    assert len(log.heard) >= 5000 - 2048
    assert [event[1] for event in log.read_all()] == list(range(5000))


def test_reading_a_full_log_counts_as_measuring(log: Log) -> None:
    log.note(lambda now, after: setattr(log, "now", log.now + 10**6), 0)
    while log.now < 10**6:
        log.note(log.method("event"), log.tick())
    _, now, after = log.read_all()[-1]
    assert after - now > 10**6


def test_an_error_of_the_recorder_is_raised_and_the_log_goes_on(log: Log) -> None:
    log.note(lambda now, after: 1 / 0, 1)
    log.note(log.method("lost"), 2)
    with pytest.raises(ZeroDivisionError):
        log.read()
    log.note(log.method("event"), 3)
    assert [event[0] for event in log.read_all()] == ["event"]


def test_a_call_that_logs_and_reads_does_not_repeat_events(log: Log) -> None:
    def busy(now: int, after: int) -> None:
        for number in range(600):
            log.note(log.method("inner"), number)
        log.read()

    log.note(busy, 1)
    heard = log.read_all()
    assert 400 < len(heard) <= 600 and [event[1] for event in heard] == list(range(len(heard)))


class Optimizer:
    pass


def test_the_steps_of_expected_optimizers_run_no_python(log: Log) -> None:
    slow: Calls = []
    before, after = (
        StepHook(event, lambda *args, name=event: slow.append((name,)))
        for event in ("enter_step", "leave_step")
    )
    for hook in (before, after):
        hook.serve(log)
    optimizers = [Optimizer() for _ in range(5)]
    for number, optimizer in enumerate(optimizers):
        log.expect_steps(optimizer)
        log.expect_steps(optimizer)
        if number == 3:  # the log remembers four
            for one in optimizers[:4]:
                assert before(one, (one,), {}) is None and after(one, (one, None), {}) is None
    assert log.steps_decided == 4 and slow == []
    names = [(event[0], event[3]) for event in log.read_all()]
    steps = [(id(one), name) for one in optimizers[:4] for name in ("enter_step", "leave_update")]
    assert names == [(name, one) for one, name in steps]
    first, last = optimizers[0], optimizers[-1]
    before(first, (first,), {})  # is forgotten
    before(last, (last, lambda: None), {})
    before(last, (last,), {"closure": lambda: None})
    log.next_update = 0
    before(last, (last,), {})
    after(last, (last,), {})
    assert slow == [("enter_step",)] * 4 + [("leave_step",)] and log.read_all() == []


def test_gradients_are_noted_on_any_thread_as_long_as_there_is_room(log: Log) -> None:
    parameter = SimpleNamespace(is_cuda=False)
    log.thread = 0
    log.note_gradient(parameter)
    assert log.read_all() == [("gradient", 1, 1)]
    for _ in range(2100):
        log.note_gradient(parameter)
    assert len(log.read_all()) == 2048
    with pytest.raises(AttributeError):
        log.note_gradient(object())


def test_a_hook_looks_like_the_function_that_was_there() -> None:
    with fastloop.report(verbose=False):
        hook = vars(hooks.BaseIter)["__next__"]
        assert isinstance(hook, StepHook)
        assert hook.__name__ == "__next__" and hook.__wrapped__.__name__ == "__next__"
        assert list(inspect.signature(hooks.BaseIter.__next__).parameters) == ["self"]
    assert not isinstance(vars(hooks.BaseIter)["__next__"], StepHook)
    with pytest.raises(ValueError, match="no event iter"):
        StepHook("iter", len)


def test_logs_and_hooks_are_freed_with_their_events(log: Log) -> None:
    hook = StepHook("next", len)
    hook.serve(log)
    log.hook = hook  # type: ignore[attr-defined]
    numbers = Numbers()
    log.expect_batches(numbers, (log,))
    log.expect_steps(numbers)
    log.note(log.method("event"), 1, log, numbers)
    gone = weakref.ref(log), weakref.ref(numbers)
    del log, hook, numbers
    gc.collect()
    # The fixture has the log; what only the log knew is gone.
    assert gone[1]() is not None
    gone[0]().read()  # type: ignore[union-attr]
    gone[0]().heard.clear()  # type: ignore[union-attr]
    assert gone[1]() is None


@pytest.mark.parametrize(
    "turns", [1, 2, 100], ids=["one optimizer", "two in turns", "two at times"]
)
@pytest.mark.parametrize("epochs", [1, 3])
def test_native_hooks_and_python_hooks_see_the_same_steps(
    epochs: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: list[int] = []
    before = StepRecorder.note_steps

    def note_steps(self: StepRecorder, rows: bytearray, *rest: Any) -> None:
        arrays.append(len(rows))
        before(self, rows, *rest)

    monkeypatch.setattr(StepRecorder, "note_steps", note_steps)
    assert measure(epochs, turns, True) == measure(epochs, turns, False)
    assert bool(arrays) == (turns != 2)


def test_a_look_and_an_update_read_the_log_at_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, arrays, begun = 1, list[int](), StepRecorder.note_steps
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)

    def note_steps(self: StepRecorder, rows: bytearray, *rest: Any) -> None:
        arrays.append(now)
        begun(self, rows, *rest)

    def update(now: int) -> None:
        observer.read()
        observer.next_update = now + 10**9

    monkeypatch.setattr(StepRecorder, "note_steps", note_steps)
    observer = LoopObserver(clock=lambda: now)
    observer.update, observer.next_update = update, 1_050_000_000
    hooks.open_hooks(observer)
    try:
        for _ in fastloop.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2000, 2)), 1):
            now += 3 * 10**6
            optimizer.step()
            now += 2 * 10**6
    finally:
        hooks.close_hooks(observer)
    assert len([at for at in arrays if at > 2 * 10**9]) == 8, arrays  # 10 s, and the end


def measure(epochs: int, turns: int, is_native: bool) -> tuple[Any, ...]:
    """Return what a report sees of a loop that turns the clock. The second optimizer steps at one
    batch in `turns`, if there are turns."""
    now = 0
    observer = LoopObserver(clock=lambda: now)
    if not is_native:
        observer.next_update = 0
    model = torch.nn.Linear(2, 1)
    pair = [torch.optim.SGD([each], 0.1) for each in model.parameters()]
    loader = fastloop.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2700, 2)), 3)
    slow = 0
    enter = observer.enter_next

    def count(*args: Any) -> None:
        nonlocal slow
        slow += 1
        enter(*args)

    observer.enter_next = count  # type: ignore[method-assign]
    hooks.open_hooks(observer)
    try:
        for epoch in range(epochs):
            for number, (rows,) in enumerate(loader):
                now += 10 + number + epoch
                model(rows).sum().backward()
                for optimizer in pair[: 1 + (number % turns == 1)]:
                    now += 3
                    optimizer.step()
                now += 5
    finally:
        hooks.close_hooks(observer)
    observer.end()
    # The first batches are counted when the log is full, and a loop that waits is looked at.
    assert slow < 520 + 2 * epochs if is_native else slow == 901 * epochs
    source = observer.sources[0]
    numbers = observer.steps_decided, source.batches, source.wait, source.waits, source.counts
    return list(observer.recorder.steps), vars(observer.recorder.totals), numbers


def test_the_log_has_the_clock_of_the_report() -> None:
    log, heard = Log(), []
    log.start(None, *[heard.append] * 6)
    log.note(lambda now, after: heard.append(after), perf_counter_ns())
    begin = perf_counter_ns()
    log.note(lambda now, after: heard.append(after), begin)
    end = perf_counter_ns()
    log.read()
    assert heard[0] <= begin <= heard[1] <= end


def test_dynamo_does_not_trace_what_notes_a_gradient() -> None:
    """Dynamo would warn of the clock, because backward() in a compiled function runs in frames that
    Dynamo looks at."""
    observer, parameter = LoopObserver(), torch.ones(2, requires_grad=True)
    parameter.register_post_accumulate_grad_hook(observer.note_gradient)

    @torch.compile(backend="eager")
    def step(rows: torch.Tensor) -> None:
        (parameter * rows).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        step(torch.ones(2))
    assert observer.recorder._gradient_at > 0


def test_a_log_that_was_not_started_refuses_events(log: Log) -> None:
    """A log that the collector has cleared is such a log."""
    new, optimizer = StepLog(), Optimizer()
    new.thread, new.next_update = threading.get_ident(), NEVER
    new.expect_steps(optimizer)
    hook = StepHook("enter_step", lambda *args: None)
    hook.serve(new)
    with pytest.raises(RuntimeError, match="start"):
        hook(optimizer, (optimizer,), {})
    with pytest.raises(RuntimeError, match="start"):
        new.note_gradient(SimpleNamespace(is_cuda=False))


@pytest.mark.parametrize("is_full", [True, False], ids=["by reading", "by the clock"])
def test_an_event_is_that_of_its_optimizer_also_if_others_step_meanwhile(
    log: Log, is_full: bool
) -> None:
    """A finalizer, for example, may step optimizers while the log is read."""
    optimizers = [Optimizer() for _ in range(5)]
    expected = optimizers[0]

    def step_others(*times: int) -> int:
        for other in optimizers[1:]:
            log.expect_steps(other)
        return 7

    if not is_full:
        log.start(step_others, *[log.method("enter_step")] * 6)
    hook = StepHook("enter_step", lambda *args: None)
    hook.serve(log)
    for number in range(2016 * is_full):
        log.note(step_others if number == 200 else log.method("event"), number)
    log.expect_steps(expected)
    hook(expected, (expected,), {})
    assert log.read_all()[-1][3] == id(expected)


def test_steps_without_a_source_are_read_one_by_one() -> None:
    log, heard = StepLog(), []
    methods = [lambda *args, name=name: heard.append(name) for name in range(6)]
    log.start(lambda: 0, *methods)
    for _ in range(12):
        for method in methods[:4]:
            log.note(method, 1)
    log.read()
    assert heard == [0, 1, 2, 3] * 12


def test_a_hook_is_pickled_and_copied_as_the_function_is() -> None:
    with fastloop.report(verbose=False):
        hook: Any = hooks.BaseIter.__next__
        assert pickle.loads(pickle.dumps(hook)) is hook
        assert copy.deepcopy(hook) is hook and copy.copy(hook) is hook


def test_a_hook_may_be_referred_to_weakly() -> None:
    """A tool may keep functions in a WeakKeyDictionary."""
    hook, gone = StepHook("next", len), list[object]()
    reference = weakref.ref(hook, gone.append)
    assert reference() is hook
    del hook
    assert reference() is None and gone == [reference]


def test_a_hook_that_a_tool_puts_back_tells_both_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(2000, 2))
    loader = torch.utils.data.DataLoader(rows, 2)
    before = vars(hooks.BaseIter)["__next__"]
    pair = [LoopObserver(clock=lambda: 0) for _ in range(2)]
    try:
        hooks.open_hooks(pair[0])
        kept = vars(hooks.BaseIter)["__next__"]
        monkeypatch.setattr(hooks.BaseIter, "__next__", before)
        hooks.open_hooks(pair[1])
        monkeypatch.setattr(hooks.BaseIter, "__next__", kept)
        list(loader)
        hooks.close_hooks(pair[0])
        list(loader)
    finally:
        hooks.close_hooks(*pair)
        monkeypatch.setattr(hooks.BaseIter, "__next__", before)
        hooks.close_hooks()
    for one in pair:
        one.end()
    assert [one.sources[0].batches for one in pair] == [1000, 2000]
    assert hooks._patches == {} and hooks._step_hooks == [*hooks._STEP_HOOKS]
