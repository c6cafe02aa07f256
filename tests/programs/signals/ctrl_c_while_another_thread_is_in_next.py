import threading
import time

import head
from head import interrupt, loader_of
from workers import is_thread_in, wait_until

for workers in (0, 1):
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    got = []
    thread = threading.Thread(target=lambda: got.append(next(iterator)))  # noqa: F821
    thread.start()
    wait_until(lambda: is_thread_in("__next__", thread.ident))  # noqa: F821
    interrupt()
    try:
        next(iterator)
    except KeyboardInterrupt:
        assert time.process_time() - head.sent < 2
    else:
        raise AssertionError("no KeyboardInterrupt")
    thread.join()
    assert got[0][0].shape == (80, 1 << 20)
    assert [int(batch[0, 7]) for (batch,) in iterator] == [4, 5]
    del got, thread
