"""Loaders whose device reads the rows of a dataset in host memory, over kernels that run on the
CPU: batches and random states are torch's, and what is registered goes with the dataset. Needs a
core of tests/cuda/build_core.py."""

import copy
import ctypes
import gc
import os
import pickle
import struct
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, Subset

from fastloop import ArrayDataset, DataLoader, _core
from fastloop import transforms as T
from fastloop.base import machine
from fastloop.compat import moves

torch.set_num_threads(1)  # a forked child has no others
N = 150
IMAGES = torch.randint(256, (N, 3, 24, 20), dtype=torch.uint8)
CAST = [T.ToDtype(torch.float16, scale=True), T.Normalize([0.4], [0.2])]
CHAINS: list[list[Any]] = [
    [T.RandomCrop(20, 4), T.RandomHorizontalFlip(), *CAST],
    [T.RandomResizedCrop(18), T.RandomHorizontalFlip()],
    [T.Pad(2, 7), T.RandomErasing(1.0)],
]
PLAIN = np.random.default_rng(0).standard_normal((N, 7)).astype(np.float32)
GAPS = np.arange(N * 6, dtype=np.int16).reshape(N, 6)[:, :3]  # whole rows, apart


def make(gather: str, chain: int | None = None) -> ArrayDataset:
    more: dict[str, Any] = {"gather": gather, "seed": 3}
    if chain is not None:
        more |= {"transform": {"image": T.Compose(CHAINS[chain])}, "out_layout": "channels_last"}
    fields = {"plain": PLAIN, "gaps": GAPS, "label": torch.arange(N), "none": torch.empty(N, 0)}
    return ArrayDataset(image=IMAGES, **fields, **more)  # type: ignore[arg-type]


CHOICES = [None, *range(len(CHAINS))]
# Plans that were made before see tensors on the CPU.
DATA = [make("device", chain) for chain in CHOICES]
COUNTED = [make("device"), make("device", 0)]
LATE = [make("device"), make("device", 0)]
PLAN = make("auto", 0)._plans[0]
ON_THE_CPU = [list(DataLoader(make("auto", chain), 32)) for chain in CHOICES]

import as_cuda  # noqa: F401 (tensors are seen on a device from here on)

from fastloop.data import columns
from fastloop.loader.arrays import resident

columns._RESIDENT = ("cpu",)  # the loader's device, too


class Costs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("registered", "unregistered", "bytes", "held")]


fake: Any = ctypes.CDLL(_core.__file__)
fake.fake_launches.restype = fake.fake_calls.restype = ctypes.c_int64
fake.fake_count_pins.restype = Costs
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]


def registered() -> int:
    costs = fake.fake_count_pins()
    return int(costs.registered - costs.unregistered)


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    yield from batch.values() if isinstance(batch, dict) else batch


def compare(mine: Any, theirs: Any) -> None:
    for a, b in zip(tensors(mine), tensors(theirs), strict=True):
        assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def fetching(dataset: Any, *args: Any, **kwargs: Any) -> DataLoader[Any]:
    loader = DataLoader(dataset, *args, device="cpu", **kwargs)
    assert "read by cpu" in loader.stats().why, loader.stats().why
    return loader


# ---- batches

for chain, expected in zip(CHOICES, ON_THE_CPU, strict=True):
    data = DATA.pop(0)
    loader = fetching(data, 32)
    before = fake.fake_launches()
    batches = list(loader)
    draws = 0 if chain is None else 1  # of the maps of all batches, apart from the fetch
    assert fake.fake_launches() - before == (1 + draws) * len(batches) + draws
    assert registered() == 4, registered()  # all fields that have bytes
    for mine, theirs in zip(batches, expected, strict=True):
        compare(mine, theirs)
    held = registered()
    list(loader)
    assert registered() == held  # once
    del loader, data, batches
    assert registered() == 0

# A second kernel costs its launch: reads are noted once a batch.
calls = []
for _ in range(2):
    iterator = iter(fetching(COUNTED.pop(0), 32))
    next(iterator)
    fake.fake_fail_at(10**9, 2, False)  # counts from here
    next(iterator)
    calls.append(fake.fake_calls())
    fake.fake_fail_at(0, 0, False)
assert calls[1] - calls[0] < 8, calls
del iterator
assert registered() == 0

# ---- a kernel that reads over the link takes 8 blocks at most

