"""mosaicml-streaming: shards on a disk, its loader, which counts samples, and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_patched
from torchvision_shim import torchvision_v2

torchvision_v2()  # which it imports
streaming: Any = pytest.importorskip(
    "streaming", reason="mosaicml-streaming is not installed", exc_type=ImportError
)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[str]:
    columns = {"x": "ndarray:float32:3", "label": "int"}
    with streaming.MDSWriter(out=str(tmp_path), columns=columns, size_limit=256) as out:
        for i in range(30):
            out.write({"x": np.full(3, i, np.float32), "label": i % 4})
    yield str(tmp_path)
    streaming.base.util.clean_stale_shared_memory()


def dataset(shards: str) -> Any:
    return streaming.StreamingDataset(local=shards, batch_size=4, shuffle=True, shuffle_seed=5)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader(shards: str, workers: int) -> None:
    def program(cls: Any) -> Any:
        loader = cls(dataset(shards), batch_size=4, num_workers=workers)
        return [batch for _ in range(2) for batch in loader]

    assert_same_patched(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_its_own_loader_resumes(shards: str, workers: int) -> None:
    def program(_: Any) -> Any:
        loader = streaming.StreamingDataLoader(dataset(shards), batch_size=4, num_workers=workers)
        before = list(islice(loader, 3))
        state = loader.state_dict()
        del loader
        other = streaming.StreamingDataLoader(dataset(shards), batch_size=4, num_workers=workers)
        other.load_state_dict(state)
        return before, state, list(other), torch.rand(1)

    assert_same_patched(program)
