"""ArrowDataset under mixtures, packing, samplers of lengths, a fork server, and a state that
other numbers of ranks load."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same

from fastloop import (
    ArrowDataset,
    DataLoader,
    LengthBucketBatchSampler,
    MixtureDataset,
    PackCollate,
    PackedDataset,
    PadCollate,
    RaggedArray,
    ShuffleSampler,
)

pa = pytest.importorskip("pyarrow")


def write(path: Path, rows: int, chunk: int) -> str:
    draw = np.random.default_rng(rows)
    lists = [draw.integers(0, 99, draw.integers(1, 30)).tolist() for _ in range(rows)]
    columns = {"input_ids": pa.array(lists, pa.list_(pa.int32())), "label": np.arange(rows)}
    table = pa.table({**columns, "text": [f"{n}" for n in range(rows)]})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {"a": write(tmp_path / "a", 70, 9), "b": write(tmp_path / "b", 31, 31)}


def mix(files: dict[str, str], names: list[str], **given: Any) -> MixtureDataset:
    sources = {name: ArrowDataset(path, names) for name, path in files.items()}
    return MixtureDataset(sources, {"a": 0.6, "b": 0.4}, **given)


def check_both(data: Any, path: str, **given: Any) -> str:
    """Compare batches of both loaders, and return why fastloop's took its path."""
    ours = DataLoader(data, **given)
    batches = [list(ours)]
    data.set_epoch(0)
    assert_same(*batches, list(TorchLoader(data, **given)))
    assert ours.stats().path == path, ours.stats().why
    return ours.stats().why


@pytest.mark.parametrize("workers", [0, 1])
def test_mixtures(files: dict[str, str], workers: int) -> None:
    given = {"batch_size": 8, "num_workers": workers}
    check_both(mix(files, ["label"]), "array", **given)
    for collate in (PadCollate(return_mask=True), PackCollate(max_tokens=64)):
        data = mix(files, ["label", "input_ids"])
        check_both(data, "array", collate_fn=collate, **given)
        assert data._joined, "columns are joined once"
    both = MixtureDataset(
        {"a": ArrowDataset(files["a"], ["label"]), "b": [{"label": torch.tensor(1)}] * 9}
    )
    assert sum(len(batch["label"]) for batch in DataLoader(both, 8)) == 79
    shares = mix(files, ["input_ids"], by="tokens").explain()
    assert "shares of samples" in shares


def test_mixtures_of_chosen_rows(files: dict[str, str]) -> None:
    datasets = pytest.importorskip("datasets")
    some = datasets.Dataset.from_file(files["a"]).select_columns(["input_ids"]).shuffle(seed=1)
    sources = {"some": ArrowDataset(some), "b": ArrowDataset(files["b"], ["input_ids"])}
    for mixed in (sources, {"some": sources["some"]}):
        given = {"batch_size": 8, "collate_fn": PadCollate()}
        why = check_both(MixtureDataset(mixed), "sync", **given)
        assert "rows of a source of the mixture were chosen" in why
    lengths = [len(row) for row in some["input_ids"]]
    assert sources["some"].lengths.tolist() == lengths
    packed = PackedDataset(sources["some"], 32, shuffle=False)
    tokens = RaggedArray.from_list(some["input_ids"][:], torch.int32)
    same = PackedDataset(tokens, 32, shuffle=False)
    assert_same(*([data[i] for i in range(len(data))] for data in (packed, same)))


def test_packed_rows_and_batches_by_length(files: dict[str, str]) -> None:
    data = ArrowDataset(files["a"], ["input_ids"])
    for documents in (data, mix(files, ["input_ids"])):
        check_both(PackedDataset(documents, 64), "array", batch_size=2)
    sampler = LengthBucketBatchSampler(data, max_tokens=128, num_replicas=1, rank=0)
    sizes = [batch["input_ids"].numel() for batch in DataLoader(
        data, batch_sampler=sampler, collate_fn=PadCollate()
    )]  # fmt: skip
    assert max(sizes) <= 128
    with pytest.raises(TypeError, match="column 'label' must be a column of lists"):
        PackedDataset(ArrowDataset(files["a"], ["input_ids", "label"]), 64)
    with pytest.raises(TypeError, match="lengths must be"):
        LengthBucketBatchSampler(ArrowDataset(files["a"], ["label"]), batch_size=2)


@pytest.mark.slow
def test_workers_of_a_fork_server_map_the_files_themselves(files: dict[str, str]) -> None:
    data = ArrowDataset([files["a"], files["b"]])
    given = {"batch_size": 16, "num_workers": 1, "multiprocessing_context": "forkserver"}
    check_both(data, "process", collate_fn=PadCollate(), **given)


@pytest.mark.filterwarnings("ignore:the loaded state is at the end of epoch")
@pytest.mark.parametrize("name", ["input_ids", "text"])
def test_an_epoch_goes_on_at_any_sample_on_other_ranks(files: dict[str, str], name: str) -> None:
    draw = random.Random(name)
    for _ in range(4):
        ranks, batch, saved = draw.choice([1, 2, 3]), draw.choice([1, 4]), None
        seen: list[int] = []
        while True:
            stop = draw.randrange(6)
            loaders = []
            for rank in range(ranks):
                data = ArrowDataset(files["a"], ["label", name])
                sampler = ShuffleSampler(data, seed=5, num_replicas=ranks, rank=rank)
                collate = PadCollate() if name == "input_ids" else None
                loaders.append(DataLoader(data, batch, sampler=sampler, collate_fn=collate))
                if saved is not None:
                    loaders[-1].load_state_dict(saved)
            iterators, ended = list(map(iter, loaders)), False
            for _ in range(stop):
                for found in [next(iterator, None) for iterator in iterators]:
                    if found is None:
                        ended = True
                    else:
                        labels = found["label"] if "label" in found else found["labels"]
                        seen += labels.tolist()
                if ended:
                    break
            if ended:
                break
            saved, ranks = loaders[0].state_dict(), draw.choice([1, 2, 4])
        assert set(seen) == set(range(70)) and len(seen) < 70 + 16, "repeats fill the last step"