usual = (ctypes.c_char * 56).in_dll(fake, "shim_usual_limits")
few = ctypes.create_string_buffer(usual.raw, 56)
struct.pack_into("I", few, 24, 8)  # blocks in x
fake.shim_set_limits(few)
compare(next(iter(fetching(make("device"), N))), next(iter(TorchLoader(make("device"), N))))
fake.shim_set_limits(usual)

data = make("device")
for dataset in (data, Subset(data, list(range(N - 1, 20, -1)))):
    for arguments in (
        {"shuffle": True, "batch_size": 40},
        {"sampler": RandomSampler(dataset, True, 70), "batch_size": 64},
        {"batch_sampler": [[3, 1], [-1], [0, 0, 7]]},
        {"batch_size": None},
    ):
        seen = []
        for cls in (fetching, TorchLoader):
            torch.manual_seed(8)
            seen.append([*cls(dataset, **arguments), torch.get_rng_state()])  # type: ignore[operator]
        assert torch.equal(seen[0].pop(), seen[1].pop()) and len(seen[0]) == len(seen[1])
        for mine, theirs in zip(*seen, strict=True):
            compare(mine, theirs)
masks = {"sampler": [torch.arange(N) % 2 == 0], "batch_size": None}
compare(next(iter(fetching(data, **masks))), next(iter(TorchLoader(data, **masks))))  # type: ignore[call-overload]

# ---- lifetimes

assert registered() == 4
other = ArrayDataset(IMAGES[5:50], PLAIN[5:50], gather="device")  # of the same memory
loader = fetching(other, 9)
compare(next(iter(loader)), next(iter(TorchLoader(other, 9))))
assert registered() == 4
iterator = iter(fetching(data, 10))
copied, pickled = copy.copy(data), pickle.loads(pickle.dumps(data))
del data, dataset, copied
gc.collect()
next(iterator)
assert registered() == 4 and pickled._fields[0].host_range is None
iterator = None  # type: ignore[assignment]
gc.collect()
assert registered() == 2  # those that the other dataset reads
reference = weakref.ref(other._fields[0].host_range)
warnings.simplefilter("ignore")  # of the fork
if (child := os.fork()) == 0:
    IMAGES.share_memory_()  # nothing is registered here
    del other, loader
    gc.collect()
    os._exit(registered() != 2)
assert os.waitpid(child, 0)[1] == 0 and reference() is not None
warnings.simplefilter("default")
moves._warn_of_forks.cache_clear()
del other, loader
gc.collect()
assert registered() == 0

# ---- data that change between batches, and forks

rows = torch.zeros(60, 2)
data = ArrayDataset(rows, torch.arange(60), gather="device")


