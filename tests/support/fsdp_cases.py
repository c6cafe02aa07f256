"""Programs of the ranks of tests/step/test_stepper_fsdp.py: the Stepper under FSDP2 against one
process with one large batch in float64."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rank_program import run_cases
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import fastloop
from fastloop import Stepper
from fastloop.compat import torch_parts

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ACCUMULATE, LENGTH = 3, 8  # two whole windows and a short one
MAX_NORM = 0.05
warnings.simplefilter("ignore")  # torch reduces over two axes in turn


def model_of(dtype: torch.dtype = torch.float64) -> torch.nn.Sequential:
    """Of sizes that no number of ranks divides: the last bias has empty shards."""
    torch.manual_seed(4)
    layers = torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.Linear(3, 1)
    return torch.nn.Sequential(*layers).to(dtype)


def size_of(rank: int, i: int) -> int:
    return 2 + (3 * i + 5 * rank) % 7


def batch_of(rank: int, i: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return torch.randn(size_of(rank, i), 5, generator=generator, dtype=torch.float64)


def optimizer_of(model: torch.nn.Module, is_fused: bool) -> torch.optim.Optimizer:
    """torch has no fused SGD of DTensors."""
    if is_fused:
        return torch.optim.Adam(model.parameters(), 0.01, eps=0.01, fused=True)
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


class Run:
    """A training under FSDP2, each layer of its own."""

    def __init__(self, dtype: Any = torch.float64, mesh: Any = None, **options: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,)) if mesh is None else mesh
        sharding = {
            k: options.pop(k) for k in ("mp_policy", "reshard_after_forward") & options.keys()
        }
        self.model: Any = model_of(dtype)
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer, mesh=mesh, **sharding)
        self.optimizer = optimizer_of(self.model, options.pop("fused", False))
        accumulate = options.pop("accumulate", ACCUMULATE)
        options.setdefault("max_norm", MAX_NORM)
        self.stepper = Stepper(self.optimizer, accumulate, model=self.model, **options)
        self.dtype = dtype

    def micro(self, i: int, weight: float | None = None, spoil: float = 1.0) -> None:
        with self.stepper.micro(size_of(RANK, i) if weight is None else weight):
            output = self.model(batch_of(RANK, i).to(self.dtype))
            self.stepper.backward(output.double().square().mean() * spoil)

    def epoch(self, loader: Any) -> None:
        for i in self.stepper.iterate(loader):
            self.micro(i)

    def parameters(self) -> Tensor:
        return torch.cat([p.full_tensor().detach().flatten() for p in self.model.parameters()])


class Reference:
    """The same in one process: one large batch for each window."""

    def __init__(self, max_norm: float = MAX_NORM, is_fused: bool = False) -> None:
        self.model, self.max_norm = model_of(), max_norm
        self.optimizer = optimizer_of(self.model, is_fused)

    def step(self, micros: Any) -> Tensor:
        return self.step_on([(rank, i) for rank in range(RANKS) for i in micros])

    def step_on(self, batches: list[tuple[int, int]]) -> Tensor:
        self.optimizer.zero_grad()
        self.model(torch.cat([batch_of(*at) for at in batches])).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return norm

    def epoch(self) -> None:
        for begin in range(0, LENGTH, ACCUMULATE):
            self.step(range(begin, min(begin + ACCUMULATE, LENGTH)))

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def same(run: Run, reference: Reference, bound: float = 1e-12) -> None:
    ours, exact = run.parameters().double(), reference.parameters()
    torch.testing.assert_close(ours, exact, rtol=bound, atol=bound)


class Collectives(TorchDispatchMode):
    """Counts collectives; torch's CommDebugMode fails in a forward of FSDP2 inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "c10d":
            self.counts[op._opname] += 1
        return op(*args, **(kwargs or {}))


def meshes() -> Iterator[Any]:
    yield init_device_mesh("cpu", (RANKS,))
    if RANKS > 2:
        yield init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("outer", "inner"))


ACCUMULATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"accum_dtype": torch.float64},
    {"on_nonfinite": "micro"},
)


def case_exact() -> None:
    """Windows of unequal weights and a short last one, on every mesh and each way to add up."""
    for mesh in meshes():
        for way in ACCUMULATIONS:
            options: list[dict[str, Any]] = [
                {"reshard_after_forward": False, "fused": True},
                {"scaler": fastloop.GradScaler("cpu", init_scale=256.0)},
                {"reshard_after_forward": True},
                {"scaler": torch.amp.GradScaler("cpu", init_scale=256.0)},
            ]
            # Four ranks on two CPUs are slow: theirs is the second mesh.
            for more in options[: 4 if RANKS == 2 else 2]:
                run = Run(mesh=mesh, **way, **more)
                reference = Reference(is_fused="fused" in more)
                for loader in (range(LENGTH), iter(range(LENGTH))):
                    run.epoch(loader)
                    reference.epoch()
                assert run.stepper.stepped == 6
                same(run, reference)


def case_rounded() -> None:
    """float32, and bfloat16 parameters reduced in float32: within the bounds of their dtypes."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    for mesh in meshes():
        for way in (*ACCUMULATIONS, {"accum_dtype": torch.float32}):
            for policies, bound in (({}, 1e-6), ({"mp_policy": policy}, 2e-2)):
                run, reference = Run(torch.float32, mesh, **way, **policies), Reference()
                run.epoch(range(LENGTH))
                reference.epoch()
                same(run, reference, bound)


def case_buffers() -> None:
    """Buffers have a shard's size and the dtype that was asked for."""
    run = Run(torch.float32, accum_dtype=torch.float64)
    run.micro(0)
    buffers: Any = run.stepper._buffers
    for view, p in zip(buffers.sums.tensors, run.model.parameters(), strict=True):
        assert view.dtype is torch.float64 and view.placements == p.placements
        assert view.to_local().shape == p.to_local().shape
    run.stepper.flush()


def case_flush() -> None:
    """flush() in the middle of a window, of an empty one, and after a discarded one."""
    for mesh in meshes():
        for way in ACCUMULATIONS:
            for reshards in (True, False):
                run = Run(mesh=mesh, accumulate=100, reshard_after_forward=reshards, **way)
                reference = Reference()
                for count in (2, 1, 4):
                    for i in range(count):
                        run.micro(i)
                    run.stepper.flush()
                    exact = reference.step(range(count))
                    assert run.stepper.last_norm is not None
                    torch.testing.assert_close(run.stepper.last_norm, exact, rtol=1e-12, atol=0)
                run.stepper.flush()  # nothing is open
                for i in run.stepper.iterate(range(5)):
                    run.micro(i)
                    if i == 1:
                        break
                run.micro(3)
                run.stepper.flush()
                reference.step([3])
                assert run.stepper.stepped == 4
                same(run, reference)


def case_gone() -> None:
    """Without torch's private function flush() is refused on all ranks, and the loop goes on."""
    (part, *others) = torch_parts._PARTS["fsdp"]
    torch_parts._PARTS["fsdp"] = (part._replace(path=f"{part.path}_gone"), *others)
    torch_parts.difference.cache_clear()
    run, reference = Run(accumulate=2), Reference()
    run.micro(0)
    try:
        run.stepper.flush()
    except RuntimeError as error:
        assert "a torch that fastloop knows" in str(error)
    else:
        raise AssertionError("no error")
    run.micro(1)
    reference.step([0, 1])
    same(run, reference)
    torch_parts._PARTS["fsdp"] = (part, *others)
    torch_parts.difference.cache_clear()


