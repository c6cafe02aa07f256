"""The step between backward and optimizer, with torch's pieces and with fastloop's.

    python benchmarks/bench_step.py [--rows a,b,...] [--quick] [--json FILE]

a-d  scaler.unscale_ and clip_grad_norm_ of four models, against unscale_and_clip_; then the same
     where there is nothing to write (scale 1, norm below max_norm); then unscale_ alone.
e    a boundary with scaler, max_norm and fused AdamW: unscale_, clip_grad_norm_, step, update
     against Stepper's, which folds scale and clip into the optimizer's own kernel.
f    scaler.step and update with fused AdamW, without clipping.
g    16 bfloat16 micro-batches added up in float32: `_foreach_add_`, with and without a copy in
     float32, against combine_.
h    the floor: step and update of one tensor of 16 numbers.

Microseconds a call: 30 rounds, everything in turns, gradients made anew by autograd before every
call; median (lowest - highest). `limit` of a-d: plain C loops on ready threads that read all
gradients, and that scale them, plus what walking them and telling autograd of the writes costs.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from _harness import Goal, Report, Times, build_library, parse_arguments
from _work_step import MODELS, Model

import fastloop
from fastloop.step.grad_list import GradList, new_flag

Call = Callable[[], object]
SCALE = 1024.0
CPU = torch.device("cpu")
ALL_GOALS = {  # by model: clipped, nothing to write, unscale_ alone
    "ResNet-50 (161 tensors, 25.6 M)": (2.3, 4.0, 1.3),
    "GPT-2 124M (148)": (1.8, 3.5, 1.05),
    "1 000 x 64x64": (6.0, 8.0, 2.5),
    "5 000 x 16": (15.0, 17.0, 5.0),
}


class Limit:
    """limit_step.c."""

    def __init__(self) -> None:
        self._library = build_library("limit_step.c", "-fopenmp")
        where, count = ctypes.c_void_p, ctypes.c_int64
        self._library.limit_read.argtypes = [where, count, count]
        self._library.limit_read.restype = ctypes.c_float
        self._library.limit_scale.argtypes = [where, count, ctypes.c_float, count]

    def calls(self, numbers: int) -> dict[str, Call]:
        memory, threads = torch.ones(numbers), torch.get_num_threads()
        at = memory.data_ptr()
        return {
            "read": lambda: self._library.limit_read(at, numbers, threads),
            "scale": lambda _kept=memory: self._library.limit_scale(at, numbers, 1.5, threads),
        }


def measure(calls: dict[str, Call], prepare: Call, rounds: int) -> dict[str, Times]:
    """Microseconds of each call, in turns; `prepare` runs before every one."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.freeze()  # a full collection would hit whoever is running
    for _ in range(rounds):
        for name, call in calls.items():
            prepare()
            start = perf_counter()
            call()
            taken[name].append((perf_counter() - start) * 1e6)
    return {name: Times(tuple(times)) for name, times in taken.items()}


def make_scaler(kind: type[torch.amp.GradScaler], scale: float) -> Any:
    scaler = kind("cpu", init_scale=scale, growth_interval=1 << 30)
    scaler.scale(torch.zeros(()))
    return scaler


def rearm(*scalers: Any) -> None:
    """As after update()."""
    for scaler in scalers:
        scaler._per_optimizer_states.clear()


