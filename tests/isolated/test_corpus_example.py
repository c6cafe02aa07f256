"""The example of a corpus: three sources of different kinds, mixed, packed, and dealt by cost. Four
ranks are killed, three go on, and every token of the epoch was trained on once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT
from time_limits import limit

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.mark.slow
@pytest.mark.slowest
def test_four_ranks_are_killed_and_three_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def train(ranks: int) -> subprocess.CompletedProcess[str]:
        launcher = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
        command = [sys.executable, *launcher, ROOT / "examples/corpus.py", tmp_path]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=limit(300)
        )

    monkeypatch.setenv("STOP_AFTER", "7")
    done = train(4)
    assert done.returncode != 0 and "step 7: " in done.stdout, done.stdout + done.stderr
    monkeypatch.delenv("STOP_AFTER")
    done = train(3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 7: " not in done.stdout and "step 8: " in done.stdout
    assert done.stdout.endswith("tokens, each once: True\n")
