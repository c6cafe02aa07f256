"""The Python blocks of README and docs that are whole programs run."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from sources import ROOT
from time_limits import limit

BLOCKS = ROOT / "tests/programs/page_blocks.py"
# One rank, for programs that torchrun starts.
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
RANK["MASTER_PORT"] = "0"  # any that is free


def run_pages(pages: list[Path], folder: Path) -> None:
    for package in ("PIL", "accelerate", "lightning"):
        if find_spec(package) is None:
            pytest.skip(f"there is no {package}")
    environment = {**os.environ, **RANK, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, BLOCKS, *pages],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"^(\d+) programs ran$", done.stdout, re.MULTILINE)
    assert len(counts) == len(pages) and "0" not in counts


@pytest.mark.slow
def test_the_programs_of_readme_run(tmp_path: Path) -> None:
    run_pages([ROOT / "README.md"], tmp_path)


@pytest.mark.slowest
def test_the_programs_of_the_pages_run(tmp_path: Path) -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    has_program = re.compile(r"^```python\n(import|from) ", re.MULTILINE)
    run_pages([page for page in pages if has_program.search(page.read_text())], tmp_path)
