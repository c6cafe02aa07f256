"""fork() with an open loader: the child's handles are inert, the parent does not notice."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.slowest
def test_a_child_drops_what_it_inherits_and_starts_anew(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/a_child_drops_what_it_inherits_and_starts_anew",
    )


def test_an_iterator_without_workers_goes_on_in_a_child(tmp_path: Path) -> None:
    """With the batches and random numbers that torch's gives there, and in a child of the child."""
    run_program(
        tmp_path,
        "fork/an_iterator_without_workers_goes_on_in_a_child",
    )


def test_a_fork_inside_the_sampler_loses_no_batch_in_silence(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/a_fork_inside_the_sampler_loses_no_batch_in_silence",
    )


def test_persistent_workers_draw_no_seed_again_in_a_child(tmp_path: Path) -> None:
    """Their first one stays, so the child's epochs have the order that the parent's have."""
    run_program(
        tmp_path,
        "fork/persistent_workers_draw_no_seed_again_in_a_child",
    )


def test_workers_made_anew_in_a_child_have_the_seed_of_the_parents(tmp_path: Path) -> None:
    """The next number of the generator is the one that the order is drawn from."""
    run_program(
        tmp_path,
        "fork/workers_made_anew_in_a_child_have_the_seed_of_the_parents",
    )


def test_the_rest_of_an_epoch_is_for_a_child(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/the_rest_of_an_epoch_is_for_a_child",
    )


def test_persistent_workers_in_a_child(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/persistent_workers_in_a_child",
    )


@pytest.mark.slowest
def test_fork_while_threads_copy_and_wait(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/fork_while_threads_copy_and_wait",
    )


def test_pools_and_torchs_workers_beside_an_open_loader(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "fork/pools_and_torchs_workers_beside_an_open_loader",
    )


def test_a_child_clips_on_threads_of_its_own(tmp_path: Path) -> None:
    """OpenMP's are not there, and libgomp would wait for them as torch's operations do."""
    run_program(
        tmp_path,
        "fork/a_child_clips_on_threads_of_its_own",
    )


def test_a_fork_waits_for_the_lock_of_a_module(tmp_path: Path) -> None:
    """Else the child would have a lock that a thread of the parent holds."""
    run_program(
        tmp_path,
        "fork/a_fork_waits_for_the_lock_of_a_module",
    )
