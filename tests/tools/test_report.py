"""fastloop.report() around real loops: what is seen of loaders, optimizers and scalers of every
kind, what the block leaves behind, whatever ends it."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import collector_off, run_script
from time_limits import limit
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fastloop
from fastloop.compat.seams import Patch
from fastloop.tools.report import hooks, loader_source
from fastloop.tools.report import observer as loop_observer
from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.summary import SCHEMA, summarize

PROGRAMS = Path(__file__).parent.parent / "programs"


class Numbers(Dataset[Any]):
    """Not an array: it is loaded sample by sample."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index % 2


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """After each report torch's classes are as they were."""
    before = [DataLoader.__iter__, fastloop.GradScaler.step, torch.amp.GradScaler.unscale_]
    yield
    assert [DataLoader.__iter__, fastloop.GradScaler.step, torch.amp.GradScaler.unscale_] == before
    assert not hooks._observers and not hooks._patches and not hooks._handles


def train(loader: Any, epochs: int = 1, scaler: Any = None, fails_at: int = -1) -> list[Any]:
    """The losses; each step clips and steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(epochs):
        for number, (x, y) in enumerate(loader):
            if number == fails_at:
                raise LookupError("wrong")
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            (loss if scaler is None else scaler.scale(loss)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss.detach())
    return losses


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    with fastloop.report(verbose=False) as report:
        run()
    found = report.to_dict()
    assert sum(found["seconds_of"].values()) == pytest.approx(found["seconds"])
    return found


LOADERS = {
    "torch": lambda: DataLoader(Numbers(), 2),
    "torch-workers": lambda: DataLoader(Numbers(), 2, num_workers=2),
    "sync": lambda: fastloop.DataLoader(Numbers(), 2),
    "process": lambda: fastloop.DataLoader(Numbers(), 2, num_workers=2),
    "thread": lambda: fastloop.DataLoader(Numbers(), 2, num_workers=2, path="thread"),
    "array": lambda: fastloop.DataLoader(
        TensorDataset(torch.zeros(12, 4), torch.zeros(12).long()), 2, num_workers=1
    ),
    "array-uploads": lambda: fastloop.DataLoader(
        TensorDataset(torch.zeros(12, 4), torch.zeros(12).long()), 2, device="cpu",
        device_transform=lambda batch: batch,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_is_seen_once(name: str) -> None:
    """Iterators that call each other, and those below uploads, count as one."""
    loader = LOADERS[name]()
    plain = train(loader, 2)
    found = watch(lambda: plain == [] or train(loader, 2))
    steps, (one,) = found["steps"], found["loaders"]
    assert (steps["count"], steps["batches"], steps["unfinished_batches"]) == (12, 12, 0)
    assert one["batches"] == 12 and one["trains"] and found["apart"] == 0
    assert one["path"] == name.partition("-")[0]
    assert (found["phases"]["host_to_device"] is not None) == name.endswith("uploads")
    assert found["seconds_of"]["first_batch"] > 0 and found["seconds_of"]["between_epochs"] > 0
    if name in ("process", "thread"):
        assert sum(worker["batches"] for worker in one["workers"]) == 12
        assert all(0 <= worker["busy_share"] <= 1 for worker in one["workers"])
    else:
        assert one["workers"] is None


class Late(Numbers):
    """Sample 2 comes once next() waits for the third batch, behind sample 3."""

    def __init__(self) -> None:
        make = torch.multiprocessing.get_context("fork").Event
        self.is_waited_for, self.are_others_there = make(), make()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            self.is_waited_for.wait(limit(300))
            self.are_others_there.wait(limit(300))
            time.sleep(0.2)  # it is sent after this
        if index == 3:
            self.are_others_there.set()
        return super().__getitem__(index)


@pytest.mark.parametrize("path", ["torch", "process", "thread"])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_that_others_overtake_is_waited_for_in_order_only(
    path: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, options = Late(), {"num_workers": 2, "in_order": in_order}
    loader: Any = fastloop.DataLoader(data, 1, path=path, **options)  # type: ignore[arg-type]
    if path == "torch":
        loader = DataLoader(data, 1, **options)  # type: ignore[arg-type]
    begin, calls = LoaderSource.begin_batch, iter((False, False, True))

    def begin_and_let_go(source: LoaderSource, now: int) -> None:
        begin(source, now)
        if next(calls, False):
            data.is_waited_for.set()

    monkeypatch.setattr(LoaderSource, "begin_batch", begin_and_let_go)
    (one,) = watch(lambda: train(loader))["loaders"]
    assert (one["waits"]["others"] > 0) == in_order


def test_a_loop_that_makes_batches_itself_says_how_long_it_waits_for_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_source, "_SHORT_NS", 0)
    monkeypatch.setattr(loader_source, "scheduled_ns", lambda task="": (7, 7))
    (one,) = watch(lambda: train(DataLoader(Numbers(), 2)))["loaders"]
    assert one["cpu_share"] == one["cpu_wait_share"] == 0
    monkeypatch.setattr(loader_source, "scheduled_ns", lambda task="": None)
    (one,) = watch(lambda: train(DataLoader(Numbers(), 2)))["loaders"]
    assert one["cpu_share"] is one["cpu_wait_share"] is None


def test_the_wait_of_a_loop_without_a_cpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's file is a fake: the thread wants a CPU from each reading to the next."""
    now = itertools.count(0, 10**15)
    monkeypatch.setattr(loader_source, "_SHORT_NS", 0)
    monkeypatch.setattr(loader_source, "scheduled_ns", lambda task="": (0, next(now)))
    monkeypatch.setattr(loop_observer, "scheduled_ns", lambda task="": (0, next(now)))
    found = watch(lambda: train(DataLoader(Numbers(), 2)))
    assert found["loaders"][0]["cpu_wait_share"] == 1 and found["cpu_wait_s"] >= 10**6


