"""The Python blocks of README and docs that are whole programs run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT
from time_limits import limit

BLOCKS = ROOT / "tests/programs/page_blocks.py"
# One rank, for programs that torchrun starts.
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
RANK["MASTER_PORT"] = "0"  # any that is free


def pages_with_programs() -> list[Any]:
    """README alone is among what `make test` runs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=pytest.mark.slow if page.name == "README.md" else pytest.mark.slowest,
        )
        for page in pages
        if any(f"```python\n{word} " in page.read_text() for word in ("import", "from"))
    ]


@pytest.mark.parametrize("page", pages_with_programs())
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for package in ("PIL", "accelerate", "lightning"):
        pytest.importorskip(package)
    environment = {**os.environ, **RANK, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, BLOCKS, page],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > 0
