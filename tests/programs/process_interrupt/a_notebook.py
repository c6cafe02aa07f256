import gc
import os
import sys

import torch

torch.set_num_threads(1)
from workers import (
    Interrupt,
    Items,
    SleepAt,
    check_batches,
    children,
    is_thread_in,
    sleep_in_steps,
    state,
    wait_until,
)

from fastloop import DataLoader

USED_BY_CELLS = check_batches, sleep_in_steps
os.setpgrp()


def zombies():
    return [pid for pid in children() if state(pid) == "Z"]


import code


class Notebook(code.InteractiveConsole):
    def write(self, data):
        print(data, end="")


notebook = Notebook(globals())


def cell(text):
    notebook.runcode(compile(text, "cell", "exec"))


good = DataLoader(Items(), 4, num_workers=2)
for round in range(3):
    for text in (
        "for batch in loader: pass",
        "for batch in good: sleep_in_steps()",
        "iterator = iter(loader)\nfor batch in iterator: pass",
    ):
        sleep = SleepAt(20)
        loader = DataLoader(Items(64, sleep), 4, num_workers=2)
        in_body = lambda: is_thread_in("sleep_in_steps")
        sender = Interrupt(
            0.2 * round, True, times=2, when=lambda: in_body() or sleep.is_waited_for()
        )
        try:
            cell(text)
            sender.wait()
        except KeyboardInterrupt:
            pass  # the second one, at the prompt
        wait_until(lambda: not zombies(), 60)
        cell("print(check_batches(good))")
        assert not zombies()
del iterator  # noqa: F821
sys.last_traceback = sys.last_value = None
gc.collect()
wait_until(lambda: not children(), 60)
