"""What a report says: verdicts and their causes, the table, the page, the trace, two side by side,
and what a GPU tells, by fakes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastloop.__main__
from fastloop.see.gpu_usage import GpuUsage
from fastloop.see.gpu_waits import GpuWaits
from fastloop.see.loader_source import LoaderSource
from fastloop.see.loop_observer import LoopObserver
from fastloop.see.report_files import to_json
from fastloop.see.report_page import make_page
from fastloop.see.report_table import make_table
from fastloop.see.step_summary import summarize
from fastloop.see.step_trace import make_trace

MS = 1_000_000


class FakeLoader:
    """What a LoaderSource reads of a loader."""

    def __init__(self, workers: int = 0) -> None:
        self.dataset = list(range(1000))
        self.num_workers = workers
        self.batch_size = 8


def loop_of(
    wait: float, compute: float, steps: int = 100, loader: LoaderSource | None = None
) -> LoopObserver:
    """A loop whose steps wait and compute for so many ms."""
    observer = LoopObserver(clock=lambda: 0, usage=GpuUsage(find=lambda: None))
    source = loader or observer.sources.find(FakeLoader())
    observer.sources.all[:] = [source]
    recorder = observer.recorder
    now = 0
    for _ in range(steps):
        recorder.enter_fetch(now, now)
        now += round(wait * MS)
        recorder.leave_fetch(now, now, source, 2)
        recorder.enter_update(now := now + round(compute * MS), now, 1)
        recorder.note_step(1)
        recorder.leave_update(now := now + MS // 2, now, 1)
    recorder.enter_fetch(now, now)
    recorder.leave_fetch(now, now, source, error=StopIteration)
    recorder.end(now)
    return observer


def found_of(observer: LoopObserver) -> dict[str, Any]:
    texts = {"fastloop": "1", "torch": "2", "python": "3", "rank": 0, "began": "now"}
    return {**summarize(observer), **texts, "ended_by": None, "ended_in": None}


@pytest.mark.parametrize(("data", "compute"), [(30, 10), (10, 30), (1, 50), (0, 5), (50, 0.1)])
def test_shares_and_medians_are_those_of_the_loop(data: float, compute: float) -> None:
    """Of synthetic loops, within a thousandth."""
    found = found_of(loop_of(data, compute))
    whole = data + compute + 0.5
    wait = found["phases"]["data_wait"]
    assert wait["share"] == pytest.approx(data / whole, 1e-3)
    assert wait["median_ms"] == pytest.approx(data) == pytest.approx(wait["p95_ms"])
    assert found["phases"]["forward_backward"]["median_ms"] == pytest.approx(compute)
    assert found["step"]["median_ms"] == pytest.approx(whole)
    assert found["phases"]["host_to_device"] is None and found["gpu_wait"] is None
    shares = [phase["share"] for phase in found["phases"].values() if phase]
    assert sum(shares) == pytest.approx(1)
    ceiling = found["verdict"]["ceiling"]
    assert ceiling == pytest.approx(whole / (whole - data))


def test_the_first_step_of_an_epoch_is_not_in_the_table() -> None:
    observer = loop_of(10, 10, 60)
    observer.recorder.steps.append((0, 0, -1, 10 * MS, 0, 0, -1, 0, True))
    found = found_of(observer)
    assert found["steps"]["steady"] == 40 and found["phases"]["data_wait"]["seconds"] == 0.4


@pytest.mark.parametrize(
    ("wait", "compute", "kind", "text"),
    [
        (30, 9.5, "input-bound", "INPUT-BOUND: the loop waits 75% of each step for data (30.0 ms "
         "of 40.0 ms on average). With data always ready: at most 4.00× faster. Cause: the loop "
         "loads list of 1,000 itself (num_workers=0). Next: num_workers="),
        (1, 8.5, "partly input-bound", "PARTLY INPUT-BOUND: the loop waits 10% of each step"),
        (0.1, 9.4, "not input-bound", "NOT INPUT-BOUND: 1.0% of each step is waiting for data; a "
         "faster loader cannot help this run. Most of it is forward and backward (94%)."),
    ],
)  # fmt: skip
def test_verdicts(wait: float, compute: float, kind: str, text: str) -> None:
    verdict = found_of(loop_of(wait, compute))["verdict"]
    assert verdict["kind"] == kind and verdict["text"].startswith(text)
    assert verdict["basis"] == "host"


def test_few_steps_are_said_to_be_few() -> None:
    texts = {n: found_of(loop_of(1, 1, n))["verdict"]["text"] for n in (9, 30, 100)}
    assert "NO VERDICT: there are 9 steps" in texts[9]
    assert "(Seen in 10 steps behind the first ones; 50 would be surer.)" in texts[30]
    assert "surer" not in texts[100]


def test_no_steps_and_no_loader_have_no_verdict() -> None:
    empty = LoopObserver(clock=lambda: 0)
    empty.end()
    assert "no batch was taken" in found_of(empty)["verdict"]["text"]
    bare = LoopObserver(clock=lambda: 0)
    for now in range(0, 100 * MS, MS):
        bare.recorder.enter_update(now, now, 1)
        bare.recorder.note_step(1)
        bare.recorder.leave_update(now + 1000, now + 1000, 1)
    bare.recorder.end(100 * MS)
    found = found_of(bare)
    assert "no batch came from a torch or fastloop DataLoader" in found["verdict"]["text"]
    assert found["phases"]["data_wait"] is None and found["waits"] is None
    assert re.search(r"data wait +n/a +n/a +n/a", make_table(found))


WORKERS = {
    "busy": ([(100, 98 * MS, 2 * MS)] * 2, -1, r"workers are busy 98%", r"num_workers 2→\d+ \("),
    "idle": ([(100, 10 * MS, 90 * MS)] * 2, 0, "busy 10% only", "a higher prefetch_factor"),
    "lock": ([(100, 90 * MS, 10 * MS, 80 * MS)] * 2, -1, "interpreter lock 89%", 'path="process"'),
    "ready": ([(100, 10 * MS, 90 * MS)] * 2, 3, "3.0 batches were ready", "larger tensors"),
    "torch": ([], -1, "torch's own iterators do not tell", "python -m fastloop run"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKERS)
def test_the_cause_of_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, ready, cause, advice = WORKERS[name]
    source = LoaderSource(FakeLoader(2))
    monkeypatch.setattr(source, "count_workers", lambda: tuple(counts))
    mean = None if ready < 0 else float(ready)
    monkeypatch.setattr(source, "mean_ready", lambda: mean)
    verdict = found_of(loop_of(10, 10, loader=source))["verdict"]
    assert re.search(cause, verdict["cause"]) and re.search(advice, verdict["next"])


# ---- a GPU


class FakeEvent:
    now = 0.0  # ms: what the GPU has come to

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def query(self) -> bool:
        return FakeEvent.now >= self.at + 5

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.query() and other.query()
        return other.at - self.at


class FakeEvents:
    is_graph = False
    made = 0

    def is_initialized(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return self.is_graph

    def make(self) -> tuple[FakeEvent, FakeEvent]:
        self.made += 1
        return FakeEvent(), FakeEvent()


class FakeIter:
    pass


def test_the_wait_that_the_gpu_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes late, goes to its own step, and decides the verdict."""
    events, clock = FakeEvents(), [0]
    observer = LoopObserver(lambda: clock[0], GpuWaits(events), GpuUsage(find=lambda: None))
    iterator = FakeIter()
    optimizer = SimpleNamespace()
    for number in range(100):
        observer.enter_next(iterator)
        clock[0] += 10 * MS
        FakeEvent.now += number % 2 * 4  # hidden behind queued work in every second step
        observer.leave_next(None)
        clock[0] += 9 * MS
        FakeEvent.now += 20
        observer.enter_step(optimizer)
        clock[0] += MS
        observer.leave_update(id(optimizer))
    observer.enter_next(iterator)
    observer.leave_next(StopIteration())
    observer.end()
    steps = list(observer.recorder.steps)
    assert [step.gpu_wait / MS for step in steps[:98]] == [0.0, 4.0] * 49
    assert events.made < 100  # they are used again
    found = found_of(observer)
    assert found["verdict"]["basis"] == "gpu" and found["gpu_wait"]["share"] == pytest.approx(0.1)
    assert "the GPU waits 10% of each step" in found["verdict"]["text"]
    assert found["phases"]["data_wait"]["share"] == 0.5


