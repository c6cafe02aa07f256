"""What the programs of this folder share."""

import os
import signal
import threading
import time
from pathlib import Path

from helpers import slow_array
from workers import is_thread_in, wait_until

from fastloop import ArrayDataset, DataLoader

array = slow_array(Path.cwd(), 8)


def loader_of(workers, rows):
    slow = [i % 8 for i in range(rows)]  # 25 ms a row
    return DataLoader(
        ArrayDataset(array),
        batch_sampler=[[3], slow, [4], [5]],
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        path="array",
    )


def interrupt():
    """Send SIGINT once the main thread is in next(). `sent` is this process's CPU time then."""

    def send():
        wait_until(lambda: is_thread_in("__next__"))
        time.sleep(0.05)
        global sent
        sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()