def case_weight_zero() -> None:
    """Micro-batches without weight on some ranks, in the middle and at the end of a window: their
    backward is a collective all the same."""
    for way in ACCUMULATIONS:
        for empty in (1, 2):
            for ranks in ([0], list(range(RANKS))):
                run, reference = Run(reshard_after_forward=True, **way), Reference()
                for i in range(3):
                    run.micro(i, 0 if i == empty and RANK in ranks else None)
                whole = [(r, i) for r in range(RANKS) for i in range(3)]
                reference.step_on([(r, i) for r, i in whole if not (i == empty and r in ranks)])
                same(run, reference)


def case_skip() -> None:
    """inf on one rank: all ranks skip the window, or leave out that micro-batch of all ranks."""
    for kind in (fastloop.GradScaler, torch.amp.GradScaler):
        for choice in ("window", "micro"):
            for bad in range(RANKS):
                scaler = kind("cpu", init_scale=64.0)
                run, reference = Run(scaler=scaler, on_nonfinite=choice), Reference()
                for i in range(3):
                    run.micro(i, spoil=float("inf") if bad == RANK and i == 1 else 1.0)
                assert scaler.get_scale() == 32.0
                if choice == "micro":
                    reference.step([0, 2])
                taken = int(choice == "micro")
                assert (run.stepper.stepped, run.stepper.skipped) == (taken, 1 - taken)
                same(run, reference)


def case_one_shard() -> None:
    """inf in a shard that one rank alone has, in any micro-batch: all ranks leave that one out."""
    for bad in range(3):
        run, reference = Run(on_nonfinite="micro"), Reference()
        passed: list[int] = []

        def spoil(p: Any, passed: list[int] = passed, bad: int = bad) -> None:
            passed.append(0)
            if len(passed) == bad + 1:
                p.grad.to_local().fill_(float("inf"))  # of one element, which is rank 0's

        run.model[3].bias.register_post_accumulate_grad_hook(spoil)
        for i in range(3):
            run.micro(i)
        reference.step([i for i in range(3) if i != bad])
        same(run, reference)


def refused(text: str, call: Callable[[], Any]) -> None:
    """Every rank raises, and names the difference."""
    try:
        call()
    except RuntimeError as error:
        assert "all ranks must agree" in str(error) and text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


def case_disagree() -> None:
    """Other batches, windows, parameters and states: an error on every rank that names both, and
    the same stepper goes on."""
    first = RANK == 0
    values: Any = {name: [name[0], *[name[1]] * (RANKS - 1)] for name in ((3, 6), (2, 1), (1, 0))}
    for way in ACCUMULATIONS:
        run, reference = Run(**way), Reference()
        loader = range(3 if first else 6)
        refused(f"batches {values[3, 6]}", lambda run=run, loader=loader: run.epoch(loader))
        run.epoch(range(LENGTH))
        reference.epoch()
        same(run, reference)

        run = Run(accumulate=2 if first else 1, **way)
        refused(f"micro-batches planned {values[2, 1]}", lambda run=run: run.micro(0))

        run = Run(**way)
        others = [6 + (rank == 0) for rank in range(RANKS)]
        if first:
            run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        refused(f"parameters {others}", lambda run=run: run.epoch(range(LENGTH)))

        run = Run(**way)
        state = run.stepper.state_dict()
        if first:
            state.update(boundaries=1, stepped=1, mean_weight=4.0)
        run.stepper.load_state_dict(state)
        refused(f"windows so far {values[1, 0]}", lambda run=run: run.micro(0))


def case_collectives() -> None:
    """Gradients travel once a window, or once a micro-batch where their shards are added up."""
    for way, reductions in (({}, 1), ({"accum_dtype": torch.float64}, ACCUMULATE)):
        run = Run(reshard_after_forward=True, **way)
        run.epoch(range(ACCUMULATE))
        with Collectives() as seen:
            run.epoch(range(ACCUMULATE))
        counts = seen.counts
        assert counts["_reduce_scatter_base_"] == 3 * reductions, counts
        assert counts["allreduce_"] == 3, counts  # two messages, and the norm


run_cases(globals())
