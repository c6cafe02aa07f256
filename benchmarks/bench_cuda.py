"""The device half on one GPU, with torch's pieces and with fastloop's.

    python benchmarks/bench_cuda.py [--rows a,b,...] [--quick] [--json FILE]

a  passes over the gradients of GPT-2 124M, and of ResNet-50, whose 1 667 chunks leave blocks idle
   at the end: bytes they must move over time, as a share of what a device-to-device copy of the
   same memory reaches.
b  a step of a small model (148 tensors): host microseconds, kernels launched and waits for the
   device of scaler and optimizer, {foreach, fused} x {clip, no clip}.
c  array batches of 256 x 3x224x224 uint8 to the device, nothing computed: bytes a second as a
   share of what one pinned copy reaches; beside it the same loader without a device, which only
   gathers.
d  host microseconds of next() with a full ring of device batches.
e  training a small convolutional network on ImageNet-shaped images: time of a loop over one cached
   batch as a share of the loop over a loader, torch's at its best number of workers and ours.
f  array batches of 256 x 3x224x224, flipped and normalised to float32, to the device, nothing else
   computed: cut, so that bytes travel and the device casts, and uncut (an erasing that never
   happens behind Normalize keeps the plan whole): images a second.
g  as e, on images of 3x256x256 that are resized crops of 224, flipped and normalised to float32:
   by torchvision in torch's workers, and by fastloop.transforms.
h  batches of 64 windows of 4 096 tokens as int64 x and y to the device, nothing computed: cut, so
   that one row of uint16 travels, and uncut (tokens of int64, which nothing narrows): tokens a
   second, and bytes over the link a token.

Everything in turns, 20 rounds (5 of e); median (lowest - highest).
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _harness import Goal, Report, Times, parse_arguments
from _work_step import MODELS
from torch import Tensor, nn

import fastloop
from fastloop import transforms as T
from fastloop.base.threads import thread_pool
from fastloop.step.grad_list import GradList, new_flag

Call = Callable[[], object]
CUDA = torch.device("cuda", 0)
IMAGE = (3, 224, 224)


def in_turns(calls: dict[str, Call], rounds: int) -> dict[str, list[Any]]:
    """What each call returns, `rounds` times, after one that does not count."""
    taken: dict[str, list[Any]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    gc.collect()
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(call())
    return taken


def device_us(work: Call, repeats: int = 20) -> float:
    """Device microseconds of one of `repeats` calls in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / repeats


def host_us(work: Call, repeats: int = 20) -> float:
    """Host microseconds of one call while the device keeps up with it."""
    torch.cuda.synchronize()
    begin = perf_counter()
    for _ in range(repeats):
        work()
    taken = perf_counter() - begin
    torch.cuda.synchronize()
    return taken * 1e6 / repeats


def batches_a_second(loader: fastloop.DataLoader[Any]) -> float:
    """Of one epoch, until the last batch is there."""
    torch.cuda.synchronize()
    begin = perf_counter()
    batches = sum(1 for _ in loader)
    torch.cuda.synchronize()
    return batches / (perf_counter() - begin)