def test_reports_keep_one_descriptor_of_a_thread() -> None:
    watch(lambda: train(DataLoader(Numbers(), 6)))
    before = os.listdir("/proc/self/fd")
    watch(lambda: train(DataLoader(Numbers(), 6)))
    assert os.listdir("/proc/self/fd") == before


def test_a_loop_computes_what_it_computes_without_a_report() -> None:
    loader = fastloop.DataLoader(Numbers(), 2, shuffle=True)
    alone, seen = [], []
    watch(lambda: seen.extend(train(loader, 2)))
    alone.extend(train(loader, 2))
    assert len(seen) == 12 and all(map(torch.equal, seen, alone))


def test_under_patch_too() -> None:
    with fastloop.patched():
        found = watch(lambda: train(DataLoader(Numbers(), 2)))
    assert found["loaders"][0]["path"] == "sync" and found["steps"]["count"] == 6


def test_the_checks_of_patch_are_no_steps_of_the_loop() -> None:
    def run() -> None:
        fastloop.patch()
        train(DataLoader(Numbers(), 2))

    try:
        found = watch(run)
    finally:
        fastloop.unpatch()
        watch(lambda: None)  # takes out what was below
    assert len(found["loaders"]) == 1
    assert (found["steps"]["count"], found["steps"]["skipped"]) == (6, 0)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, fastloop.GradScaler])
def test_steps_that_a_scaler_skips_are_counted(kind: Any) -> None:
    data = torch.zeros(12, 4)
    data[4] = torch.inf
    loader = DataLoader(TensorDataset(data, torch.zeros(12).long()), 2)
    found = watch(lambda: train(loader, scaler=kind("cpu", init_scale=4.0)))
    assert (found["steps"]["count"], found["steps"]["skipped"]) == (6, 1)
    assert not found["steps"]["skips_unknown"]


def test_what_fused_optimizers_skip_is_not_known() -> None:
    def run() -> None:
        parameter = torch.zeros(2, requires_grad=True)
        parameter.grad = torch.zeros(2)
        optimizer = torch.optim.SGD([parameter], 0.1, fused=True)
        for _ in DataLoader(Numbers(), 2):
            optimizer.step()

    assert watch(run)["steps"]["skips_unknown"]


def test_steps_of_a_stepper() -> None:
    def run() -> None:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        stepper = fastloop.Stepper(optimizer, accumulate=4, max_norm=1.0, on_nonfinite="window")
        for x, _ in stepper.iterate(fastloop.DataLoader(Numbers(), 2)):
            with stepper.micro():
                stepper.backward(model(x).sum() * (torch.inf if x[0, 0] == 8 else 1))

    steps = watch(run)["steps"]
    assert (steps["count"], steps["batches"], steps["skipped"]) == (2, 6, 1)


