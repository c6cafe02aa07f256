import os
import re

import torch
from head import ENDS, check_clean, check_text, timed, warm_up
from time_limits import limit
from workers import Items, children, resources, state, wait_until

from fastloop import DataLoader

if __name__ == "__main__":
    before = warm_up()

made = torch.zeros(64).share_memory_()
before = resources()


def are_idle():
    # All that was asked for is made: the first batch, and two ahead of each worker.
    return made.sum() == 5 * 4 and all(state(child) == "S" for child in children())


for end in ENDS[:4]:
    made.zero_()
    loader = DataLoader(Items(hook=lambda i: made[i].fill_(1)), 4, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    first = next(iterator)
    wait_until(are_idle)
    assert len(children()) == 2
    victim = children()[0]
    text, seconds = timed(iterator, lambda: os.kill(victim, end))
    check_text(text, end)
    assert f"(pid {victim})" in text, text
    assert re.search("batch [0-9]+ .indices .[0-9, ]+.[)]", text), text
    assert seconds < limit(60), seconds
    del iterator, loader, first
    check_clean(before)
    print(f"{end!r}: {seconds * 1e3:.0f} ms")
