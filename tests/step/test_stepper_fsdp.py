"""Stepper under FSDP2: two and four processes over gloo.
tests/support/fsdp_cases.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks

# Four ranks are those of two axes, and of shards that some ranks have alone. They are slow.
OF_FOUR = "exact rounded flush one_shard"
CASES = {2: f"{OF_FOUR} buffers gone weight_zero skip disagree collectives", 4: OF_FOUR}


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", CASES)
def test_ranks(ranks: int, tmp_path: Path) -> None:
    cases = CASES[ranks].split()
    outputs = run_ranks(tmp_path, "fsdp_cases.py", *cases, ranks=ranks)
    for case in cases:
        assert all(f"{case} fine" in output for output in outputs)
