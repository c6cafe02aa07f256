"""What `make` does again, and what it says: on a tree of empty files with stamps of `make demo`,
whose .venv has tools that only say what they are called for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from time_limits import limit

ROOT = Path(__file__).parents[2]
TOOL = '#!/bin/sh\necho "$(basename $0) $*"\n'
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    stamps, tools = tmp_path / ".venv/stamps", tmp_path / ".venv/bin"
    for folder in (stamps, tools, tmp_path / "csrc", tmp_path / "fastloop", tmp_path / "tests/c"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "requirements-dev.txt", tmp_path)
    for name in ("setup.py", "setup_cuda.py", "pyproject.toml", "MANIFEST.in"):
        (tmp_path / name).touch()
    for name in ("python", "pytest"):
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    (stamps / "venv").touch()
    assert "compiling" in make("demo", tree=tmp_path)
    return tmp_path


def make(*arguments: str, tree: Path) -> str:
    command = ["make", "TORCH=torch==9", *arguments]
    # Another make may run this test, and hand on what it was called with.
    names = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTEST_ARGS", "JOBS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit(300)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_newer(name: str, tree: Path) -> None:
    os.utime(tree / name, (4_000_000_000, 4_000_000_000))


def test_tests_after_the_demo_compile_nothing_again(tree: Path) -> None:
    told = make("pytest", tree=tree)
    assert "installing requirements-dev.txt" in told and "compiling" not in told
    assert told.splitlines()[-1].startswith("pytest ")
    told = make("pytest", tree=tree)
    assert "installing" not in told and "compiling" not in told


@pytest.mark.parametrize("newer", ["requirements-dev.txt", "setup.py", "csrc"])
def test_a_newer_source_or_requirement_is_compiled(newer: str, tree: Path) -> None:
    make_newer(newer, tree)
    assert "compiling" in make("pytest", tree=tree)


def test_another_torch_is_compiled_for(tree: Path) -> None:
    assert "compiling" in make("pytest", "TORCH=torch==8", tree=tree)


def test_a_run_of_all_tests_says_how_long_the_last_one_took(tree: Path) -> None:
    only, times = ("test", "LANE_TESTS=", "PYTHON=true"), tree / "build/times/test"
    told = make(*only, tree=tree).splitlines()
    assert told[0].startswith("make test: the Python tests, then the C tests; how long they take")
    at = told.index("make test: the C tests")
    assert any(line.startswith("pytest ") for line in told[:at])
    assert told[-1] == "make test: passed in about 0 minutes"
    times.write_text("about 9 minutes the last time\n")
    told = make(*only, "PYTEST_ARGS=-k ring", tree=tree).splitlines()
    assert told[0].endswith("; about 9 minutes the last time")
    assert times.read_text() == "about 9 minutes the last time\n"  # that of all tests
    make(*only, tree=tree)
    assert times.read_text() == "about 0 minutes the last time\n"
