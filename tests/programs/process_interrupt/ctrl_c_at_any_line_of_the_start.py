import gc
import os
import sys
import threading
from pathlib import Path

from head import InterruptAt
from workers import Items, check_batches, children, sleep_in_steps

import fastloop
from fastloop import DataLoader

os.setpgrp()


FILES = (
    "processes.py",
    "threads.py",
    "common.py",
    "dataloader.py",
    "route.py",
)
for name in FILES:
    assert list(Path(fastloop.__file__).parent.glob(f"loader/**/{name}")), name


def interrupt_at(line):
    sender = InterruptAt(line, FILES)
    path = sys.argv[1]
    loader = DataLoader(Items(8), 4, num_workers=1, path=path if path == "thread" else "auto")
    try:
        sys.settrace(sender)
        iterator = iter(loader)
        sys.settrace(None)
        if sender.is_sent:
            sleep_in_steps()  # until it comes
        return False
    except KeyboardInterrupt:
        pass
    gc.collect()
    assert not children()
    assert not [t for t in threading.enumerate() if t is not threading.main_thread()]
    return True


line = 1
while interrupt_at(line):
    line += 1
assert line > 200, line
assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16
