"""Loops of a report whose times are given: by them its recorder is fed."""

from __future__ import annotations

from typing import Any

from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.summary import summarize

MS = 1_000_000


class FakeLoader:
    """What a LoaderSource reads of a loader."""

    def __init__(self, workers: int = 0) -> None:
        self.dataset = list(range(1000))
        self.num_workers = workers
        self.batch_size = 8


def loop_of(
    wait: float, compute: float, steps: int = 100, loader: LoaderSource | None = None
) -> LoopObserver:
    """A loop whose steps wait and compute for so many ms."""
    observer = LoopObserver(clock=lambda: 0)
    source = loader or observer.lookup_source(FakeLoader())
    observer.sources[:] = [source]
    recorder = observer.recorder
    now = 0
    for _ in range(steps):
        recorder.enter_fetch(now, now)
        now += round(wait * MS)
        recorder.leave_fetch(now, now, source, None, None, "none")
        recorder.enter_update(now := now + round(compute * MS), now, 1)
        recorder.note_step(1)
        recorder.leave_update(now := now + MS // 2, now, 1)
    recorder.enter_fetch(now, now)
    recorder.leave_fetch(now, now, source, None, StopIteration, "none")
    recorder.end(now)
    return observer


def found_of(observer: LoopObserver) -> dict[str, Any]:
    texts = {"fastloop": "1", "torch": "2", "python": "3", "rank": 0, "began": "now"}
    texts |= {"command": "train.py --lr 1", "host": "node7"}
    return {**summarize(observer), **texts, "ended_by": None}


def add_epoch(observer: LoopObserver, waits: list[float], compute: float = 5) -> None:
    """Append an epoch whose steps wait for so many ms, behind its first one."""
    for number, wait in enumerate([0.0, *waits]):
        row = (0, round(wait * MS), -1, round(compute * MS), 0, 0, -1, number == 0)
        observer.recorder.steps.append(row)
