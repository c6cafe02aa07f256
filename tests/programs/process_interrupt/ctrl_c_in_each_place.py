import gc
import os
import sys

from head import interrupted
from time_limits import limit
from workers import (
    Interrupt,
    Items,
    SleepAt,
    check_batches,
    children,
    is_thread_in,
    sleep_in_steps,
    wait_until,
)

from fastloop import DataLoader

os.setpgrp()


to = sys.argv[1]
quick = DataLoader(Items(), 4, num_workers=2)


def wait():
    for batch in DataLoader(Items(64, sleep), 4, num_workers=2):
        pass


def body():
    for batch in quick:
        sleep_in_steps()


def idle():
    iterator = iter(quick)
    next(iterator)
    sleep_in_steps()


for name, work in (("in next()", wait), ("in the body", body), ("elsewhere", idle)):
    sleep = SleepAt(20, 600)
    when = sleep.is_waited_for if work is wait else lambda: is_thread_in("sleep_in_steps")
    late = interrupted(work, Interrupt(0.05, to == "group", 1, when, to == "another thread"))
    gc.collect()
    took = wait_until(lambda: not children(), 60)
    assert late < limit(60), late
    print(f"{name}: {late * 1e3:.0f} ms, all gone after {took * 1e3:.0f} ms")
    assert check_batches(quick) == 16
    assert not children()
