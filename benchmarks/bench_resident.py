"""Data that a GPU gathers itself, out of its own memory or out of the host's.

    python benchmarks/bench_resident.py [--rows a,b,...] [--quick] [--json FILE]

a  1 024 images of CIFAR-10's shape a batch, padded and cropped, flipped, normalised to halves.
   torch: its loader over CUDA tensors, then the same by torch for the whole batch. By hand: one
   index a batch over halves that are padded and normalised once, as airbench keeps them.
b  a table: 8 192 rows of 100 floats and a label a batch. By hand: randperm and index_select.
c  64 windows of 4 096 tokens of uint16, as int64 x and y. By hand: one index of the tokens.
d  256 images of 3x256x256 bytes, RandomResizedCrop(224), flipped, normalised to halves; the same
   with a ColorJitter.
e  256 rows of 3x224x224 bytes as they are: fetched GB/s, as a share of what one pinned copy reaches
   in the same run. The same of rows of one byte more, which begin anywhere.
f  the same, uploaded, by 4, 8 and 15 threads: GB/s of whole epochs of 32 and of 128 batches, from
   iter() to the last byte on the device.
g  256 sequences of 1 to 1 023 tokens of int32, padded: int64 input_ids, labels and mask. By hand:
   one index of the tokens through a table of places, and two where.
h  training a small convolutional network on the images of d with 2, 4 and 16 cores for all threads
   and workers: time of a batch, and how busy NVML says that the device is. *uploaded* has its
   transforms on the device, torch's loader has the same dataset. The limit is one cached batch.

i  products of matrices of 2 ms for each batch: alone, beside fetches of the rows of e and of images
   of d, and beside pinned copies of as many bytes.

*resident*: `.to("cuda")`. *fetched*: `gather="device"`, out of host memory over the link.
*uploaded*: 8 threads of the CPU gather, transform and upload. All shuffled, in turns, without a
step between batches: time of a batch until the device has made it, host time of next(), kernels.
The limit is a copy on the device that moves as many bytes; of what is fetched, a pinned copy of as
many as its rows have. 20 rounds; median (lowest - highest).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from _harness import Goal, Report, Times, parse_arguments
from bench_cuda import Trainer, commit, device_us, driver, in_turns, launches
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, TensorDataset

from fastloop import ArrayDataset, DataLoader, PadCollate, RaggedArray, TokenDataset
from fastloop import transforms as T

Maker = Callable[[], Iterable[Any]]

CUDA = torch.device("cuda", 0)
WHO = ("resident", "fetched", "uploaded", "torch", "by hand")
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
TO_HALF = [T.ToDtype(torch.float16, scale=True), T.Normalize(list(MEAN), list(STD))]
WORKERS = 8
FEW = 8  # batches of those that take milliseconds for each


class Timer:
    """Time between two moments of the device's current stream."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def us(self) -> float:
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) * 1000


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def link_us(size: int) -> float:
    """Microseconds of one pinned copy of so many bytes to the device."""
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=CUDA)
    return device_us(lambda: there.copy_(pinned, non_blocking=True))


