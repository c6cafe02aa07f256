"""Batches that are held while workers start: the workers read them as they were for as long as they
live, and then the memory comes back."""

from pathlib import Path

from helpers import run_program


def test_a_dataset_made_from_a_batch_that_is_let_go_of(tmp_path: Path) -> None:
    """Two of them; with workers that persist; in the same loader."""
    run_program(
        tmp_path,
        "process_forks/a_dataset_made_from_a_batch_that_is_let_go_of",
    )


def test_two_loaders_that_start_at_once(tmp_path: Path) -> None:
    """In two threads, and the batch is let go of in a third."""
    run_program(
        tmp_path,
        "process_forks/two_loaders_that_start_at_once",
    )


def test_memory_is_bounded_where_each_epoch_holds_its_last_batch(tmp_path: Path) -> None:
    """Blocks are counted: with workers of every epoch's own, and beside workers that persist."""
    run_program(
        tmp_path,
        "process_forks/memory_is_bounded_where_each_epoch_holds_its_last_batch",
    )


def test_what_a_left_epoch_has_lent_comes_back(tmp_path: Path) -> None:
    """Workers that were killed have ended, too."""
    run_program(
        tmp_path,
        "process_forks/what_a_left_epoch_has_lent_comes_back",
    )


def test_an_iterator_of_the_parents_gives_a_child_nothing(tmp_path: Path) -> None:
    """Neither what had arrived nor other batches, by any of torch's methods; the parent goes on."""
    run_program(
        tmp_path,
        "process_forks/an_iterator_of_the_parents_gives_a_child_nothing",
    )
