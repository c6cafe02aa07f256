"""clip_grad_norm_, GradScaler and patch() over DTensors: two and four processes over gloo.
tests/support/shard_cases.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks

CASES = "norms others empty missing scaler flags apart patch fsdp disagree"


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    outputs = run_ranks(tmp_path, "shard_cases.py", *CASES.split(), ranks=ranks)
    for case in CASES.split():
        assert all(f"{case} fine" in output for output in outputs)
