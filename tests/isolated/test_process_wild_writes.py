"""Workers that write where they have no business: the memory they share with their parent is
overwritten word by word, and the parent is to end with an error at worst."""

import os
from pathlib import Path

from helpers import run_program

# How many loaders; a full storm has 300.
STORM = int(os.environ.get("FASTLOOP_STORM", "40"))


def test_the_first_bytes_of_the_memory_are_overwritten(tmp_path: Path) -> None:
    """A worker that finds it out itself says so; the parent says whose memory it was."""
    run_program(
        tmp_path,
        "process_wild_writes/the_first_bytes_of_the_memory_are_overwritten",
        stderr="RuntimeError: the memory that worker 0 shares with its parent process has been",
    )


def test_a_storm_of_writes_ends_in_errors_at_worst(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path, "process_wild_writes/a_storm_of_writes_ends_in_errors_at_worst", 0, STORM
        )
    )
