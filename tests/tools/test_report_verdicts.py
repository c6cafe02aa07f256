"""What a report judges: shares, verdicts, their causes and the advice, on loops of given times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run_script
from report_loops import MS, FakeLoader, add_epoch, found_of, loop_of
from time_limits import limit
from torch.utils.data import Subset, TensorDataset

from fastloop import SharedList
from fastloop.tools.report import loader_source, summary
from fastloop.tools.report.loader_source import LoaderSource, find_long_list, find_remedy
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.render import make_table
from fastloop.tools.report.summary import PARTLY


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
         "Most of a step is forward+backward (94%)."),
    ],
)  # fmt: skip
def test_verdicts(wait: float, compute: float, kind: str, text: str) -> None:
    verdict = found_of(loop_of(wait, compute))["verdict"]
    assert verdict["kind"] == kind and verdict["text"].startswith(text)
    assert verdict["basis"] == "host"


def test_two_steps_have_no_verdict() -> None:
    assert "NO VERDICT: a verdict needs 3 steps" in found_of(loop_of(1, 1, 2))["verdict"]["text"]


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
    assert "After 8 steps the share of waiting is 50% to 50% (95% sure)" in even["text"]
    low, high = uneven["interval"]
    assert low == 0 and 20 / 60 < high < 1 and "(95% sure)" in uneven["text"]
    assert "sure" not in verdict_on([5.0] * 50)["text"]
    assert verdict_on([5.0] * 3)["kind"] == "input-bound"


def test_one_long_wait_may_have_been_chance() -> None:
    low, high = verdict_on([0.03] * 13 + [292.0])["interval"]
    assert low < PARTLY and high > 0.8


def test_many_steps_of_which_few_decide_say_how_sure_that_is() -> None:
    verdict = verdict_on(([0.0] * 99 + [200.0]) * 3)
    low, high = verdict["interval"]
    assert low < 0.20 < verdict["share"] < high and "(95% sure)" in verdict["text"]


def test_a_first_epoch_that_fills_a_cache_is_told_apart() -> None:
    verdict = verdict_on([10.0] * 50, [0.15] * 50, [0.15] * 50)
    assert verdict["kind"] == "not input-bound" and verdict["share"] == pytest.approx(0.15 / 5.15)
    assert "cannot help later epochs" in verdict["text"]
    assert "later epochs: the first epoch waits 67% of each step." in verdict["text"]
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
    words = "in rare long waits: 10 of 171 steps wait about 120 ms, most steps 155 µs"
    assert words in verdict["text"]
    assert "in long waits: 36 of 141 steps" in verdict_on([0.1, 0.1, 0.1, 40.0] * 40)["text"]
    assert "long waits" not in verdict_on([1.0, 2.0] * 40)["text"]


def test_the_epoch_that_has_all_long_waits_is_named() -> None:
    verdict = verdict_on([0.1] * 50, [0.1] * 50, [0.1] * 30 + [90.0] * 20, [0.1] * 50)
    assert "20 of 150 steps in epoch 3 wait about 90.0 ms" in verdict["text"]


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
COMPUTES, WAITS, DELAYED = [100, 99, 0], [100, 10, 0], [10**13, 10**13, 2 * 10**12]
BUSY, IDLE = [(100, 98 * MS, 2 * MS)] * 2, [(100, 10 * MS, 90 * MS)] * 2
UNEVEN = [(50, 98 * MS, 2 * MS), (50, 4 * MS, 96 * MS)]
WORKERS: dict[str, tuple[Any, ...]] = {
    "busy": (BUSY, "none", COMPUTES, r"workers are busy 98%", r"^num_workers 2→3 \(8 CPUs"),
    "busy with something": (BUSY, "none", [0, 0, 0], "busy 98%", r"^num_workers 2→3 \(8 CPUs"),
    "lock": ([(100, 90 * MS, 10 * MS, 80 * MS)] * 2, "none", COMPUTES, "lock 89%", '"process"'),
    "sleep": (BUSY, "none", WAITS, "busy 98%", '^num_workers=3 and path="thread", if .* 90% of'),
    "idle": (IDLE, "none", COMPUTES, "busy only 10%", "^a higher prefetch_factor"),
    "without CPUs": (BUSY, "none", DELAYED, "workers are ready to run, and other", "fewer workers"),
    "now and then": (IDLE, "others", COMPUTES, "head-of-line blocking", "in_order=False, .*prefet"),
    "one": (UNEVEN, "others", COMPUTES, "worker 0 is busy 98%, all workers .* 51%", "even cost"),
    "ready": (IDLE, "ready", COMPUTES, "100% of the wait the batch was there", "^larger b"),
    "torch": ([], "none", [0, 0, 0], "torch's own iterators do not tell", "python -m fastloop run"),
    "torch's order": ([], "others", [0, 0, 0], "100% of the wait other batches", "in_order=False"),
}  # fmt: skip


def verdict_of(
    source: LoaderSource, monkeypatch: pytest.MonkeyPatch, cpus: int = 8, wait: float = 10
) -> Any:
    monkeypatch.setattr("fastloop.tools.report.summary.usable_cpus", lambda: cpus)
    return found_of(loop_of(wait, 10, loader=source))["verdict"]


@pytest.mark.parametrize("name", WORKERS)
def test_the_cause_of_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, waited, made, cause, advice = WORKERS[name]
    source = LoaderSource(FakeLoader(2))
    monkeypatch.setattr(source, "count_workers", lambda: tuple(counts))
    source.waits[waited], source.made = 10**12, made
    verdict = verdict_of(source, monkeypatch)
    assert re.search(cause, verdict["cause"]) and re.search(advice, verdict["next"]), verdict


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_without_a_cpu_is_not_told_that_its_loader_is_slow(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was ready to run for 8 of 10 ms that a batch took."""
    source = LoaderSource(FakeLoader(workers))
    source.waits["ready"], source.watched = 10**9, [10**9, 8 * 10**8]
    verdict = verdict_of(source, monkeypatch)
    assert verdict["cause"].startswith("in 80% of the wait the loop was ready to run, and other")
    more = "workers" if workers else "threads"
    assert verdict["next"] == f"an idle machine, or fewer {more} (8 CPUs allowed)"


