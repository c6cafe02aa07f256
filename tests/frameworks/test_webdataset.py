"""webdataset: pipelines over tar files, batched by themselves or by torch's loader."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_everywhere, assert_same_patched, two_epochs

from fastloop.loader.shared import SyncIter
from fastloop.loader.workers.processes import ProcessIter

wds: Any = pytest.importorskip("webdataset", reason="webdataset is not installed")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for index in range(5):
                array = io.BytesIO()
                np.save(array, np.full((2, 3), 10.0 * shard + index, np.float32))
                key = f"{shard}-{index}"
                for name, data in (("npy", array.getvalue()), ("cls", b"%d" % (index % 3))):
                    entry = tarfile.TarInfo(f"{key}.{name}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return [str(path) for path in sorted(Path(root).glob("*.tar"))]


def pipeline(shards: list[str]) -> Any:
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False, seed=3)
    return dataset.decode().to_tuple("npy", "cls")


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_makes_the_batches(shards: list[str], workers: int) -> None:
    assert_same_everywhere(
        lambda cls: two_epochs(cls(pipeline(shards), 3, num_workers=workers)),
        ProcessIter if workers else SyncIter,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_pipeline_makes_the_batches(shards: list[str], workers: int) -> None:
    def program(cls: Any) -> Any:
        loader = cls(pipeline(shards).batched(3), batch_size=None, num_workers=workers)
        return two_epochs(loader)

    assert_same_everywhere(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_its_own_loader(shards: list[str], workers: int) -> None:
    """It draws batches from torch's, mixes those of all workers anew, and counts an epoch."""

    def program(_: Any) -> Any:
        dataset = pipeline(shards).shuffle(10, seed=1, initial=5).batched(4)
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
        loader = loader.unbatched().batched(5).with_epoch(3)
        return [[torch.as_tensor(part) for part in batch] for _ in range(2) for batch in loader]

    assert_same_patched(program)
