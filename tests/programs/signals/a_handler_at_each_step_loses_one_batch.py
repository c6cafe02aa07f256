"""A signal's handler raises in one next() of an epoch, at each step of the interpreter in turn. The
batch on its way to the loop may be lost, as with torch; all others come, each once."""

from __future__ import annotations

import signal
import sys
from _thread import interrupt_main
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from torch.utils.data import Dataset

from fastloop import DataLoader

BATCHES = 6
STRIDE = 3  # a handler runs after a call, and few calls follow each other that closely


class AlarmError(Exception):
    pass


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> int:
        return index


class Victim:
    pass


def ring(*_: Any) -> None:
    raise AlarmError


def make_tracer(step: int, watchers: list[Any]) -> Callable[..., Any]:
    """Return a tracer that makes a signal pending before this step of the traced code."""
    left = step

    def tracer(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        left -= 1
        if left > 0:
            return tracer
        sys.settrace(None)
        # The victim dies as the tracer returns, and the callback is native: no Python code of the
        # tracer runs any more, which would run the handler itself.
        victim, signals = Victim(), map(interrupt_main, [signal.SIGALRM])
        watchers.append(ref(victim, partial(dict.fromkeys, signals)))
        return None

    return tracer


def run(how: dict[str, Any], batches: int, step: int) -> bool:
    """Run an epoch. Tell whether the next() after some batches was interrupted."""
    # A list as batch sampler: an error inside a generator would end it.
    order: Any = [[i] for i in range(BATCHES)]
    iterator = iter(DataLoader(Rows(), batch_sampler=order, **how))
    seen, rings, where = [int(next(iterator)) for _ in range(batches)], 0, (how, step)
    watchers: list[Any] = []
    sys.settrace(make_tracer(step, watchers))
    while True:
        try:
            try:
                batch = next(iterator)
            finally:
                sys.settrace(None)
            seen.append(int(batch))
        except AlarmError:
            rings += 1
        except StopIteration:
            break
    assert len(set(seen)) == len(seen) >= BATCHES - rings, (*where, seen, rings)
    assert seen == sorted(seen) or not how.get("in_order", True), (*where, seen)
    assert rings == len(watchers), where
    return rings > 0


signal.signal(signal.SIGALRM, ring)
THREADS = {"path": "thread", "num_workers": 2, "prefetch_factor": 1}
for how, batches in ((THREADS, 1), ({**THREADS, "in_order": False}, 1), ({"path": "sync"}, 0)):
    step = 1
    while run(how, batches, step):
        step += STRIDE
    assert step > 30 * STRIDE, step
