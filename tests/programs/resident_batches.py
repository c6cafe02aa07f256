"""Loaders over data on a device, whose kernel runs on the CPU: batches are torch's, of one launch
each, and what does not fit together is refused. Needs a core of tests/cuda/build_core.py."""

import ctypes
import itertools
import os
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, Subset, TensorDataset

from fastloop import ArrayDataset, DataLoader, TokenDataset, _core
from fastloop import transforms as T
from fastloop.data import columns
from fastloop.data.tokens.dataset import _FITTING
from fastloop.loader.arrays import resident

N = 200
IMAGES = {
    "CHW": torch.randint(256, (N, 3, 32, 30), dtype=torch.uint8),
    "HWC": torch.randint(256, (N, 40, 37, 1), dtype=torch.uint8),
}
CAST = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.4], [0.2])]
HALF = [T.ToDtype(torch.float16, scale=True)]
JITTER = T.ColorJitter(0.4, 0.4, 0.4, 0.2)
COLORS = [JITTER, T.RandomGrayscale(0.3), T.RandomSolarize(100), T.RandomEqualize()]
CHAINS: list[list[Any]] = [
    [T.RandomCrop(28, 4), T.RandomHorizontalFlip(), *CAST],
    [T.RandomCrop(24, padding=6, padding_mode="reflect"), T.RandomVerticalFlip(0.7)],
    [*CAST, T.RandomErasing(0.8, value=3.5), T.RandomHorizontalFlip(), T.RandomErasing(0.5)],
    [T.Pad(3, 9), T.RandomCrop(33, 2, fill=200), *HALF],
    [T.CenterCrop((60, 7)), T.ToDtype(torch.bfloat16, scale=True), T.RandomErasing(1.0)],
    [T.RandomHorizontalFlip(0.5)],
    [T.RandomResizedCrop((28, 50)), T.RandomHorizontalFlip(), *CAST],
    [T.RandomCrop(27), T.Resize(33, interpolation="bicubic"), T.CenterCrop(30), *HALF],
    [T.RandomVerticalFlip(), T.Resize((9, 60), interpolation="nearest"), T.Pad(3, 7)],
    [T.RandomResizedCrop(32), T.RandomCrop(32, 4), *CAST, T.RandomErasing(0.8, value=0.5)],
    # Those with colours.
    [T.RandomCrop(28, 4), *COLORS, T.RandomHorizontalFlip(), *CAST, T.RandomErasing(0.8, value=2)],
    [T.RandomResizedCrop(30), T.RandomApply([JITTER], 0.8), T.RandomAutocontrast(), *HALF],
    [T.RandomPhotometricDistort(), T.RandomChoice([T.RandomInvert(1), T.RandomPosterize(3, 1)])],
]


def augmented(chain: int, layout: str, out_layout: str) -> ArrayDataset:
    transform = {"x": T.Compose(CHAINS[chain])}
    kinds = {"layout": layout, "out_layout": out_layout, "seed": chain}
    return ArrayDataset(x=IMAGES[layout], y=torch.arange(N), transform=transform, **kinds)


# Plans that were made before see tensors on the CPU.
WAYS = [
    (i, a, b) for i in range(len(CHAINS)) for a in IMAGES for b in ("CHW", "HWC", "channels_last")
]
AUGMENTED = [augmented(*way) for way in WAYS]
LOADERS = [DataLoader(augmented(*way), 64) for way in WAYS]
SAMPLES = [list(itertools.islice(DataLoader(augmented(*way), None), 5)) for way in WAYS]
EXPECTED = [[list(loader) for _ in range(2)] for loader in LOADERS]


