"""Stepper under DDP and FSDP: two processes over gloo, started as torchrun does.
tests/support/rank_cases.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks

# Cases of one line share their processes: starting these takes longer than the cases do.
CASES = [
    "exact unsized counts resume flush weight_zero unused buffers_follow skip complex fsdp",
    "cost_batches unequal left static_graph flush_against_boundary dies",
]


@pytest.mark.slowest
@pytest.mark.parametrize("cases", CASES)
def test_ranks(cases: str, tmp_path: Path) -> None:
    outputs = run_ranks(tmp_path, "rank_cases.py", *cases.split())
    for case in cases.split():
        assert case == "dies" or all(f"{case} fine" in output for output in outputs)
