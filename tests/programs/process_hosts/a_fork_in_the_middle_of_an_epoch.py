import gc
import os
import sys

import torch

torch.set_num_threads(1)
from helpers import outcome
from workers import Items, check_batches, children, in_child, is_running

from fastloop import DataLoader

for persistent in (False, True):
    loader = DataLoader(Items(shape=(30_000,)), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(5)]

    def drop():
        global kept, iterator
        assert check_batches(kept) == 5
        kept = iterator = None
        gc.collect()

    def anew():
        global kept
        for _ in range(2):
            assert check_batches(loader) == 16  # noqa: F821
        kept = None
        for batch in loader:  # noqa: F821
            break
        assert check_batches(DataLoader(Items(), 4, num_workers=1)) == 16

    def go_on():
        assert outcome(lambda: next(iterator))[1] in (RuntimeError, ValueError)  # noqa: F821
        loader.close()  # noqa: F821

    for work in (drop, anew, go_on, lambda: gc.collect()):
        in_child(work)
        assert check_batches(kept) == 5
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # with all that a program does when it ends
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len([child for child in children() if is_running(child)]) == 2
    kept += iterator
    assert check_batches(kept) == 16
    assert check_batches(loader) == 16
    del loader, iterator, kept
    gc.collect()
    assert not children()
