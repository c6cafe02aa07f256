import os
import signal

import torch

torch.set_num_threads(1)
from workers import Items, children

from fastloop import DataLoader

os.setpgrp()


class Stops:
    def __init__(self, at, act):
        self.at, self.act = at, act

    def __iter__(self):
        for i in range(64):
            if i == self.at:
                self.act()
            yield i

    def __len__(self):
        return 64


def in_group():
    os.killpg(os.getpgrp(), signal.SIGINT)


def alone():
    os.kill(os.getpid(), signal.SIGINT)


def error():
    raise KeyError("mine")


kept = []
for persistent in (False, True):
    for at in (0, 5):
        for act in (in_group, alone, error):
            loader = DataLoader(
                Items(), 4, sampler=Stops(at, act), num_workers=2, persistent_workers=persistent
            )
            try:
                iter(loader)
            except (KeyboardInterrupt, KeyError) as stop:
                kept.append(stop)
            assert not children(), (persistent, at, act)
assert len(kept) == 12