def warnings_of(change: Callable[[], object], dataset: Any) -> int:
    """Take a batch, and change the data before each other one: how often a warning came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = iter(fetching(dataset, 10))
        rows.add_(1)  # nothing has been read
        first = next(iterator)[0]
        for _ in range(5):
            change()
            next(iterator)
        assert next(iterator, None) is None
        assert torch.equal(first, torch.full((10, 2), rows[-1, 0]))
        rows.copy_(rows[-1:].clone().expand_as(rows))
    texts = [str(each.message) for each in caught if "gather='device'" in str(each.message)]
    assert all("call fence() of the ArrayDataset" in text for text in texts)
    return len(texts)


assert warnings_of(bool, data) == 0
assert warnings_of(lambda: rows[1:2].mul_(1), data) == 1
assert warnings_of(lambda: rows[1:2].mul_(1), Subset(data, range(60))) == 1
assert warnings_of(lambda: (data.fence(), rows[1:2].mul_(1)), data) == 0
with warnings.catch_warnings():
    warnings.simplefilter("error")
    iterator = iter(fetching(data, 10, sampler=range(60)))
    batches = [next(iterator)]
    rows.mul_(1)
    try:
        next(iterator)
        raise AssertionError("no warning")
    except RuntimeWarning:
        batches += iterator  # none is lost
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(60))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        if (child := os.fork()) == 0:
            os._exit(moves._count_locked() != 0)
        assert os.waitpid(child, 0)[1] == 0
text = f"fork() copies the {rows.nbytes + 8 * 60:,} bytes of host memory"
assert [text in str(each.message) for each in caught] == [True], caught
del data, iterator, batches
gc.collect()
assert registered() == 0

# ---- refusals


def refuse(kind: type, text: str, call: Any) -> None:
    try:
        call()
        raise AssertionError(text)
    except kind as error:
        assert text in str(error), error


data = make("device")
loader = fetching(data, 10)
list(loader)
refuse(RuntimeError, "cannot move to shared memory", IMAGES.share_memory_)
refuse(RuntimeError, "cannot move to shared memory", IMAGES[3:4].share_memory_)
torch.ones(3).share_memory_()
refuse(RuntimeError, "resiz", lambda: IMAGES.untyped_storage().resize_(9))
del data, loader
rows = torch.arange(40.0).view(10, 4)
data = ArrayDataset(rows, gather="device")
iterator = iter(fetching(data, 4))
next(iterator)
rows.set_(torch.zeros(10, 4))  # type: ignore[call-overload]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch counts the move as a change in place
    refuse(ValueError, "the data have moved", iterator.__next__)
del data, iterator
table = torch.arange(70.0).view(10, 7)
table_array = table.numpy() + 1
for both in (table, table_array):  # columns of one table overlap
    data = ArrayDataset(both[:, 1:4], both[:, 6], both[:, 4:6], both[:, 4], gather="device")
    mine, theirs = next(iter(fetching(data, 7))), next(iter(TorchLoader(data, 7)))
    compare(mine, theirs)
    assert registered() == 1
    del data
    gc.collect()
data = ArrayDataset(table[:5], gather="device")
list(fetching(data, 2))
big = ArrayDataset(table[3:8], gather="device")
refuse(RuntimeError, "gather='device' cannot register 140 bytes", lambda: iter(fetching(big, 2)))
del data
gc.collect()
assert registered() == 0
for n in range(1, 40):
    data = make("device")
    fake.fake_fail_at(n, 2, False)
    try:
        list(fetching(data, 50))
    except RuntimeError as error:
        assert "cudaErrorMemoryAllocation" in str(error), error
    fake.fake_fail_at(0, 0, False)
    del data
    gc.collect()
    assert registered() == 0, n


def take(source: Any, host_range: Any) -> Any:
    memory = (lambda count: [source[:count].clone()], torch.empty_like)
    gatherer = _core.Gatherer(torch.Tensor, memory, None, ((source, host_range, None),), 0)
    gatherer.set_rows(index, 4)
    return gatherer.take(0, 1, 0, False)


data = make("device")
needed = IMAGES.nbytes + PLAIN.nbytes + GAPS.base.nbytes // 2 + 8 * N
machine_memory = moves.read_memory
moves.read_memory = lambda: machine.Memory(needed, needed)  # type: ignore[assignment]
before = fake.fake_count_pins().registered
refuse(MemoryError, "would lock", lambda: iter(fetching(data, 2)))
assert fake.fake_count_pins().registered == before
moves.read_memory = machine_memory
list(fetching(data, 40))
host_range = data._fields[0].host_range
x, index = torch.zeros(4, 3), torch.tensor([1])
for wrong in ((), 1, (host_range,)):
    text = "sources must be (tensor, HostRange or None"
    refuse(ValueError, text, lambda host_ranges=wrong: take(IMAGES, host_ranges))  # type: ignore[misc]
refuse(ValueError, "the data have moved", lambda: take(x, host_range))

host_range.sources[0].owner = host_range  # a cycle
# ---- a dataset that goes while kernels read, where nothing is registered

data = host_range = wrong = arguments = None  # type: ignore[assignment]
gc.collect()
held: list[Any] = []


class Holding:
    """The same kernels, which run late: indices, maps and staged rows have to live as long. Memory
    of a device would be given out again on the same stream alone."""

    def __init__(self, tensor_type: Any, memory: Any, *args: Any) -> None:
        def keep(new: Any) -> Any:
            return lambda given: held.append(made := new(given)) or made

        self._gatherer = _core.Gatherer(tensor_type, tuple(map(keep, memory)), *args)
        self.stream, self.arrange = self._gatherer.stream, self._gatherer.arrange
        self.take = self._gatherer.take

    def set_rows(self, indices: Any, length: int) -> None:
        held.append(indices)
        self._gatherer.set_rows(indices, length)


resident.Gatherer = Holding  # type: ignore[misc]
fake.fake_read_pageable(True)
fake.fake_set_order(1, ctypes.c_uint64(0))  # late
fake.fake_synchronize.argtypes = [ctypes.c_void_p]
pixels = IMAGES.clone()
for expected in ON_THE_CPU[:2]:
    iterator = iter(fetching(LATE.pop(0), 32))
    batch = next(iterator)
    assert registered() == 0
    del iterator
    gc.collect()
    IMAGES.zero_()
    fake.fake_synchronize(None)
    compare(batch, expected[0])
    IMAGES.copy_(pixels)
