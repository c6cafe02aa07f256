"""Other loaders on rows a-c of bench_array, for scale: SPDL and grain, each where it is installed.

    pip install spdl-core grain psutil      # in an environment of their own, beside fastloop
    python benchmarks/bench_peers.py [--rows a,b,c] [--json FILE]

Each is given its best: it shuffles and batches row numbers, one call gathers a batch, SPDL's
threads live on from epoch to epoch; grain also sample by sample, as its guide shows.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _harness import Epoch, Epochs, Goal, Report, measure
from _work import Data, large_images, loader_epochs, small_images, small_rows

ROWS: dict[str, tuple[str, Callable[[], Data]]] = {
    "a": ("20 000 x (20 + 5) f32, batch 256", small_rows),
    "b": ("50 000 x 3x32x32 u8 + label, batch 256", small_images),
    "c": ("4 000 x 3x224x224 u8 + label, batch 256", large_images),
}


def epoch_of(data: Data, make_iterable: Callable[[], Iterable[Any]]) -> Epoch:
    def epoch() -> int:
        got = sum(1 for _batch in make_iterable())
        assert got == -(-len(data.fields[0]) // data.batch)
        return got

    return epoch


def spdl_epochs(data: Data, stack: ExitStack) -> Epochs:
    from spdl.pipeline import PipelineBuilder

    fields = [torch.from_numpy(field) for field in data.fields]

    class Order:
        def __iter__(self) -> Any:
            return iter(torch.randperm(len(fields[0])).split(data.batch))

    def gather(rows: torch.Tensor) -> list[torch.Tensor]:
        return [torch.index_select(field, 0, rows) for field in fields]

    def pipeline(threads: int) -> Iterable[Any]:
        builder = PipelineBuilder().add_source(Order(), continuous=True)
        builder.pipe(gather, concurrency=threads, output_order="input").add_sink(2 * threads)
        made = builder.build(num_threads=threads)
        stack.enter_context(made.auto_stop())
        return made

    pipelines = {f"threads={n}": pipeline(n) for n in (1, 2)}
    return {name: epoch_of(data, lambda made=made: made) for name, made in pipelines.items()}


def grain_epochs(data: Data, _stack: ExitStack) -> Epochs:
    from grain import MapDataset, ReadOptions

    class Samples:
        def __len__(self) -> int:
            return len(data.fields[0])

        def __getitem__(self, row: Any) -> tuple[Any, ...]:  # one row, or an array of rows
            return tuple(field[row] for field in data.fields)

    samples, seeds = Samples(), itertools.count()

    def batches(by: str, threads: int) -> Iterable[Any]:
        source = MapDataset.range(len(samples)) if by == "batch" else MapDataset.source(samples)
        made = source.shuffle(seed=next(seeds)).batch(data.batch)
        made = made.map(samples.__getitem__) if by == "batch" else made
        options = ReadOptions(num_threads=threads, prefetch_buffer_size=max(1, 2 * threads))
        return made.to_iter_dataset(options)

    variants = itertools.product(("batch", "sample"), (0, 1, 2))
    return {f"by {by} x{n}": epoch_of(data, lambda v=(by, n): batches(*v)) for by, n in variants}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="a,b,c", help="which rows, as in a,b")
    parser.add_argument("--json", type=Path, help="file for the JSON lines")
    args = parser.parse_args()
    peers = {"spdl": spdl_epochs, "grain": grain_epochs}
    peers = {name: epochs for name, epochs in peers.items() if find_spec(name)}
    with Report(args.json, ("fastloop", *peers)) as report:
        report.open(rounds=5)
        for key in args.rows.split(","):
            work, make_data = ROWS[key]
            data = make_data()
            with ExitStack() as stack:
                contestants = {name: peers[name](data, stack) for name in peers}
                contestants["fastloop"] = loader_epochs("fastloop", data)
                results = measure(contestants, rounds=5, seconds=0.3)
            ours = results["fastloop"].median
            goals = [
                Goal(f"{name}'s speed", results[name].median / ours, 1, True) for name in peers
            ]
            measured = {who: result.as_dict() for who, result in results.items()}
            report.row(key, work, goals, results, **measured)


if __name__ == "__main__":
    main()