def test_events_that_have_not_fired_are_asked_again() -> None:
    recorder = loop_of(1, 1, 2).recorder
    run = SimpleNamespace(is_over=True, step=1)
    waits = GpuWaits(FakeEvents())
    waits.look()
    waits.begin()
    FakeEvent.now += 3
    pair = waits.end()
    waits.follow(pair, run, recorder.steps)
    assert [step.gpu_wait for step in recorder.steps] == [-1, -1]
    FakeEvent.now += 5
    waits.poll(recorder.steps)
    assert [step.gpu_wait for step in recorder.steps] == [-1, 3 * MS]


def test_calls_inside_each_other_are_one() -> None:
    observer = LoopObserver(clock=lambda: 0)
    assert observer.enter_iter() and not observer.enter_iter()


def test_no_event_is_recorded_into_a_graph() -> None:
    events = FakeEvents()
    waits = GpuWaits(events)
    waits.look()
    events.is_graph = True
    waits.begin()
    assert waits.end() is None and events.made == 0


# ---- the files


class Page(HTMLParser):
    """Its tags are closed, and it names nothing outside itself."""

    VOID = ("meta", "path", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        assert tag not in ("script", "link", "img", "iframe", "object", "a", "use", "image")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("steps", [0, 1, 30, 3000])
def test_the_page_is_whole_and_needs_nothing_else(steps: int) -> None:
    found = found_of(loop_of(10, 10, steps))
    text = make_page(found)
    page = Page(text)
    assert not {"href", "src", "srcset", "onclick", "onload"} & set(page.names)
    assert "://" not in text and "url(" not in text and "@import" not in text
    assert "prefers-color-scheme:dark" in text and len(text.encode()) <= 200_000
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        title = ElementTree.fromstring(drawing).find("title")
        assert title is not None and title.text  # for those who do not see it


@pytest.mark.parametrize("steps", [1, 30, 3000])
def test_nothing_in_a_chart_is_cut_off(steps: int) -> None:
    text = make_page(found_of(loop_of(10, 10, steps)))
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        svg = ElementTree.fromstring(drawing)
        height = float(svg.attrib["viewBox"].split()[3])
        lines = [float(label.attrib["y"]) for label in svg.iter("text")]
        # A phone shows them in 20 units, a quarter of them below the line.
        assert lines and min(lines) > 0 and max(lines) + 5 <= height


def test_a_page_of_many_uneven_steps_and_many_workers_is_small() -> None:
    observer = loop_of(10, 10, 1)
    for _ in range(64):
        source = LoaderSource(FakeLoader())
        source.workers, source._now = 64, ((123_456, 10**13, 10**13, 10**12),) * 64
        observer.sources.all.append(source)
    for number in range(16_384):
        parts = (number * k % 9973 * 1000 for k in range(1, 6))
        observer.recorder.steps.append((number, *parts, -1, number % 9, 0))
    assert len(make_page(found_of(observer)).encode()) <= 200_000


def test_what_a_dataset_is_called_cannot_break_the_page() -> None:
    source = LoaderSource(FakeLoader())
    source.name = "<script>alert(1)</script> & co"
    assert "<script" not in make_page(found_of(loop_of(10, 10, loader=source)))


def test_the_trace_is_nested() -> None:
    observer = loop_of(10, 10, 50)
    trace = json.loads(make_trace(observer.recorder.steps, 0))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len([event for event in slices if event["name"].startswith("step ")]) == 50
    end = 0.0
    for event in slices:
        if event["name"].startswith("step "):
            assert event["ts"] >= end - 1e-6
            begin, end = event["ts"], event["ts"] + event["dur"]
            inside = begin
        else:
            assert event["ts"] >= inside - 1e-6 and event["ts"] + event["dur"] <= end + 1e-6
            inside = event["ts"] + event["dur"]
    assert [e["args"] for e in trace["traceEvents"] if e["ph"] == "C"] == [{"batches": 2}] * 50


def test_the_table_fits_a_terminal() -> None:
    text = make_table(found_of(loop_of(10, 10)))
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"data wait +49% +10\.0 ms +10\.0 ms", text)
    assert re.search(r"host to device +n/a +n/a +n/a", text) and "cost of measuring: " in text