class Bench:
    def __init__(self, report: Report, rounds: int) -> None:
        self.report, self.rounds = report, rounds

    def row(self, key: str, work: str, times: dict[str, Times], least: float | None) -> None:
        ratio = times["torch"].median / times["fastloop"].median
        goals = [Goal("torch's speed", ratio, least, True)] if least else []
        shown = {who: times[who] for who in ("fastloop", "torch") if who in times}
        limits = {who: t for who, t in times.items() if who not in shown}
        if limits:
            shown["limit"] = " + ".join(f"{who} {t}" for who, t in limits.items())
        measured = {who: t.as_dict() for who, t in times.items()}
        self.report.row(key, work, goals, shown, ratio=round(ratio, 3), **measured)

    def clip(self, key: str, name: str, limit: Limit) -> None:
        model = Model(MODELS[name])
        optimizer = torch.optim.SGD(model.parameters, lr=0.0)
        numbers = model.bytes // 4
        walk = GradList()

        def walk_and_tell() -> None:
            walk.collect_grads(optimizer)
            torch.autograd.graph.increment_version(walk.tensors)

        for what, scale, max_norm, goal in (
            ("unscale_ + clip", SCALE, 1.0, 0),
            ("nothing to write", 1.0, 2 * model.norm, 1),
        ):
            ours = make_scaler(fastloop.GradScaler, scale)
            theirs = make_scaler(torch.amp.GradScaler, scale)

            def torchs(theirs: Any = theirs, max_norm: float = max_norm) -> None:
                theirs.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters, max_norm)

            calls: dict[str, Call] = {
                "fastloop": lambda ours=ours, m=max_norm: ours.unscale_and_clip_(optimizer, m),
                "torch": torchs,
                **limit.calls(numbers),
                "walk": walk_and_tell if goal == 0 else lambda: walk.collect_grads(optimizer),
            }

            def prepare(ours: Any = ours, theirs: Any = theirs) -> None:
                walk.release()  # or its gradients would keep the memory that new ones need
                rearm(ours, theirs)
                model.backward()

            times = measure(calls, prepare, self.rounds)
            self.row(key, f"{what}: {name}", times, ALL_GOALS[name][goal])
        ours, theirs = (
            make_scaler(fastloop.GradScaler, SCALE),
            make_scaler(torch.amp.GradScaler, SCALE),
        )
        calls = {
            "fastloop": lambda: ours.unscale_(optimizer),
            "torch": lambda: theirs.unscale_(optimizer),
        }
        times = measure(calls, lambda: (rearm(ours, theirs), model.backward()), self.rounds)
        self.row(key, f"unscale_: {name}", times, ALL_GOALS[name][2])

    def boundary(self) -> None:
        name = next(iter(MODELS))
        both = {kind: Model(MODELS[name]) for kind in ("fastloop", "torch")}
        optimizers = {
            kind: torch.optim.AdamW(model.parameters, lr=1e-9, fused=True)
            for kind, model in both.items()
        }
        theirs = make_scaler(torch.amp.GradScaler, SCALE)
        stepper = fastloop.Stepper(
            optimizers["fastloop"], scaler=make_scaler(fastloop.GradScaler, SCALE), max_norm=1.0
        )

        def torchs() -> None:
            theirs.unscale_(optimizers["torch"])
            torch.nn.utils.clip_grad_norm_(both["torch"].parameters, 1.0)
            theirs.step(optimizers["torch"])
            theirs.update()
            optimizers["torch"].zero_grad()

        taken: dict[str, list[float]] = {"fastloop": [], "torch": []}
        for _ in range(self.rounds):
            with stepper.micro():
                stepper.backward(both["fastloop"].loss())
                start = perf_counter()
            taken["fastloop"].append((perf_counter() - start) * 1e6)
            both["torch"].backward()
            start = perf_counter()
            torchs()
            taken["torch"].append((perf_counter() - start) * 1e6)
        times = {who: Times(tuple(of)) for who, of in taken.items()}
        self.row("e", f"boundary, fused AdamW: {name}", times, 1.4)

    def fused_step(self) -> None:
        name = next(iter(MODELS))
        model = Model(MODELS[name])
        optimizer = torch.optim.AdamW(model.parameters, lr=1e-9, fused=True)
        self.steps("f", f"step + update, fused AdamW: {name}", model, optimizer)

    def floor(self) -> None:
        model = Model([(16,)])
        for fused in (False, True):
            optimizer = torch.optim.SGD(model.parameters, lr=1e-9, fused=fused)
            self.steps("h", f"step + update, 16 numbers, SGD fused={fused}", model, optimizer)

    def steps(self, key: str, work: str, model: Model, optimizer: Any) -> None:
        scalers = {
            "fastloop": make_scaler(fastloop.GradScaler, SCALE),
            "torch": make_scaler(torch.amp.GradScaler, SCALE),
        }

        def step(scaler: Any) -> None:
            scaler.step(optimizer)
            scaler.update()

        calls = {who: lambda scaler=scaler: step(scaler) for who, scaler in scalers.items()}
        self.row(key, work, measure(calls, model.backward, self.rounds * 2), 1.0)

    def accumulate(self) -> None:
        model = Model(MODELS["ResNet-50 (161 tensors, 25.6 M)"], torch.bfloat16)
        model.backward()
        gradients = [p.grad for p in model.parameters if p.grad is not None]
        buffers = [torch.zeros_like(g, dtype=torch.float32) for g in gradients]
        into, source, found = GradList(), GradList(), new_flag(CPU)

        def combine() -> None:
            into.collect(buffers)
            for micro in range(16):
                source.collect_grads(model.parameters)
                into.combine_(source, found, beta=float(micro > 0))

        def foreach() -> None:
            torch._foreach_zero_(buffers)
            for _ in range(16):
                torch._foreach_add_(buffers, gradients)

        def foreach_cast() -> None:
            torch._foreach_zero_(buffers)
            for _ in range(16):
                torch._foreach_add_(buffers, [g.float() for g in gradients])

        calls: dict[str, Call] = {"fastloop": combine, "a": foreach, "b": foreach_cast}
        times = measure(calls, lambda: None, max(2, self.rounds // 3))
        best = min(times.pop("a"), times.pop("b"), key=lambda t: t.median)
        self.row("g", "16 bf16 micro-batches into fp32, 25.6 M", {**times, "torch": best}, 2.0)


def main() -> None:
    args = parse_arguments(__doc__, "abcdefgh")
    with Report(args.json, ("fastloop", "torch", "limit")) as report:
        report.open(rounds=2 if args.is_quick else 30)
        bench = Bench(report, 2 if args.is_quick else 30)
        limit = Limit()
        for key, name in zip("abcd", MODELS, strict=True):
            if key in args.rows:
                bench.clip(key, name, limit)
        others = {"e": bench.boundary, "f": bench.fused_step, "g": bench.accumulate}
        for key, run in (others | {"h": bench.floor}).items():
            if key in args.rows:
                run()


if __name__ == "__main__":
    main()
