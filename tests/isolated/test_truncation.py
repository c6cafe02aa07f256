"""A mapped file that becomes shorter while it is read: an OSError that names field, row and file,
never a signal, and the loader works again once the file is whole."""

from pathlib import Path

from helpers import PROGRAMS, run_script


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        PROGRAMS / "truncation" / "a_file_that_shrinks_is_an_error_and_no_signal.py",
    )


def test_rows_behind_the_end_in_the_last_page_are_lost_too(tmp_path: Path) -> None:
    """The kernel reads zeros between the end of a file and the end of its last page."""
    run_script(
        tmp_path,
        PROGRAMS / "truncation" / "rows_behind_the_end_in_the_last_page_are_lost_too.py",
    )
