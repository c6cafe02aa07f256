"""A mapped file that becomes shorter while it is read: an OSError that names field, row and file,
never a signal, and the loader works again once the file is whole."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.slowest
def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "truncation/a_file_that_shrinks_is_an_error_and_no_signal",
    )


def test_rows_behind_the_end_in_the_last_page_are_lost_too(tmp_path: Path) -> None:
    """The kernel reads zeros between the end of a file and the end of its last page."""
    run_program(
        tmp_path,
        "truncation/rows_behind_the_end_in_the_last_page_are_lost_too",
    )
