"""Report.on_update(): what callbacks get while the loop runs, on which thread and when, and that
no callback ends or changes a training. Clocks are fakes that the loops move."""

from __future__ import annotations

import dataclasses
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run_script
from lazy_device import LazyAccelerator, LazyDevice
from report_loops import MS
from torch.utils.data import DataLoader, Dataset

import fastloop
from fastloop.tools import scalars
from fastloop.tools.report import hooks
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.summary import summarize
from fastloop.tools.report.updates import Update, Updates

PROGRAMS = Path(__file__).parent.parent / "programs"


class Loop:
    """A loop under a report's hooks, and a clock that the loop alone moves."""

    def __init__(self) -> None:
        self.now = 0
        self.wait, self.compute = 2.0, 6.0  # ms of each step
        self.observer = LoopObserver(clock=lambda: self.now)
        self.updates = Updates()
        self.parameter = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.parameter], 0.1)
        loop = self

        class Slow(Dataset[int]):
            def __len__(self) -> int:
                return 50

            def __getitem__(self, index: int) -> int:
                loop.sleep(loop.wait)
                return index

        self.data = Slow()

    def sleep(self, ms: float) -> None:
        self.now += round(ms * MS)

    def run(self, epochs: int = 1, loader: Any = None) -> None:
        for _ in range(epochs):
            for _ in loader or DataLoader(self.data):
                self.sleep(self.compute)
                self.optimizer.step()

    @contextmanager
    def watched(self) -> Iterator[None]:
        self.updates.open(self.observer)
        hooks.open_hooks(self.observer)
        yield
        hooks.close_hooks(self.observer)
        self.observer.end()
        self.updates.close()


def test_updates_come_between_two_steps_and_not_more_often_than_asked() -> None:
    loop, seen, often = Loop(), list[Update](), list[int]()
    loop.updates.add(seen.append, 0.1)
    loop.updates.add(lambda update: often.append(update.steps), 0)
    with loop.watched():
        loop.run()
    assert often == [*range(50), 49 + 1, 50]  # before each step, at the loader's end, at the end
    times = [update.seconds for update in seen]
    assert times == pytest.approx([0.106, 0.210, 0.314, 0.4])
    assert [update.steps for update in seen] == [13, 26, 39, 50]
    assert [update.is_last for update in seen] == [False, False, False, True]
    first = seen[0]
    assert first.steps_per_second == pytest.approx(13 / 0.106)
    # The first step of an epoch has no wait: its batch is counted apart.
    assert first.step_seconds == pytest.approx(0.102) and first.batches == 13
    assert first.wait_share == pytest.approx(24 / 102)
    assert first.causes == pytest.approx({"none": 24 / 102, "others": 0, "ready": 0})
    assert first.first_batch_seconds == pytest.approx(0.002)
    assert seen[1].wait_share == pytest.approx(2 / 8) and seen[1].skipped == 0
    json.dumps(dataclasses.asdict(first))  # plain values
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.steps = 0  # type: ignore[misc]


def test_the_time_of_callbacks_is_a_cost_of_measuring() -> None:
    loop = Loop()
    loop.updates.add(lambda update: loop.sleep(1000), 0)
    with loop.watched():
        loop.run()
    totals = vars(loop.observer.recorder.totals)
    assert totals["measuring"] == 51_000 * MS and totals["steps"] == (50 * 8 - 2) * MS
    assert loop.observer.recorder.steps.count == 50


def test_a_loop_inside_a_callback_is_not_the_watched_loop() -> None:
    loop, steps = Loop(), []

    def validate(update: Update) -> None:
        steps.append(update.steps)
        for _ in DataLoader(loop.data):
            loop.optimizer.step()

    loop.updates.add(validate, 0.2)
    with loop.watched():
        loop.run()
    assert loop.observer.recorder.steps.count == 50 == steps[-1]
    assert len(loop.observer.sources) == 1 and loop.observer.recorder.apart_batches == 0


def test_a_loop_without_a_loader_has_updates() -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 0.1)
    with loop.watched():
        loop.run(loader=range(50))
    assert [update.steps for update in seen] == [17, 34, 50]
    assert seen[0].wait_share is None is seen[0].workers and seen[0].causes["none"] == 0
    assert seen[-1].verdict == "unknown" and "no batch came from" in seen[-1].text


