"""unscale_, clip_grad_norm_ and windows of sharded models, and states of loaders on ranks.

Processes run on the CPU over gloo, or on CUDA devices over NCCL where there is one for each.

    python benchmarks/bench_large.py [--rows a,b,...] [--quick] [--json FILE]

a    2 processes, one axis: 1 000 gradients of 16x16, `Shard(0)`.
b    4 processes, one axis.
c    4 processes, 2x2, `[Shard(0), Shard(1)]` as FSDP2 with tensor parallelism: two axes.
d    2 processes, one axis, under patch(): torch computes the norm.
e    2 processes: a window of 4 micro-batches under FSDP2, 8 layers of 64x64. A Stepper with
     max_norm runs it, then a loop written by hand, which clips by torch's clip_grad_norm_.
f    The state of a loader of rank 2 of 7, after 100 of its batches of 32, of 1 000 000 samples: its
     bytes as JSON without those of generators, the time of state_dict(), and the time from a new
     loader to the first batch on rank 1 of 3. `plain` is that of a loader that begins an epoch.

Microseconds a call in process 0, all processes in turns behind a barrier: median (lowest -
highest). `plain` is fastloop's over ordinary tensors of the shards' size, without a collective;
`limit` is what no way around it leaves out: C finds the parts of the gradients in memory and passes
over them as `plain` does, a bare all-reduce of 8 bytes for each axis, and a DTensor is made of the
norm, because torch's function returns one. Processor time of the
calling thread (`host`) leaves out waiting for others: with more processes than cores it alone tells
what fastloop does. Collectives are counted in calls of their own.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _harness import Goal, Report, Times, parse_arguments
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.distributed import DistributedSampler

import fastloop
from fastloop.base.threads import thread_pool
from fastloop.step.grad_list import GradList

ROWS = {"a": (2, 1), "b": (4, 1), "c": (4, 2), "d": (2, 1), "e": (2, 1)}  # processes, axes
COUNT, SIZE = 1000, 16
SAMPLES = 1_000_000
KINDS = "DistributedSampler", "ShuffleSampler", "LengthBucketBatchSampler", "TokenDataset"
LAYERS, WIDTH, WINDOW = 8, 64, 4


class Collectives(TorchDispatchMode):
    """Counts collectives; torch's CommDebugMode fails in a forward of FSDP2 inside another."""

    count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it comes again, as operations on the parts
        is_wait = op._opname == "wait_tensor"
        self.count += op.namespace in ("c10d", "_c10d_functional") and not is_wait
        return op(*args, **(kwargs or {}))


def window_by(is_ours: bool, mesh: Any) -> Callable[[], None]:
    """Make a call that runs one window, its weights being equal."""
    torch.manual_seed(1)
    device = mesh.device_type
    layers = [torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(LAYERS)]
    model: Any = torch.nn.Sequential(*layers)
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(16, WIDTH, device=device)
    stepper = fastloop.Stepper(optimizer, WINDOW, model=model, max_norm=1.0)

    def ours() -> None:
        for _ in range(WINDOW):
            with stepper.micro():
                stepper.backward(model(batch).square().mean())

    def by_hand() -> None:
        for i in range(WINDOW):
            model.set_requires_gradient_sync(i == WINDOW - 1)
            (model(batch).square().mean() / WINDOW).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return ours if is_ours else by_hand


class Model:
    """Parameters of which this process has parts, and gradients that can be made anew."""

    def __init__(self, mesh: Any, shape: tuple[int, int], device: str) -> None:
        self.locals = [torch.empty(shape, device=device) for _ in range(COUNT)]
        self._sources = [torch.randn(shape, device=device) for _ in range(COUNT)]
        self.parameters = [torch.nn.Parameter(self._wrap(t, mesh)) for t in self._sources]
        for p, local in zip(self.parameters, self.locals, strict=True):
            p.grad = self._wrap(local, mesh)
        if mesh is not None:  # as FSDP2, which makes a gradient with its parameter's spec
            for p in self.parameters:
                p.grad._spec = p._spec
        self.optimizer = torch.optim.SGD(self.parameters, 0.1)

    @staticmethod
    def _wrap(local: torch.Tensor, mesh: Any) -> Any:
        if mesh is None:
            return local
        return DTensor.from_local(local, mesh, [Shard(i) for i in range(mesh.ndim)])

    def refill(self) -> None:
        torch._foreach_copy_(self.locals, self._sources)