def windows(dtype: str, out: str, mode: str, targets: str | None) -> TokenDataset:
    """Of all tokens of a type that another holds, too."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if out == "int32" and high > 2**31 - 1:
        low, high = 0, 2**31 - 1
    values = np.random.default_rng(0).integers(low, high, 5000, dtype, endpoint=True)
    kinds = {"mode": mode, "targets": targets, "out_dtype": out, "seed": 2}
    return TokenDataset.from_buffers(values, np.array([0, 5000]), 67, **kinds)


# Windows that are read on the CPU, and those that are gathered.
MODES = itertools.cycle(
    itertools.product(("strided", "random", "jittered"), ("shift", "same", None))
)
READ = [
    windows(dtype, out, *next(MODES))
    for out, dtypes in _FITTING.items()
    for dtype in dtypes
    for _ in range(5)
]
GATHERED = [data.to("cpu") for data in READ]
for data, there in zip(READ, GATHERED, strict=True):
    there._load(torch.device("cpu"))
    data.set_epoch(1)
    there.set_epoch(1)
SIZES = (1, 9, 200)
WINDOWS = [[list(TorchLoader(data, size)) for size in SIZES] for data in READ]

COMPUTED = ArrayDataset(IMAGES["CHW"], transform=T.RandomRotation(9))._plans[0]
STEPS = T.Compose([T.RandomPhotometricDistort() for _ in range(8)] + [JITTER] * 8)
MANY_IMAGES = torch.randint(256, (6000, 3, 2, 2), dtype=torch.uint8)
LONG = ArrayDataset(MANY_IMAGES, transform=STEPS, seed=5)._plans[0]

import as_cuda  # tensors are seen on a device from here on

columns._RESIDENT = ("cpu",)
TABLES = TensorDataset(torch.randn(N, 100), torch.arange(N), torch.rand(N, 3) > 0.5)
MANY = ArrayDataset(**{f"f{i}": torch.randint(99, (N, i), dtype=torch.uint8) for i in range(1, 41)})
APART = TensorDataset(torch.randn(3 * N, 7)[::3], torch.randn(N + 1, 5).half()[1:])
fake: Any = ctypes.CDLL(_core.__file__)
fake.fake_launches.restype = ctypes.c_int64


def values(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def compare(dataset: Any, launches: int, **arguments: Any) -> None:
    epochs = []
    for cls in (DataLoader, TorchLoader):
        torch.manual_seed(4)
        before = fake.fake_launches()
        epochs.append([values(batch) for _ in range(2) for batch in cls(dataset, **arguments)])
        if cls is DataLoader:
            assert fake.fake_launches() - before == launches * len(epochs[0])
    assert len(epochs[0]) == len(epochs[1]) > 0
    for batch, expected in zip(*epochs, strict=True):
        for mine, theirs in zip(batch, expected, strict=True):
            assert mine.dtype is theirs.dtype and torch.equal(mine, theirs)


for size in (1, 32, 300):
    compare(TABLES, 1, batch_size=size, shuffle=True)
    compare(APART, 1, batch_size=size)
    compare(MANY, 3, batch_size=size, shuffle=True, drop_last=size == 32)
for data, epochs in zip(AUGMENTED, EXPECTED, strict=True):
    loader = DataLoader(data, 64)
    for epoch in epochs:
        before = fake.fake_launches()
        for batch, expected in zip(loader, epoch, strict=True):
            for key in ("x", "y"):
                assert batch[key].dtype is expected[key].dtype
                assert batch[key].stride() == expected[key].stride()
                assert torch.equal(batch[key], expected[key]), (data, key)
        assert fake.fake_launches() - before == 2 * len(epoch)
    assert loader.stats().path == "array" and "on cpu" in loader.stats().why
for data, samples in zip(AUGMENTED, SAMPLES, strict=True):
    before = fake.fake_launches()
    for sample, expected in zip(DataLoader(data, None), samples, strict=False):
        for key in ("x", "y"):
            assert sample[key].dtype is expected[key].dtype
            assert sample[key].stride() == expected[key].stride()
            assert torch.equal(sample[key], expected[key]), (data, key)
    assert fake.fake_launches() - before <= 2 * (len(samples) + 1)


def may_not_send(*_: Any) -> Any:
    raise AssertionError("rows travel by a copy of their own")


send = resident._send
for data, samples in zip(AUGMENTED, SAMPLES, strict=True):
    iterator = iter(DataLoader(data, batch_sampler=[[4, 1, 1], [0]]))
    resident._send = may_not_send
    for picked in ([4, 1, 1], [0]):
        before = fake.fake_launches()
        batch = next(iterator)
        assert fake.fake_launches() - before == 2
        for key in ("x", "y"):
            assert torch.equal(batch[key], torch.stack([samples[i][key] for i in picked])), data
    resident._send = send
for there, read in zip(GATHERED, WINDOWS, strict=True):
    for size, expected in zip(SIZES, read, strict=True):
        before = fake.fake_launches()
        batches = list(DataLoader(there, size))
        assert fake.fake_launches() - before == len(batches) == len(expected)
        for batch, wanted in zip(batches, expected, strict=True):
            assert type(batch) is type(wanted)
            for mine, theirs in zip(values(batch), values(wanted), strict=True):
                assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
                assert torch.equal(mine, theirs), there
for there in GATHERED[::7]:
    compare(there, 1, batch_size=20, shuffle=True)
    compare(there, 1, batch_size=None)
    compare(Subset(there, list(range(50, 10, -1))), 1, batch_size=9, drop_last=True)
indices = np.arange(9)
indices.setflags(write=False)
with warnings.catch_warnings():
    warnings.simplefilter("error")  # torch warns of memory that is read-only
    for batch in DataLoader(AUGMENTED[0], batch_sampler=[indices]):
        assert torch.equal(batch["y"], torch.arange(9))
compare(Subset(TABLES, list(range(90, 10, -1))), 1, batch_size=9, shuffle=True)
compare(TABLES, 1, batch_size=64, sampler=RandomSampler(TABLES, True, 500))
compare(TABLES, 1, batch_sampler=[[3, 1], [-1], [0, 0, 7]])
compare(MANY, 3, batch_sampler=[[3, 1], [0, 0, 7]])
long = torch.randint(N, (641,)).tolist()
compare(TABLES, 1, batch_sampler=[long, long[:640], long[1:], [0]])


def take(
    sources: Any,
    rows: Any,
    outs: Any,
    length: int,
    plans: Any = None,
    maps: Any = (),
    shift: int | None = None,
    first: int = 0,
) -> Any:
    """A batch of all rows from `first` on, in these tensors."""
    host_ranges = (None,) * len(sources)
    given: Any = tuple(zip(sources, host_ranges, plans or host_ranges, strict=True))
    if shift is not None:
        given = ((*sources, shift),)
    kept = [torch.empty(len(rows), dtype=torch.int64)] if maps else []
    memory = (lambda count: list(outs), torch.empty_like, lambda count: [*maps, *kept])
    gatherer = _core.Gatherer(torch.Tensor, memory, (None,) * len(outs), given, 0)
    gatherer.set_rows(rows, length)
    return gatherer.take(first, len(rows), 0, False)


x, rows = torch.arange(12.0).view(6, 2), torch.tensor([4, 0, 5])
REFUSED: list[tuple[Any, str]] = [
    (((x,), rows.int(), (x[:3],), 6), "indices must be a contiguous vector of int64"),
    (((x,), rows[::2], (x[:2],), 6), "indices must be a contiguous vector of int64"),
    (((x,), rows, (x[:2],), 6), "a batch must have the shape and dtype"),
    (((x,), rows, (x[:3].int(),), 6), "a batch must have the shape and dtype"),
    (((x,), rows[:2], (torch.empty(2, 2).T,), 6), "a batch must have the shape and dtype"),
    (((x.T,), rows[:2], (torch.empty(2, 6),), 2), "rows must be contiguous"),
    (((x,), rows, (x[:3],), 7), "the data must keep their 7 rows, got 6"),
    (((x, x), rows, (x[:3],), 6), "structure must have one output for each source"),
    (((x,), rows, (x[:3],), 6, (COMPUTED,)), "sources must be (tensor, HostRange or None"),
    (((x,), rows, (x[:3],), 6, ((1, 2),)), "sources must be (tensor, HostRange or None"),
    (((x.numpy(),), rows, (x[:3],), 6), "must be a torch.Tensor, got numpy.ndarray"),
]


def refuse(arguments: Any, text: str, **others: Any) -> None:
    before = fake.fake_launches()
    try:
        take(*arguments, **others)
        raise AssertionError(text)
    except (IndexError, TypeError, ValueError) as error:
        assert text in str(error), error
    assert fake.fake_launches() == before


for arguments, text in REFUSED:
    refuse(arguments, text)
for first in (-1, 1):
    refuse(((x,), rows, (x[:3],), 6), "indices must hold [", first=first)
tokens, pair = torch.arange(40).short(), (torch.empty(3, 8).long(), torch.empty(3, 8).long())
WINDOWS_REFUSED: list[tuple[Any, Any, Any, str]] = [
    (tokens[::2], rows, pair, "tokens must be a contiguous vector of ints"),
    (tokens.view(4, 10), rows, pair, "tokens must be a contiguous vector of ints"),
    (tokens.half(), rows, pair, "tokens must be a contiguous vector of ints"),
    (tokens, rows.int(), pair, "indices must be a contiguous vector of int64"),
    (tokens, rows[:2], pair, "outs must be batches of windows"),
    (tokens, rows, (pair[0], pair[1].int()), "outs must be batches of windows"),
    (tokens, rows, (pair[0], torch.empty(3, 7).long()), "outs must be batches of windows"),
    (tokens, rows, (torch.empty(8, 3).long().T,), "outs must be batches of windows"),
    (tokens, rows, (torch.empty(3, 8),), "outs must be batches of windows"),
    (tokens, rows, (torch.empty(3, 8).byte(),), "outs must be batches of windows"),
    (tokens, rows, (torch.empty(3, 0).long(),), "outs must be batches of windows"),
    (tokens, rows, (torch.empty(3).long(),), "outs must be batches of windows"),
    (tokens.int(), rows, (torch.empty(3, 8).short(),), "outs must be as wide as the tokens"),
    (tokens, rows, (), "structure must have"),
]
for tokens_given, starts, outs, text in WINDOWS_REFUSED:
    refuse(((tokens_given,), starts, outs, 40), text, shift=1)
refuse(((tokens,), rows, pair, 40), "sources must be (tensor, HostRange or None", shift=2)
plan, shape = AUGMENTED[0]._plans[0], (3, 3, 28, 28)
assert plan is not None
maps, table = torch.zeros(3, plan.map_length).int(), torch.zeros(len(plan.values())).byte()
given: list[Any] = [plan, IMAGES["CHW"], rows, N, maps, table, torch.empty(shape)]
WRONG: list[tuple[int, Any, str]] = [
    (0, T.Resize((9, 9)), "sources must be (tensor, HostRange or None"),
    (0, COMPUTED, "the plan computes pixels"),
    (1, IMAGES["CHW"].int(), "the images must have the dtype and shape"),
    (1, IMAGES["HWC"], "the images must have the dtype and shape"),
    (2, rows.int(), "indices must be a contiguous vector of int64"),
    (3, N + 1, "the data must keep their 201 rows, got 200"),
    (4, maps[:2], "maps must be contiguous, 168 elements"),
    (4, maps.long(), "maps must be contiguous, 168 elements"),
    (5, table[1:], f"values must be contiguous, {len(table)} elements"),
    (6, torch.empty(shape).half(), "out must be a batch of the plan's results"),
    (6, torch.empty(2, *shape[1:]), "out must be a batch of the plan's results"),
]


def refuse_images(given: Any, text: str) -> None:
    plan, source, rows, length, maps, table, out = given
    refuse(((source,), rows, (out,), length), text, plans=((plan, table),), maps=(maps,))


empty = [plan, IMAGES["CHW"], rows[:0], N, maps[:0].long(), table, torch.empty(0, *shape[1:])]
IMAGES_REFUSED = [
    (given[:place] + [wrong] + given[place + 1 :], text) for place, wrong, text in WRONG
]
for each, text in [*IMAGES_REFUSED, (empty, "maps must be contiguous, 0 elements")]:
    refuse_images(each, text)
refuse(
    ((IMAGES["CHW"],), rows, (given[6],), N),
    "new_maps must return a list of 2 tensors",
    plans=((plan, table),),
)
# Results that change colours are worked on in their own memory, so there may be none between them.
colored = AUGMENTED[WAYS.index((len(CHAINS) - 3, "CHW", "CHW"))]._plans[0]
assert colored is not None
maps, table = torch.zeros(3, colored.map_length).int(), torch.zeros(len(colored.values())).byte()
for out in (torch.empty(6, *shape[1:])[::2], torch.empty(*shape[:3], 56)[..., ::2]):
    each = [colored, IMAGES["CHW"], rows, N, maps, table, out]
    refuse_images(each, "out must be a batch of the plan's results")
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
for shift, arguments in (
    (None, ((x,), rows, (torch.empty(3, 2),), 6)),
    (1, ((tokens,), rows, pair, 9)),
):
    fake.fake_fail_at(2, 719, False)
    try:
        take(*arguments, shift=shift)
        raise AssertionError("a launch that failed was not told")
    except torch.AcceleratorError as error:
        assert "cudaErrorLaunchFailure" in str(error)

# ---- memory: batches of one size are made like a tensor without memory; those of others anew

made: list[int] = []
like: list[int] = []


def new_batch(count: int) -> list[torch.Tensor]:
    made.append(count)
    return [torch.empty(count, 2)]


def empty_like(form: torch.Tensor) -> torch.Tensor:
    assert form.untyped_storage().nbytes() == 0
    like.append(len(form))
    return torch.empty_like(form)


gatherer = _core.Gatherer(torch.Tensor, (new_batch, empty_like), None, ((x, None, None),), 0)
gatherer.set_rows(torch.arange(6), 6)
for count in (2, 2, 2, 3, 2, 2):
    batch = gatherer.take(1, count, 0, False)
    assert torch.equal(batch, x[1 : 1 + count]) and batch.untyped_storage().nbytes() == 8 * count
assert made == [2, 2, 3, 2, 2] and like == [2, 2, 2], (made, like)
assert torch.equal(gatherer.take(4, 2, 0, True), x[4])
assert gatherer.arrange((x,), True).tolist() == [0, 1] and gatherer.stream() == 0
gatherer.set_rows(None, 6)
assert torch.equal(gatherer.take(0, 2, 0, False, np.array([5, 0])), x[[5, 0]])
for count, picked, text in (
    (1, [6], "rows must be a contiguous vector"),
    (1, [-1], "rows must be a contiguous vector"),
    (1, [0.5], "rows must be a contiguous vector"),
    (641, [0] * 641, "rows must be a contiguous vector"),
    (1, [0, 1], "needs indices on the device"),
):
    try:
        gatherer.take(0, count, 0, False, np.array(picked))
        raise AssertionError(f"rows {picked[:3]} were taken")
    except ValueError as error:
        assert text in str(error), error
for structure in ((), (None, {"n": None})):
    try:
        _core.Gatherer(torch.Tensor, (new_batch, empty_like), structure, ((x, None, None),), 0)
        raise AssertionError(structure)
    except ValueError as error:
        assert "structure must have one output for each source" in str(error), error

# ---- maps are drawn for many batches at once: anew for rows beyond, for earlier rows, for a new
# epoch, for new indices, and on a different stream

assert LONG is not None
plan, length = LONG, LONG.map_length
ahead = (4 << 20) // (4 * length)
drawn: list[torch.Tensor] = []


def new_images(count: int) -> list[torch.Tensor]:
    return [torch.empty(count, 3, 2, 2, dtype=torch.uint8)]


def new_maps(count: int) -> list[torch.Tensor]:
    drawn.append(torch.empty(count, length, dtype=torch.int32))
    return [drawn[-1], torch.empty(count, dtype=torch.int64)]


table = torch.frombuffer(plan.values(), dtype=torch.uint8)
drawing = _core.Gatherer(
    torch.Tensor,
    (new_images, torch.empty_like, new_maps),
    None,
    ((MANY_IMAGES, None, (plan, table)),),
    0,
)
for indices in (torch.arange(6000), torch.arange(5999, -1, -1)):
    drawing.set_rows(indices, 6000)
    for first, count, epoch, many in (
        (0, 4, 0, ahead),
        (4, 4, 0, 0),
        (ahead - 4, 4, 0, 0),
        (ahead - 3, 4, 0, 6000 - ahead + 3),
        (5990, 10, 0, 0),
        (0, 4, 0, ahead),
        (0, 4, 2**32 - 1, ahead),
    ):
        drawn.clear()
        batch = drawing.take(first, count, epoch, False)
        assert [len(maps) for maps in drawn] == ([many] if many else []), (first, epoch)
        for maps in drawn:
            expected = torch.empty(many, length, dtype=torch.int32)
            plan.map(indices[first : first + many], expected, epoch)
            assert torch.equal(maps, expected), (first, epoch)
        for image, row in zip(batch, indices[first : first + count].tolist(), strict=True):
            plan.apply(
                MANY_IMAGES[row], one := torch.empty(3, 2, 2, dtype=torch.uint8), row, epoch, 0
            )
            assert torch.equal(image, one), (first, row, epoch)
# The kernel that draws ahead also writes the rows of all maps that it draws.
short = _core.Gatherer(
    torch.Tensor,
    (new_images, torch.empty_like, lambda n: [new_maps(n)[0], torch.empty(4, dtype=torch.int64)]),
    None,
    ((MANY_IMAGES, None, (plan, table)),),
    0,
)
short.set_rows(torch.arange(6000), 6000)
try:
    short.take(0, 4, 0, False)
    raise AssertionError("a short tensor of rows was taken")
except ValueError as error:
    assert "int64 [count] at the end" in str(error), error
drawn.clear()
stream = ctypes.c_void_p.in_dll(as_cuda._library, "as_cuda_stream")
fake.fake_open_blocking_stream.restype = ctypes.c_void_p
stream.value = fake.fake_open_blocking_stream()
drawing.take(0, 4, 2**32 - 1, False)
assert [len(maps) for maps in drawn] == [ahead]
stream.value = None
if (child := os.fork()) == 0:
    os._exit(gatherer.stream() is not None)  # nothing can be made here
assert os.waitpid(child, 0)[1] == 0
