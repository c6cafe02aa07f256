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
    # Once the main thread has been in next() for a while.
    def send():
        wait_until(lambda: is_thread_in("__next__"))
        time.sleep(0.05)
        global sent
        sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


for workers in (0, 1, 2):
    loader = loader_of(workers, 400)
    for _ in range(2):
        got = []
        try:
            for (batch,) in loader:
                got.append(int(batch[0, 0]))
                interrupt()
        except KeyboardInterrupt:
            assert time.process_time() - sent < 2  # noqa: F821
        else:
            raise AssertionError("no KeyboardInterrupt")
        assert got == [3]
    del loader.batch_sampler[1]
    assert [int(batch[0, 7]) for (batch,) in loader] == [3, 4, 5]
    assert loader.stats().slots_lent <= 1
