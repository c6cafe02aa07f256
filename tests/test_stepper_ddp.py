"""Stepper under DDP and FSDP: two processes over gloo, started as torchrun does.
tests/ranks.py holds what the ranks run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 2
SCRIPT = Path(__file__).with_name("ranks.py")

# Cases of one line share their processes: starting these takes longer than the cases do.
CASES = [
    "exact unsized counts resume flush weight_zero unused buffers_follow skip complex fsdp",
    "unequal left static_graph flush_against_boundary dies",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("cases", CASES)
def test_ranks(cases: str, tmp_path: Path) -> None:
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", SCRIPT, *cases.split()],
            cwd=tmp_path,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    report = "\n".join(f"rank {number}:\n{output}" for number, output in enumerate(outputs))
    assert [rank.returncode for rank in ranks] == [0] * RANKS, report
    for case in cases.split():
        assert case == "dies" or all(f"{case} fine" in output for output in outputs)
