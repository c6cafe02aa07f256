"""``python -m fastloop compare --baseline=FILE``: slower, not slower, not to be told. The file, and
the step for CI in docs/use/measuring.md."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from time_limits import limit

from fastloop.cli import compare as compare_command
from fastloop.tools.compare import gate

RUN = {"steps": 50, "fastloop": "1", "torch": "2", "steps_per_second": 100.0}


def a_baseline(seed: int, slower: float = 1.0, noise: float = 0.01, busy: float = 1.0) -> Any:
    """Seven rounds of a program on a machine that is `busy` times as slow."""
    draw = random.Random(seed)
    rounds = [
        (slower * busy * (1 + noise * draw.gauss(0, 1)), busy * (1 + noise * draw.gauss(0, 1)))
        for _ in range(7)
    ]
    return gate.describe(["train.py"], RUN, rounds)


def statuses(**today: float) -> list[int]:
    pairs = ((a_baseline(seed), a_baseline(seed + 500, **today)) for seed in range(50))
    return [gate.judge(*pair, most=0.03).status for pair in pairs]


def test_a_slower_program_is_found_and_an_equal_one_is_not() -> None:
    assert statuses(slower=1.1) == [1] * 50
    assert 1 not in statuses() and statuses().count(0) >= 40
    assert statuses(slower=0.5) == [0] * 50


def test_a_busier_machine_is_not_a_slower_program() -> None:
    assert statuses(busy=3.0) == statuses()


def test_noise_above_the_bound_cannot_tell() -> None:
    found = statuses(noise=0.2)
    assert found.count(2) >= 40 and found.count(1) <= 2
    text = gate.judge(a_baseline(1, noise=0.2), a_baseline(2, noise=0.2), 0.03).text
    assert text.startswith("CANNOT TELL: a step takes") and text.endswith("use more --rounds")


@pytest.mark.parametrize("key", ["machine", "python", "torch", "program", "steps"])
def test_a_baseline_of_something_else_cannot_tell(key: str) -> None:
    today = a_baseline(1)
    found = gate.judge(today | {key: "other"}, today, 0.03)
    assert found.status == 2 and f"{key}: 'other', today " in found.text


# ---- the command, whose runs are made up


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setattr(gate, "measure_yardstick", lambda: 1e-3)
    monkeypatch.chdir(tmp_path)

    def run(rate: float | None, *args: str, failure: str = "") -> tuple[int, str]:
        made = ({**RUN, "steps_per_second": rate}, failure)
        monkeypatch.setattr(compare_command, "_run", lambda given, what: made)
        status = compare_command.main(["--baseline", "speed.json", *args, "train.py"])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_the_first_time_writes_the_baseline(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    status, said = command(100.0)
    assert status == 0 and "speed.json is the baseline from now on" in said
    kept = (tmp_path / "speed.json").read_text()
    assert json.loads(kept)["rounds"] == [[0.01, 1e-3]] * 7
    status, said = command(90.0)
    assert status == 1 and "SLOWER: a step takes 1.11x (1.11x - 1.11x) of the baseline's" in said
    assert command(90.0, "--max-slower=12%")[0] == 0
    assert command(99.0, "--json", "today.json")[0] == 0
    assert json.loads((tmp_path / "today.json").read_text())["schema"] == gate.SCHEMA
    assert (tmp_path / "speed.json").read_text() == kept


def test_what_cannot_be_measured(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, said = command(100.0, failure="ValueError: x")
    assert status == 2 and said.endswith("fastloop compare: the patched program fails\n")
    status, said = command(None)
    assert status == 2 and said.endswith("CANNOT TELL: the program has too few steps\n")
    assert not (tmp_path / "speed.json").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "fastloop.compare/1"}', '{"schema": 1, "rounds": [[1]]}'],
)
def test_a_file_that_is_no_baseline_is_kept(
    text: str, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / "speed.json").write_text(text)
    status, said = command(100.0)
    assert status == 2 and "--baseline speed.json: " in said and "name another file" in said
    assert (tmp_path / "speed.json").read_text() == text


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--max-slower=3"], "--max-slower must be a percentage such as 3%, got '3'"),
        (["--max-slower=-3%"], "must be a percentage"),
        (["--rounds=4"], "--rounds must be 5 to 100, got 4"),
        (["--baseline=no/speed.json"], "--baseline no/speed.json: there is no folder"),
    ],
)
def test_arguments_that_are_refused(
    args: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare_command.main(["--baseline=speed.json", *args, "train.py"])
    assert ended.value.code == 2 and error in capsys.readouterr().err


LOOP = """
import torch
from torch.utils.data import DataLoader
layer = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for x in DataLoader(torch.randn(64, 8), batch_size=8):
    layer(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.slowest
def test_the_step_for_ci_runs_as_written(tmp_path: Path) -> None:
    """Its first run writes the baseline. With a baseline of a faster program the step fails."""
    page = Path(__file__).parents[2] / "docs/use/measuring.md"
    found = re.search(r"```yaml\n(- uses: .*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    cache, run = yaml.safe_load(found[1])
    assert cache["uses"].startswith("actions/cache@") and cache["with"]["path"] == "speed.json"
    (tmp_path / "train.py").write_text(LOOP)
    fastloop = tmp_path / "fastloop"
    fastloop.write_text(f'#!/bin/sh\nexec {sys.executable} -m fastloop "$@" </dev/null\n')
    fastloop.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def step() -> int:
        shell = ["bash", "-e", "-c", run["run"]]
        return subprocess.run(shell, cwd=tmp_path, env=env, timeout=limit(600)).returncode

    assert step() == 0
    baseline = json.loads((tmp_path / "speed.json").read_text())
    baseline["rounds"] = [[a / 1e6, b] for a, b in baseline["rounds"]]
    (tmp_path / "speed.json").write_text(json.dumps(baseline))
    assert step() == 1
