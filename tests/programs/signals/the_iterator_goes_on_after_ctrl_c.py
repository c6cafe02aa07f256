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


for workers in (0, 1):
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    interrupt()
    try:
        next(iterator)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    rest = [batch[:, 0].tolist() for (batch,) in iterator]
    assert rest == [list(range(8)) * 10, [4], [5]][1 - workers :], rest
