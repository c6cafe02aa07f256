"""Metrics: gives the latest update to Prometheus, as a file or on a port.

prometheus_client makes the text and runs the server. The thread that trains calls Metrics with
updates; the server's threads read the latest update, which nobody changes. docs/api/tools.md lists
the names, which never change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest

from fastloop.base.machine import own_bytes
from fastloop.tools.report import files
from fastloop.tools.report.loader_source import WAITS_NS
from fastloop.tools.report.updates import NAMES, LoaderUpdate, Update

# The help of each metric, by attribute of an Update or a LoaderUpdate. NAMES has their names.
_LOOP = {
    "steps": "Steps of the loop.",
    "skipped": "Steps that a scaler or a Stepper has not taken.",
    "step_seconds": "Seconds in steps.",
}
_LOADERS = {
    "batches": "Batches that the loop took.",
    "samples": "Samples in batches, if they are counted.",
    "first_batch_seconds": "Seconds until the first batch of epochs.",
    "restarts": "Dead workers that were replaced.",
    "uploaded_bytes": "Bytes that fastloop copied to a device.",
}
_GAUGES = {
    "queue": "Batches that were ready when the latest batch was asked for.",
    "workers": "Workers that are alive.",
    "slots_lent": "Blocks of batch memory whose tensors are alive.",
}
_STATES = {
    "scale": "The scale of the loss.",
    "gradient_norm": "The norm of the gradients before clipping.",
    "device_busy": "Share of time in which a kernel ran on the GPU.",
}
_LENGTHS = "Waits in next() after the first batch, by length and by what was ready."
_BOUNDS = [*(str(ns / 1e9) for ns in WAITS_NS), "+Inf"]
_WAIT = "Seconds in next() after the first batch, by what was ready: none, others (later), ready."
_MEMORY = "Memory of the process."
_RANKS = "Share of a step in which a rank waits for data, as rank 0 knows it."
_SLOWEST = "The rank that loses most, if there is one."


class Metrics:
    """A callback of ``Report.on_update()``.

    Nothing is written or opened before the first step: a launcher takes no step, and must not have
    the file or the port of the program that it launches.

    Args:
        target: a file, or an address and a port.
    """

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self._target, self._rank = target, files.read_rank()
        self._update: Update | None = None
        self._server: Any = None
        self._has_failed = False
        # Not prometheus_client's own registry: the program may use the same names there.
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def __call__(self, update: Update) -> None:
        if update.steps == 0:
            return
        self._update = update
        try:
            if isinstance(self._target, Path):
                files.write(self._name_file(self._target), generate_latest(self._registry).decode())
            elif self._server is None and not self._has_failed:
                self._open(*self._target)
        except (OSError, OverflowError) as error:  # a port above 65535 with this rank overflows
            if not self._has_failed:
                files.say(f"fastloop: metrics cannot go to {self._target}: {error}")
            self._has_failed = True
        if update.is_last and self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _name_file(self, path: Path) -> Path:
        rank = f".rank{self._rank}" if self._rank else ""
        return path.with_name(f"{path.stem}{rank}{path.suffix}")

    def _open(self, host: str, port: int) -> None:
        self._server, _ = start_http_server(port + self._rank, host, self._registry)
        # Worker processes would keep the port beyond the end of the report.
        os.register_at_fork(after_in_child=self._server.socket.close)

    def collect(self) -> Iterator[Any]:
        """Yield the families of the latest update. Any thread may call this method."""
        if (update := self._update) is None:
            return
        for kind, table in ((CounterMetricFamily, _LOOP), (GaugeMetricFamily, _STATES)):
            for name, text in table.items():
                values: Any = [((), getattr(update, name))]
                yield self._make(kind, NAMES.get(name, name), text, values)
        for kind, table in ((CounterMetricFamily, _LOADERS), (GaugeMetricFamily, _GAUGES)):
            for name, text in table.items():
                values = [((one.name,), getattr(one, name)) for one in update.loaders]
                yield self._make(kind, NAMES.get(name, name), text, values, "loader")
        values = [((o.name, found), s) for o in update.loaders for found, s in o.waits.items()]
        yield self._make(CounterMetricFamily, "wait_seconds", _WAIT, values, "loader", "cause")
        yield self._make_histogram(update.loaders)
        values = [((), own_bytes("VmRSS"))]
        yield self._make(GaugeMetricFamily, "resident_memory_bytes", _MEMORY, values)
        if update.ranks:
            values = [((), update.slowest_rank)]
            yield self._make(GaugeMetricFamily, "slowest_rank", _SLOWEST, values)
            shares = GaugeMetricFamily("fastloop_rank_wait_share", _RANKS, labels=["rank"])
            for rank, share in update.ranks.items():
                shares.add_metric([str(rank)], share)
            yield shares

    def _make(self, kind: Any, name: str, text: str, values: Any, *labels: str) -> Any:
        """Return a family with the sum of the known values for each key: loaders may have the same
        name."""
        sums: dict[tuple[str, ...], float] = {}
        for key, value in values:
            if value is not None:
                sums[key] = sums.get(key, 0) + value
        family = kind(f"fastloop_{name}", text, labels=["rank", *labels])
        for key, value in sums.items():
            family.add_metric([str(self._rank), *key], value)
        return family

    def _make_histogram(self, loaders: Iterable[LoaderUpdate]) -> Any:
        labels = ["rank", "loader", "cause"]
        family = HistogramMetricFamily("fastloop_batch_wait_seconds", _LENGTHS, labels=labels)
        sums: dict[tuple[str, str], list[float]] = {}
        for one in loaders:
            for cause, counts in one.wait_counts.items():
                new, old = [one.waits[cause], *counts], sums.get((one.name, cause))
                added = new if old is None else list(map(sum, zip(old, new, strict=True)))
                sums[one.name, cause] = added
        for key, (seconds, *numbers) in sums.items():
            buckets = list(zip(_BOUNDS, accumulate(numbers), strict=True))
            family.add_metric([str(self._rank), *key], buckets, seconds)
        return family
