"""A worker that dies: the error comes at once, says how and over which samples, and all that the
iterator had is gone with it."""

from pathlib import Path

import pytest
from helpers import run_program

# torch's handlers in a worker write a line of their own to its stderr.
NOISE = {"stderr": "encountered in worker"}


def test_death_in_getitem(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_death/death_in_getitem",
            **NOISE,  # type: ignore[arg-type]
        )
    )


def test_death_while_idle(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_death/death_while_idle",
            **NOISE,  # type: ignore[arg-type]
        )
    )


def test_death_while_a_slot_is_written(tmp_path: Path) -> None:
    """At any depth: a mapped file that becomes shorter is met by SIGBUS inside the C collate, an
    object dies while the pickler has copied half of a batch, and a kill from outside comes when
    the slot has some of its pages."""
    print(
        run_program(
            tmp_path,
            "process_death/death_while_a_slot_is_written",
            **NOISE,  # type: ignore[arg-type]
        )
    )


@pytest.mark.slowest
def test_death_at_any_moment(tmp_path: Path) -> None:
    """The others go on to the end of what they have, no wait outlasts the death, and a batch that
    arrives is whole."""
    print(
        run_program(
            tmp_path,
            "process_death/death_at_any_moment",
        )
    )


@pytest.mark.slowest
def test_death_of_spawned_workers_and_of_streams(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_death/death_of_spawned_workers_and_of_streams",
        )
    )


@pytest.mark.slowest
def test_a_fork_server_that_is_slow_to_tell_an_exit_code(tmp_path: Path) -> None:
    """It has waited for the dead worker, so the process is gone before the code is known."""
    (tmp_path / "slow_server.py").write_text(
        """
import time
from multiprocessing import forkserver

def write_late(fd, number, write=forkserver.write_signed):
    if number < 256:  # no process number
        time.sleep(0.5)
    write(fd, number)

forkserver.write_signed = write_late
"""
    )
    run_program(
        tmp_path,
        "process_death/a_fork_server_that_is_slow_to_tell_an_exit_code",
    )


def test_dead_persistent_workers_are_replaced(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_death/dead_persistent_workers_are_replaced",
    )


def test_death_when_the_program_reaps_all_children(tmp_path: Path) -> None:
    """Somebody else has waited for the worker, and its exit code is lost."""
    run_program(
        tmp_path,
        "process_death/death_when_the_program_reaps_all_children",
    )


def test_the_ring_is_left_out_of_core_dumps(tmp_path: Path) -> None:
    """It is terabytes of address space: a dump would take minutes before the death is seen."""
    run_program(
        tmp_path,
        "process_death/the_ring_is_left_out_of_core_dumps",
    )
