import os
import signal
import threading
import time

from head import loader_of
from workers import is_thread_in, wait_until


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