def test_batches_that_lie_ready_are_slow_to_take_over_only_if_most_are() -> None:
    def judge(waits: list[float]) -> Any:
        observer = loop_of(1, 1, 0, source := LoaderSource(FakeLoader(2)))
        source.trains, source.waits["ready"], source.path = True, 10**9, "process"
        add_epoch(observer, waits, 1)
        return found_of(observer)["verdict"]

    assert judge([0.5] * 100)["next"] == "larger batches, or fewer tensors in a batch"
    verdict = judge([0.05] * 90 + [50.0] * 10)
    assert "taking over is slow" not in verdict["cause"] and "idle machine" in verdict["next"]
    assert "most likely the loop waited for a CPU, or for a lock" in verdict["cause"]


@pytest.mark.parametrize(("workers", "advice"), [(2, "num_workers=3: "), (32, "num_workers 32→")])
def test_loaders_with_threads_are_not_told_to_use_threads(
    workers: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LoaderSource(FakeLoader(workers))
    source.path, source.made = "thread", WAITS
    monkeypatch.setattr(source, "count_workers", lambda: ((100, 98 * MS, 2 * MS),) * workers)
    advised = verdict_of(source, monkeypatch, cpus=64)["next"]
    assert advised.startswith(advice) and "path=" not in advised


def test_arrays_are_not_told_to_become_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LoaderSource(FakeLoader(0))
    source.path = "array"
    assert "ArrayDataset" in verdict_of(LoaderSource(FakeLoader(0)), monkeypatch, cpus=0)["next"]
    assert "ArrayDataset" not in verdict_of(source, monkeypatch, cpus=0)["next"]


def seam_of(**values: Any) -> Any:
    return SimpleNamespace(**{"is_on": True, "native": 0, "fallbacks": {}} | values)


@pytest.mark.parametrize(
    ("transforms", "is_advised"),
    [
        (seam_of(native=5885), False),
        (seam_of(), False),  # worker processes may have counted
        (seam_of(fallbacks={"ColorJitter": 3}), True),
        (seam_of(is_on=False), True),
    ],
)
def test_advice_names_no_transforms_that_run_in_c_already(
    transforms: Any, is_advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = SimpleNamespace(seams={"transforms": transforms})
    monkeypatch.setattr("fastloop.patching.patch.patch_status", lambda: status)
    loader = FakeLoader()
    loader.dataset = Holds(transform=Crop())  # type: ignore[assignment]
    advised = verdict_of(LoaderSource(loader), monkeypatch)["next"]
    assert advised.startswith("fastloop.transforms") == is_advised, advised


def test_advice_names_no_patch_that_is_on_already(monkeypatch: pytest.MonkeyPatch) -> None:
    status = SimpleNamespace(seams={"dataloader": seam_of(fallbacks={"a sampler of its own": 1})})
    monkeypatch.setattr("fastloop.patching.patch.patch_status", lambda: status)
    source = LoaderSource(FakeLoader(2))
    source.path, source.waits["none"] = "torch", 10**9
    advised = verdict_of(source, monkeypatch)["next"]
    assert advised == "a fastloop.DataLoader (patch() leaves to torch: a sampler of its own)"


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


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (Holds(few=[1] * 49_999, rows=[1] * 50_000), "rows (50,000 objects)"),
        (Subset(Holds(rows={i: i for i in range(60_000)}), range(9)), "rows (60,000 objects)"),  # type: ignore[arg-type]
        ([1] * 50_000, "the dataset (50,000 objects)"),
        (Holds(text="x" * 50_000, few=[1]), ""),
        (TensorDataset(torch.zeros(50_000)), ""),
        (None, ""),
    ],
)
def test_long_lists_are_found(dataset: Any, name: str) -> None:
    assert find_long_list(dataset) == name