def test_the_verdict_is_about_the_last_steps() -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 1)
    with loop.watched():
        loop.wait = 0.01
        loop.run(80)
        loop.wait = 18
        loop.run(20)
    kinds = [update.verdict for update in seen]
    assert kinds[0] == "not input-bound" and kinds[-1] == "input-bound"
    change = kinds.index("input-bound")
    assert 24 < seen[change].seconds <= 24 + 21 and {*kinds[change:]} == {"input-bound"}
    assert seen[0].next is seen[0].gain is None
    # Of the last steps three quarters are waiting, of all steps less.
    assert seen[-1].gain == pytest.approx(4) and "num_workers" in str(seen[-1].next)
    texts = [update.text for update in seen]
    assert len(set(texts)) <= 6  # one verdict in ten seconds


def test_a_verdict_has_the_numbers_since_the_verdict_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, found = Loop(), list[dict[str, Any]]()

    def spy(recent: Any, is_brief: bool) -> dict[str, Any]:
        found.append(summarize(recent, is_brief=is_brief))
        return found[-1]

    monkeypatch.setattr("fastloop.tools.report.updates.summarize", spy)
    loop.updates.add(lambda update: None, 1)
    loop.wait = loop.compute = 100
    with loop.watched():
        loop.run(4, DataLoader(loop.data))
    assert [round(one["seconds"]) for one in found] == [10, 10, 10]
    for one in found:
        taken = round(one["seconds"] / 0.2)
        assert abs(sum(one["seconds_of"].values()) - one["seconds"]) < 0.2
        assert abs(one["steps"]["batches"] - taken) <= 1 and one["steps"]["steady"] < taken
        (loader,) = one["loaders"]
        assert abs(loader["batches"] - taken) <= 1 >= abs(loader["wait_s"] / 0.1 - taken)
        assert abs(loader["waits"]["none"] / 0.1 - taken) <= 2


def test_a_callback_that_raises_is_told_once_and_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop, calls, seen = Loop(), list[int](), list[Update]()

    def wrong(update: Update) -> None:
        calls.append(1)
        raise LookupError("my own")

    class Shy:
        def __call__(self, update: Update) -> None:
            raise LookupError("unsaid")

        def __repr__(self) -> str:
            raise AttributeError("not ready")

    loop.updates.add(wrong, 0)
    loop.updates.add(Shy(), 0)
    loop.updates.add(seen.append, 0)
    with loop.watched():
        loop.run()
    assert len(calls) == 1 and len(seen) == 52 and seen[-1].steps == 50
    err = capsys.readouterr().err
    assert err.count("LookupError('my own')") == 1 and "wrong" in err


def test_a_callback_that_equals_others_is_dropped_alone() -> None:
    class Equal:
        def __init__(self, is_wrong: bool) -> None:
            self.is_wrong = is_wrong

        def __call__(self, update: Update) -> None:
            calls.append(self.is_wrong)
            if self.is_wrong:
                raise LookupError

        def __eq__(self, other: object) -> bool:
            return True

    loop, calls = Loop(), list[bool]()
    loop.updates.add(Equal(False), 0)
    loop.updates.add(Equal(True), 0)
    with loop.watched():
        loop.run()
    assert calls.count(True) == 1 and calls.count(False) == 52


def test_a_fault_that_cannot_be_shown_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class ShyError(Exception):
        def __repr__(self) -> str:
            raise AttributeError("not ready")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ShyError

    loop = Loop()
    loop.updates.add(lambda update: None, 0)
    monkeypatch.setattr("fastloop.tools.report.updates.summarize", fail)
    with loop.watched():
        loop.run()
    assert loop.observer.recorder.steps.count == 50


def test_a_fault_of_an_update_is_told_once_and_ends_no_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 0)
    monkeypatch.setattr("fastloop.tools.report.updates.summarize", lambda *args, **kwargs: 1 / 0)
    with loop.watched():
        loop.run(3)
    assert loop.observer.recorder.steps.count == 150 and 0 < len(seen) < 150
    err = capsys.readouterr().err
    assert err.count("fastloop: an update failed with ZeroDivisionError") == 1 == err.count("\n")


