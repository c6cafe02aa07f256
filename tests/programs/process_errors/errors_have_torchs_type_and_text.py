import gc

import torch

torch.set_num_threads(1)
from helpers import outcome
from torch.utils.data import DataLoader as TorchLoader
from workers import CallAt, Items, Stream, wait_for_torchs_workers

from fastloop import DataLoader


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


class Cannot(Exception):
    def __reduce__(self):
        raise TypeError("not me")


def cannot():
    return Cannot("unpicklable instance")


def plain(text):
    # Without what differs from run to run.
    for loader in ("fastloop", "torch"):
        text = text.replace(loader, "")
    ours = "    init(worker)"  # the call of worker_init_fn in fastloop's worker
    return [line for line in text.splitlines() if "File" not in line and line != ours]


from torch.utils.data import _utils

_utils.MP_STATUS_CHECK_INTERVAL = _utils.worker.MP_STATUS_CHECK_INTERVAL = 0.0


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
    "init": (Items(), dict(worker_init_fn=fail_at_start), None),  # before any batch
    "collate": (Items(), dict(collate_fn=fail_to_collate), WHERE),
    "iter": (stream(lambda: ValueError("mine")), {}, NONE),
    "ragged": ([torch.zeros(4 if i == 22 else 3) for i in range(64)], {}, WHERE),
}
for name, (data, kwargs, where) in cases.items():
    kwargs = dict(batch_size=4, num_workers=1, **kwargs)
    ours, theirs = (
        outcome(lambda: list(kind(data, **kwargs))) for kind in (DataLoader, TorchLoader)
    )
    assert ours[0] == theirs[0] == "raised", (name, ours, theirs)
    assert ours[1] is theirs[1], (name, ours, theirs)
    text = ours[2] if "\n" in ours[2] else eval(ours[2])
    head, _, tail = text.rpartition("\n")
    if where is None:
        head = text
    else:
        assert where in tail, (name, tail)
    if name not in ("ragged",):
        expected = theirs[2] if "\n" in theirs[2] else eval(theirs[2])
        assert plain(head) == plain(expected.rstrip()), (name, head, expected)
    gc.collect()  # or torch's own iterator ends in a worker
    wait_for_torchs_workers()
