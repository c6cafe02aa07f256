"""Hugging Face's datasets: formats, streams and collators in torch's loader."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any

import pytest
import torch
from framework_trials import assert_same_everywhere, two_epochs

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing is written where the user keeps data sets."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()


def rows(count: int = 19) -> Any:
    return datasets.Dataset.from_dict(
        {
            "x": [[i + 0.5, i, -i] for i in range(count)],
            "ids": [list(range(i % 4 + 1)) for i in range(count)],
            "text": [f"row {i}" for i in range(count)],
            "label": [i % 3 for i in range(count)],
        }
    )


def fixed() -> Any:
    return rows().select_columns(["x", "label"])


def pad(samples: list[Any]) -> Any:
    ids = [torch.as_tensor(sample["ids"]) for sample in samples]
    return {
        "ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1),
        "text": [sample["text"] for sample in samples],
    }


def noisy(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform as it is needed."""
    x = torch.tensor(batch["x"])
    return {"x": x + torch.rand(x.shape), "label": batch["label"]}


DATASETS: dict[str, Any] = {
    "torch": lambda: (fixed().with_format("torch"), {}),
    "numpy": lambda: (fixed().with_format("numpy"), {}),
    "plain": lambda: (fixed(), {}),
    "arrow": lambda: (fixed().with_format("torch", columns=["label"]), {}),
    "with texts": lambda: (rows().with_format("torch"), {"collate_fn": pad}),
    "a transform": lambda: (fixed().with_transform(noisy), {}),
    "chosen rows": lambda: (fixed().shuffle(seed=3).select(range(11)).with_format("torch"), {}),
    "a shard": lambda: (fixed().shard(2, 1).with_format("torch"), {}),
    "put together": lambda: (
        datasets.concatenate_datasets([fixed(), fixed().shuffle(seed=1)]).with_format("torch"),
        {},
    ),
    "mapped": lambda: (
        fixed().map(lambda row: {"twice": row["label"] * 2}).with_format("torch"),
        {},
    ),
}


IN_WORKERS = ("torch", "a transform", "with texts")


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in DATASETS), *((name, 2) for name in IN_WORKERS)],
)
def test_rows(name: str, workers: int) -> None:
    def program(cls: Any) -> Any:
        dataset, options = DATASETS[name]()
        return two_epochs(cls(dataset, 4, shuffle=True, num_workers=workers, **options))

    assert_same_everywhere(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_streams(workers: int) -> None:
    def program(cls: Any) -> Any:
        stream = fixed().to_iterable_dataset(num_shards=3).shuffle(seed=4, buffer_size=5)
        loader = cls(stream.with_format("torch"), 4, num_workers=workers)
        found = []
        for epoch in range(2):
            stream.set_epoch(epoch)
            found += two_epochs(loader)
        return found

    assert_same_everywhere(program)


def test_a_stream_that_resumes() -> None:
    def program(cls: Any) -> Any:
        stream = fixed().to_iterable_dataset(num_shards=3)
        before = list(islice(cls(stream, 4), 2))
        state = stream.state_dict()
        other = fixed().to_iterable_dataset(num_shards=3)
        other.load_state_dict(state)
        return before, list(cls(other, 4))

    assert_same_everywhere(program)