def test_a_loop_of_accelerate() -> None:
    """It takes one batch ahead, so the last step comes after the end of the loader."""
    from accelerate import Accelerator

    def run() -> None:
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(4, 2)
        parts = model, torch.optim.SGD(model.parameters(), 0.01), DataLoader(Numbers(), 2)
        model, optimizer, loader = accelerator.prepare(*parts)
        for x, _ in loader:
            accelerator.backward(model(x).sum())
            optimizer.step()

    steps = watch(run)["steps"]
    assert (steps["count"], steps["batches"], steps["unfinished_batches"]) == (6, 6, 0)


def test_a_closure_counts_as_forward_and_gives_its_loss() -> None:
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    clock = [0]

    def closure() -> torch.Tensor:
        clock[0] += 1000
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    observer = LoopObserver(clock=lambda: clock[0])
    hooks.open_hooks(observer)
    for number, _ in enumerate(DataLoader(Numbers(), 2)):
        result = optimizer.step(closure) if number % 2 else optimizer.step(closure=closure)
        assert isinstance(result, torch.Tensor)
        clock[0] += 7
    hooks.close_hooks(observer)
    steps = list(observer.recorder.steps)
    assert [step[3:6] for step in steps] == [(1000, 0, 7)] * 6  # forward_backward to other


def test_reports_inside_each_other_see_their_part() -> None:
    with fastloop.report(verbose=False) as outer:
        train(DataLoader(Numbers(), 2))
        with fastloop.report(verbose=False) as inner:
            train(DataLoader(Numbers(), 3))
        assert inner.to_dict()["steps"]["count"] == 4
        assert outer.to_dict()["steps"]["count"] == 10  # while it is open
        train(DataLoader(Numbers(), 6))
    assert outer.to_dict()["steps"]["count"] == 12 and inner.to_dict()["steps"]["count"] == 4


def test_other_threads_are_counted_and_named() -> None:
    def run() -> None:
        thread = threading.Thread(target=train, args=(DataLoader(Numbers(), 2),))
        thread.start()
        thread.join()

    found = watch(run)
    assert found["steps"]["count"] == 0 and found["calls_of_other_threads"] > 0
    assert "came from other threads" in found["verdict"]["text"]


def test_a_loader_and_its_iterator_die_with_the_loop() -> None:
    with fastloop.report(verbose=False) as report:
        loader = fastloop.DataLoader(Numbers(), 2)
        iterator = iter(loader)
        next(iterator)
        references = weakref.ref(loader), weakref.ref(iterator)
        with collector_off():
            del loader, iterator
            assert [reference() for reference in references] == [None, None]
        assert report.to_dict()["loaders"][0]["name"] == "Numbers of 12"


def test_a_block_without_a_step_says_one_line_and_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fastloop.report(tmp_path / "run.html") as report:
        list(DataLoader(Numbers(), 2))
    assert os.listdir(tmp_path) == report.paths == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "NO VERDICT: 6 batches were taken, and no optimizer" in line
    found = report.to_dict()
    assert found["steps"]["count"] == 0 and found["phases"]["data_wait"] is None
    assert found["measuring"]["us_per_step"] is None  # n/a, and not 0


@pytest.mark.parametrize("fails", [True, False], ids=["an exception", "none"])
def test_all_files_are_written_whatever_happens(tmp_path: Path, fails: bool) -> None:
    names = [tmp_path / "run.html", tmp_path / "run.trace.json.gz", tmp_path / "run.trace.json"]
    report = fastloop.report(*names, verbose=False)
    with pytest.raises(LookupError, match="wrong") if fails else nullcontext(), report:
        train(DataLoader(Numbers(), 2), fails_at=3 if fails else -1)
    assert sorted(os.listdir(tmp_path)) == [
        "run.html", "run.json", "run.trace.json", "run.trace.json.gz"
    ]  # fmt: skip
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["schema"] == SCHEMA and found == report.to_dict()
    if fails:
        assert found["ended_by"] == "LookupError"
        assert (found["steps"]["count"], found["steps"]["unfinished_batches"]) == (3, 1)


def test_a_file_that_cannot_be_written_goes_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spare = tmp_path / "gone", tmp_path / "spare"
    folder.mkdir()
    spare.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    with fastloop.report(folder / "run.json", verbose=False) as report:
        train(DataLoader(Numbers(), 6))
        folder.rmdir()
    (path,) = report.paths
    assert spare in path.parents and json.loads(path.read_text())["schema"] == SCHEMA
    assert str(path) in capsys.readouterr().err


def test_a_file_that_cannot_be_written_anywhere_hides_no_exception_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no"))
    with pytest.raises(KeyError), fastloop.report(folder / "run.json", verbose=True) as report:
        train(DataLoader(Numbers(), 6))
        folder.rmdir()
        raise KeyError
    err = capsys.readouterr().err
    assert report.paths == [] and "could not be written" in err
    assert "ended by KeyError" in err


