import gc
import os
import signal

import torch

torch.set_num_threads(1)
from workers import Interrupt, Items, children, wait_until

from fastloop import DataLoader

os.setpgrp()


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
