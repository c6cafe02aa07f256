"""What a report says: the table, the page, the trace, two side by side, and what a GPU tells, by
fakes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_loops import MS, FakeLoader, found_of, loop_of

import fastloop.__main__
from fastloop.tools.report.gpu import GpuWaits
from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.page import make_page
from fastloop.tools.report.render import make_table, make_trace

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


class FakeCuda:
    is_graph = False
    is_used = True
    made = device = 0

    def is_initialized(self) -> bool:
        return self.is_used

    def is_current_stream_capturing(self) -> bool:
        return self.is_graph

    def current_device(self) -> int:
        return self.device

    def get_device_properties(self) -> Any:
        return SimpleNamespace(uuid="1")

    def utilization(self) -> int:
        return 40

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        self.made += 1
        return FakeEvent()


class FakeIter:
    pass


class FakeOptimizer:
    def __init__(self, is_fused: bool = False) -> None:
        self._step_supports_amp_scaling = is_fused


def test_the_wait_that_the_gpu_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes late, goes to its own step, and decides the verdict."""
    cuda, clock = FakeCuda(), [0]
    observer = LoopObserver(lambda: clock[0], cuda)
    iterator = FakeIter()
    optimizer = FakeOptimizer()
    for number in range(100):
        observer.enter_next(None, (iterator,), {})
        clock[0] += 10 * MS
        FakeEvent.now += number % 2 * 4  # hidden behind queued work in every second step
        observer.leave_next(None, None, None)
        clock[0] += 9 * MS
        FakeEvent.now += 20
        observer.enter_step(optimizer)
        clock[0] += MS
        observer.leave_update(optimizer, None, None)
    observer.enter_next(None, (iterator,), {})
    observer.leave_next(None, None, StopIteration)
    observer.end()
    steps = list(observer.recorder.steps)
    assert [step.gpu_wait / MS for step in steps[:98]] == [0.0, 4.0] * 49
    found = found_of(observer)
    assert found["verdict"]["basis"] == "gpu" and found["gpu_wait"]["share"] == pytest.approx(0.1)
    assert "the GPU waits 10% of each step" in found["verdict"]["text"]
    assert found["phases"]["data_wait"]["share"] == 0.5


def test_the_time_that_a_device_computes_ends_with_the_last_gradient() -> None:
    cuda, steps = FakeCuda(), loop_of(1, 1, 2).recorder.steps
    parameter, observer = SimpleNamespace(is_cuda=True), LoopObserver(lambda: 5, cuda)
    waits = observer.waits
    for is_graph, device in ((False, 0), (True, 0), (False, 1)):
        cuda.is_graph, cuda.device = False, 0
        waits.begin()
        waits.end()
        FakeEvent.now += 7
        cuda.is_graph, cuda.device = is_graph, device  # two devices have no common time
        observer.note_gradient(parameter)
        FakeEvent.now += 20
        observer.note_gradient(parameter)  # of the same batch
        waits.poll(steps)
    assert waits.computed == 7 * MS and observer.recorder._gradient_at == 0  # not the host's time


def test_a_device_and_skips_that_come_later_are_seen() -> None:
    cuda, clock = FakeCuda(), [0]
    observer, iterator = LoopObserver(lambda: clock[0], cuda), FakeIter()
    usual, fused = FakeOptimizer(), FakeOptimizer(True)
    for number in range(300):
        cuda.is_used = number >= 100
        observer.enter_next(None, (iterator,), {})
        observer.leave_next(None, None, None)
        clock[0] += MS
        optimizer = fused if number >= 200 else usual
        observer.enter_step(optimizer)
        observer.leave_update(optimizer, None, None)
        assert observer.has_silent_skips == (number >= 200)
    assert cuda.made == 2 * 200  # CUDA is asked for every 100 ms


def test_events_that_have_not_fired_are_asked_again() -> None:
    recorder = loop_of(1, 1, 2).recorder
    run = SimpleNamespace(step=1)
    waits = GpuWaits(FakeCuda())
    waits.begin()
    FakeEvent.now += 3
    pair = waits.end()
    waits.follow(pair, run, recorder.steps)
    assert [step.gpu_wait for step in recorder.steps] == [-1, -1]
    FakeEvent.now += 5
    waits.poll(recorder.steps)
    assert [step.gpu_wait for step in recorder.steps] == [-1, 3 * MS]


def test_calls_inside_each_other_are_one() -> None:
    observer, loader = LoopObserver(clock=lambda: 0), FakeLoader()
    for _ in range(2):
        observer.enter_iter(None, (loader,), {})
    for _ in range(2):
        observer.leave_iter(None, None, None)
    assert observer.recorder._events == 1 and observer.depth == 0


def test_no_event_is_recorded_into_a_graph() -> None:
    cuda = FakeCuda()
    waits = GpuWaits(cuda)
    cuda.is_graph = True
    waits.begin()
    assert waits.end() is None and cuda.made == 0


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
        # A phone shows them in 20 units, a quarter below the line.
        assert lines and min(lines) > 0 and max(lines) + 5 <= height


def test_a_page_of_many_uneven_steps_and_many_workers_is_small() -> None:
    observer = loop_of(10, 10, 1)
    for _ in range(64):
        source = LoaderSource(FakeLoader())
        source.num_workers, source._now = 64, ((123_456, 10**13, 10**13, 10**12),) * 64
        observer.sources.append(source)
    for number in range(16_384):
        parts = (number * k % 9973 * 1000 for k in range(1, 6))
        observer.recorder.steps.append((number, *parts, -1, 0))
    assert len(make_page(found_of(observer)).encode()) <= 200_000


