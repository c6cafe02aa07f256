import os
import sys

import torch
from head import count, published, released, start, take
from torch._utils import ExceptionWrapper
from workers import wait_until

from fastloop.loader.workers import child as worker_main

exits = torch.zeros(1, dtype=torch.int64).share_memory_()


class Dying:
    # A worker end whose process ends so many steps after an answer.
    def __init__(self, worker_end):
        self.worker_end = worker_end

    def __getattr__(self, name):
        return getattr(self.worker_end, name)

    def answer(self, *args):
        fits = self.worker_end.answer(*args)
        left = int(exits)

        def step(frame, event, arg):
            nonlocal left
            if left == 0:
                os._exit(7)
            left -= 1
            return step

        frame = sys._getframe()
        while frame is not None:
            frame.f_trace = step
            frame = frame.f_back
        sys.settrace(step)
        return fits


def count_and_die(results, item):
    if isinstance(item[1], ExceptionWrapper):
        results._worker_end = Dying(results._worker_end)
    count(results, item)


worker_main._Channel.put = count_and_die

deaths = 0
for number in range(20):
    exits[0] = 2 * number
    iterator = start([1, ValueError("mine"), 1, 1], {0, 1})
    lines, ends = [0], []

    def ended():
        return not iterator._workers[1].is_alive() or published[1] == 2

    def look(frame, event, arg):
        ours = (
            "loader/workers/processes.py",
            "loader/workers/common.py",
            "loader/workers/lifecycle.py",
            "loader/workers/batch_pickle.py",
        )
        if not frame.f_code.co_filename.endswith(ours):
            return None
        lines[0] += event == "line"
        if lines[0] == 2 * number + 1 and not ends:
            released[1] = 1
            wait_until(ended)
            ends.append(iterator._workers[1].is_alive())
        if lines[0] == 2 * number + 100:
            released[0] = 1
        return look

    sys.settrace(look)
    got = take(iterator)
    sys.settrace(None)
    assert got == 0, (number, got)
    assert take(iterator) == "ValueError", number
    deaths += ends == [False]
    iterator._shutdown_workers()
assert deaths > 8, deaths