def test_a_closed_stderr_takes_no_file_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = (tmp_path / "stderr").open("w")
    closed.close()
    with pytest.raises(KeyError), fastloop.report(tmp_path / "run.json", verbose=True):
        train(DataLoader(Numbers(), 6))
        monkeypatch.setattr("sys.stderr", closed)
        raise KeyError
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("rank", ["", "one", "-1", "../x"])
def test_a_rank_that_is_no_number_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with fastloop.report(tmp_path / "run.html", tmp_path / "run.trace.json") as report:
        train(DataLoader(Numbers(), 6))
    names = ["run.html", "run.trace.json", "run.json"]
    assert [path.name for path in report.paths] == names and all(map(Path.exists, report.paths))
    assert report.to_dict()["rank"] == 0


@pytest.mark.parametrize("make", [DataLoader, fastloop.DataLoader])
@pytest.mark.parametrize(("data", "compute", "update", "other"), [(30, 10, 5, 0), (1, 50, 2, 7)])
def test_a_real_loop_whose_times_are_known(
    make: Any, data: int, compute: int, update: int, other: int
) -> None:
    """Through all hooks, under a clock that the loop alone moves: sleeps, but exact."""
    now = 0

    def sleep(ms: int) -> None:
        nonlocal now
        now += ms * 1_000_000

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            sleep(data)
            return super().__getitem__(index)

    class Sleepy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            sleep(update)
            return super().step(closure)

    model = torch.nn.Linear(4, 1)
    optimizer = Sleepy(model.parameters())
    observer = LoopObserver(clock=lambda: now)
    hooks.open_hooks(observer)
    try:
        for _ in range(3):
            for inputs, _ in make(Slow(), batch_size=1):
                sleep(compute)
                model(inputs).sum().backward()
                optimizer.step()
                sleep(other)
    finally:
        hooks.close_hooks(observer)
    observer.end()
    phases = summarize(observer)["phases"]
    found = [phases[name]["median_ms"] for name in phases if phases[name] is not None]
    assert found == [data, compute, update, other]
    steps = list(observer.recorder.steps)
    assert len(steps) == 36 and observer.recorder.totals.before == 0
    totals = vars(observer.recorder.totals)
    assert sum(totals.values()) == now == 36 * (data + compute + update + other) * 1_000_000
    assert totals["first_batch"] == data * 1_000_000
    assert totals["between_epochs"] == 2 * data * 1_000_000


def test_names_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.html, .*, got 'run\.pdf'"):
        fastloop.report("run.pdf")
    with pytest.raises(FileNotFoundError, match="make it first"):
        fastloop.report(tmp_path / "no" / "run.html")
    (tmp_path / "run.html").mkdir()
    with pytest.raises(PermissionError, match="name a different file"):
        fastloop.report(tmp_path / "run.html")


def test_a_rank_writes_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with fastloop.report(tmp_path / "run.html") as report:
        train(DataLoader(Numbers(), 6))
    assert [path.name for path in report.paths] == ["run.rank3.html", "run.rank3.json"]
    assert report.to_dict()["rank"] == 3


def test_a_report_is_for_one_block() -> None:
    report = fastloop.report(verbose=False)
    with pytest.raises(RuntimeError, match="with statement"):
        report.summary()
    with report:
        pass
    with pytest.raises(RuntimeError, match=r"call fastloop\.report\(\) again"), report:
        pass


def test_who_has_put_something_around_our_hooks_keeps_it() -> None:
    """A report that closes cannot take it out; it is passed through, and used again."""
    calls = []

    def make(before: Any) -> Any:
        def step(*args: Any) -> Any:
            calls.append(1)
            return before(*args)

        return step

    patch = Patch(torch.amp.GradScaler, "step", make)
    run = lambda: train(DataLoader(Numbers(), 6), scaler=torch.amp.GradScaler("cpu"))  # noqa: E731
    with fastloop.report(verbose=False):
        patch.put_in()
    run()
    assert len(calls) == 2 and watch(run)["steps"]["count"] == 2
    assert patch.take_out()
    watch(lambda: None)  # takes out what was below


@pytest.mark.slowest
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    assert (
        run_script(tmp_path, (PROGRAMS / "report_and_fork.py").read_text())
        == "child 0\nparent True\n"
    )
