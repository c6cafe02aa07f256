"""fastloop over the fake of the CUDA runtime (tests/cuda/build_core.py), for tests of a module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import limit

BUILD = Path(__file__).parents[1] / "cuda/build_core.py"


def build_core(factory: pytest.TempPathFactory, half: str) -> Path:
    """Return the folder of a new package. All workers of a run share what they compile."""
    run = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    folder = factory.mktemp("core")
    command = [sys.executable, BUILD, folder, half, run / "objects_of_cores"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(560))
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return folder
