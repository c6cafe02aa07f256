"""``python -m fastloop bench`` compares before it measures, and prints one table a case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fastloop.cli import bench as bench_command
from fastloop.tools import bench
from fastloop.tools.bench import CASES, FASTLOOP, TORCH, Case, Contestant


def contestants_of(values: dict[str, float]) -> list[Contestant]:
    def run_of(value: float) -> bench.Run:
        def run() -> Iterator[list[torch.Tensor]]:
            yield [torch.tensor([1.0])]
            yield [torch.tensor([value])]

        return run

    return [Contestant(side, "x", run_of(value)) for side, value in values.items()]


@pytest.mark.parametrize("name", CASES)
def test_contestants_give_the_same(name: str) -> None:
    contestants = CASES[name].make()
    assert {one.side for one in contestants} == {TORCH, FASTLOOP}
    assert bench.find_difference(contestants, CASES[name].tolerance) == ""


@pytest.mark.parametrize(("value", "is_equal"), [(2.0, True), (2.000001, True), (2.1, False)])
def test_nothing_is_measured_where_results_differ(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    is_equal: bool,
) -> None:
    case = Case("a test", lambda: contestants_of({TORCH: 2.0, FASTLOOP: value}), 1e-5)
    monkeypatch.setattr(bench, "CASES", {"mine": case})
    assert bench_command.main(["--quick"]) == int(not is_equal)
    out = capsys.readouterr().out
    assert out.startswith("mine: a test\n")
    assert ("results differ, so nothing is measured. fastloop, x: " in out) == (not is_equal)
    assert ("as torch (" in out or "no clear difference (" in out) == is_equal


def test_fewer_results_are_a_difference() -> None:
    one, other = contestants_of({TORCH: 2.0, FASTLOOP: 2.0})
    short = Contestant(FASTLOOP, "x", lambda: iter([next(other.run())]))
    assert bench.find_difference([one, short], 1.0)


@pytest.mark.parametrize(
    ("rounds", "line"),
    [
        (
            [[4.0, 9.0, 2.0, 8.0], [6.0, 9.0, 2.0, 8.0]],
            "2.50x as fast as torch (2.00x to 3.00x",
        ),
        ([[4.0, 9.0, 5.0, 8.0], [6.0, 9.0, 5.0, 8.0]], "no clear difference (0.800x to 1.20x"),
    ],
)
def test_the_best_settings_are_compared_in_the_same_round(
    rounds: list[list[float]], line: str
) -> None:
    sides = [TORCH, TORCH, FASTLOOP, FASTLOOP]
    contestants = [Contestant(side, str(i), lambda: iter(())) for i, side in enumerate(sides)]
    lines = bench.describe(contestants, rounds)
    assert lines[0].split() == ["torch,", "0", "5.00", "s"]
    assert lines[-1].startswith(f"  fastloop: {line} in 2 rounds")


def test_contestants_take_turns() -> None:
    turns: list[str] = []

    def run_of(name: str) -> bench.Run:
        def run() -> Iterator[int]:
            turns.append(name)
            yield from range(3)

        return run

    times = bench.measure([Contestant(TORCH, name, run_of(name)) for name in "ab"], 2, 0.0)
    assert turns == ["a", "b", "a", "b"] and [len(row) for row in times] == [2, 2]


def test_a_case_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench_command.main(["--case", "speed"])
    assert end.value.code == 2 and "invalid choice: 'speed'" in capsys.readouterr().err
