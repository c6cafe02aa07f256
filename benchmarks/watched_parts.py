"""CPU time that a watched step costs, by parts of fastloop's report.

    python benchmarks/watched_parts.py [STEPS]

Real steps of a linear model, without a sleep, take the report's code and data out of the caches.
What is due each second in a loop of 500 steps a second is due each 500 steps instead: an update and
a look, and each 5 000 steps a verdict. So the load of other programs changes no count. Each
function is timed by the CPU clock of its thread, without the functions inside that are timed, too.
Scrapes are the process's CPU time while another program reads the port and the loop waits. Native
hooks are what next() and step() of an epoch that does nothing take longer with a report, the
shortest of 60.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import wraps
from tempfile import TemporaryDirectory
from time import process_time_ns, thread_time_ns
from typing import Any

import torch
from bench_watched import find_port
from torch.utils.data import DataLoader, TensorDataset

import fastloop
from fastloop.tools.report import observer, ranks, recorder, updates
from fastloop.tools.watch import metrics, report, status_line

SECOND, VERDICT, NEVER = 500, 5_000, 1 << 60  # steps; ns
FUNCTIONS = {
    "hooks in Python": (
        observer.LoopObserver,
        "enter_iter leave_iter enter_next leave_next enter_step leave_step _look_around",
    ),
    "steps as arrays": (recorder.StepRecorder, "note_steps"),
    "single events": (
        recorder.StepRecorder,
        "enter_fetch leave_iter leave_fetch enter_step leave_update",
    ),
    "updates": (updates.Updates, "tell"),
    "verdicts": (updates.Updates, "_judge"),
    "line": (status_line.StatusLine, "__call__"),
    "metrics": (metrics.Metrics, "__call__"),
}
READER = "import sys, urllib.request\nfor _ in range(int(sys.argv[2])):"
READER += " urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/metrics').read()"

spent: Counter[str] = Counter()  # ns
inside: list[int] = []  # ns of timed functions inside those that run, the outermost first


def time_calls(part: str, owner: Any, name: str) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        inside.append(0)
        begin = thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            took = thread_time_ns() - begin
            spent[part] += took - inside.pop()
            if inside:
                inside[-1] += took

    setattr(owner, name, timed)


def train(steps: int, watched: Any = None) -> None:
    done = 0
    while done < steps:
        for (rows,) in loader:
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            done += 1
            if watched is not None and done % SECOND == SECOND // 2:
                ask(watched, done % VERDICT == SECOND // 2)
            if done == steps:
                return


def ask(watched: Any, for_verdict: bool) -> None:
    """Let the next step look and tell an update."""
    for callback in watched._updates._callbacks:
        callback.due = 0
    loop = watched._observer
    loop.next_update = loop.next_look = loop._next_look_at_gpu = 0
    if for_verdict:
        watched._updates._next_verdict = watched._updates.ranks.due = 0


def time_hooks() -> float:
    """Return the shortest ns of an epoch of steps that do nothing, for a step."""
    batches, times = DataLoader(TensorDataset(torch.zeros(8000, 16)), 8), []
    empty = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    for _ in range(60):
        begin = thread_time_ns()
        for _batch in batches:
            empty.step()
        times.append(thread_time_ns() - begin)
    return min(times) / len(batches)


def time_scrapes(port: int, count: int) -> int:
    begin = process_time_ns()
    subprocess.run([sys.executable, "-c", READER, str(port), str(count)], check=True)
    return process_time_ns() - begin


def main(steps: int) -> None:
    parts, port = {"native hooks": -time_hooks()}, find_port()
    with fastloop.report(verbose=False):
        parts["native hooks"] += time_hooks()
    for part, (owner, names) in FUNCTIONS.items():
        for name in names.split():
            time_calls(part, owner, name)
    observer._LOOK_NS = observer._LOOK_AT_GPU_NS = updates._JUDGE_NS = ranks._OPEN_NS = NEVER
    report._PORT_S = NEVER / 1e9
    with TemporaryDirectory() as folder:
        page = f"{folder}/run.html"
        with fastloop.report(page, verbose=False, watch=1e6, metrics=f":{port}") as watched:
            train(2 * SECOND, watched)
            spent.clear()
            train(steps, watched)
            parts |= {part: ns / steps for part, ns in spent.items()}
            time_scrapes(port, 20)
            idle = min(time_scrapes(port, 0) for _ in range(3))
            scrape = min(time_scrapes(port, 200) - idle for _ in range(5)) / 200
            parts["a scrape each second"] = scrape / SECOND
    for part, ns in sorted(parts.items(), key=lambda one: -one[1]):
        print(f"{ns / 1e3:6.2f} µs a step  {part}")
    print(f"{sum(parts.values()) / 1e3:6.2f} µs a step  in all; a scrape {scrape / 1e3:.0f} µs")


if __name__ == "__main__":
    fastloop.patch()
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8000, 16)), batch_size=8, shuffle=True)
    train(2 * SECOND)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
