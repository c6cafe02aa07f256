import gc
import os

import torch

torch.set_num_threads(1)
from helpers import outcome
from workers import CallAt, Items, children, error_text

from fastloop import DataLoader


class Raises:
    def __init__(self, error):
        self.error = error

    def __call__(self, *_):
        raise self.error()


def local():
    class Local(Exception):
        pass

    return Local("in a function")


class Odd:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error()


class Lives(Odd):
    def __reduce__(self):
        return Dies, (os.getpid(),)


class Dies:
    def __init__(self, pid):
        if pid != os.getpid():
            raise ValueError("born in another process")


class Wraps:
    def __init__(self, make):
        self.make = make

    def __call__(self, samples):
        return self.make() if samples[0][0] == 20 else samples


def load(data, **kwargs):
    return error_text(lambda: list(DataLoader(data, 4, num_workers=2, **kwargs)))


text = load(Items(hook=CallAt(22, Raises(local))))
assert "Local" in text and "in a function" in text, text
assert "batch 5 (indices [20, 21, 22, 23])" in text, text
text = load(Items(), collate_fn=Wraps(lambda: Odd(local)))
assert "Local" in text and "in a function" in text and "batch 5" in text, text
kind, error, text = outcome(
    lambda: list(DataLoader(Items(), 4, num_workers=2, collate_fn=Wraps(lambda: lambda: 0)))
)
assert "lambda" in text and "batch 5" in text, text
kind, error, text = outcome(
    lambda: list(DataLoader(Items(), 4, num_workers=2, collate_fn=Wraps(lambda: Odd(ValueError))))
)
assert error is ValueError and "batch 5" in text, text

# What only its own process can read is met in its place, and the loop goes on.
iterator = iter(DataLoader(Items(), 4, num_workers=2, collate_fn=Wraps(lambda: Lives(None))))
got = [outcome(lambda: next(iterator)) for _ in range(16)]  # noqa: F821
assert got[5][1:] == (ValueError, "born in another process"), got[5]
assert all(isinstance(batch, list) for n, batch in enumerate(got) if n != 5)
assert outcome(lambda: next(iterator))[1] is StopIteration  # noqa: F821
del iterator, got
gc.collect()
assert not children()
