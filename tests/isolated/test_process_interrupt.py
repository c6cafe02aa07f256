"""Ctrl-C while workers load: KeyboardInterrupt at once, nothing on stderr, no process left, and the
next iteration works. Signals go to this process alone, as from a debugger, or to its whole group,
as from a terminal."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.slowest
@pytest.mark.parametrize("to", ["process", "group", "another thread"])
def test_ctrl_c_in_each_place(to: str, tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_interrupt/ctrl_c_in_each_place",
            to,
        )
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_ctrl_c_at_any_moment_and_twice(persistent: bool, tmp_path: Path) -> None:
    """From the first line of iter() to the last of the shutdown; a second one while the first is
    dealt with."""
    print(
        run_program(
            tmp_path,
            "process_interrupt/ctrl_c_at_any_moment_and_twice",
            persistent,
        )
    )


@pytest.mark.slowest
def test_a_notebook(tmp_path: Path) -> None:
    """Each cell is compiled and run by a loop that prints tracebacks and keeps the last."""
    out = run_program(
        tmp_path,
        "process_interrupt/a_notebook",
    )
    assert "ignored" not in out
    assert [line for line in out.splitlines() if line.isdigit()] == ["16"] * 9


def test_an_interrupted_iter_leaves_no_workers(tmp_path: Path) -> None:
    """Though the traceback, which holds the iterator, is kept; nor does an error of the sampler."""
    run_program(
        tmp_path,
        "process_interrupt/an_interrupted_iter_leaves_no_workers",
    )


def test_persistent_workers_killed_by_ctrl_c_are_rebuilt_at_once(tmp_path: Path) -> None:
    """Not even a moment passes between the interrupt and the next iter()."""
    run_program(
        tmp_path,
        "process_interrupt/persistent_workers_killed_by_ctrl_c_are_rebuilt_at_once",
    )


@pytest.mark.slowest
def test_a_handler_of_the_programs_own(tmp_path: Path) -> None:
    """One that returns lets the wait go on; the workers it was forked into go on, too."""
    run_program(
        tmp_path,
        "process_interrupt/a_handler_of_the_programs_own",
    )


@pytest.mark.slowest
def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    """No worker is forgotten, whether or not the iterator had listed it."""
    run_program(
        tmp_path,
        "process_interrupt/ctrl_c_while_workers_start",
    )


@pytest.mark.slowest
@pytest.mark.parametrize("path", ["process", "thread"])
def test_ctrl_c_at_any_line_of_the_start(path: str, tmp_path: Path) -> None:
    """It is Ctrl-C that is raised, nothing is left, and the next iterator can be made."""
    run_program(
        tmp_path,
        "process_interrupt/ctrl_c_at_any_line_of_the_start",
        path,
    )


@pytest.mark.slowest
def test_ctrl_c_anywhere_in_the_finalizer(tmp_path: Path) -> None:
    """From before its first line on; where the yielded batches were counted is kept, too."""
    run_program(
        tmp_path,
        "process_interrupt/ctrl_c_anywhere_in_the_finalizer",
    )


def test_ctrl_c_at_the_end_of_a_block_that_holds_it_back(tmp_path: Path) -> None:
    """It may raise there, and the next block holds it back all the same."""
    run_program(
        tmp_path,
        "process_interrupt/ctrl_c_at_the_end_of_a_block_that_holds_it_back",
    )
