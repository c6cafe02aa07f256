"""``python -m fastloop compare SCRIPT``: what is equal, what differs, what cannot be judged, and
what the runs record."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run_script
from time_limits import limit
from torch.utils.data import DataLoader, TensorDataset

from fastloop.cli import compare as compare_command
from fastloop.tools.compare.runs import DIFFERENT, EQUAL, UNKNOWN, find_verdict, make_table
from fastloop.tools.compare.watcher import EnoughSteps, RunObserver

# ---- the verdict, of runs that are made up


def a_run(**changes: Any) -> dict[str, Any]:
    losses = [[step, "float32", str(1.0 / step), f"0{step}"] for step in (1, 2, 3)]
    found: dict[str, Any] = {
        "steps": 3, "is_stopped": True, "step_ms": [9.0, 1.0, 1.0], "steps_per_second": 1000.0,
        "data_wait_s": 1e-3, "first_batch_s": 0.1, "between_epochs_s": None, "total_s": 3.0,
        "cpu_s": 2e-3, "pss_bytes": 500_000_000, "gpu_bytes": None, "losses": losses,
        "parameters": "ab", "patched": "dataloader 1 native", "calls_of_other_threads": 0,
    }  # fmt: skip
    return found | changes


def other_loss() -> list[list[Any]]:
    losses: list[list[Any]] = a_run()["losses"]
    losses[1] = [2, "float32", "0.25", "ff"]
    return losses


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"losses": other_loss()}, "step 3: the loss is 0.5 (02) in the plain run and 0.25 (ff)"),
        (
            {"losses": a_run()["losses"][:2]},
            "step 4: only the plain run has one more backward pass",
        ),
        ({"steps": 2}, "the plain run has 3 steps, and the patched run has 2"),
        (
            {"parameters": "cd"},
            "step 3: the losses are equal, but the parameters afterwards differ",
        ),
    ],
)
def test_a_difference_is_named(change: dict[str, Any], text: str) -> None:
    verdict = find_verdict([a_run()] * 2, [a_run(), a_run(**change)])
    assert verdict.kind == DIFFERENT and text in verdict.text
    verdict = find_verdict([a_run(), a_run(**change)], [a_run()] * 2)
    assert verdict.kind == UNKNOWN and "differs from itself: " in verdict.text
    assert "--seed 0" in verdict.text


def test_what_is_equal_and_what_was_not_seen() -> None:
    assert find_verdict([a_run()] * 2, [a_run()] * 2).kind == EQUAL
    unseen = [a_run(losses=[], parameters=None, steps=0, calls_of_other_threads=7)] * 2
    verdict = find_verdict(unseen, unseen)
    assert verdict.kind == UNKNOWN and "7 calls came from other threads" in verdict.text


def test_the_table_has_medians_intervals_and_what_is_not_known() -> None:
    plain = [a_run(steps_per_second=rate) for rate in (90.0, 100.0, 110.0)]
    patched = [a_run(steps_per_second=rate, cpu_s=None) for rate in (180.0, 200.0, 220.0)]
    rows = {line[:20].strip(): line for line in make_table(plain, patched, 5).splitlines()}
    assert "100.0 (90.0 - 110.0)" in rows["steps a second"]
    assert rows["steps a second"].endswith("2x (2.00x - 2.00x) better")
    assert rows["data wait a step"].endswith("no difference (1.00x - 1.00x)")
    assert not {"GPU memory", "between epochs", "CPU time a step"} & {*rows}  # not measured
    text = "\n".join(rows.values())
    assert "ended by itself after 3 of 5 steps" in text
    assert "EQUAL to the last bit in all 6 runs: 3 losses of 3 steps" in text
    assert text.endswith("SPEED: patched / plain: 2x (2.00x - 2.00x) better")


@pytest.mark.parametrize(
    ("rates", "row"),
    [
        ((50.0, 100.0, 200.0), "cannot tell (0.500x - 2.00x); --rounds 7"),
        ((98.0, 100.0, 102.0), "no difference (0.980x - 1.02x)"),
        ((50.0, 51.0, 52.0), "0.51x (0.500x - 0.520x) worse"),
    ],
)
def test_only_what_is_within_3_percent_is_no_difference(rates: tuple[float, ...], row: str) -> None:
    plain = [a_run(total_s=4.0) for _ in rates]
    patched = [a_run(steps_per_second=rate * 10) for rate in rates]
    table = make_table(plain, patched, 3)
    (found,) = (line for line in table.splitlines() if "steps a second  " in line)
    assert found.endswith(row) and table.splitlines()[-1] == f"SPEED: patched / plain: {row}"
    assert "0.75x (0.750x - 0.750x) better" in table  # start to last step: less is better


# ---- what a run records, in this process


@pytest.fixture
def observe() -> Iterator[Callable[[int], RunObserver]]:
    opened: list[RunObserver] = []

    def open_one(limit: int) -> RunObserver:
        opened.append(RunObserver(limit, 0.0))
        return opened[-1]

    before = torch.autograd.backward
    yield open_one
    for observer in opened:
        observer.finish()
    assert torch.autograd.backward is before


class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], 0.1)
        self.backwards = self.steps = 0

    def backward(self, x: torch.Tensor | float = 1.0) -> None:
        loss = (self.weight - x).square().sum()
        loss.backward()
        loss.detach().zero_()  # the run has a copy
        self.backwards += 1

    def step(self, x: torch.Tensor | float = 1.0) -> None:
        self.optimizer.zero_grad()
        self.backward(x)
        self.optimizer.step()
        self.steps += 1


def loader() -> Any:
    return DataLoader(TensorDataset(torch.ones(8, 1)), 2)


def test_a_loop_ends_after_its_last_step(observe: Callable[[int], RunObserver]) -> None:
    model, observer = Model(), observe(6)
    with pytest.raises(EnoughSteps), suppress(Exception):  # what programs catch
        for _ in range(2):
            for (x,) in loader():
                model.step(x)
    found = observer.to_dict()
    assert model.backwards == model.steps == found["steps"] == 6 and found["is_stopped"]
    assert [loss[0] for loss in found["losses"]] == list(range(6))
    assert found["losses"][0][1:] == ["float32", "2.0", "00000040"]  # 2 samples of (0 - 1)²
    assert len(found["step_ms"]) == 6 and found["steps_per_second"] > 0
    for key in ("data_wait_s", "first_batch_s", "between_epochs_s", "cpu_s", "pss_bytes"):
        assert found[key] > 0, key
    assert len(found["parameters"]) == 64 and json.dumps(found)


def test_a_loop_without_a_loader(observe: Callable[[int], RunObserver]) -> None:
    model, observer = Model(), observe(3)
    with pytest.raises(EnoughSteps):
        for _ in range(100):
            model.step()
    found = observer.to_dict()
    assert model.steps == found["steps"] == 3 and found["data_wait_s"] is None
    assert [loss[0] for loss in found["losses"]] == [0, 1, 2]


def test_micro_batches_are_losses_of_one_step(observe: Callable[[int], RunObserver]) -> None:
    model, observer = Model(), observe(2)
    with pytest.raises(EnoughSteps):
        for _ in range(2):
            for number, (x,) in enumerate(loader()):
                model.backward(x)
                if number % 2:
                    model.optimizer.step()
    assert [loss[0] for loss in observer.to_dict()["losses"]] == [0, 0, 1, 1]


def test_a_short_loop_gives_what_there_was(observe: Callable[[int], RunObserver]) -> None:
    model, observer = Model(), observe(50)
    for (x,) in loader():
        model.step(x)
    parameters = model.weight
    del model
    observer.finish()
    found = observer.to_dict()
    assert found["steps"] == 4 and not found["is_stopped"]
    parameters.data.fill_(float("nan"))
    digests = {observer.to_dict()["parameters"]}
    parameters.data.view(torch.int32).bitwise_xor_(1)  # another NaN
    digests.add(observer.to_dict()["parameters"])
    assert len(digests) == 1 and found["parameters"] not in digests


def test_steps_that_a_scaler_skips_count(observe: Callable[[int], RunObserver]) -> None:
    model, observer = Model(), observe(2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with pytest.raises(EnoughSteps):
        for _ in range(100):
            for (x,) in loader():
                model.optimizer.zero_grad()
                scaler.scale((model.weight * x * float("inf")).sum()).backward()
                scaler.step(model.optimizer)
                scaler.update()
    found = observer.to_dict()
    assert found["steps"] == 2 and found["cpu_s"] > 0


# ---- programs

PROGRAM = Path(__file__).parent.parent / "programs" / "compare_loop.py"


def compare(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(PROGRAM, folder / "train.py")
    return subprocess.run(
        [sys.executable, "-m", "fastloop", "compare", "--rounds", "2", "--steps", "3", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit(600),
    )


@pytest.mark.slow
@pytest.mark.slowest
def test_a_program_that_computes_the_same(tmp_path: Path) -> None:
    """It has no seed of its own."""
    options = ["--seed", "1", "--json", "found.json", "-m", "train"]
    done = compare(tmp_path, *options, "no seed", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL to the last bit in all 4 runs: 2 losses of 2 steps, and" in done.stdout
    assert "ended by itself after 2 of 3 steps" in done.stdout
    assert "  patched: dataloader 1 native" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["schema"] == compare_command.SCHEMA and found["verdict"]["kind"] == EQUAL
    assert found["costs"]["steps_per_second"]["patched"]["median"] > 0
    assert [len(of) for of in found["runs"].values()] == [2, 2]


@pytest.mark.slow
@pytest.mark.slowest
def test_a_program_that_does_not(tmp_path: Path) -> None:
    done = compare(tmp_path, "train.py", "other bits")
    text = "DIFFERENT: step 2: the loss is "
    assert done.returncode == 1 and text in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "text"),
    [
        ("raise", 2, "the plain program fails\n"),
        ("raise patched", 1, "the patched program fails, but the plain program does not\n"),
        ("status", 2, "the program ended with status 3"),
    ],
)
@pytest.mark.slowest
def test_a_program_that_fails(tmp_path: Path, what: str, status: int, text: str) -> None:
    done = compare(tmp_path, "train.py", what, "--steps", "2" if what == "status" else "100")
    assert done.returncode == status and text in done.stderr, done.stderr
    is_raised = what.startswith("raise")
    assert done.stderr.count("Traceback") == is_raised, done.stderr
    assert done.stderr.count("LookupError: wrong\n") == is_raised


# A program that has a try around everything, and threads and forks of its own.
RUN = """
import atexit, os, torch
if os.fork() == 0:
    raise SystemExit
