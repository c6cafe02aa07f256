"""`make gpu` on a machine without a GPU: its stages over stand-ins for Python and for
compute-sanitizer, and the fixture without which its tests could pass on torch's path."""

import ast
import importlib.util
import json
import os
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
STAGES = "build correctness graph passes uploads transforms device_transforms tokens".split()
STAGES += "resident fetch slices examples devices sanitizer soak bench".split()

# Answers as Python with torch on a GPU would; FAKE_* say what goes wrong.
PYTHON = """#!/bin/sh
echo "$FASTLOOP_CUDA_ARCHS $PYTHONPATH: $@ ($TEST_HANGS_S)" >> "$FAKE_LOG"
case "$*" in
*is_available*) test -z "$FAKE_NO_GPU" || FAKE_DEVICES=0
    echo '{"device": "Fake", "devices": '${FAKE_DEVICES:-1}', "arch": "90", "torch": "2.11"}' ;;
*"pip install"*) test -z "$FAKE_NO_BUILD" || exit 1 ;;
*test_passes*) echo "==== ${FAKE_PASSES:-7 passed, 1 skipped} in 3 s ====" ;;
*pytest*) echo "==== 5 passed in 2 s ====" ;;
*soak.py*) test -z "$FAKE_HANG" || { sleep 600 & echo $! > "$FAKE_LOG"; sleep 600; }
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
        self.python = program(folder / "python", PYTHON)
        self.results = folder / "results/gpu.jsonl"

    def start(self, *stages: str, **variables: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FASTLOOP", "GPU_"))}
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


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def test_all_stages_run_in_turn_and_leave_a_line_each(lane: Lane) -> None:
    tool = '#!/bin/sh\necho "tool $*" >> "$FAKE_LOG"\n'
    tool += 'while [ "${1#--}" != "$1" ]; do shift 2; done\nexec "$@"\n'
    program(lane.folder / "bin/compute-sanitizer", tool)
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
    # torch asks the driver what it answers with errors; kernels.py raises what fails of ours.
    assert ["--report-api-errors no" in run for run in runs] == [True, False, False, False]


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
    assert_ended(lane.log.read_text())


def test_whoever_ends_the_run_ends_all_that_it_started(lane: Lane) -> None:
    run = lane.start("soak", FAKE_HANG="1")
    wait_until(lambda: read(lane.log).strip().isdigit())
    run.terminate()
    assert run.wait(limit(300)) == 128 + signal.SIGTERM
    assert_ended(lane.log.read_text())


def assert_ended(pid: str) -> None:
    wait_until(lambda: not is_running(int(pid)))


@pytest.mark.parametrize("stage", ["", "passes"])
def test_make_asks_for_a_stage_and_installs_nothing(stage: str) -> None:
    command = ["make", "-n", "--no-print-directory", "gpu", "GPU_PYTHON=python3", f"STAGE={stage}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit(300))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "GPU_PYTHON='python3'",
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