def launches(work: Call) -> tuple[int, int]:
    """(kernels, waits for the device) of a call."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    names = [event.key for event in profile.events()]
    kernels = sum(name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for name in names)
    waits = sum(name in ("cudaStreamSynchronize", "cudaMemcpy") for name in names)
    return kernels, waits


# ---- a: passes


def passes(report: Report, rounds: int, model: str) -> None:
    tensors = [torch.randn(shape, device=CUDA) for shape in MODELS[model]]
    sums = GradList().collect([torch.zeros_like(t) for t in tensors])
    grads, flag = GradList().collect(tensors), new_flag(CUDA)
    one = torch.tensor(1.0 + 2.0**-20, device=CUDA)
    factor = one.double()
    total = sum(t.nbytes for t in tensors)
    source = torch.empty(total, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    works: dict[str, tuple[Call, int]] = {
        "copy": (lambda: target.copy_(source), 2 * total),
        "norm_check": (lambda: grads.norm_check(flag), total),
        "scale": (lambda: grads.scale_(factor), 2 * total),
        "unscale": (lambda: grads.run_unscale(thread_pool(), one, flag), 2 * total),
        "combine": (lambda: sums.combine_(grads, flag), 3 * total),
    }
    taken = in_turns(
        {name: lambda work=work: device_us(work) for name, (work, _) in works.items()}, rounds
    )
    rates = {
        name: Times(tuple(size / us / 1e3 for us in taken[name]), "GB/s")
        for name, (_, size) in works.items()
    }
    for name in list(works)[1:]:
        share = rates[name].median / rates["copy"].median
        report.row(
            "a",
            f"{name}, {len(tensors)} tensors, {total / 1e6:.0f} MB",
            [Goal("of a copy's bandwidth", share, 0.85, True, "%")],
            {"fastloop": rates[name], "limit": f"copy {rates['copy']}"},
            **{key: rates[key].as_dict() for key in (name, "copy")},
        )


# ---- b: a step


def step(kind: str, clips: bool, cls: type[torch.amp.GradScaler]) -> Call:
    torch.manual_seed(0)
    shapes = MODELS["GPT-2 124M (148)"]
    params = [nn.Parameter(torch.zeros([min(n, 64) for n in s], device=CUDA)) for s in shapes]
    source = [torch.randn_like(p) for p in params]
    for p in params:
        p.grad = torch.empty_like(p)
    gradients = [p.grad for p in params]
    optimizer = torch.optim.AdamW(params, lr=1e-4, **{kind: True})
    scaler: Any = cls("cuda", init_scale=2.0, growth_interval=1 << 30)
    scaler.scale(torch.zeros((), device=CUDA))

    def run() -> None:
        torch._foreach_copy_(gradients, source)  # both sides: clipping halves them every time
        if clips and cls is fastloop.GradScaler:
            scaler.unscale_and_clip_(optimizer, 1e3)
        elif clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(params, 1e3)
        scaler.step(optimizer)
        scaler.update()

    return run


def steps(report: Report, rounds: int) -> None:
    for kind in ("fused", "foreach"):
        for clips in (True, False):
            works = {
                "fastloop": step(kind, clips, fastloop.GradScaler),
                "torch": step(kind, clips, torch.amp.GradScaler),
            }
            taken = in_turns(
                {name: lambda work=work: host_us(work) for name, work in works.items()}, rounds
            )
            times = {name: Times(tuple(us)) for name, us in taken.items()}
            counts = {name: launches(work) for name, work in works.items()}
            shown = {
                name: f"{times[name]}, {kernels} kernels, {waits} waits"
                for name, (kernels, waits) in counts.items()
            }
            ratio = times["torch"].median / times["fastloop"].median
            report.row(
                "b",
                f"step with {kind} AdamW{', clipped' if clips else ''}",
                [Goal("torch's speed", ratio, 1.0, True)],
                shown,
                counts=counts,
                **{name: t.as_dict() for name, t in times.items()},
            )


# ---- c, d: batches on their way


def images(count: int) -> fastloop.ArrayDataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, *IMAGE), dtype=torch.uint8, generator=generator)
    return fastloop.ArrayDataset(pixels, torch.arange(count) % 1000)


def uploads(report: Report, rounds: int, data: fastloop.ArrayDataset) -> None:
    batch = 256
    size = batch * (3 * 224 * 224 + 8)
    common: dict[str, Any] = {"shuffle": True, "num_workers": 8, "drop_last": True}
    ours = fastloop.DataLoader(data, batch, prefetch_factor=4, device=CUDA, **common)
    gathers = fastloop.DataLoader(data, batch, prefetch_factor=4, **common)
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=CUDA)

    def copy() -> float:
        return size / device_us(lambda: there.copy_(pinned, non_blocking=True)) / 1e3

    calls = {
        "fastloop": lambda: batches_a_second(ours) * size / 1e9,
        "gather": lambda: batches_a_second(gathers) * size / 1e9,
        "copy": copy,
    }
    taken = in_turns(calls, rounds)
    rates = {name: Times(tuple(values), "GB/s") for name, values in taken.items()}
    share = rates["fastloop"].median / rates["copy"].median
    report.row(
        "c",
        f"{len(data)} images of {IMAGE} uint8 to the device, 256 a batch",
        [Goal("of a pinned copy's rate", share, 0.85, True, "%")],
        {
            "fastloop": rates["fastloop"],
            "limit": f"copy {rates['copy']}, gather {rates['gather']}",
        },
        **{name: t.as_dict() for name, t in rates.items()},
    )


def latency(report: Report, data: fastloop.ArrayDataset, path: str) -> None:
    loader = fastloop.DataLoader(data, 64, num_workers=8, prefetch_factor=4, device=CUDA, path=path)
    taken = []
    work = torch.zeros(4096, 4096, device=CUDA)
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(len(loader) - 1):
            for _ in range(4):
                work = work @ work
            torch.cuda.synchronize()
            begin = perf_counter()
            next(iterator)
            taken.append((perf_counter() - begin) * 1e6)
    times = Times(tuple(sorted(taken)))
    what = f"next() of 64 images, path {path}"
    report.row("d", what, [], {"fastloop": times}, next=times.as_dict())


# ---- e: a training loop


def make_network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers).to(CUDA, memory_format=torch.channels_last)


class Trainer:
    def __init__(self) -> None:
        self.network = make_network()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, fused=True)
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """Seconds a batch."""
        count = 0
        torch.cuda.synchronize()
        begin = perf_counter()
        for x, y in batches:
            x, y = x.to(CUDA, non_blocking=True), y.to(CUDA, non_blocking=True)
            scale = 255 if x.dtype is torch.uint8 else 1
            x = x.to(torch.float16, memory_format=torch.channels_last).div_(scale)
            self.optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(self.network(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            count += 1
        torch.cuda.synchronize()
        return (perf_counter() - begin) / count


def compare_training(
    report: Report,
    rounds: int,
    row: str,
    work: str,
    ours: torch.utils.data.Dataset[Any],
    theirs: torch.utils.data.Dataset[Any],
    workers_of_ours: int,
) -> None:
    trainer, batch = Trainer(), 256
    batches = len(ours) // batch  # type: ignore[arg-type]
    cached = [t.to(CUDA) for t in next(iter(fastloop.DataLoader(ours, batch)))]
    common: dict[str, Any] = {"shuffle": True, "drop_last": True, "persistent_workers": True}
    loader = fastloop.DataLoader(ours, batch, num_workers=workers_of_ours, device=CUDA, **common)
    calls: dict[str, Call] = {
        "cached": lambda: trainer.train([(cached[0], cached[1])] * batches),
        "fastloop": lambda: trainer.train(loader),
    }
    for workers in (4, 8, 15):
        other = torch.utils.data.DataLoader(
            theirs, batch, num_workers=workers, pin_memory=True, **common
        )
        calls[f"torch x{workers}"] = lambda other=other: trainer.train(other)
    taken = in_turns(calls, rounds)
    times = {name: Times(tuple(s * 1e6 for s in values)) for name, values in taken.items()}
    best = min((name for name in times if "torch" in name), key=lambda n: times[n].median)
    share = times["cached"].median / times["fastloop"].median
    torchs = times["cached"].median / times[best].median
    report.row(
        row,
        f"{work}; torch reaches {torchs:.0%}",
        [Goal("of the cached loop", share, 0.98, True, "%")],
        {"fastloop": times["fastloop"], "torch": f"{times[best]} {best}", "limit": times["cached"]},
        **{name: t.as_dict() for name, t in times.items()},
    )


def training(report: Report, rounds: int, data: fastloop.ArrayDataset) -> None:
    compare_training(report, rounds, "e", f"training on 256 images of {IMAGE}", data, data, 8)


class Augmented(torch.utils.data.Dataset[Any]):
    """Images with torchvision's transforms."""

    def __init__(self, images: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), index % 1000


