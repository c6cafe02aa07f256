"""Temporary arrays of a sample come from memory that the process has, not each time anew from the
system."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.slowest
@pytest.mark.parametrize("path", ["sync", "thread", "fork", "spawn"])
def test_temporary_arrays_are_not_faulted_in_again(path: str, tmp_path: Path) -> None:
    """In a fresh process: one that has once freed a large buffer keeps what is freed anyway."""
    run_program(tmp_path, "temporary_arrays", path)