def test_scale_and_norm_are_those_of_the_latest_step() -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10)
    stepper = fastloop.Stepper(loop.optimizer, scaler=scaler, max_norm=0.5)
    with loop.watched():
        for number, _ in enumerate(DataLoader(loop.data)):
            with stepper.micro():
                stepper.backward(loop.parameter.sum() * (number + 1))
    norms = [update.gradient_norm for update in seen]
    assert norms[:2] == [None, 1] and norms[-1] == 50
    scales = [update.scale for update in seen]
    assert scales[:2] == [None, 4] and scales[10:12] == [8, 8] and scales[-1] == 128


def test_what_an_optimizer_returns_is_no_norm() -> None:
    class Answers(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return torch.tensor(7.0), 1

    loop, seen = Loop(), list[Update]()
    optimizer = Answers([loop.parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loop.updates.add(seen.append, 0)
    with loop.watched():
        for _ in DataLoader(loop.data):
            scaler.scale((3 * loop.parameter).sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(loop.parameter, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [update.gradient_norm for update in seen] == [None] + [3] * 51


def test_a_closed_report_keeps_no_scaler() -> None:
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with loop.watched():
        for _ in DataLoader(loop.data):
            scaler.scale(loop.parameter.sum()).backward()
            scaler.step(loop.optimizer)
            scaler.update()
    alive = weakref.ref(scaler)
    del scaler
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("call", ["clip", "unscale and clip"])
def test_the_norm_of_clipping(call: str) -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 0)
    scaler = fastloop.GradScaler("cpu", init_scale=4.0)
    with loop.watched():
        for _ in DataLoader(loop.data):
            loop.optimizer.zero_grad()
            if call == "clip":
                (3 * loop.parameter).sum().backward()
                torch.nn.utils.clip_grad_norm_(loop.parameter, 1.0)
                loop.optimizer.step()
                continue
            scaler.scale((3 * loop.parameter).sum()).backward()
            scaler.unscale_and_clip_(loop.optimizer, 1.0)
            scaler.step(loop.optimizer)
            scaler.update()
    assert [update.gradient_norm for update in seen] == [None] + [3] * 51
    assert seen[-1].scale == (None if call == "clip" else 4)


def test_nobody_waits_for_a_norm_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    late, loop, seen = LazyDevice("copies-late"), Loop(), list[Update]()
    accelerator = LazyAccelerator(late)
    monkeypatch.setattr(
        scalars, "_accelerator_of", lambda t: accelerator if accelerator.holds(t) else None
    )
    loop.updates.add(seen.append, 0)
    with loop.watched():
        for number, _ in enumerate(DataLoader(loop.data)):
            loop.observer.norm = late.put(torch.tensor([float(number)]))
            loop.optimizer.step()
            if number == 20:
                late.run()
    norms = [update.gradient_norm for update in seen]
    assert norms[:21] == [None] * 21 and norms[22:] == [19.0] * len(norms[22:])
    assert late.synchronized == 0


def test_an_update_during_a_capture_asks_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the global mode a question about an event ends the capture."""
    late, loop, seen, asked = LazyDevice("copies-late"), Loop(), list[Update](), list[bool]()
    accelerator, captures = LazyAccelerator(late), [False]

    def is_done(event: Any) -> bool:
        asked.append(captures[0])
        return bool(event.is_over)

    monkeypatch.setattr(accelerator, "is_done", is_done)
    monkeypatch.setattr(
        scalars, "_accelerator_of", lambda t: accelerator if accelerator.holds(t) else None
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[0])
    loop.updates.add(seen.append, 0)
    with loop.watched():
        for number in range(9):  # without a loader, updates come at steps
            loop.observer.norm = late.put(torch.tensor([float(number)]))
            late.run()
            captures[0] = number in (0, 5)
            loop.optimizer.step()
            captures[0] = False
            late.run()
    assert asked and not any(asked)
    norms = [update.gradient_norm for update in seen]
    assert norms[0] is None and norms[5] == norms[4] is not None and norms[-1] == 8


def test_a_norm_that_is_captured_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first replay, its memory holds anything."""
    loop, seen, captures = Loop(), list[Update](), [False]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[0])
    loop.updates.add(seen.append, 0)
    loop.parameter.grad = torch.full_like(loop.parameter, 3.0)
    with loop.watched():
        for number in range(9):  # without a loader, updates come at steps
            captures[0] = number in (3, 4)
            torch.nn.utils.clip_grad_norm_(loop.parameter, 100.0)
            captures[0] = False
            loop.optimizer.step()
    norms = [update.gradient_norm for update in seen]
    assert norms == [3.0] * 3 + [None] * 2 + [3.0] * 5


def test_a_device_that_copies_nothing_leaves_the_norm_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, seen = Loop(), list[Update]()
    loop.updates.add(seen.append, 0)
    monkeypatch.setattr(scalars, "_accelerator_of", lambda tensor: 1 / 0)
    with loop.watched():
        loop.observer.norm = torch.ones(1)
        loop.run()
    assert len(seen) == 52 and seen[-1].gradient_norm is None


@pytest.mark.parametrize(
    ("workers", "looks"), [(0, [*range(0, 1001, 100), 2000]), (1, [*range(0, 2001, 100)])]
)
def test_how_often_a_loader_is_looked_at(
    workers: int, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ms: ten times a second with workers, and without them in the first second."""
    loop, found = Loop(), list[int]()
    look = LoopObserver._look_around

    def note(self: Any, source: Any, now: int) -> None:
        found.append(now // MS)
        look(self, source, now)

    monkeypatch.setattr(LoopObserver, "_look_around", note)
    loop.wait, loop.compute = 0, 10
    with loop.watched():
        loop.run(4, DataLoader(loop.data, num_workers=workers, persistent_workers=workers > 0))
    assert found == looks


@pytest.mark.parametrize("path", ["process", "thread", "array", "torch"])
def test_workers_queue_and_samples(path: str) -> None:
    data: Any = torch.utils.data.TensorDataset(torch.zeros(40, 2)) if path == "array" else range(40)
    loader: Any = fastloop.DataLoader(data, 4, num_workers=2, path=path, name="train")  # type: ignore[arg-type]
    parameter = torch.zeros(1, requires_grad=True)
    optimizer, seen, threads = torch.optim.SGD([parameter], 0.1), list[Update](), set[int]()
    with fastloop.report(verbose=False) as report:
        report.on_update(seen.append, 0)
        report.on_update(lambda update: threads.add(threading.get_ident()), 0)
        for _ in range(2):
            for _ in loader:
                optimizer.step()
    assert threads == {threading.get_ident()} and len(seen) == 23
    within, last = seen[5], seen[-1]
    assert within.workers == 2 and within.restarts == 0
    assert (within.queue is None) == (path == "array")
    (loader,) = within.loaders
    assert sum(map(sum, loader.wait_counts.values())) == loader.batches - 1
    assert last.samples == (80 if path == "array" else None)
    assert [(one.name, one.batches, one.trains) for one in last.loaders] == [("train", 20, True)]
    assert (last.steps, last.batches, last.is_last) == (20, 20, True)
    assert last.first_batch_seconds > 0


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="fn must be a function, got 1"):
        fastloop.report().on_update(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be a number >= 0, got -1"):
        fastloop.report().on_update(print, -1)


FORKS = """
import os, torch, fastloop
from torch.utils.data import DataLoader, Dataset

class Forks(Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        if index == 3 and os.fork() == 0:
            self.is_child = True
        return index

calls, data = [], Forks()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
report = fastloop.report(verbose=False)
report.on_update(lambda update: calls.append(os.getpid()), 0)
with report:
    for batch in DataLoader(data):
        optimizer.step()
if hasattr(data, "is_child"):
    os._exit(len([pid for pid in calls if pid == os.getpid()]))
print(os.wait()[1], len(calls))
"""


def test_a_child_that_is_forked_inside_next_never_calls(tmp_path: Path) -> None:
    assert run_script(tmp_path, FORKS) == "0 8\n"