def test_the_page_names_the_program_its_arguments_the_host_and_the_time() -> None:
    text = make_page({**found_of(loop_of(10, 10)), "command": "a.py '<b>'", "began": "2026-11-26"})
    assert "a.py '&lt;b&gt;'" in text.replace("&#x27;", "'")
    assert "node7 · 2026-11-26 · rank 0" in text


def test_code_behind_the_step_is_told_as_the_users_own() -> None:
    observer = loop_of(1, 1, 0)
    for _ in range(30):
        observer.recorder.steps.append((0, 0, -1, 0, MS, 19 * MS, -1, False))
    found = found_of(observer)
    words = "Most of a step is your other code, between the step and the next batch (95%)."
    assert words in found["verdict"]["text"] and re.search(
        "your other code +95%", make_table(found)
    )


def test_measuring_is_a_share_of_the_steps() -> None:
    observer = loop_of(1, 8.5, 100)  # a second of steps
    observer.recorder.totals.measuring, observer.recorder._mark = 2 * MS, 10**12
    assert "cost of measuring: 20.0 µs a step, 0.20% of the steps" in make_table(found_of(observer))


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


def test_the_table_fits_a_terminal() -> None:
    text = make_table(found_of(loop_of(10, 10)))
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"data wait +49% +10\.0 ms +10\.0 ms +10\.0 ms", text)
    assert "cost of measuring: " in text


def test_the_table_has_the_mean_that_its_shares_are_of_and_no_gpu_where_there_is_none() -> None:
    observer = loop_of(1, 3, 60)
    for _ in range(10):
        observer.recorder.steps.append((0, MS, -1, 503 * MS, MS // 2, 0, -1, False))
    found = found_of(observer)
    text = make_table(found)
    assert re.search(r"forward\+backward +99% +103 ms +3\.00 ms +503 ms\n", text), text
    for shown in (text, make_page(found)):
        assert "GPU" not in shown.replace("--gpu", "") and "host to device" not in shown
    found["gpu"].update(uuid="GPU-1", why_unknown="no NVML")
    for shown in (make_table(found), make_page(found)):
        assert "seen by the GPU" in shown and "GPU busy: n/a (no NVML)" in shown
        assert "host to device" in shown


def test_steps_a_second_are_those_of_the_table() -> None:
    """The first one imports things, compiles and warms up."""
    observer = loop_of(1, 1, 0)
    observer.recorder.steps.append((0, 0, -1, 9000 * MS, 0, 0, -1, True))
    for _ in range(50):
        observer.recorder.steps.append((0, 0, -1, 10 * MS, 0, 0, -1, False))
    found = found_of(observer)
    assert found["steps"]["per_second"] == pytest.approx(100)
    assert "51 steps, 100.0 a second once warm" in make_table(found)


def test_uneven_steps_blame_nothing_with_confidence() -> None:
    observer = loop_of(0.1, 3, 60)
    for _ in range(10):
        observer.recorder.steps.append((0, 0, -1, 900 * MS, 0, 0, -1, False))
    text = found_of(observer)["verdict"]["text"]
    assert "unevenly: one step in 20 takes 300 times the median or longer. Measure again" in text
    assert "unevenly" not in found_of(loop_of(0.1, 3, 60))["verdict"]["text"]
    observer.cpu_wait, observer.recorder._mark = 2 * 10**9, 10**10
    found = found_of(observer)
    assert "and the loop's thread was ready without a CPU for 2.00 s" in found["verdict"]["text"]
    assert "the loop's thread was ready, and had no CPU: 20% of the time" in make_table(found)


def test_a_run_without_a_step_is_one_line() -> None:
    text = make_table(found_of(loop_of(1, 1, 0)))
    assert text.startswith("fastloop report: NO VERDICT: no batch was taken") and "\n" not in text


def test_two_reports_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wait in (("a.json", 10), ("b.json", 5)):
        (tmp_path / name).write_text(json.dumps(found_of(loop_of(wait, 10))))
    status = fastloop.__main__.main(["compare", *(str(tmp_path / n) for n in ("a.json", "b.json"))])
    out = capsys.readouterr().out
    assert status == 0 and re.search(r"data wait +10\.0 ms +49% +5\.00 ms +32% +0\.500x", out)
    assert "GPU" not in out and "host to device" not in out
    assert re.search(r"steps a second +48\.8 +64\.5 +1\.32x", out), out


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "got JSONDecodeError"),
        ("[]", "got TypeError"),
        ("{}", "got KeyError('schema')"),
        ('{"schema": "fastloop.report/0"}', "schemas 'fastloop.report/0'"),
        ("\xff", "must be two whole reports of schema 'fastloop.report/1', got UnicodeDecodeError"),
        (None, "No such file"),
    ],
)
def test_what_is_no_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, error: str
) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    assert fastloop.__main__.main(["compare", str(path), str(path)]) == 2
    assert error in capsys.readouterr().err
    assert fastloop.__main__.main(["compare", "a.json"]) == 2


@pytest.mark.parametrize("key", ["steps", "phases", "seconds_of", "verdict"])
@pytest.mark.parametrize("value", [None, [], {}, 1])
def test_a_damaged_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**found_of(loop_of(1, 1)), key: value}))
    assert fastloop.__main__.main(["compare", str(path), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "must be two whole reports" in err
