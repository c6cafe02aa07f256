"""`make gpu` on a machine without a GPU: its stages over stand-ins for Python and for
compute-sanitizer, and the fixture without which its tests could pass on torch's path."""

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from time_limits import limit
from workers import is_running, read, wait_until

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests/gpu"
BENCH = ROOT / "benchmarks/bench_resident.py"
STAGES = "build slices resident draws graph fetch device_transforms devices soak passes".split()
STAGES += "examples sanitizer correctness uploads transforms tokens bench bench_resident".split()

# Answers as Python with torch on a GPU would; FAKE_* say what goes wrong.
PYTHON = """#!/bin/sh
echo "$FASTLOOP_CUDA_ARCHS $PYTHONPATH: $@ ($TEST_HANGS_S)" >> "$FAKE_LOG"
case "$*" in
*is_available*) test -z "$FAKE_NO_GPU" || FAKE_DEVICES=0
    echo '{"device": "Fake", "devices": '${FAKE_DEVICES:-1}', "arch": "90", "torch": "2.11"}' ;;
*"pip install"*) test -z "$FAKE_NO_BUILD" || exit 1 ;;
*test_passes*) echo "==== ${FAKE_PASSES:-7 passed, 1 skipped} in 3 s ====" ;;
*pytest*) echo "==== 5 passed in 2 s ====" ;;
*soak.py*) test -z "$FAKE_HANG" || { sleep 600 & echo $! > "$FAKE_LOG.hangs"; sleep 600; }
    echo "9 loops, none wrong" ;;
*) echo said ;;
esac
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Lane:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.hangs = folder / "log.hangs"  # the process that hangs
        self.python = program(folder / "python", PYTHON)
        self.results = folder / "results/gpu.jsonl"

    def start(self, *stages: str, **variables: str) -> subprocess.Popen[str]:
        ours = ("FASTLOOP", "GPU_", "PYTHONPATH", "AGAIN")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        env = {
            **kept,
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "CUDA_HOME": "/nowhere",
            "GPU_PYTHON": str(self.python),
            "GPU_PLACE": str(self.folder / "place"),
            "GPU_RESULTS": str(self.results),
            "FAKE_LOG": str(self.log),
            **variables,
        }
        command = [sys.executable, str(GPU / "run.py"), *stages]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    def run(self, *stages: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*stages, **variables) as run:
            out, err = run.communicate(timeout=limit(300))
        return subprocess.CompletedProcess(run.args, run.returncode, out, err)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def statuses(self) -> dict[str, str]:
        return {line["stage"]: line["status"] for line in self.lines() if "stage" in line}


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_run", GPU / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


TOOL = """#!/bin/sh
echo "tool $*" >> "$FAKE_LOG"
case "$FAKE_FAULT" in "$2") exit 1 ;; esac
while [ "${1#--}" != "$1" ]; do shift 2; done
exec "$@"
"""


def test_all_stages_run_and_leave_a_line_each(lane: Lane) -> None:
    program(lane.folder / "bin/compute-sanitizer", TOOL)
    for name in ("psutil-7-abi3.whl", "pytest-9-any.whl"):
        program(lane.folder / "wheels" / name, "")
    done = lane.run(GPU_WHEELS=str(lane.folder / "wheels"), FASTLOOP_COMMIT="abc1234")
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = {"devices": "skipped"}
    assert lane.statuses() == dict.fromkeys(STAGES, "passed") | skipped
    assert lane.lines()[0]["device"] == "Fake" and lane.lines()[0]["commit"] == "abc1234"
    table = [row.split()[:2] for row in done.stdout.splitlines()]
    for line in lane.lines()[1:]:
        assert line["seconds"] >= 0 and line["why"]
        assert [line["stage"], line["status"]] in table
    log = lane.log.read_text()
    wheels = f"{lane.folder}/wheels/psutil-7-abi3.whl {lane.folder}/wheels/pytest-9-any.whl"
    # What pytest needs in turn may be in the Python already.
    assert f"--no-index --target {lane.folder}/place/site --no-deps {wheels}" in log
    assert f"90 {lane.folder}/place/site: -m pip install" in log  # for this device alone
    assert "--no-deps --no-build-isolation" in log
    assert all(line.endswith("(120)") for line in log.splitlines() if "-m pytest" in line)
    runs = [line for line in log.splitlines() if line.startswith("tool ")]
    assert len(runs) == 4 and all("kernels.py" in run for run in runs)
    rows = "".join(re.findall(r"bench_resident.py --rows (\S+)", log)).replace(",", "")
    assert sorted(rows) == re.findall(r"^([a-z])  ", BENCH.read_text(), re.M)
    # torch asks the driver what it answers with errors; kernels.py raises what fails of ours.
    assert ["--report-api-errors no" in run for run in runs] == [True, False, False, False]
    assert (lane.folder / "place/graph.json").exists()


def test_what_has_never_run_on_a_device_runs_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, old = runner(), ["slices", "graph"]
    monkeypatch.setattr(run, "KEPT", tmp_path)
    lines = [json.dumps({"stage": stage, "status": "passed"}) for stage in old]
    (tmp_path / "b1.jsonl").write_text("\n".join(lines))
    beside = [stage for stage in STAGES[1:-2] if stage not in old]
    assert run.in_order() == [["build"], [*beside, *old], ["bench"], ["bench_resident"]]


@pytest.mark.slowest
def test_what_has_passed_at_a_commit_does_not_run_again(lane: Lane) -> None:
    def ran(**more: str) -> set[str]:
        lane.results.unlink(missing_ok=True)
        (lane.folder / "place/site").mkdir(parents=True, exist_ok=True)
        lane.run(**{"FASTLOOP_COMMIT": "abc1234", "FAKE_DEVICES": "2", **more})
        return set(lane.statuses()) if lane.results.exists() else set()

    skipped = {"sanitizer"}  # is asked for again: the tool may be there by now
    assert ran(FAKE_PASSES="6 skipped") == {*STAGES}
    assert ran() == {"passes"} | skipped
    assert ran() == skipped
    assert ran(AGAIN="1") == {*STAGES}
    assert ran(FASTLOOP_COMMIT="abc1235") == {*STAGES}
    lane.results.unlink()
    assert not (lane.folder / "place/site").exists()
    lane.run(FASTLOOP_COMMIT="abc1235", FAKE_DEVICES="2")
    assert set(lane.statuses()) == {"build"} | skipped
    assert ran(FASTLOOP_COMMIT="abc1235-dirty") == {*STAGES}
    assert ran(FASTLOOP_COMMIT="abc1235-dirty") == {*STAGES}


def test_a_tool_that_fails_holds_up_no_other(lane: Lane) -> None:
    program(lane.folder / "bin/compute-sanitizer", TOOL)
    done = lane.run("sanitizer", FAKE_FAULT="racecheck")
    why = "racecheck: compute-sanitizer ended with status 1; passed: memcheck, initcheck, synccheck"
    assert done.returncode == 1 and why in done.stdout
    assert lane.statuses() == {"sanitizer": "failed"}


def test_a_tool_that_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner()
    for name in ("PLACE", "NOWHERE"):
        monkeypatch.setattr(run, name, tmp_path)
    commands = {"memcheck": ["sleep", "600"], "racecheck": ["true"]}
    with pytest.raises(run.FailedError, match="memcheck: took more than 1 s; passed: racecheck"):
        run.Stage("sanitizer").run_each(commands, 1)


@pytest.mark.slowest
def test_all_stages_end_by_the_limit_of_all(lane: Lane) -> None:
    lane.run(FASTLOOP_COMMIT="abc1233")
    lane.results.unlink()  # what was at another commit counts no more
    done = lane.run(FAKE_HANG="1", GPU_TOTAL_S="15", FASTLOOP_COMMIT="abc1234")
    assert done.returncode == 1 and lane.statuses()["soak"] == "failed"
    assert re.search(r"^bench +failed .* no time left: run this again", done.stdout, re.M)
    assert "bench" not in lane.statuses()
    done = lane.run(FASTLOOP_COMMIT="abc1234", FAKE_DEVICES="2")
    assert lane.statuses() == dict.fromkeys(STAGES, "passed") | {"sanitizer": "skipped"}


def test_the_parts_that_never_ran_are_told_and_written_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner()
    monkeypatch.setattr(run, "KEPT", tmp_path)
    lines = [{"time": "2026-01-02T03:04:05"}, *({"stage": s, "status": "passed"} for s in STAGES)]
    lines += [{"time": "2026-02-02T03:04:05"}, {"stage": "graph", "status": "failed"}]
    (tmp_path / "b1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    head = "| part | stage | passed on |\n"
    (tmp_path / "README.md").write_text(f"before\n\n{head}|---|---|---|\n| old |\n\nafter\n")
    assert run.main(["--never-run"]) == 0
    assert capsys.readouterr().out.split() == ["graph", "`graph_step()`"]
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n\n{head}") and text.endswith("|\n\nafter\n")
    assert "| `graph_step()` | `graph` | not yet on hardware |" in text
    assert "| tokens that travel narrow | `tokens` | B1 2026-01-02 |" in text and "old" not in text


def test_a_folder_without_wheels_is_an_error(lane: Lane) -> None:
    done = lane.run("build", GPU_WHEELS="/nowhere")
    assert done.returncode == 1 and "GPU_WHEELS=/nowhere holds no wheel" in done.stdout


def test_a_stage_can_run_alone(lane: Lane) -> None:
    done = lane.run("passes")
    assert done.returncode == 0 and lane.statuses() == {"passes": "passed"}
    assert "7 passed, 1 skipped" in done.stdout
    done = lane.run("sanitizer", "devices", FAKE_DEVICES="2")
    assert lane.statuses() == {"passes": "passed", "sanitizer": "skipped", "devices": "passed"}
    assert "there is no compute-sanitizer" in done.stdout


def test_a_failure_ends_no_other_stage_but_the_builds(lane: Lane) -> None:
    done = lane.run(FAKE_PASSES="6 skipped")
    assert done.returncode == 1
    assert lane.statuses()["passes"] == "failed" and lane.statuses()["soak"] == "passed"
    assert "no test has passed" in done.stdout
    lane.results.unlink()
    for fault in ("FAKE_NO_BUILD", "FAKE_NO_GPU"):
        assert lane.run(**{fault: "1"}).returncode == 1
        assert lane.statuses() == {"build": "failed"}


@pytest.mark.slowest
def test_a_stage_ends_at_its_limit_with_all_that_it_started(lane: Lane) -> None:
    done = lane.run("soak", FAKE_HANG="1", GPU_STAGE_S="5")
    assert done.returncode == 1 and "took more than 5 s" in done.stdout
    assert_ended(lane.hangs.read_text())


@pytest.mark.parametrize("stages", [["soak"], []])
def test_whoever_ends_the_run_ends_all_that_it_started(lane: Lane, stages: list[str]) -> None:
    run = lane.start(*stages, FAKE_HANG="1", GPU_JOBS="20")
    wait_until(lambda: read(lane.hangs).strip().isdigit())
    run.terminate()
    assert run.wait(limit(300)) == 128 + signal.SIGTERM
    assert_ended(lane.hangs.read_text())


def assert_ended(pid: str) -> None:
    wait_until(lambda: not is_running(int(pid)))


@pytest.mark.parametrize("stage", ["", "passes"])
def test_make_asks_for_a_stage_and_installs_nothing(stage: str) -> None:
    command = ["make", "-n", "--no-print-directory", "gpu", "GPU_PYTHON=python3", f"STAGE={stage}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit(300))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "GPU_PYTHON='python3'",
        "AGAIN=''",
        "python3",
        "tests/gpu/run.py",
        *stage.split(),
    ]


def test_an_unknown_stage_is_an_error(lane: Lane) -> None:
    done = lane.run("everything")
    assert done.returncode == 2 and "there is no stage 'everything'; they are build," in done.stderr


@pytest.mark.parametrize("path", sorted(GPU.glob("*.py")), ids=lambda path: path.name)
def test_files_are_of_python_3_10_and_later(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))


@pytest.mark.slowest
def test_tests_can_be_collected() -> None:
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ROOT, GPU]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=limit(300)
    )
    assert done.returncode == 0, done.stdout
    assert all(f"{name}::" in done.stdout for name in ("test_passes.py", "test_steps.py"))


def gpu_conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gpu_tests_refuse_a_build_that_leaves_all_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = gpu_conftest()
    info = {"cuda": "", "cuda_reason": "there is no nvcc"}
    monkeypatch.setattr(module.fastloop, "build_info", lambda: info)
    with pytest.raises(AssertionError, match="built without CUDA: there is no nvcc"):
        module.assert_ours_runs()


def test_gpu_tests_refuse_passes_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    module, full = gpu_conftest(), torch.full
    monkeypatch.setattr(module.fastloop, "build_info", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(module._core, "check_cuda", lambda index: None)
    # To the engine, what is no plain tensor of a device that it can use.
    monkeypatch.setattr(module.torch, "full", lambda *args, **kwargs: full(*args).to_sparse())
    with pytest.raises(AssertionError, match="torch runs the passes"):
        module.assert_ours_runs()


def test_gpu_tests_begin_where_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the fixture asks, of the CPU."""
    module = gpu_conftest()
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module.fastloop, "build_info", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(module._core, "check_cuda", lambda index: None)
    make, paths = module.fast_iterator, []

    def make_on_device(loader: Any, path: str, *more: Any) -> Any:
        paths.append(path)
        make(loader, path, *more)
        return SimpleNamespace(is_on_device=True)

    monkeypatch.setattr(module, "fast_iterator", make_on_device)
    module.assert_ours_runs()
    assert paths == ["array", "process"]
