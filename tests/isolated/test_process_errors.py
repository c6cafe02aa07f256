"""Errors in workers: torch's type and text, then batch number and indices; and torch's own rules
for timeouts and for iterators that are at their end."""

from pathlib import Path

import pytest
from helpers import run_program


def test_errors_have_torchs_type_and_text(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_errors/errors_have_torchs_type_and_text",
    )


def test_the_order_of_batches_and_errors(tmp_path: Path) -> None:
    """An error takes the place of its batch, and the loop can go on after it."""
    run_program(
        tmp_path,
        "process_errors/the_order_of_batches_and_errors",
    )


def test_what_cannot_be_pickled(tmp_path: Path) -> None:
    """RuntimeError with the original's type and text, as batch, as error, and as both at once."""
    run_program(
        tmp_path,
        "process_errors/what_cannot_be_pickled",
    )


@pytest.mark.slowest
def test_timeout_as_in_torch(tmp_path: Path) -> None:
    """Of a slow worker and of one that is stopped, which ends all the same."""
    print(
        run_program(
            tmp_path,
            "process_errors/timeout_as_in_torch",
        )
    )


def test_an_iterator_at_its_end(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_errors/an_iterator_at_its_end",
    )
