"""What patch() costs at the start: what it leaves to be imported later, and to the garbage
collector."""

from pathlib import Path

from helpers import run_program


def test_what_workers_need_is_imported_before_the_first_one_starts(tmp_path: Path) -> None:
    """Not by patch(), nor by a loader without workers; and by no worker."""
    run_program(
        tmp_path,
        "patch_start/what_workers_need_is_imported_before_the_first_one_starts",
        is_fresh=True,
    )


def test_ctrl_c_does_not_leave_half_of_an_import(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "patch_start/ctrl_c_does_not_leave_half_of_an_import",
        is_fresh=True,
    )


def test_imports_set_off_no_collection(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "patch_start/imports_set_off_no_collection",
        is_fresh=True,
    )
