"""What a user reads where fastloop cannot be built: one line, with the remedy."""

import importlib.metadata
import shutil
import sys
from pathlib import Path

import pytest
from sources import ROOT
from user_environment import NOT_SOURCES, run, run_well

BEGIN = "fastloop is written in C, and `{}` does not compile Python.h ("
END = "on Debian and Ubuntu: apt install gcc python3-dev"


@pytest.mark.slow
def test_pip_shows_one_line_where_no_compiler_is(tmp_path: Path) -> None:
    compiler = "/nowhere/gcc -pthread"
    shutil.copytree(ROOT, tmp_path / "tree", ignore=NOT_SOURCES)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    flags = ("--no-build-isolation", "--no-deps", "--no-index")
    done = run(*pip, "wheel", *flags, ".", cwd=tmp_path / "tree", CC=compiler)
    assert done.returncode == 1
    told = done.stdout + done.stderr
    line = told.partition("[1 lines of output]\n")[2].splitlines()[0].strip()
    assert line.startswith(BEGIN.format(compiler)) and line.endswith(END), told
    assert "No such file or directory: '/nowhere/gcc'" in line


@pytest.mark.parametrize("compiler", ["gcc -nostdinc", "gcc -no-such-option", "false"])
def test_a_compiler_that_does_not_work_or_lacks_headers_is_told(
    compiler: str, tmp_path: Path
) -> None:
    command = (sys.executable, "setup.py", "-q", "build", f"--build-lib={tmp_path}")
    done = run(*command, cwd=ROOT, CC=compiler)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(BEGIN.format(compiler)) and line.endswith(END)
    assert ("error" in line) == (compiler != "false")


def test_metadata_needs_no_compiler() -> None:
    out = run_well(sys.executable, "setup.py", "--version", cwd=ROOT, CC="/nowhere/gcc")
    assert out == f"{importlib.metadata.version('fastloop')}\n"
