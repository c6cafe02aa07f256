import os
import sys

import torch

torch.set_num_threads(1)
import time

from workers import wait_until

from fastloop import DataLoader
from fastloop.workers import main as worker_main

published = torch.zeros(8, dtype=torch.int64).share_memory_()  # replies of each worker
released = torch.zeros(64, dtype=torch.int64).share_memory_()  # items that may be made
put = worker_main._Channel.put


def count(results, item):
    put(results, item)
    published[torch.utils.data.get_worker_info().id] += 1


worker_main._Channel.put = count


class Script(torch.utils.data.Dataset):
    # Item i is what `acts` has for it: an exception to raise, a size, or an exit code.
    def __init__(self, acts, held=()):
        self.acts, self.held = acts, held

    def __len__(self):
        return len(self.acts)

    def __getitem__(self, i):
        while i in self.held and not released[i]:
            time.sleep(0.001)
        act = self.acts[i]
        if isinstance(act, Exception):
            raise act
        if act < 0:
            os._exit(-act)
        return torch.full((act,), i, dtype=torch.uint8)


def start(acts, held=(), workers=2, **kwargs):
    published.zero_()
    released.zero_()
    loader = DataLoader(Script(acts, held), 1, num_workers=workers, **kwargs)
    loader.memory_budget = 2 << 20  # requests begin with 64 KiB
    return iter(loader)


def take(iterator):
    # The number of the next batch, or the name of the error in its place.
    try:
        return int(next(iterator)[0, 0])
    except Exception as error:
        return type(error).__name__


from torch._utils import ExceptionWrapper

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
            "workers/lifecycle.py",
            "workers/tasks.py",
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
