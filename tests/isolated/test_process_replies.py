"""What a worker has published before it died is delivered, its last batch or its own error, and not
the news of its death."""

from pathlib import Path

from helpers import run_script

HEAD = """
import os, signal, sys, threading
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from fastloop.loader.workers.processes import ProcessIter
from fastloop.workers import main as worker_main
from helpers import outcome
from workers import *
from workers import Items, wait_until

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


def await_last_words(iterator, counts, dead):
    wait_until(lambda: published[: len(counts)].tolist() == counts)
    wait_until(lambda: not any(iterator._workers[w].is_alive() for w in dead))


def take(iterator):
    # The number of the next batch, or the name of the error in its place.
    try:
        return int(next(iterator)[0, 0])
    except Exception as error:
        return type(error).__name__
"""


def test_a_reply_wins_over_the_death_of_its_writer(tmp_path: Path) -> None:
    """Its reply comes after replies that ask for more memory, and before its batch is due."""
    run_script(
        tmp_path,
        HEAD
        + """
large = 100_000
iterator = start([large, ValueError("mine"), large, -3, 1, 1], {1})
wait_until(lambda: published[0] == 2)
released[1] = 1
await_last_words(iterator, [2, 1], [1])
assert take(iterator) == 0
assert take(iterator) == "ValueError"
text = error_text(lambda: [None for _ in iterator])
assert "exited unexpectedly with exit code 3; it was to make batch 3 (indices [3])" in text, text

# One that has nothing to deliver is no reason to wait for others.
iterator = start([1, 1, -3, 1, 1, 1], {0}, 3)
await_last_words(iterator, [0, 2, 0], [2])
text = error_text(lambda: next(iterator))
assert "exit code 3; it was to make batch 2 (indices [2])" in text, text
released.fill_(1)

# Batch 0 is made when the parent has met both of the dead three times.
seen = []
def find_dead(iterator, find=ProcessIter._find_dead):
    found = find(iterator)
    seen.extend(found)
    if len(seen) >= 6:
        released.fill_(1)
    return found
ProcessIter._find_dead = find_dead

for in_order in (True, False):
    seen.clear()
    iterator = start([1, ValueError("mine"), 1, 1, -3, -3], {0}, 3, in_order=in_order)
    await_last_words(iterator, [0, 1, 1], [1, 2])
    if in_order:
        for expected in (0, "ValueError", 2):
            assert take(iterator) == expected
    else:  # batch 0 has not to come first
        assert {take(iterator), take(iterator)} == {"ValueError", 2}
    text = error_text(lambda: [None for _ in iterator])
    assert text.count("exited unexpectedly with exit code 3") == 2, text
    released.fill_(1)
""",
        timeout=300,
    )


DYING = """
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
"""


def test_death_at_every_step_after_publishing(tmp_path: Path) -> None:
    """The worker's: after each line of Python that follows its reply. The parent's: it learns of
    reply and death at each line of its wait."""
    run_script(
        tmp_path,
        HEAD
        + DYING
        + """
deaths = 0
for number in range(20):
    exits[0] = 2 * number
    iterator = start([1, ValueError("mine"), 1, 1], {0, 1})
    lines, ends = [0], []

    def ended():
        return not iterator._workers[1].is_alive() or published[1] == 2

    def look(frame, event, arg):
        ours = ("loader/workers/processes.py", "loader/workers/common.py",
                "workers/lifecycle.py", "workers/tasks.py")
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
""",
        timeout=300,
    )
