import os
import threading

from time_limits import limit

from fastloop.base.threads import lock_over_forks

lock = lock_over_forks()
is_taken, may_end = threading.Event(), threading.Event()


def hold() -> None:
    with lock:
        is_taken.set()
        may_end.wait(0.2)


def enter_in_child() -> None:
    if (child := os.fork()) == 0:
        timer = threading.Timer(limit(20), os._exit, (1,))
        timer.daemon = True
        timer.start()
        with lock:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


thread = threading.Thread(target=hold)
thread.start()
assert is_taken.wait(limit(60))
enter_in_child()
thread.join()
with lock:
    enter_in_child()
thread = threading.Thread(target=enter_in_child)
thread.start()
thread.join()
