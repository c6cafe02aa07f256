"""python -m fastloop run --report: scripts that nobody edits, however they end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import limit

PROGRAM = Path(__file__).parent.parent / "programs" / "report_loop.py"


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(PROGRAM, folder / "script.py")
    return subprocess.run(
        [sys.executable, "-m", "fastloop", "run", *args],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )


@pytest.mark.slowest
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "steps", "ended_by"),
    [("", 0, 4, None), ("exit", 3, 3, None), ("raise", 1, 3, "LookupError")],
)
def test_a_script_that_ends_in_any_way_is_reported(
    tmp_path: Path, what: str, status: int, steps: int, ended_by: str | None
) -> None:
    done = run(tmp_path, "--report", "script.py", what)
    assert done.returncode == status and "fastloop report: " in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == (what == "raise")
    if what == "raise":  # behind the report
        assert "\nLookupError: wrong\nfastloop: end of run" in done.stderr, done.stderr
        assert done.stderr.index("cost of measuring") < done.stderr.index("Traceback")
    found = json.loads((tmp_path / "fastloop-report.json").read_text())
    assert found["steps"]["count"] == steps and found["ended_by"] == ended_by
    assert found["loaders"][0]["path"] == "array"
    assert (tmp_path / "fastloop-report.html").exists()


@pytest.mark.slowest
@pytest.mark.slow
def test_a_script_as_it_is(tmp_path: Path) -> None:
    done = run(tmp_path, "--report=as-it-is.json", "script.py", "", FASTLOOP="0")
    found = json.loads((tmp_path / "as-it-is.json").read_text())
    assert found["loaders"][0]["path"] == "torch" and found["steps"]["count"] == 4, done.stderr


LAUNCHER = """
import subprocess, sys
subprocess.check_call([sys.executable, "-c", "import torch"])
subprocess.check_call([sys.executable, "script.py", ""])
"""


@pytest.mark.slowest
@pytest.mark.slow
def test_a_launched_program_reports_in_place_of_its_launcher(tmp_path: Path) -> None:
    """A launcher may import torch or not; what it launches without a step says nothing."""
    for start in ("", "import torch"):
        (tmp_path / "launch.py").write_text(start + LAUNCHER)
        done = run(tmp_path, "--report=run.json", "launch.py")
        assert done.stderr.count("fastloop report: ") == 1, done.stderr
        assert "NO VERDICT: no batch" not in done.stderr
        found = json.loads((tmp_path / "run.json").read_text())
        assert found["steps"]["count"] == 4 and found["command"] == "script.py ''"
        (tmp_path / "run.json").unlink()
    done = run(tmp_path, "--report=run.json", "--no-children", "launch.py")
    assert "fastloop report: NO VERDICT" in done.stderr and not (tmp_path / "run.json").exists()


@pytest.mark.slowest
@pytest.mark.slow
def test_ranks_of_torchrun_report_each(tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run(tmp_path, "--report=run.html", *launch, "script.py", "")
    assert done.stderr.count("fastloop report: ") == 1, done.stderr
    for name, rank in (("run", 0), ("run.rank1", 1)):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert (found["rank"], found["steps"]["count"]) == (rank, 4)
        assert (tmp_path / f"{name}.html").exists()


def test_what_cannot_be_reported_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--report", "script.py", "without torch")
    assert done.returncode == 0 and "has not imported torch" in done.stderr
    done = run(tmp_path, "--report=no/run.html", "script.py", "")
    assert done.returncode == 2 and "there is no folder" in done.stderr
