"""README's advice for accelerate, in one process and in two:
tests/support/accelerate_ranks.py holds what they run."""

from pathlib import Path

import pytest
from helpers import run_ranks


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_advice_for_accelerate_holds(ranks: int, tmp_path: Path) -> None:
    for output in run_ranks(tmp_path, "accelerate_ranks.py", str(ranks), ranks=ranks):
        assert "case_advice fine\ncase_prepared fine\ncase_left_out fine" in output