def copy_us(size: int) -> float:
    """Microseconds in which a copy on the device reads and writes so many bytes in all."""
    source = torch.empty(size // 2, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return device_us(lambda: target.copy_(source))


def compare(
    report: Report,
    rounds: int,
    row: str,
    work: str,
    loaders: dict[str, Iterable[Any]],
    read: int,
    written: int,
) -> None:
    """Add a row.

    Args:
        loaders: by contestant.
        read, written: bytes of a batch, at least.
    """
    running = {who: epochs(loader) for who, loader in loaders.items()}

    def measure(who: str) -> tuple[float, float]:
        """(host, all) microseconds of a batch."""
        count = FEW if who == "torch" else 6 * FEW
        timer, begin = Timer(), perf_counter()
        for _ in range(count):
            next(running[who])
        host = perf_counter() - begin
        return host * 1e6 / count, timer.us() / count

    taken = in_turns({who: lambda who=who: measure(who) for who in loaders}, rounds)
    host, all_of = (
        {who: Times(tuple(pair[i] for pair in pairs)) for who, pairs in taken.items()}
        for i in range(2)
    )
    kernels = {who: launches(running[who].__next__)[0] for who in loaders}
    ours = all_of["resident"].median
    goals = [
        Goal(f"{who}'s speed", all_of[who].median / ours, wanted, True)
        for who, wanted in (("torch", 20), ("by hand", 1))
        if who in loaders
    ]
    limit, link = copy_us(read + written), link_us(read)
    report.row(
        row,
        work,
        goals,
        {
            **{w: f"{all_of[w]}, host {host[w]}, {kernels[w]} kernels" for w in loaders},
            "limit": f"a copy on the device {limit:.1f} µs, over the link {link:.1f} µs",
        },
        host={who: t.as_dict() for who, t in host.items()},
        all={who: t.as_dict() for who, t in all_of.items()},
        kernels=kernels,
        copy_us=limit,
        link_us=link,
    )


def three(make: Callable[..., Any], batch: int) -> dict[str, Iterable[Any]]:
    """Loaders over a dataset that lies on the device, that is fetched, and that is uploaded; `make`
    makes it of keyword arguments of an ArrayDataset."""
    common: dict[str, Any] = {"shuffle": True, "drop_last": True, "device": CUDA}
    ahead = {"num_workers": WORKERS, "prefetch_factor": 4, "persistent_workers": True}
    return {
        "resident": DataLoader(make().to(CUDA), batch, **common),
        "fetched": DataLoader(make(gather="device"), batch, **common),
        "uploaded": DataLoader(make(), batch, **ahead, **common),
    }


def shuffled(rows: int, batch: int) -> Iterator[Tensor]:
    """One epoch of indices on the device."""
    order = torch.randperm(rows, device=CUDA)
    for begin in range(0, rows - batch + 1, batch):
        yield order[begin : begin + batch]


class Epochs:
    """An iterable whose epochs a function makes."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


# ---- a: small images


def normalised(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(v, device=images.device).view(3, 1, 1) for v in (MEAN, STD))
    return ((images.float() / 255 - mean) / std).half()


def crop_and_flip(padded: Tensor, rows: Tensor, size: int) -> Tensor:
    """These images, each cropped somewhere, every other flipped, by one index."""
    count, room = len(rows), padded.shape[-1] - size + 1
    steps = torch.arange(size, device=rows.device)
    top, left = torch.randint(room, (2, count, 1), device=rows.device)
    flips = torch.rand(count, 1, device=rows.device) < 0.5
    y, x = top + steps, left + torch.where(flips, size - 1 - steps, steps)
    channels = torch.arange(3, device=rows.device)
    return padded[
        rows[:, None, None, None], channels[:, None, None], y[:, None, :, None], x[:, None, None]
    ]


def cifar(report: Report, rounds: int, count: int) -> None:
    batch = 1024
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (count,))
    chain = T.Compose([T.RandomCrop(32, 4), T.RandomHorizontalFlip(), *TO_HALF])
    there, labels_there = images.to(CUDA), labels.to(CUDA)
    padded = torch.nn.functional.pad(normalised(there), (4,) * 4)
    torchs = TorchLoader(TensorDataset(there, labels_there), batch, True, drop_last=True)

    def by_torch() -> Iterator[Any]:
        for pixels, y in torchs:
            whole = torch.nn.functional.pad(normalised(pixels), (4,) * 4)
            yield crop_and_flip(whole, torch.arange(batch, device=CUDA), 32), y

    def by_hand() -> Iterator[Any]:
        for rows in shuffled(count, batch):
            yield crop_and_flip(padded, rows, 32), labels_there[rows]

    loaders = three(lambda **more: ArrayDataset(images, labels, transform=chain, **more), batch)
    loaders |= {"torch": Epochs(by_torch), "by hand": Epochs(by_hand)}
    work = f"{batch} of {count} images of 3x32x32, cropped, flipped, normalised to halves"
    compare(report, rounds, "a", work, loaders, batch * 3072, batch * 3072 * 2)


# ---- b: tables


def table(report: Report, rounds: int, count: int) -> None:
    batch = 8192
    values, labels = torch.randn(count, 100), torch.randint(10, (count,))
    there = [values.to(CUDA), labels.to(CUDA)]

    def by_hand() -> Iterator[Any]:
        for rows in shuffled(count, batch):
            yield [column.index_select(0, rows) for column in there]

    loaders = three(lambda **more: ArrayDataset(values, labels, **more), batch)
    loaders["torch"] = TorchLoader(TensorDataset(*there), batch, True, drop_last=True)
    loaders["by hand"] = Epochs(by_hand)
    work = f"{batch} of {count} rows of 100 f32 and a label"
    compare(report, rounds, "b", work, loaders, batch * 408, batch * 408)


# ---- c: tokens


def tokens(report: Report, rounds: int, count: int) -> None:
    batch, length = 64, 4096
    values = torch.randint(50_257, (count * length + 1,)).to(torch.uint16)
    data = TokenDataset.from_buffers(values, torch.tensor([0, len(values)]), length)
    common: dict[str, Any] = {"shuffle": True, "drop_last": True, "device": CUDA}
    there, steps = values.view(torch.int16).to(CUDA), torch.arange(length + 1, device=CUDA)

    def by_hand() -> Iterator[Any]:
        for rows in shuffled(count, batch):
            window = there[rows[:, None] * length + steps].long() & 0xFFFF
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()

    loaders: dict[str, Iterable[Any]] = {
        "resident": DataLoader(data.to(CUDA), batch, **common),
        "uploaded": DataLoader(data, batch, num_workers=WORKERS, prefetch_factor=4, **common),
        "torch": TorchLoader(data.to(CUDA), batch, shuffle=True, drop_last=True),
        "by hand": Epochs(by_hand),
    }
    work = f"{batch} of {count} windows of {length} tokens, uint16 to int64 x and y"
    compare(report, rounds, "c", work, loaders, batch * length * 2, batch * length * 16)


# ---- d, e: large images


def crops(report: Report, rounds: int, count: int, *colors: Any) -> None:
    batch = 256
    images = torch.randint(256, (count, 3, 256, 256), dtype=torch.uint8)
    chain = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *colors, *TO_HALF])
    loaders = three(lambda **more: ArrayDataset(images, transform=chain, **more), batch)
    more = ", ColorJitter" if colors else ""
    work = f"{batch} of {count} images of 3x256x256, RandomResizedCrop(224){more} to halves"
    read = batch * 3 * 256 * 256 // 2  # crops of 8 % to all of an image
    compare(report, rounds, "d", work, loaders, read, batch * 3 * 224 * 224 * 2)


def rows_over_the_link(report: Report, rounds: int, count: int, size: int) -> None:
    batch = 256
    images = torch.randint(256, (count, size), dtype=torch.uint8)
    loaders = three(lambda **more: ArrayDataset(images, **more), batch)
    running = {who: epochs(loader) for who, loader in loaders.items() if who != "resident"}

    def measure(who: str) -> float:
        timer = Timer()
        for _ in range(6 * FEW):
            next(running[who])
        return batch * size * 6 * FEW / timer.us() / 1e3

    calls: dict[str, Callable[[], float]] = {
        who: lambda who=who: measure(who)  # type: ignore[misc]
        for who in running
    }
    calls["copy"] = lambda: batch * size / link_us(batch * size) / 1e3
    rates = {who: Times(tuple(v), "GB/s") for who, v in in_turns(calls, rounds).items()}
    share = rates["fetched"].median / rates["copy"].median
    report.row(
        "e",
        f"{batch} of {count} rows of {size} bytes over the link",
        [Goal("of a pinned copy's rate", share, 0.85, True, "%")],
        {**{who: rates[who] for who in running}, "limit": f"a pinned copy {rates['copy']}"},
        **{who: t.as_dict() for who, t in rates.items()},
    )


def beside_products(report: Report, rounds: int, count: int) -> None:
    batch, side = 256, 8192 if count > 2048 else 1024
    a = torch.randn(side, side, dtype=torch.float16, device=CUDA)
    product = torch.empty_like(a)
    repeats = max(1, round(2000 / device_us(lambda: torch.mm(a, a, out=product))))
    rows = torch.randint(256, (count, 3, 224, 224), dtype=torch.uint8)
    crop = T.Compose([T.RandomResizedCrop(160), *TO_HALF])
    pinned = torch.empty_like(rows[:batch], pin_memory=True)
    there, copies = torch.empty_like(pinned, device=CUDA), torch.cuda.Stream()
    common: dict[str, Any] = {"shuffle": True, "drop_last": True, "device": CUDA}
    fetched = {
        "beside rows": ArrayDataset(rows, gather="device"),
        "beside images": ArrayDataset(rows, gather="device", transform=crop),
    }
    running = {who: epochs(DataLoader(data, batch, **common)) for who, data in fetched.items()}

    def copy() -> None:
        with torch.cuda.stream(copies):
            there.copy_(pinned, non_blocking=True)

    def measure(beside: Callable[[], Any]) -> float:
        timer = Timer()
        for _ in range(6 * FEW):
            beside()  # first: the next batch crosses the link while these products run
            for _ in range(repeats):
                torch.mm(a, a, out=product)
        return timer.us() / (6 * FEW)

    calls: dict[str, Callable[[], float]] = {"alone": lambda: measure(lambda: None)}
    calls |= {who: lambda it=it: measure(it.__next__) for who, it in running.items()}  # type: ignore[misc]
    calls["beside copies"] = lambda: measure(copy)
    times = {who: Times(tuple(v)) for who, v in in_turns(calls, rounds).items()}
    alone = times["alone"].median
    report.row(
        "i",
        f"{repeats} products of {side}x{side} halves, and {batch} rows of 3x224x224 u8",
        [Goal(f"speed {who}", alone / times[who].median, 0.97, True, "%") for who in running],
        {
            "fetched": "; ".join(f"{who} {times[who]}" for who in running),
            "limit": f"alone {times['alone']}, beside copies {times['beside copies']}",
        },
        **{who: t.as_dict() for who, t in times.items()},
    )


def whole_epochs(report: Report, rounds: int, count: int) -> None:
    batch, size = 256, 3 * 224 * 224
    images = torch.randint(256, (count, 3, 224, 224), dtype=torch.uint8)
    data, bytes_of = ArrayDataset(images), batch * size
    calls: dict[str, Callable[[], float]] = {"copy": lambda: bytes_of / link_us(bytes_of) / 1e3}

    def measure(loader: Any, batches: int) -> float:
        timer = Timer()
        for _ in loader:
            pass
        return bytes_of * batches / timer.us() / 1e3

    names = []
    for threads in (4, 8, 15):
        for batches in (32, 128):
            sampler = RandomSampler(data, True, batches * batch)
            loader = DataLoader(data, batch, sampler=sampler, num_workers=threads, device=CUDA)
            names.append(f"{threads} threads, {batches} batches")
            calls[names[-1]] = lambda a=loader, b=batches: measure(a, b)  # type: ignore[misc]
            calls[names[-1]]()  # pins
    rates = {who: Times(tuple(v), "GB/s") for who, v in in_turns(calls, rounds).items()}
    for batches, wanted in ((32, 0.90), (128, 0.95)):
        running = [name for name in names if name.endswith(f" {batches} batches")]
        share = max(rates[name].median for name in running) / rates["copy"].median
        report.row(
            "f",
            f"epochs of {batches} batches of {batch} rows of 3x224x224 u8, uploaded",
            [Goal("of a pinned copy's rate", share, wanted, True, "%")],
            {
                "uploaded": "; ".join(f"{name}: {rates[name]}" for name in running),
                "limit": f"a pinned copy {rates['copy']}",
            },
            **{name: rates[name].as_dict() for name in (*running, "copy")},
        )


# ---- g: sequences


def sequences(report: Report, rounds: int, count: int) -> None:
    batch, longest = 256, 1023
    lengths = torch.randint(1, longest + 1, (count,))
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    total = int(offsets[-1])
    tokens, labels = (torch.randint(50_257, (total,)).int() for _ in range(2))
    arrays = {
        "input_ids": RaggedArray(tokens, offsets.numpy()),
        "labels": RaggedArray(labels, offsets.numpy()),
    }
    collate = PadCollate(return_mask=True)
    data = ArrayDataset(**arrays)
    common: dict[str, Any] = {"shuffle": True, "drop_last": True, "collate_fn": collate}
    there = [each.to(CUDA) for each in (tokens, labels, offsets, lengths)]
    steps = torch.arange(longest, device=CUDA)

    def by_hand() -> Iterator[Any]:
        ids, targets, begins, sizes = there
        for rows in shuffled(count, batch):
            is_inside = steps < sizes[rows][:, None]  # as wide as the longest of all: no wait
            places = (begins[rows][:, None] + steps).clamp(max=total - 1)
            yield (
                torch.where(is_inside, ids[places], 0).long(),
                torch.where(is_inside, targets[places], -100).long(),
                is_inside.long(),
            )

    loaders: dict[str, Iterable[Any]] = {
        "resident": DataLoader(data.to(CUDA), batch, device=CUDA, **common),
        "uploaded": DataLoader(
            data, batch, num_workers=WORKERS, prefetch_factor=4, device=CUDA, **common
        ),
        "torch": TorchLoader(data.to(CUDA), batch, **common),
        "by hand": Epochs(by_hand),
    }
    work = f"{batch} of {count} sequences of 1 to {longest} tokens, int32 to padded int64 and mask"
    read = batch * (longest + 1) // 2 * 2 * 4
    compare(report, rounds, "g", work, loaders, read, batch * longest * 3 * 8)


# ---- h: training with few cores


@contextmanager
def busy_shares() -> Iterator[list[float]]:
    """Collect, by the end of the block, how busy NVML said each tenth of a second that the device
    was."""
    query = "nvidia-smi -i 0 --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 100"
    shares: list[float] = []
    with subprocess.Popen(query.split(), stdout=subprocess.PIPE, text=True) as running:
        try:
            yield shares
        finally:
            running.terminate()
            said, _ = running.communicate()
            shares.extend(int(word) / 100 for word in said.split() if word.isdigit())


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep the threads that there are, and those that they start, on so many cores."""
    cores = sorted(os.sched_getaffinity(0))

    def keep_on(some: list[int]) -> None:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), some)

    keep_on(cores[:count])
    try:
        yield
    finally:
        keep_on(cores)


