"""The examples, small: they end by themselves, both trainings agree, and the loss falls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

pytestmark = pytest.mark.slow


def losses(folder: Path, name: str, *args: str) -> list[list[float]]:
    """The rows of the table that show losses."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *args],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("loss of ")]
    return [[float(number) for number in row[4:]] for row in rows]


def test_the_small_transformer_learns_from_a_token_file(tmp_path: Path) -> None:
    rows = losses(tmp_path, "charlm.py", "--steps", "8", "--accumulate", "1")
    for first, last in zip(rows[0], rows[-1], strict=True):
        assert last < 0.8 * first


def test_texts_are_classified(tmp_path: Path) -> None:
    rows = losses(tmp_path, "textclass.py", "--epochs", "2")
    assert rows[0][0] == rows[0][1]  # torch and fastloop
    for first, last in zip(rows[0], rows[-1], strict=True):
        assert last < 0.95 * first
