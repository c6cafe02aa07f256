"""python -m fastloop, and the console script: which command runs, and what is said if none does."""

import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import limit

import fastloop
from fastloop.cli.commands import COMMANDS, main


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "  " in line]
    assert [name for name in COMMANDS if name not in listed] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([name, "--help"])
    except SystemExit as end:  # argparse's
        status = end.code
    assert status == 0
    assert f"fastloop {name}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fastloop {fastloop.__version__}\n"


@pytest.mark.parametrize(("typo", "meant"), [("docter", "doctor"), ("rn", "run")])
def test_a_typo_gets_the_nearest_command(
    typo: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typo]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"fastloop: unknown command {typo!r}; did you mean {meant}?"


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        ("run --reprot x.py", "--report"),
        ("run --reprot=a.html x.py", "--report"),
        ("run --no-childern x.py", "--no-children"),
        ("doctor --prob --jsn", "--json"),
        ("bench --qick", "--quick"),
        ("compare --rouns=2 x.py", "--rounds"),
    ],
)
def test_a_typo_gets_the_nearest_option(
    args: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(args.split())
    except SystemExit as end:  # argparse's
        status = end.code
    assert status == 2
    assert f"; did you mean {meant}?" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("args", ["run --fast x.py", "doctor --xyz", "bench x"])
def test_what_resembles_no_option_gets_no_hint(
    args: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(args.split())
    except SystemExit as end:
        status = end.code
    assert status == 2 and "did you mean" not in capsys.readouterr().err


def test_the_console_script_runs_a_program(tmp_path: Path) -> None:
    """As pip writes it: a file that calls main()."""
    script = tmp_path / "fastloop"
    script.write_text("import sys\nfrom fastloop.__main__ import main\nsys.exit(main())\n")
    code = "import sys; print(sys.argv, sys.flags.optimize); sys.exit(5)"
    command = [sys.executable, "-O", script, "run", "-c", code, "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(120))
    assert (done.returncode, done.stdout) == (5, "['-c', 'x'] 1\n"), done.stderr
