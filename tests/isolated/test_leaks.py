"""Nothing grows: memory, threads and file descriptors over many epochs, good and bad."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.parametrize(("workers", "epochs"), [(0, 10_000), (2, 1_000)])
@pytest.mark.slowest
def test_no_leak_of_memory_threads_or_descriptors(
    workers: int, epochs: int, tmp_path: Path
) -> None:
    run_program(
        tmp_path,
        "leaks/no_leak_of_memory_threads_or_descriptors",
        workers,
        epochs,
    )


def test_batches_of_changing_size_do_not_grow_the_pool(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "leaks/batches_of_changing_size_do_not_grow_the_pool",
    )


def test_without_threads_or_memory_it_says_so_and_recovers(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "leaks/without_threads_or_memory_it_says_so_and_recovers",
    )