def test_a_shared_list_is_not_copied() -> None:
    assert find_long_list(Holds(rows=SharedList(range(50_000)))) == ""


def test_workers_that_copy_a_long_list_are_told_how_to_share_it(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import torch
import fastloop
from fastloop.tools.report import loader_source, observer
from fastloop.tools.report.render import list_facts

observer._LOOK_NS, loader_source._MUCH_GROWTH = 0, 8 << 20  # the loop is short


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        return [sum(int(self.rows[i]["label"]) for i in indices)]


def find_hint(rows):
    loader = fastloop.DataLoader(Rows(rows), 1000, True, num_workers=2)
    with fastloop.report(verbose=False) as report:
        for _ in loader:
            pass
    hint = report.to_dict()["loaders"][0]["memory_hint"]
    assert hint is None or hint in list_facts(report.to_dict())[0]
    return hint


rows = [{"path": f"{i}.jpg", "label": str(i + 1000)} for i in range(200_000)]
hint = find_hint(rows)
assert hint is not None and hint.startswith("a worker grew by "), hint
assert " MiB: most likely each worker copies rows (200,000 objects) page by page; " in hint, hint
assert hint.endswith("; keep it as a fastloop.SharedList"), hint
assert find_hint(fastloop.SharedList(rows)) is None
""",
    )


def test_the_memory_of_one_worker_is_read_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mib, looks, workers = 1 << 20, 0, [Holds(pid=-7), Holds(pid=-8)]
    read: list[tuple[int, int]] = []

    def read_bytes(pid: int) -> int | None:
        read.append((looks, pid))
        return 100 * mib + looks * mib if looks < 60 else None

    monkeypatch.setattr(loader_source, "anonymous_bytes", read_bytes)
    source = LoaderSource(Holds(dataset=[1] * 50_000, num_workers=2))
    counts = ((1, 5, 0), (0, 5, 0))
    shared = Holds(count_workers=lambda: (counts, {}), count=Counter)
    iterator: Any = Holds(_shared=shared, _workers=workers)
    source.use(iterator)
    source.path = "process"
    for looks in range(1, 100):
        source.look()
        assert source.grown == (looks >= 4) * 3 * mib + (looks >= 16) * 12 * mib
    assert read == [(1, -7), (4, -7), (16, -7), (64, -7)]
    assert source.explain_growth() is None  # 15 MiB
    source.grown = 32 * mib
    assert "a worker grew by 32.0 MiB" in str(source.explain_growth())
    counts = ((0, 5, 0), (1, 5, 0))  # the first worker has made no batch, ...
    source.look()
    counts = ((1, 5, 0), (1, 5, 0))
    del workers[1]  # ... or is alone
    source.look()
    assert len(read) == 4


def test_how_much_of_the_time_workers_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first look at which all have made a batch; one that has ended counts no further."""
    counts, ran = [(0, 5, 0), (1, 5, 0)], [1, 2]
    shared = SimpleNamespace(count_workers=lambda: (tuple(counts), {}))
    iterator = SimpleNamespace(_shared=shared, _workers=[Holds(pid=0), Holds(pid=1)])
    monkeypatch.setattr(
        loader_source,
        "scheduled_ns",
        lambda task: (ran[int(task)] - 5, 5) if ran[int(task)] else None,
    )
    source = LoaderSource(FakeLoader(2))
    source._iterator, source.path = lambda: iterator, "process"
    for counts[:], ran[:] in (
        ([(0, 50, 0), (1, 50, 0)], [900, 900]),
        ([(1, 100, 0), (2, 100, 0)], [1000, 1000]),
        ([(2, 200, 0), (3, 200, 0)], [1010, 1020]),
        ([(3, 300, 0), (4, 300, 0)], [1110, None]),  # type: ignore[list-item]
    ):
        source.look()
    assert source.made == [200, 30, 0]


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
    source._early, source.queued = early, queued
    assert source.end_batch(0, False) == turn


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1001])
def test_quantiles_are_those_of_numpy_without_its_import(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**9, count)
    found = summary._find_quantiles(values, 0.025, 0.5, 0.95, 0.975)
    assert found == pytest.approx(np.quantile(values, (0.025, 0.5, 0.95, 0.975)).tolist())


def test_a_verdict_imports_nothing() -> None:
    """Modules that a verdict imports would be read amid the training."""
    code = (
        "import sys, report_loops as loops\n"
        "loop = loops.loop_of(10, 10)\n"
        "before = set(sys.modules)\n"
        "print(loops.found_of(loop)['verdict']['kind'], sorted(set(sys.modules) - before))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit(120))
    assert done.stdout == "input-bound []\n", done.stderr
