import gc
import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import Interrupt, Items, children, state, wait_until

from fastloop import DataLoader

os.setpgrp()


def zombies():
    return [pid for pid in children() if state(pid) == "Z"]


def interrupted(work, sender):
    # Seconds from the signal to the end of `work`.
    try:
        work()
        sender.wait()
    except KeyboardInterrupt:
        return time.monotonic() - sender.sent
    raise AssertionError("no KeyboardInterrupt")


class InterruptAt:
    # For sys.settrace(): Ctrl-C at a line of these files (None: of all), counted from 1, or after
    # it, as soon as a function is none of the `spared`.
    def __init__(self, line, files=None, spared=()):
        self.left, self.files, self.spared, self.is_sent = line, files, spared, False

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if self.files is not None and os.path.basename(code.co_filename) not in self.files:
            return None
        self.left -= 1
        if self.left > 0 or code.co_name in self.spared:
            return self
        sys.settrace(None)
        self.is_sent = True
        os.kill(os.getpid(), signal.SIGINT)


import multiprocessing


def main():
    for method, longest, rounds in (("fork", 0.02, 20), ("spawn", 1.0, 2), ("forkserver", 1.0, 2)):
        loader = DataLoader(
            Items(), 4, num_workers=3 if method == "fork" else 2, multiprocessing_context=method
        )
        for round in range(rounds):
            try:
                sender = Interrupt(longest * round / rounds)
                iterator = iter(loader)
                del iterator
                sender.wait()
            except KeyboardInterrupt:
                pass
            gc.collect()
            wait_until(lambda: len(children()) <= 2 * (method != "fork"), 60)
    # A fork server that was started here must not block SIGINT in what it makes for others.
    queue = multiprocessing.get_context("forkserver").SimpleQueue()
    process = multiprocessing.get_context("forkserver").Process(target=tell, args=(queue,))
    process.start()
    assert queue.get() == set()
    process.join()


def tell(queue):
    queue.put(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


if __name__ == "__main__":
    main()
