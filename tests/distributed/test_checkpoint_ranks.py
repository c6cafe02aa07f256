"""Loaders in checkpoints of torch.distributed.checkpoint: with as many ranks, and with others."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import run_ranks

PROGRAM = "elastic_ranks.py"
SIZES = [203, 203, 120]  # of the dataset of samples, that of buckets, and the stream


def written(folder: Path, name: str, ranks: int) -> list[list[Any]]:
    return [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]


def assert_whole(count: int, *stages: list[Any]) -> None:
    """Each index once; what is repeated pads the last stage."""
    rows = [row for stage in stages for rank in stage for row in rank]
    assert set(rows) == set(range(count)) and Counter(rows).total() - count < len(stages[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two ranks."""
    path = tmp_path_factory.mktemp("checkpoints")
    run_ranks(path, PROGRAM, "save")
    return path


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_save_async_save_and_load(ranks: int, folder: Path) -> None:
    run_ranks(folder, PROGRAM, "load", ranks=ranks)
    had, rest = written(folder, "had", 2), written(folder, "rest", 2)
    for name in ("saved", "async"):
        loaded = written(folder, name, ranks)
        for i, size in enumerate(SIZES):
            assert_whole(size, [rank[i] for rank in had], [rank[i] for rank in loaded])
        if ranks == 2:  # the batches that the run had that went on
            for before, after in zip(rest, loaded, strict=True):
                assert all(b == a[: len(b)] for b, a in zip(before, after, strict=True))


@pytest.mark.slowest
def test_a_checkpoint_of_a_rest_that_was_dealt_out(folder: Path) -> None:
    run_ranks(folder, PROGRAM, "save_again", ranks=3)
    run_ranks(folder, PROGRAM, "load_again", ranks=1)
    had = [written(folder, name, n) for name, n in (("had", 2), ("had_again", 3), ("again", 1))]
    for i in (0, 1):
        assert_whole(SIZES[i], *([rank[i] for rank in stage] for stage in had))


@pytest.mark.slowest
def test_ranks_that_disagree_all_learn_of_it(tmp_path: Path) -> None:
    for output in run_ranks(tmp_path, PROGRAM, "disagree"):
        assert "ranks must agree, got yielded=1 on rank 0 and 2 on rank 1 (pass" in output
