"""Counts that processes hand over to the one that started them: what is lost, and what is not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from time_limits import limit
from torch.utils.data import DataLoader, Dataset

import fastloop
from fastloop.compat import counts


def seam_of(native: int = 0, **left: int) -> Any:
    counts: Any = {"native": native, "fallbacks": dict(left), "served": {}, "fallback_ns": {}}
    return SimpleNamespace(is_on=True, **counts)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a file of counts, as children of this process have it."""
    monkeypatch.setattr(counts, "_own", -1)
    monkeypatch.setattr(counts, "_read", 0)
    monkeypatch.setenv("FASTLOOP_COUNTS", "")
    counts.open_counts()
    path = os.environ["FASTLOOP_COUNTS"]
    monkeypatch.setattr(counts, "_parents", path)
    return path


def test_counts_are_taken_once_and_a_half_written_line_later(own: str) -> None:
    assert counts.hand_over({"x": seam_of(2, why=1), "y": seam_of()})
    assert not counts.hand_over({"x": seam_of(9)})  # a second time
    with open(own, "ab") as file:
        file.write(b'{"x": [3, {"why": 4}, {"D: how": [1, ')
        file.flush()
        seams = {"x": seam_of(10)}
        assert counts.take_counts(seams) and not counts.take_counts(seams)
        assert (seams["x"].native, seams["x"].fallbacks) == (12, {"why": 1})
        file.write(b'2]}, {"why": 6}], "of another version": [1, {}, {}]}\n')
    assert counts.take_counts(seams)
    assert (seams["x"].native, seams["x"].fallbacks) == (15, {"why": 5})
    assert seams["x"].served == {"D: how": (1, 2)} and seams["x"].fallback_ns == {"why": 6}


def test_another_file_under_that_number_is_left_alone(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program closes all descriptors and opens others."""
    other = tmp_path / "other"
    other.write_text("text\n")
    with open(other, "r+b") as file:
        os.dup2(file.fileno(), counts._own)
    assert not counts.hand_over({"x": seam_of(1)}) and not counts.take_counts({"x": seam_of()})
    assert other.read_text() == "text\n"
    os.close(counts._own)
    monkeypatch.setattr(counts, "_parents", own)
    assert not counts.hand_over({"x": seam_of(1)}) and not counts.take_counts({"x": seam_of()})


def test_the_text_has_the_first_reasons() -> None:
    left = {f"reason {i}": i for i in range(1, 6)}
    text = counts.describe("x", seam_of(0, **left))
    first = ", ".join(f"{i} left to torch (reason {i})" for i in (1, 2, 3))
    assert text == f"x 0 native, {first}, 2 other reasons"


class _Norms(Dataset[Any]):
    """Clips in the process that loads; the last sample may kill it."""

    def __init__(self, kills: bool = False) -> None:
        self.kills = kills

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        weight = torch.ones(3, requires_grad=True)
        weight.grad = torch.ones(3)
        torch.nn.utils.clip_grad_norm_([weight], 0.5)
        if self.kills and index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_hand_over_their_own_counts_alone(workers: int) -> None:
    with fastloop.patched():
        _Norms()[0]
        for _ in range(2):
            list(DataLoader(_Norms(), 2, num_workers=workers))
        assert fastloop.patch_status().seams["clip_grad_norm"].native == 1 + 16
    with fastloop.patched():  # counted from patch() on
        assert fastloop.patch_status().seams["clip_grad_norm"].native == 0


def test_a_killed_worker_loses_its_counts_alone() -> None:
    with fastloop.patched():
        with pytest.raises(RuntimeError, match="SIGKILL"):
            list(DataLoader(_Norms(kills=True), 2, num_workers=2))
        list(DataLoader(_Norms(), 2, num_workers=1))
        found = fastloop.patch_status().seams["clip_grad_norm"].native
    assert found in (8, 12)  # the other worker may have ended


def test_where_there_is_no_file_for_counts_loaders_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(counts, "_own", -1)
    monkeypatch.setattr(os, "memfd_create", refuse)
    with fastloop.patched():
        assert len(list(DataLoader(_Norms(), 2, num_workers=1))) == 4
    assert not counts.take_counts({})


PROGRAM = """
import subprocess, sys
child = '''
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
list(DataLoader(TensorDataset(torch.zeros(4)), 2))
sys.stdin.read()  # until the parent has ended
'''
subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE)
"""


def test_a_child_that_outlives_the_program_is_silent() -> None:
    argv = [sys.executable, "-m", "fastloop", "run", "-c", PROGRAM]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit(300))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
