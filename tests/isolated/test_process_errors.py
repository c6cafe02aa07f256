"""Errors in workers: torch's type and text, then batch number and indices; and torch's own rules
for timeouts and for iterators that are at their end."""

from pathlib import Path

from helpers import run_script

HEAD = """
import gc, os, signal, sys, time
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from torch.utils.data import DataLoader as TorchLoader
from helpers import outcome
from workers import *
from workers import Items, Stream, check_batches


class Raises:
    def __init__(self, error):
        self.error = error
    def __call__(self, *_):
        raise self.error()


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


def two():
    return TwoArguments("left", "right")


def local():
    class Local(Exception):
        pass
    return Local("in a function")


class Cannot(Exception):
    def __reduce__(self):
        raise TypeError("not me")


def cannot():
    return Cannot("unpicklable instance")


def plain(text):
    # Without what differs from run to run.
    for loader in ("fastloop", "torch"):
        text = text.replace(loader, "")
    return [line for line in text.splitlines() if "File" not in line]
"""


def test_errors_have_torchs_type_and_text(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data import _utils
_utils.MP_STATUS_CHECK_INTERVAL = _utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1

def fail_at_start(number):
    raise KeyError("init")

def fail_to_collate(samples):
    if samples[0][0] == 20:
        raise ZeroDivisionError("collate")
    return samples

bad = lambda error: Items(hook=CallAt(22, Raises(error)))
stream = lambda error: Stream(hook=CallAt(22, Raises(error)))
WHERE = "batch 5 (indices [20, 21, 22, 23])"
NONE = "batch 5 (indices [None, None, None, None])"
cases = {
    "value": (bad(lambda: ValueError("mine")), {}, WHERE),
    "key": (bad(lambda: KeyError("mine")), {}, WHERE),
    "os": (bad(lambda: OSError(2, "no such thing")), {}, WHERE),
    "unicode": (bad(lambda: UnicodeDecodeError("utf8", b"abc", 1, 2, "odd")), {}, WHERE),
    "empty": (bad(ValueError), {}, WHERE),
    "two": (bad(two), {}, WHERE),
    "cannot": (bad(cannot), {}, WHERE),
    "init": (Items(), dict(worker_init_fn=fail_at_start), "batch 0 (indices [0, 1, 2, 3])"),
    "collate": (Items(), dict(collate_fn=fail_to_collate), WHERE),
    "iter": (stream(lambda: ValueError("mine")), {}, NONE),
    "ragged": ([torch.zeros(4 if i == 22 else 3) for i in range(64)], {}, WHERE),
}
for name, (data, kwargs, where) in cases.items():
    kwargs = dict(batch_size=4, num_workers=1, **kwargs)
    ours, theirs = (outcome(lambda: list(kind(data, **kwargs)))
                    for kind in (DataLoader, TorchLoader))
    assert ours[0] == theirs[0] == "raised", (name, ours, theirs)
    assert ours[1] is theirs[1], (name, ours, theirs)
    text = ours[2] if "\\n" in ours[2] else eval(ours[2])
    head, _, tail = text.rpartition("\\n")
    assert where in tail, (name, tail)
    if name not in ("ragged",):
        expected = theirs[2] if "\\n" in theirs[2] else eval(theirs[2])
        assert plain(head) == plain(expected.rstrip()), (name, head, expected)
    gc.collect()  # or torch's own iterator ends in a worker
    wait_until(lambda: not children())
""",
    )


def test_the_order_of_batches_and_errors(tmp_path: Path) -> None:
    """An error takes the place of its batch, and the loop can go on after it."""
    run_script(
        tmp_path,
        HEAD
        + """
for kind in (DataLoader, TorchLoader):
    for workers in (1, 3):
        iterator = iter(kind(Items(64, CallAt(9, Raises(ValueError), every=True)), 4,
                             num_workers=workers))
        got = []
        for _ in range(16):
            batch = outcome(lambda: next(iterator))
            got.append(batch[1].__name__ if isinstance(batch, tuple) else int(batch[0, 0]))
        assert outcome(lambda: next(iterator))[1] is StopIteration
        bad = {i // 4 for i in range(0, 64, 9)}
        assert got == ["ValueError" if i in bad else 4 * i for i in range(16)], got
        assert not children()
""",
    )


def test_what_cannot_be_pickled(tmp_path: Path) -> None:
    """RuntimeError with the original's type and text, as batch, as error, and as both at once."""
    run_script(
        tmp_path,
        HEAD
        + """
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
kind, error, text = outcome(lambda: list(DataLoader(Items(), 4, num_workers=2,
                                                    collate_fn=Wraps(lambda: lambda: 0))))
assert "lambda" in text and "batch 5" in text, text
kind, error, text = outcome(lambda: list(DataLoader(Items(), 4, num_workers=2,
                                                    collate_fn=Wraps(lambda: Odd(ValueError)))))
assert error is ValueError and "batch 5" in text, text

# What only its own process can read is met in its place, and the loop goes on.
iterator = iter(DataLoader(Items(), 4, num_workers=2, collate_fn=Wraps(lambda: Lives(None))))
got = [outcome(lambda: next(iterator)) for _ in range(16)]
assert got[5][1:] == (ValueError, "born in another process"), got[5]
assert all(isinstance(batch, list) for n, batch in enumerate(got) if n != 5)
assert outcome(lambda: next(iterator))[1] is StopIteration
del iterator, got
gc.collect()
assert not children()
""",
        timeout=300,
    )


def test_timeout_as_in_torch(tmp_path: Path) -> None:
    """Of a slow worker and of one that is stopped, which ends all the same."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
class Stop:
    def __call__(self):
        os.kill(os.getpid(), signal.SIGSTOP)

for act in (Sleep(60), Stop()):
    iterator = iter(DataLoader(Items(hook=CallAt(10, act)), 4, num_workers=2, timeout=0.5))
    next(iterator), next(iterator)
    begin = time.monotonic()
    text = error_text(lambda: next(iterator))
    seconds = time.monotonic() - begin
    assert text == "DataLoader timed out after 0.5 seconds", text  # torch's
    assert 0.5 <= seconds < 60, seconds
    begin = time.monotonic()
    del iterator
    gc.collect()
    print(f"{type(act).__name__}: after {seconds:.2f} s, ended in {time.monotonic() - begin:.2f} s")
    assert not children()
    assert time.monotonic() - begin < 60  # ended, not waited for
assert check_batches(DataLoader(Items(), 4, num_workers=2, timeout=300)) == 16
""",
        )
    )


def test_an_iterator_at_its_end(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for persistent in (False, True):
    for data in (Items(16), Stream(8)):
        traces = []
        for kind in (DataLoader, TorchLoader):
            loader = kind(data, 4, num_workers=2, persistent_workers=persistent)
            first = iter(loader)
            trace = [batch[:, 0].tolist() for batch in first]
            trace += [outcome(lambda: next(first))[1] for _ in range(3)]
            second = iter(loader)
            trace += [batch[:, 0].tolist() for batch in second]
            trace += [outcome(lambda: next(first))[1], outcome(lambda: next(second))[1]]
            third, fourth = iter(loader), iter(loader)  # the same one where workers persist
            trace += [next(third)[:, 0].tolist(), next(fourth)[:, 0].tolist()]
            trace += [batch[:, 0].tolist() for batch in third]
            trace += [batch[:, 0].tolist() for batch in fourth]
            traces.append(trace)
            del loader, first, second, third, fourth
            gc.collect()
            wait_until(lambda: not children(), 60)
        assert traces[0] == traces[1], traces
""",
    )
