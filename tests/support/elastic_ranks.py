"""What each rank of test_checkpoint_ranks.py runs: `python elastic_ranks.py CASE…`."""

import json
import pickle
import warnings
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from helpers import labels, small_dataset
from rank_program import run_cases
from ranked_streams import Divided
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader, LengthBucketBatchSampler

LENGTHS = [1 + i * 7 % 13 for i in range(203)]


def map_loader(workers: int = 2) -> DataLoader[Any]:
    data = small_dataset(203)
    sampler = DistributedSampler(data, seed=3)
    sampler.set_epoch(3)
    return DataLoader(data, 5, sampler=sampler, num_workers=workers)


def bucket_loader() -> DataLoader[Any]:
    return DataLoader(small_dataset(203), batch_sampler=LengthBucketBatchSampler(LENGTHS, 4))


def stream_loader() -> DataLoader[Any]:
    return DataLoader(Divided(), 3)


def take(iterator: Any, batches: int) -> list[int]:
    rows = []
    for _ in range(batches):
        batch = next(iterator)
        rows += batch.tolist() if isinstance(batch, Tensor) else labels([batch])[0]
    return rows


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def write(name: str, rows: Any) -> None:
    Path(f"{name}.{dist.get_rank()}.json").write_text(json.dumps(rows))


def joined_of(loader: DataLoader[Any]) -> dict[str, Any]:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    return DataLoader.join_states(states)


def case_save() -> None:
    """In the middle of an epoch; training goes on while a checkpoint is written."""
    loader, buckets, stream = map_loader(), bucket_loader(), stream_loader()
    iterators = [iter(each) for each in (loader, buckets, stream)]
    write("had", [take(iterator, 2) for iterator in iterators])
    saved = {"map": loader, "buckets": buckets, "stream": pickle.dumps(joined_of(stream))}
    dcp.save(saved, checkpoint_id="saved")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its staging
        future = dcp.async_save(saved, checkpoint_id="async")
        rest = [take(iterator, 3) for iterator in iterators]
        future.result()
    write("rest", rest)


def case_load() -> None:
    for name in ("saved", "async"):
        loader, buckets, stream = map_loader(0), bucket_loader(), stream_loader()
        loaded = {"map": loader, "buckets": buckets, "stream": b""}
        dcp.load(loaded, checkpoint_id=name)
        stream.load_state_dict(pickle.loads(loaded["stream"]), strict=True)  # type: ignore[arg-type]
        rest = [flat(labels(each)) for each in (loader, buckets)]
        write(name, [*rest, flat(batch.tolist() for batch in stream)])


def case_save_again() -> None:
    """Go on from a checkpoint of other ranks, and save one of its rest."""
    loader, buckets = map_loader(), bucket_loader()
    dcp.load({"map": loader, "buckets": buckets}, checkpoint_id="saved")
    write("had_again", [take(iter(each), 1) for each in (loader, buckets)])
    assert loader.state_dict()["dealt"] == [[2, 5, 2]]
    dcp.save({"map": loader, "buckets": buckets}, checkpoint_id="again")


def case_load_again() -> None:
    loader, buckets = map_loader(), bucket_loader()
    dcp.load({"map": loader, "buckets": buckets}, checkpoint_id="again")
    write("again", [flat(labels(each)) for each in (loader, buckets)])


def case_disagree() -> None:
    """Each rank learns of it, and none waits for another."""
    loader = map_loader()
    take(iter(loader), 1 + dist.get_rank())
    try:
        joined_of(loader)
    except ValueError as error:
        print(error)
        return
    raise AssertionError("did not raise")


run_cases(globals())
