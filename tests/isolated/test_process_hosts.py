"""Workers and programs that do what programs do: fork, start others, close descriptors, change
directory and limits, use threads."""

from pathlib import Path

import pytest
from helpers import run_program

HEAD = """
import gc, os, resource, signal, subprocess, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from helpers import outcome
from workers import *
from workers import Items, Stream, check_batches
"""


def test_a_fork_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_hosts/a_fork_in_the_middle_of_an_epoch",
    )


def test_workers_that_fork_and_start_programs(tmp_path: Path) -> None:
    """A process that a worker leaves behind must not hold the end of the loop up."""
    run_program(
        tmp_path,
        "process_hosts/workers_that_fork_and_start_programs",
    )


@pytest.mark.slowest
def test_workers_that_close_descriptors_or_limit_themselves(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_hosts/workers_that_close_descriptors_or_limit_themselves",
    )


def test_the_parent_is_watched_by_workers_without_descriptors(tmp_path: Path) -> None:
    """They end soon after it, and no sooner."""
    (tmp_path / "inner.py").write_text(
        HEAD
        + """
has_closed = torch.zeros(2).share_memory_()

def close_all(*_):
    os.closerange(3, 4096)

def stay(i):
    if i >= 40:
        close_all()
        has_closed[torch.utils.data.get_worker_info().id] = 1
        time.sleep(600)

loader = DataLoader(Items(64, stay), 4, num_workers=2, worker_init_fn=close_all)
iterator = iter(loader)
for _ in range(8):
    next(iterator)
wait_until(has_closed.all)
print(*children(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    run_program(
        tmp_path,
        "process_hosts/the_parent_is_watched_by_workers_without_descriptors",
    )


def test_threads_and_iterators_side_by_side(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_hosts/threads_and_iterators_side_by_side",
    )


def test_persistent_workers_and_loops_left_early(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "process_hosts/persistent_workers_and_loops_left_early",
    )


def test_little_address_space(tmp_path: Path) -> None:
    """As under ulimit -v; what does not fit is an error that says so."""
    run_program(
        tmp_path,
        "process_hosts/little_address_space",
    )
