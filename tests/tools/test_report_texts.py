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
import torch
from torch.utils.data import Subset, TensorDataset

import fastloop.__main__
from fastloop.tools.report import loader_source
from fastloop.tools.report.gpu import GpuWaits
from fastloop.tools.report.loader_source import LoaderSource, find_remedy
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.page import make_page
from fastloop.tools.report.render import make_table, make_trace
from fastloop.tools.report.summary import summarize

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
    observer = LoopObserver(clock=lambda: 0)
    source = loader or observer.lookup_source(FakeLoader())
    observer.sources[:] = [source]
    recorder = observer.recorder
    now = 0
    for _ in range(steps):
        recorder.enter_fetch(now, now)
        now += round(wait * MS)
        recorder.leave_fetch(now, now, source, None, None, "none")
        recorder.enter_update(now := now + round(compute * MS), now, 1)
        recorder.note_step(1)
        recorder.leave_update(now := now + MS // 2, now, 1)
    recorder.enter_fetch(now, now)
    recorder.leave_fetch(now, now, source, None, StopIteration, "none")
    recorder.end(now)
    return observer


def found_of(observer: LoopObserver) -> dict[str, Any]:
    texts = {"fastloop": "1", "torch": "2", "python": "3", "rank": 0, "began": "now"}
    return {**summarize(observer), **texts, "ended_by": None}


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
    observer.recorder.steps.append((0, 0, -1, 10 * MS, 0, 0, -1, True))
    found = found_of(observer)
    assert found["steps"]["steady"] == 40 and found["phases"]["data_wait"]["seconds"] == 0.4


@pytest.mark.parametrize(
    ("wait", "compute", "kind", "text"),
    [
        (30, 9.5, "input-bound", "INPUT-BOUND: the loop waits 75% of each step for data (30.0 ms "
         "of 40.0 ms on average). With data always ready: at most 4.00x as fast. Cause: the loop "
         "loads list of 1,000 itself (num_workers=0). Next: num_workers 0→"),
        (1, 8.5, "partly input-bound", "PARTLY INPUT-BOUND: the loop waits 10% of each step"),
        (0.1, 9.4, "not input-bound", "NOT INPUT-BOUND: the loop waits 1.0% of each step for "
         "data (100 µs of 10.0 ms on average); a faster loader cannot help this run. "
         "Most of it is forward+backward (94%)."),
    ],
)  # fmt: skip
def test_verdicts(wait: float, compute: float, kind: str, text: str) -> None:
    verdict = found_of(loop_of(wait, compute))["verdict"]
    assert verdict["kind"] == kind and verdict["text"].startswith(text)
    assert verdict["basis"] == "host"


def test_two_steps_have_no_verdict() -> None:
    assert "NO VERDICT: there are 2 steps" in found_of(loop_of(1, 1, 2))["verdict"]["text"]


def add_epoch(observer: LoopObserver, waits: list[float], compute: float = 5) -> None:
    """Append an epoch whose steps wait for so many ms, behind its first one."""
    for number, wait in enumerate([0.0, *waits]):
        row = (0, round(wait * MS), -1, round(compute * MS), 0, 0, -1, number == 0)
        observer.recorder.steps.append(row)


def verdict_on(*epochs: list[float]) -> dict[str, Any]:
    observer = loop_of(1, 1, 0)
    observer.sources[0].trains = True
    for waits in epochs:
        add_epoch(observer, waits)
    verdict: dict[str, Any] = found_of(observer)["verdict"]
    return verdict


def test_few_steps_have_a_verdict_that_says_how_sure_it_is() -> None:
    even, uneven = verdict_on([5.0] * 8), verdict_on([0.0] * 7 + [20.0])
    assert even["kind"] == "input-bound" and even["interval"] == pytest.approx([0.5, 0.5])
    assert "8 steps say so: the share of waiting is 50% to 50% (95% sure)" in even["text"]
    low, high = uneven["interval"]
    assert low == 0 and 20 / 60 < high < 0.7 and "(95% sure)" in uneven["text"]
    assert "sure" not in verdict_on([5.0] * 50)["text"]
    assert verdict_on([5.0] * 3)["kind"] == "input-bound"


def test_many_steps_of_which_few_decide_say_how_sure_that_is() -> None:
    verdict = verdict_on(([0.0] * 99 + [200.0]) * 3)
    low, high = verdict["interval"]
    assert low < 0.20 < verdict["share"] < high and "(95% sure)" in verdict["text"]


def test_a_first_epoch_that_fills_a_cache_is_told_apart() -> None:
    verdict = verdict_on([10.0] * 50, [0.15] * 50, [0.15] * 50)
    assert verdict["kind"] == "not input-bound" and verdict["share"] == pytest.approx(0.15 / 5.15)
    assert "cannot help later epochs" in verdict["text"]
    assert "later epochs: the first one waits 67% of each step." in verdict["text"]
    alone = verdict_on([10.0] * 50)
    assert alone["kind"] == "input-bound" and "epoch" not in alone["text"]
    alike = verdict_on([10.0] * 50, [9.9] * 50)
    assert alike["share"] > 0.66 and "epoch" not in alike["text"]


def test_a_first_epoch_that_has_left_the_memory_of_steps_is_not_named() -> None:
    observer = loop_of(1, 1, 0)
    observer.recorder.steps.count, observer.sources[0].trains = 10**6, True
    add_epoch(observer, [10.0] * 9_000)
    add_epoch(observer, [0.1] * 9_000)
    assert "first one" not in found_of(observer)["verdict"]["text"]


def test_long_waits_of_few_steps_are_counted_and_not_said_of_each_step() -> None:
    verdict = verdict_on([0.155] * 180 + [120.0] * 10)
    assert verdict["kind"] == "input-bound" and "each step" not in verdict["text"]
    words = "in rare long waits: 10 of 171 steps wait 120 ms or so, most steps 155 µs"
    assert words in verdict["text"]
    assert "in long waits: 36 of 141 steps" in verdict_on([0.1, 0.1, 0.1, 40.0] * 40)["text"]
    assert "long waits" not in verdict_on([1.0, 2.0] * 40)["text"]


def test_the_epoch_that_has_all_long_waits_is_named() -> None:
    verdict = verdict_on([0.1] * 50, [0.1] * 50, [0.1] * 30 + [90.0] * 20, [0.1] * 50)
    assert "20 of 150 steps in epoch 3 wait 90.0 ms or so" in verdict["text"]


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
    assert found["phases"]["data_wait"] is None
    assert re.search(r"data wait +n/a +n/a +n/a +n/a", make_table(found))


# Counts of workers, what next() found, ns of batches made and of those not waiting, what is said.
COMPUTES, WAITS = [100, 99], [100, 10]
BUSY, IDLE = [(100, 98 * MS, 2 * MS)] * 2, [(100, 10 * MS, 90 * MS)] * 2
UNEVEN = [(50, 98 * MS, 2 * MS), (50, 4 * MS, 96 * MS)]
WORKERS: dict[str, tuple[Any, ...]] = {
    "busy": (BUSY, "none", COMPUTES, r"workers are busy 98%", r"^num_workers 2→3 \(8 CPUs"),
    "busy, not known with what": (BUSY, "none", [0, 0], "busy 98%", r"^num_workers 2→3 \(8 CPUs"),
    "lock": ([(100, 90 * MS, 10 * MS, 80 * MS)] * 2, "none", COMPUTES, "lock 89%", '"process"'),
    "sleep": (BUSY, "none", WAITS, "busy 98%", '^path="thread" with num_workers=3, if .* 90% of'),
    "idle": (IDLE, "none", COMPUTES, "busy 10% only", "^a higher prefetch_factor"),
    "now and then": (IDLE, "others", COMPUTES, "head-of-line blocking", "in_order=False, .*prefet"),
    "one": (UNEVEN, "others", COMPUTES, "worker 0 is busy 98%, all on average 51%", "even cost"),
    "ready": (IDLE, "ready", COMPUTES, "100% of the wait the batch was there", "^fewer and"),
    "torch": ([], "none", [0, 0], "torch's own iterators do not tell", "python -m fastloop run"),
    "torch's order": ([], "others", [0, 0], "100% of the wait other batches", "in_order=False"),
}  # fmt: skip


def verdict_of(
    source: LoaderSource, monkeypatch: pytest.MonkeyPatch, cpus: int = 8, wait: float = 10
) -> Any:
    monkeypatch.setattr("fastloop.tools.report.summary.count_cpus", lambda: cpus)
    return found_of(loop_of(wait, 10, loader=source))["verdict"]


@pytest.mark.parametrize("name", WORKERS)
def test_the_cause_of_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, waited, made, cause, advice = WORKERS[name]
    source = LoaderSource(FakeLoader(2))
    monkeypatch.setattr(source, "count_workers", lambda: tuple(counts))
    source.waits[waited], source.made = 10**12, made
    verdict = verdict_of(source, monkeypatch)
    assert re.search(cause, verdict["cause"]) and re.search(advice, verdict["next"]), verdict


@pytest.mark.parametrize(("workers", "advice"), [(0, "num_workers 0→2 ("), (2, "a cheaper tran")])
def test_what_computes_gets_no_more_workers_than_cpus(
    workers: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LoaderSource(FakeLoader(workers))
    source.made = COMPUTES
    monkeypatch.setattr(source, "count_workers", lambda: ((100, 10_000 * MS, 0),) * workers)
    advised = verdict_of(source, monkeypatch, cpus=2, wait=40)["next"]
    assert advised.startswith(advice) and "2 CPUs allowed" in advised


@pytest.mark.parametrize("workers", [0, 2])
def test_what_fastloop_loads_in_c_is_named_before_workers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = FakeLoader(workers)
    loader.dataset = Images()  # type: ignore[assignment]
    source = LoaderSource(loader)
    monkeypatch.setattr(source, "count_workers", lambda: ((100, 98 * MS, 2 * MS),) * workers)
    assert verdict_of(source, monkeypatch)["next"].startswith("fastloop.ImageFolder(root, cache=")


class Images:
    def __init__(self) -> None:
        self.samples = [("a/1.JPG", 0), ("b/2.jpg", 1)]


class Crop:
    __module__ = "torchvision.transforms.v2._geometry"


class Holds:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        (Images(), "fastloop.ImageFolder"),
        (Subset(Images(), [0]), "fastloop.ImageFolder"),  # type: ignore[arg-type]
        (Holds(files=[Path("a/1.png")]), "fastloop.ImageFolder"),
        (Holds(data=torch.zeros(2), transform=Crop()), "fastloop.transforms"),
        (Holds(datasets=[Holds(transform=Crop())] * 2), "fastloop.transforms"),
        (Holds(names=["a.txt"], rows=[1.0], empty=[], nested=[[]]), ""),
        (TensorDataset(torch.zeros(2)), ""),
        ([1, 2], ""),
        (Images, ""),
        (None, ""),
    ],
)
def test_remedies_by_what_a_dataset_holds(dataset: Any, remedy: str) -> None:
    found = find_remedy(dataset)
    assert found.startswith(remedy) if remedy else found == ""


