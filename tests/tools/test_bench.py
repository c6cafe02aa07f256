"""``python -m fastloop bench``: its statistics, that it compares before it measures, its files."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bench_works
import pytest
import torch
from helpers import run_script

from fastloop.tools.bench import bench
from fastloop.tools.bench.budget import Budget
from fastloop.tools.bench.cases import CASES, FASTLOOP, TORCH, Case, make_h2d
from fastloop.tools.bench.chart import draw_chart
from fastloop.tools.bench.process import Contestant, Round
from fastloop.tools.bench.stats import Figure, judge, median_of, ratio_of


@pytest.fixture(autouse=True, scope="module")
def no_server_is_left() -> Iterator[None]:
    """The processes from which contestants are forked: other tests look for children."""
    yield
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def noisy(around: float, seed: int, spread: float = 0.05) -> list[float]:
    draw = random.Random(seed)
    return [around * (1 + spread * draw.uniform(-1, 1)) for _ in range(9)]


def test_the_interval_holds_the_median_of_what_was_drawn() -> None:
    held = sum(median_of(noisy(7.0, seed)).has(7.0) for seed in range(100))
    assert held >= 90
    figure = median_of([3.0] * 9)
    assert (figure.median, figure.low, figure.high) == (3.0, 3.0, 3.0)


def test_a_ratio_is_of_pairs() -> None:
    """A machine that slows down slows both."""
    ours = [1.0, 2.0, 4.0, 8.0, 16.0, 1.5, 3.0, 6.0, 12.0]
    figure = ratio_of([3 * of for of in ours], ours)
    assert (figure.median, figure.low, figure.high) == pytest.approx((3, 3, 3))


def test_what_is_alike_is_no_difference() -> None:
    for spread, verdict in ((0.01, "no difference"), (0.05, "cannot tell")):
        pairs = ((noisy(1, seed, spread), noisy(1, seed + 999, spread)) for seed in range(40))
        assert [judge(ratio_of(*pair)) for pair in pairs].count(verdict) >= 34
    assert judge(ratio_of(noisy(2, 1), noisy(1, 2))).endswith("x")
    assert judge(ratio_of(noisy(1, 1), noisy(2, 2))).startswith("0.")


def case_of(variant: str) -> Case:
    return Case("mine", "a test", {TORCH: [variant], FASTLOOP: [variant]}, bench_works.Work)


@pytest.mark.parametrize(
    "variant, fault",
    [
        ("other bytes", "differ in what they give"),
        ("far", "differ by more than 1e-05"),
        ("dies", "its process ended with code 3"),
        ("raises", "torch raises: RuntimeError: out of rows"),
        ("raises when made", "ValueError: no such data"),
    ],
)
def test_no_figure_without_the_same_results(variant: str, fault: str) -> None:
    outcome = bench.measure(case_of(variant), [TORCH], 2, 0.0, True)
    assert fault in outcome.fault
    assert not outcome.speedups and not outcome.results
    assert outcome.fault in bench.describe(outcome)


def test_workers_start_as_in_any_program() -> None:
    contestant = Contestant(bench_works.Work, TORCH, "start method", True)
    try:
        context: Any = multiprocessing.get_context()
        assert contestant.call("check")[0] == context.get_start_method()
    finally:
        contestant.close()


def test_close_values_are_the_same() -> None:
    outcome = bench.measure(case_of("close"), [TORCH], 3, 0.0, True)
    assert not outcome.fault
    assert set(outcome.speedups) == {TORCH}
    for result in outcome.results.values():
        assert result.variant == "close" and len(result.rounds["close"]) == 3
        assert result.pss_bytes is not None and result.pss_bytes > 1 << 20


# ---- the time of a quick run


class FakeContestants:
    """In the place of processes: calls take a fake clock's time.

    Args:
        cost: seconds of a check, of a warm-up, and of a turn at least.
    """

    def __init__(self, cost: float) -> None:
        self.now = 100.0
        self.cost = cost
        self.turns: list[float] = []  # how long each was to be
        self.closed = 0

    def __call__(self, *arguments: Any) -> FakeContestants:
        return self

    def call(self, name: str, *arguments: Any) -> Any:
        if name != "turn":
            self.now += self.cost
            return "", []
        (seconds,) = arguments
        self.now += max(self.cost, seconds)
        self.turns.append(seconds)
        return Round(1.0, None, None)

    def close(self) -> None:
        self.closed += 1

    def clock(self) -> float:
        return self.now


def measure_all(
    monkeypatch: pytest.MonkeyPatch, costs: list[float], seconds: float, turn: float = 0.5
) -> tuple[FakeContestants, list[bench.Outcome]]:
    """Cases of two variants each and up to five rounds."""
    fake = FakeContestants(0.0)
    monkeypatch.setattr(bench, "Contestant", fake)
    budget = Budget(seconds, len(costs), fake.clock)
    outcomes = []
    for cost in costs:
        fake.cost = cost
        outcomes.append(bench.measure(case_of("x"), [TORCH], 5, turn, True, budget))
    return fake, outcomes


def rounds_of(outcome: bench.Outcome) -> list[int]:
    return [len(rounds) for of in outcome.results.values() for rounds in of.rounds.values()]


def test_what_a_case_leaves_is_divided_among_those_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 s for two cases: 10 turns of 0.5 s, then as many in the other 15 s at most."""
    fake, outcomes = measure_all(monkeypatch, [0.0, 1.0], 20.0)
    assert [rounds_of(outcome) for outcome in outcomes] == [[5, 5], [5, 5]]
    assert fake.turns[:10] == [0.5] * 10 and fake.now - 100 == pytest.approx(5 + 2 + 2 + 10)


