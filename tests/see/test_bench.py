"""``python -m fastloop bench``: its statistics, that it compares before it measures, its files."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from xml.etree import ElementTree

import bench_works
import pytest
from helpers import run_script

from fastloop.see import bench
from fastloop.see.bench_cases import CASES, FASTLOOP, TORCH, Case
from fastloop.see.bench_chart import draw_chart
from fastloop.see.bench_stats import Figure, judge, median_of, ratio_of


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
    alike = [judge(ratio_of(noisy(1, seed), noisy(1, seed + 999))) for seed in range(40)]
    assert alike.count("no difference") >= 34
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


def test_close_values_are_the_same() -> None:
    outcome = bench.measure(case_of("close"), [TORCH], 3, 0.0, True)
    assert not outcome.fault
    assert set(outcome.speedups) == {TORCH}
    for result in outcome.results.values():
        assert result.variant == "close" and len(result.rounds["close"]) == 3
        assert result.pss_bytes is not None and result.pss_bytes > 1 << 20


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


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("waits", "compute")])
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
        assert values == pytest.approx(found[TORCH, "0 workers"][1], rel=1e-5)


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
