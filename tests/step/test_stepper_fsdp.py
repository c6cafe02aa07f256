"""Stepper under FSDP2: two and four processes over gloo.
tests/support/fsdp_cases.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks

CASES = "exact rounded buffers flush gone weight_zero skip one_shard disagree collectives"


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    outputs = run_ranks(tmp_path, "fsdp_cases.py", *CASES.split(), ranks=ranks)
    for case in CASES.split():
        assert all(f"{case} fine" in output for output in outputs)
