"""Loader, scaler and Stepper together under DDP and FSDP2, over gloo, started as torchrun does.
tests/support/loop_ranks.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks

pytestmark = pytest.mark.slow


# Cases share their processes: starting these takes longer than the cases do.
@pytest.mark.slowest
def test_two_ranks_train_as_one_process_with_the_whole_batch(tmp_path: Path) -> None:
    cases = ("exact", "by_hand", "even", "resume")
    for output in run_ranks(tmp_path, "loop_ranks.py", *cases):
        assert all(f"{case} fine" in output for case in cases), output


@pytest.mark.slowest
def test_a_training_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    for number, ranks in enumerate((2, 3, 1)):
        case = f"stage_{number}"
        for output in run_ranks(tmp_path, "loop_ranks.py", case, ranks=ranks):
            assert f"{case} fine" in output


@pytest.mark.slowest
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_rank_that_dies_ends_the_other_by_an_error(tmp_path: Path, wrap: str) -> None:
    other, _ = run_ranks(tmp_path, "loop_ranks.py", f"dies_{wrap}")
    assert "ended by " in other