os.wait()
atexit.register(print, "exit handlers run")
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
try:
    for _ in range(100):
        weight.sum().backward()
        optimizer.step()
finally:
    print("so do finally blocks")
"""


@pytest.mark.slowest
def test_a_program_is_ended_as_by_sys_exit(tmp_path: Path) -> None:
    settings = {"record": str(tmp_path / "record.json"), "steps": 4, "seed": None}
    env = compare_command._make_environment(settings, "")
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit(300))
    assert done.stdout == "so do finally blocks\nexit handlers run\n", done.stderr
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads((tmp_path / "record.json").read_text())["steps"] == 4


# ---- the command itself


@pytest.mark.slow
def test_a_program_that_needs_no_torch_is_no_failure(tmp_path: Path) -> None:
    done = compare(tmp_path, "-m", "this")
    assert done.returncode == 3 and "fails" not in done.stderr, done.stderr
    assert done.stdout == (
        "NOT JUDGED: the program must import torch and must not end by os._exit()\n"
    )


@pytest.mark.slowest
@pytest.mark.slow
def test_a_program_that_ends_without_a_record_is_not_judged(tmp_path: Path) -> None:
    done = compare(tmp_path, "train.py", "os._exit", "--steps", "100")
    assert done.returncode == 3 and "NOT JUDGED: " in done.stdout, done.stderr


IMPORTED = """
import sys
import fastloop.cli.compare
print([name for name in ("torch", "numpy") if name in sys.modules])
"""


def test_the_command_takes_no_memory_from_what_it_measures(tmp_path: Path) -> None:
    assert run_script(tmp_path, IMPORTED, is_fresh=True) == "[]\n"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], "there is nothing to run"),
        (["--steps", "1", "x.py"], "--steps must be 2 to 10,000, got 1"),
        (["--rounds", "1", "x.py"], "--rounds must be 2 to 100, got 1"),
        (["--seed", "-1", "x.py"], "--seed must be 0 to 4,294,967,295, got -1"),
        (
            ["--only", "loader", "x.py"],
            "clip_grad_norm,transforms,texts, got 'loader'",
        ),
        (["--json", "no/a.json", "x.py"], "there is no folder"),
    ],
)
def test_arguments_that_are_refused(
    args: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare_command.main(args)
    assert ended.value.code == 2 and error in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("FASTLOOP", "0"), ("WORLD_SIZE", "2")])
def test_where_nothing_can_be_compared(
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        compare_command.main(["x.py"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "FASTLOOP must not be 0" in error if name == "FASTLOOP" else "without torchrun" in error