def clip_by(kind: Any, model: Model) -> Callable[[], None]:
    device = model.locals[0].device
    scaler = kind(device.type, init_scale=4.0, growth_interval=1 << 30)
    scaler.scale(torch.zeros((), device=device))

    def ours() -> None:
        scaler._per_optimizer_states.clear()
        scaler.unscale_and_clip_(model.optimizer, 1.0)

    def torchs() -> None:
        scaler._per_optimizer_states.clear()
        scaler.unscale_(model.optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters, 1.0)

    return ours if kind is fastloop.GradScaler else torchs


def join_ranks(rank: int, ranks: int, axes: int, store: str) -> Any:
    """Become a rank; returns the mesh of all of them."""
    has_devices = torch.cuda.device_count() >= ranks
    if has_devices:
        torch.cuda.set_device(rank)
    address, limit = f"file://{store}", timedelta(seconds=120)
    backend = "nccl" if has_devices else "gloo"
    dist.init_process_group(backend, address, rank=rank, world_size=ranks, timeout=limit)
    shape = (ranks,) if axes == 1 else (2, ranks // 2)
    return init_device_mesh("cuda" if has_devices else "cpu", shape)


def run_rank(rank: int, row: str, rounds: int, store: str, results: Any) -> None:
    """Measure in one process of several, and send the figures of process 0."""
    ranks, axes = ROWS[row]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    mesh = join_ranks(rank, ranks, axes, store)
    device, is_cuda = mesh.device_type, mesh.device_type == "cuda"
    shape = (SIZE // ranks, SIZE) if axes == 1 else (SIZE // 2, SIZE // 2)
    model, plain = Model(mesh, shape, device), Model(None, shape, device)
    number = torch.zeros(1, dtype=torch.float64, device=device)
    of_plain = clip_by(fastloop.GradScaler, plain)
    grads, found_inf, pool = GradList(), torch.zeros((), device=device), thread_pool()
    scale = torch.full((), 4.0, device=device)
    whole = DTensor.from_local(found_inf, mesh, [Replicate()] * axes)

    def bare() -> None:
        with grads.reading():
            grads.collect_groups(model.optimizer.param_groups)
        norm = grads.run_norm_check(pool, 2.0, scale, 1.0, found_inf)
        for axis in range(axes):
            dist.all_reduce(number, group=mesh.get_group(axis))
        grads.run_scale(pool, grads.find_clip_factor(norm, 1.0, found_inf, scale, 1.0))
        grads.release()
        DTensor(norm.float(), whole._spec, requires_grad=False)

    torchs = clip_by(torch.amp.GradScaler, model)
    calls = {
        "fastloop": torchs if row == "d" else clip_by(fastloop.GradScaler, model),
        "torch": torchs,
        "plain": of_plain,
        "limit": bare,
    }
    if row == "e":
        calls = {"fastloop": window_by(True, mesh), "torch": window_by(False, mesh)}
    wall: dict[str, list[float]] = {who: [] for who in calls}
    host: dict[str, list[float]] = {who: [] for who in calls}
    counts = {}
    for i in range(rounds + 2):
        for who, call in calls.items():
            model.refill()
            plain.refill()
            is_patched = row == "d" and who == "fastloop"
            if is_patched:
                fastloop.patch(["grad_scaler", "clip_grad_norm"])
            if i == 0:
                call()  # the first one makes what later ones have
                with Collectives() as mode:
                    call()
                counts[who] = mode.count
            dist.barrier()
            if is_cuda:
                torch.cuda.synchronize()
            start, used = perf_counter(), thread_time()
            call()
            used = thread_time() - used
            if is_cuda:
                torch.cuda.synchronize()
            passed = perf_counter() - start
            if is_patched:
                fastloop.unpatch()
            if i > 1:
                wall[who].append(passed * 1e6)
                host[who].append(used * 1e6)
    if rank == 0:
        results.put((wall, host, counts))
    dist.barrier()
    dist.destroy_process_group()


def measure(row: str, rounds: int) -> tuple[dict[str, Times], dict[str, Times], dict[str, int]]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = row, rounds, str(Path(folder) / "store"), results
        ranks = range(ROWS[row][0])
        processes = [context.Process(target=run_rank, args=(r, *arguments)) for r in ranks]
        for process in processes:
            process.start()
        wall, host, counts = results.get(timeout=600)
        for process in processes:
            process.join()
    times = [{who: Times(tuple(t)) for who, t in taken.items()} for taken in (wall, host)]
    return times[0], times[1], counts


class Samples(torch.utils.data.Dataset[int]):
    """Counts the samples that are loaded."""

    loaded = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return index


def loader_of(kind: str, data: Any, rank: int, ranks: int) -> fastloop.DataLoader[Any]:
    if kind == "LengthBucketBatchSampler":
        lengths = np.arange(SAMPLES) % 500 + 1
        buckets = fastloop.LengthBucketBatchSampler(lengths, 32, num_replicas=ranks, rank=rank)
        return fastloop.DataLoader(data, batch_sampler=buckets)
    if kind == "TokenDataset":
        data.set_epoch(0)
    sampler: Any = DistributedSampler(data, ranks, rank)
    if kind == "ShuffleSampler":
        sampler = fastloop.ShuffleSampler(data, num_replicas=ranks, rank=rank)
    return fastloop.DataLoader(data, batch_size=32, sampler=sampler)


def first_batch(loader: fastloop.DataLoader[Any], state: Any) -> None:
    if state is not None:
        loader.load_state_dict(state, strict=True)
    next(iter(loader))


def time_of(call: Callable[..., Any], *args: Any) -> float:
    start = perf_counter()
    call(*args)
    return (perf_counter() - start) * 1e6


def report_states(report: Report, kind: str, rounds: int) -> None:
    """Report what a state takes, and the first batch on another number of ranks."""
    tokens = np.arange(16 * SAMPLES, dtype=np.uint16)
    data: Any = Samples()
    if kind == "TokenDataset":
        ends = np.array([0, len(tokens)])
        data = fastloop.TokenDataset.from_buffers(tokens, ends, seq_len=15)
    loader = loader_of(kind, data, 2, 7)
    batches = iter(loader)
    for _ in range(100):
        next(batches)
    taken = [time_of(loader.state_dict) for _ in range(20 * rounds)]
    state = json.loads(json.dumps(loader.state_dict()))
    size = len(json.dumps({**state, "generators": {}}))
    resumed, anew, loaded = [], [], 0
    for _ in range(rounds):
        anew.append(time_of(first_batch, loader_of(kind, data, 1, 3), None))
        before = getattr(data, "loaded", 0)
        resumed.append(time_of(first_batch, loader_of(kind, data, 1, 3), state))
        loaded = getattr(data, "loaded", 0) - before
    goals = [
        Goal("bytes", size, 1024, False, ""),
        Goal("to take", Times(tuple(taken)).median, 50, False, "µs"),
        Goal("samples loaded for the first batch", loaded, 32, False, ""),
    ]
    report.row("f", f"state, {kind}", goals, {"fastloop": Times(tuple(taken))})
    shown = {"fastloop": Times(tuple(resumed)), "plain": Times(tuple(anew))}
    report.row("f", "  the first batch on 3 ranks", [], shown)


def main() -> None:
    args = parse_arguments(__doc__, "abcdef")
    rounds = 2 if args.is_quick else 30
    with Report(args.json, ("fastloop", "torch", "plain", "limit")) as report:
        report.open(rounds=rounds)
        for row in args.rows:
            if row == "f":
                for kind in KINDS:
                    report_states(report, kind, rounds)
                continue
            ranks, axes = ROWS[row]
            wall, host, counts = measure(row, rounds)
            speed = wall["torch"].median / wall["fastloop"].median
            wanted = {"d": 1, "e": 0.9}.get(row, 20)  # a window is torch's work, with noise
            goals = [Goal("torch's speed", speed, wanted, True)]
            if row not in "de":
                ratio = host["fastloop"].median / host["plain"].median
                goals.append(Goal("plain's host time", ratio, 1.5, False))
                goals.append(Goal("collectives", counts["fastloop"], axes, False, ""))
            name = f"{ranks} processes, {axes} {'axes' if axes > 1 else 'axis'}"
            name += {"d": ", patch()", "e": ", a window"}.get(row, "")
            measured = {who: t.as_dict() for who, t in wall.items()}
            measured["host"] = {who: t.as_dict() for who, t in host.items()}
            report.row(row, name, goals, wall, collectives=counts, **measured)
            report.row(row, "  host", [], host)


if __name__ == "__main__":
    main()