def augmented_training(report: Report, rounds: int, count: int) -> None:
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        print(f"row g is left out: {error}")
        return

    def chain(ops: Any) -> Any:
        normalize = ops.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        to_float = ops.ToDtype(torch.float32, scale=True)
        crop = ops.RandomResizedCrop(224, antialias=True)
        return ops.Compose([crop, ops.RandomHorizontalFlip(), to_float, normalize])

    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, 256, 256)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    ours = fastloop.ArrayDataset(
        pixels, torch.arange(count) % 1000, transform=chain(fastloop.transforms)
    )
    work = "training on 256 augmented images of (3, 224, 224)"
    compare_training(report, rounds, "g", work, ours, Augmented(pixels, chain(v2)), 15)


# ---- f: images that travel as bytes


def casts(report: Report, rounds: int, count: int) -> None:
    batch = 256
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, *IMAGE), dtype=torch.uint8, generator=generator)
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5] * 3, [0.25] * 3)]

    def loader_of(*behind: Any, **more: Any) -> fastloop.DataLoader[Any]:
        aug = T.Compose([T.RandomHorizontalFlip(), *values, *behind])
        data = fastloop.ArrayDataset(pixels, transform=aug)
        common: dict[str, Any] = {"shuffle": True, "num_workers": 8, "drop_last": True, **more}
        return fastloop.DataLoader(data, batch, prefetch_factor=4, **common)

    never = T.RandomErasing(p=1e-12)
    loaders = {
        "cut": loader_of(device=CUDA),
        "uncut": loader_of(never, device=CUDA),
        "on the CPU": loader_of(),
    }
    works = {
        name: lambda loader=loader: batches_a_second(loader) * batch
        for name, loader in loaders.items()
    }
    pinned = torch.empty(4 * batch * 3 * 224 * 224, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(pinned, device=CUDA)
    copy_us = device_us(lambda: there.copy_(pinned, non_blocking=True))
    taken = in_turns(works, rounds)
    rates = {name: Times(tuple(values), "images/s") for name, values in taken.items()}
    ratio = rates["cut"].median / rates["uncut"].median
    report.row(
        "f",
        f"{count} images of {IMAGE}, flipped and normalised, to the device as float32",
        [Goal("cut, of uncut's speed", ratio, 1.0, True)],
        {
            "fastloop": f"{rates['cut']}, uncut {rates['uncut']}",
            "limit": f"the link, of floats {batch / copy_us * 1e6:,.0f} and of bytes four times "
            f"as many; the same loader without a device {rates['on the CPU']}",
        },
        **{name: t.as_dict() for name, t in rates.items()},
    )


# ---- h: tokens that travel narrow


def tokens(report: Report, rounds: int, count: int) -> None:
    batch, length = 64, 4096
    generator = torch.Generator().manual_seed(0)
    wide = torch.randint(0, 50_257, (count * length,), generator=generator)
    common: dict[str, Any] = {"shuffle": True, "num_workers": 8, "drop_last": True}

    def loader_of(values: Tensor, **more: Any) -> fastloop.DataLoader[Any]:
        data = fastloop.TokenDataset.from_buffers(values, torch.tensor([0, len(values)]), length)
        return fastloop.DataLoader(data, batch, prefetch_factor=4, **common, **more)

    loaders = {
        "cut": loader_of(wide.to(torch.uint16), device=CUDA),
        "uncut": loader_of(wide, device=CUDA),
        "on the CPU": loader_of(wide.to(torch.uint16)),
    }
    works = {
        name: lambda loader=loader: batches_a_second(loader) * batch * length / 1e6
        for name, loader in loaders.items()
    }
    taken = in_turns(works, rounds)
    rates = {name: Times(tuple(values), "M tokens/s") for name, values in taken.items()}
    sent = {
        name: loaders[name].stats().bytes / (loaders[name].stats().batches * batch * length)
        for name in ("cut", "uncut")
    }
    pinned = torch.empty(16 * batch * length, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(pinned, device=CUDA)
    copy_us = device_us(lambda: there.copy_(pinned, non_blocking=True))
    ratio = rates["cut"].median / rates["uncut"].median
    report.row(
        "h",
        f"{count} windows of {length} tokens to the device as int64 x and y; {sent['cut']:.2f} "
        f"bytes a token travel, uncut {sent['uncut']:.2f}",
        [Goal("cut, of uncut's speed", ratio, 1.0, True)],
        {
            "fastloop": f"{rates['cut']}, uncut {rates['uncut']}",
            "limit": f"the link, of int64 {batch * length / copy_us:,.0f} M tokens/s and of uint16 "
            f"eight times as many; the same loader without a device {rates['on the CPU']}",
        },
        bytes_a_token=sent,
        **{name: t.as_dict() for name, t in rates.items()},
    )


def commit() -> str:
    here = str(Path(__file__).parent)
    named = os.environ.get("FASTLOOP_COMMIT")
    return named or ask("git", "-C", here, "rev-parse", "--short", "HEAD") or "unknown"


def driver() -> str:
    return ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "unknown"


def ask(*command: str) -> str:
    """The first line that a program prints; nothing if it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0]


def main() -> None:
    args = parse_arguments(__doc__, "abcdefgh")
    if not torch.cuda.is_available():
        raise SystemExit("bench_cuda.py needs a CUDA device, and torch finds none")
    rounds = 2 if args.is_quick else 20
    with Report(args.json, ("fastloop", "torch", "limit")) as report:
        report.open(
            device=torch.cuda.get_device_name(CUDA),
            driver=driver(),
            cuda=torch.version.cuda,
            commit=commit(),
            rounds=rounds,
        )
        if "a" in args.rows:
            for model in ("GPT-2 124M (148)", "ResNet-50 (161 tensors, 25.6 M)"):
                passes(report, rounds, model)
        if "b" in args.rows:
            steps(report, rounds)
        if "c" in args.rows:
            for count in (2048,) if args.is_quick else (8192, 32768):
                uploads(report, rounds, images(count))
        data = images(2048 if args.is_quick else 8192) if set(args.rows) & set("de") else None
        if data is not None and "d" in args.rows:
            for path in ("array", "process"):
                latency(report, data, path)
        if data is not None and "e" in args.rows:
            training(report, max(2, rounds // 4), data)
        if "f" in args.rows:
            casts(report, rounds, 2048 if args.is_quick else 8192)
        if "g" in args.rows:
            augmented_training(report, max(2, rounds // 4), 1024 if args.is_quick else 8192)
        if "h" in args.rows:
            tokens(report, rounds, 2048 if args.is_quick else 16384)


if __name__ == "__main__":
    main()
