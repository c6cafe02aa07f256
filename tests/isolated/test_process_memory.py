"""Memory of batches that workers make: what the user keeps is the user's, all else stays within a
budget and goes back to the system."""

from pathlib import Path

import pytest
from helpers import run_program

pytestmark = pytest.mark.slowest


def test_every_batch_may_be_kept(tmp_path: Path) -> None:
    """With few descriptors, none of them new, and whatever became of the others."""
    run_program(
        tmp_path,
        "process_memory/every_batch_may_be_kept",
    )


@pytest.mark.parametrize(("mount", "method"), [("size=1m", "fork"), ("ro", "spawn")])
def test_dev_shm_is_not_used(mount: str, method: str, tmp_path: Path) -> None:
    """Small or not writable, it does not matter."""
    run_program(
        tmp_path,
        "process_memory/dev_shm_is_not_used",
        mount,
        method,
    )


def test_batches_of_any_size(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_memory/batches_of_any_size",
        )
    )


def test_a_batch_of_more_than_2_gib(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_memory/a_batch_of_more_than_2_gib",
    )


def test_the_ring_stays_within_its_budget(tmp_path: Path) -> None:
    """However far behind the user is, and whatever was kept and dropped before."""
    print(
        run_program(
            tmp_path,
            "process_memory/the_ring_stays_within_its_budget",
        )
    )


def test_one_large_batch_does_not_stay(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_memory/one_large_batch_does_not_stay",
    )


def test_labels_do_not_keep_their_images(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_memory/labels_do_not_keep_their_images",
    )


def test_a_left_epoch_leaves_no_large_batch_behind(tmp_path: Path) -> None:
    """Batches that wait for more memory when the loop is left, with workers that persist."""
    run_program(
        tmp_path,
        "process_memory/a_left_epoch_leaves_no_large_batch_behind",
    )