def few_cores(report: Report, rounds: int, count: int) -> None:
    batch, trainer = 256, Trainer()
    images, labels = (
        torch.randint(256, (count, 3, 256, 256), dtype=torch.uint8),
        torch.arange(count),
    )
    chain = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *TO_HALF])

    def make(**more: Any) -> ArrayDataset:
        return ArrayDataset(images, labels % 1000, transform=chain, **more)

    cached = [part.to(CUDA) for part in next(iter(DataLoader(make(), batch)))]
    for cores in (2, 4, 16):
        workers = {"num_workers": max(1, cores - 1), "persistent_workers": True}
        common: dict[str, Any] = {"shuffle": True, "drop_last": True}
        loaders: dict[str, Iterable[Any]] = {
            "resident": DataLoader(make().to(CUDA), batch, device=CUDA, **common),
            "fetched": DataLoader(make(gather="device"), batch, device=CUDA, **common),
            "uploaded": DataLoader(
                make(), batch, device=CUDA, transforms_on="device", **workers, **common
            ),
            "torch": TorchLoader(make(), batch, pin_memory=True, **workers, **common),
            "cached": [(cached[0], cached[1])] * (count // batch),
        }

        def measure(who: str, loaders: dict[str, Any] = loaders) -> tuple[float, float]:
            with busy_shares() as shares:
                us = trainer.train(loaders[who]) * 1e6
            return us, sum(shares) / max(1, len(shares))

        with on_cores(cores):
            taken = in_turns({who: lambda who=who: measure(who) for who in loaders}, rounds)
        times, busy = (
            {who: Times(tuple(pair[i] for pair in pairs), unit) for who, pairs in taken.items()}
            for i, unit in enumerate(("µs", "%"))
        )
        best = max(busy[who].median for who in ("resident", "fetched", "uploaded"))
        shown = {who: f"{times[who]}, busy {busy[who]}" for who in loaders}
        report.row(
            "h",
            f"training on {batch} of {count} images of 3x256x256, cropped to 224, {cores} cores",
            [Goal("busy", best, 0.90, True, "%")],
            {**{who: shown[who] for who in WHO if who in shown}, "limit": shown["cached"]},
            times={who: t.as_dict() for who, t in times.items()},
            busy={who: t.as_dict() for who, t in busy.items()},
        )


def main() -> None:
    args = parse_arguments(__doc__, "abcdefghi")
    if CUDA.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench_resident.py needs a CUDA device, and torch finds none")
    rounds, part = (2, 8) if args.is_quick else (20, 1)
    rows: dict[str, Callable[[], object]] = {
        "a": lambda: cifar(report, rounds, 50_000 // part),
        "b": lambda: table(report, rounds, (1 << 18) // part),
        "c": lambda: tokens(report, rounds, 16_384 // part),
        "d": lambda: [
            crops(report, rounds, 8192 // part, *colors)
            for colors in ((), (T.ColorJitter(0.4, 0.4, 0.4, 0.1),))
        ],
        "e": lambda: [
            rows_over_the_link(report, rounds, 8192 // part, size) for size in (150_528, 150_529)
        ],
        "f": lambda: whole_epochs(report, rounds, 8192 // part),
        "h": lambda: few_cores(report, min(rounds, 5), 8192 // part),
        "g": lambda: sequences(report, rounds, 65_536 // part),
        "i": lambda: beside_products(report, rounds, 8192 // part),
    }
    with Report(args.json, (*WHO, "limit")) as report:
        name = torch.cuda.get_device_name(CUDA) if CUDA.type == "cuda" else "the CPU"
        report.open(device=name, driver=driver(), commit=commit(), rounds=rounds)
        for row in args.rows:
            rows[row]()


if __name__ == "__main__":
    main()