def test_two_reports_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wait in (("a.json", 10), ("b.json", 5)):
        (tmp_path / name).write_text(to_json(found_of(loop_of(wait, 10))))
    status = fastloop.__main__.main(["compare", *(str(tmp_path / n) for n in ("a.json", "b.json"))])
    out = capsys.readouterr().out
    assert status == 0 and re.search(r"data wait +10\.0 ms +49% +5\.00 ms +32% +×0\.50", out)
    assert re.search(r"of it seen by the GPU +n/a +n/a +n/a", out)
    assert re.search(r"steps a second +48\.8 +64\.5 +×1\.32", out), out


@pytest.mark.parametrize(
    ("text", "error"), [("{", "is no JSON"), ("[]", "its schema is None"), (None, "No such file")]
)
def test_what_is_no_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, error: str
) -> None:
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    assert fastloop.__main__.main(["compare", str(tmp_path / "a.json"), "b.json"]) == 2
    assert error in capsys.readouterr().err
    assert fastloop.__main__.main(["compare", "a.json"]) == 2


@pytest.mark.parametrize("key", ["steps", "phases", "seconds_of", "verdict"])
@pytest.mark.parametrize("value", [None, [], {}, 1])
def test_a_damaged_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any
) -> None:
    path = tmp_path / "a.json"
    path.write_text(to_json({**found_of(loop_of(1, 1)), key: value}))
    assert fastloop.__main__.main(["compare", str(path), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "a report is damaged" in err
