"""Resuming in the middle of an epoch, for row r of bench_corpora.py: each contestant is a function
that makes a loader of so many ranks, as a new process does."""

from __future__ import annotations

import json
import statistics
import time
from itertools import islice
from typing import Any

import numpy as np

from fastloop import CostBatchSampler, DataLoader, PackedDataset, RaggedArray, ShuffleSampler


def make_documents(count: int) -> RaggedArray:
    drawn = np.exp(np.random.default_rng(0).normal(6.0, 0.9, count))
    ends = np.append(0, np.cumsum(np.clip(drawn, 20, 8_000).astype(np.int64)))
    return RaggedArray(np.zeros(ends[-1], np.uint8), ends)


def measure(kind: str, documents: RaggedArray, ranks: int, state: Any) -> tuple[Any, list[float]]:
    """Return the loader, and the milliseconds for samplers, the state, and the first batch."""
    length, place = 2_048, {"num_replicas": ranks, "rank": 0}
    data = PackedDataset(documents, length)
    began = time.process_time()
    if kind == "CostBatchSampler":
        costs = CostBatchSampler(documents.lengths, 65_536, **place)
        data, began = range(len(documents)), time.process_time()
        loader: Any = DataLoader(data, batch_sampler=costs, collate_fn=len)
    elif kind == "PackedDataset":
        loader = DataLoader(data, 8, sampler=ShuffleSampler(data, shuffle=False, **place))
    else:
        loader = DataLoader(data, batch_sampler=CostBatchSampler(data, 8 * length, **place))
    times = [began, time.process_time()]
    if state is not None:
        loader.load_state_dict(json.loads(state), strict=True)
        times.append(time.process_time())
        next(iter(loader))
        times.append(time.process_time())
    return loader, (np.diff(times) * 1e3).tolist()


def compare_resuming(is_quick: bool) -> list[dict[str, Any]]:
    documents = make_documents(40_000 if is_quick else 10**6)
    print("| row | loader | ranks | bytes of state | samplers ms | load ms | first batch ms |")
    print("|---|---|---|---|---|---|---|")
    lines = []
    for kind in ("CostBatchSampler", "PackedDataset", "PackedDataset and CostBatchSampler"):
        for ranks in (8, 3):
            loader, _ = measure(kind, documents, 8, None)
            for _ in islice(loader, 20 if is_quick else 500):
                pass
            state = json.dumps(loader.state_dict())
            found = [measure(kind, documents, ranks, state)[1] for _ in range(1 if is_quick else 7)]
            parts = list(zip(*found, strict=True))
            shown = [f"{statistics.median(p):.2f} ({min(p):.2f} - {max(p):.2f})" for p in parts]
            print(f"| r | {kind} | 8 to {ranks} | {len(state)} | {' | '.join(shown)} |", flush=True)
            lines.append({"row": "r", "contestant": kind, "ranks": ranks, "ms": parts})
            lines[-1]["bytes"] = len(state)
    return lines