def test_turns_are_as_long_as_the_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, outcomes = measure_all(monkeypatch, [0.0] * 4, 8.0)
    assert all(rounds_of(outcome) == [5, 5] for outcome in outcomes)
    assert fake.turns[:10] == pytest.approx([0.16] * 10)  # of four fifths of its 2 s
    assert fake.turns == sorted(fake.turns) and fake.now - 100 <= 8.0


def test_there_are_fewer_rounds_where_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, (outcome,) = measure_all(monkeypatch, [1.0], 12.5)
    assert rounds_of(outcome) == [4, 4] and fake.now - 100 == 12.0


@pytest.mark.parametrize(("seconds", "took"), [(9.5, 6.0), (0.5, 1.0), (0.0, 0.0)])
def test_a_case_without_time_for_three_rounds_is_left_out(
    monkeypatch: pytest.MonkeyPatch, seconds: float, took: float
) -> None:
    """Two checks, two warm-ups, and a round which tells how long two more would take."""
    fake, (outcome,) = measure_all(monkeypatch, [1.0], seconds)
    assert not outcome.fault and not outcome.results and fake.closed == 2
    assert "no time was left" in outcome.left_out and fake.now - 100 == took
    assert "left out: no time was left for it" in bench.describe(outcome)


def test_a_case_that_takes_too_long_takes_from_those_after_it_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, outcomes = measure_all(monkeypatch, [8.0, 0.1, 0.1], 15.0)
    assert "no time" in outcomes[0].left_out  # after one check, of its 5 s
    assert [rounds_of(outcome) for outcome in outcomes[1:]] == [[5, 5], [5, 5]]
    assert fake.now - 100 <= 15.001


def test_without_a_limit_all_rounds_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeContestants(1e6)
    monkeypatch.setattr(bench, "Contestant", fake)
    outcome = bench.measure(case_of("x"), [TORCH], 9, 0.5, False)
    assert rounds_of(outcome) == [9, 9] and fake.turns == [0.5] * 18


# ---- a case that needs a GPU


def test_a_case_that_needs_a_gpu_is_left_out_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["--quick", "--case", "h2d", "--out", str(tmp_path)]) == 0
    assert "  left out: needs a GPU" in capsys.readouterr().out
    (case,) = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert case["left_out"] == "needs a GPU" and case["fault"] == "" and not case["speedups"]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_uploads_give_the_same() -> None:
    """To the CPU, which may stand for a GPU."""
    found = {make_h2d(who, "0 workers", True, "cpu").check()[0] for who in (TORCH, FASTLOOP)}
    assert len(found) == 1
    assert make_h2d(FASTLOOP, "0 workers", True, "cpu").run() == 8


def test_the_chart_stands_alone() -> None:
    same, faster = Figure(1.0, 0.9, 1.1), Figure(20.0, 15.0, 30.0)
    text = draw_chart([("<a>", same, "no difference"), ("b", faster, "20x")])
    root = ElementTree.fromstring(text)
    bars = [bar for bar in root.iter() if bar.tag.endswith("rect")]
    assert [bar.get("class") for bar in bars] == ["same", "bar"]
    assert float(str(bars[1].get("width"))) > 10 * float(str(bars[0].get("width")))
    assert re.findall(r"(?:https?:)?//[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert ElementTree.fromstring(draw_chart([])) is not None


def test_a_case_from_end_to_end(tmp_path: Path) -> None:
    out = run_script(
        tmp_path,
        """
import sys
from fastloop.__main__ import main
if __name__ == "__main__":
    assert main(["bench", "--quick", "--case", "clip", "--case", "clip", "--out", sys.argv[1]]) == 0
""",
        tmp_path / "new" / "out",
        timeout=300,
    )
    assert out.count("clip:") == 1 and "fastloop over torch:" in out
    found = json.loads((tmp_path / "new" / "out" / "bench.json").read_text())
    assert found["schema"] == bench.SCHEMA
    (case,) = found["cases"]
    assert case["case"] == "clip" and set(case["contestants"]) == {TORCH, FASTLOOP}
    assert case["speedups"]["torch"]["low"] <= case["speedups"]["torch"]["median"]
    ElementTree.fromstring((tmp_path / "new" / "out" / "bench.svg").read_text())


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("waits", "compute", "h2d")]
)
def test_contestants_give_the_same(name: str) -> None:
    case = CASES[name]
    found = {
        (who, variant): case.make(who, variant, True).check()
        for who, variants in case.variants.items()
        for variant in [variants[0]]
    }
    digests = {digest for digest, _ in found.values()}
    assert len(digests) == 1, found
    for _, values in found.values():
        assert values == pytest.approx(found[TORCH, case.variants[TORCH][0]][1], rel=1e-5)


@pytest.mark.parametrize(
    "args, text",
    [
        (["--case", "speed"], "invalid choice: 'speed'"),
        (["--vs", "dali"], "--vs takes torch and spdl, not 'dali'"),
    ],
)
def test_wrong_arguments(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(args)
    assert end.value.code == 2 and text in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert bench.main(["--out", str(tmp_path / "file" / "out")]) == 2
    assert "--out" in capsys.readouterr().err