def test_how_much_of_the_time_workers_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first look at which all have made a batch; one that has ended counts no further."""
    counts, ran = [(0, 5, 0), (1, 5, 0)], [1, 2]
    shared = SimpleNamespace(count_workers=lambda: (tuple(counts), {}))
    iterator = SimpleNamespace(_shared=shared, _workers=[Holds(pid=0), Holds(pid=1)])
    monkeypatch.setattr(loader_source, "runnable_ns", lambda task: ran[int(task)])
    source = LoaderSource(FakeLoader(2))
    source._iterator, source.path = lambda: iterator, "process"
    for counts[:], ran[:] in (
        ([(0, 50, 0), (1, 50, 0)], [900, 900]),
        ([(1, 100, 0), (2, 100, 0)], [1000, 1000]),
        ([(2, 200, 0), (3, 200, 0)], [1010, 1020]),
        ([(3, 300, 0), (4, 300, 0)], [1110, None]),  # type: ignore[list-item]
    ):
        source.look()
    assert source.made == [200, 30]


@pytest.mark.parametrize(
    ("early", "queued", "came", "turn"),
    [
        (0, 1, 1, "ready"),
        (2, 1, 1, "ready"),
        (0, 0, 1, "none"),
        (1, 0, 1, "others"),  # it had come before its turn
        (0, 1, 3, "others"),  # two came before the one whose turn it was
    ],
)
def test_what_was_ready_is_judged_by_the_batch_whose_turn_it_was(
    early: int, queued: int, came: int, turn: str
) -> None:
    source = LoaderSource(FakeLoader(2))
    left = [None] * (early + came - 1)
    iterator = SimpleNamespace(_task_info=left, _tasks_outstanding=0)
    source._iterator = lambda: iterator
    source._early, source._queued = early, queued
    assert source.end_batch(0, False) == turn


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
    made = 0

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.is_graph

    def get_device_properties(self) -> Any:
        return SimpleNamespace(uuid="1")

    def utilization(self) -> int:
        return 40

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        self.made += 1
        return FakeEvent()


class FakeIter:
    pass


def test_the_wait_that_the_gpu_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes late, goes to its own step, and decides the verdict."""
    cuda, clock = FakeCuda(), [0]
    observer = LoopObserver(lambda: clock[0], cuda)
    iterator = FakeIter()
    optimizer = SimpleNamespace()
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
    assert [method.__name__ for method, *_ in observer._log] == ["enter_fetch", "leave_iter"]


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
        # A phone shows them in 20 units, a quarter of them below the line.
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
        ('{"schema": "fastloop.report/0"}', "their schemas are 'fastloop.report/0'"),
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
