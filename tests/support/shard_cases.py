"""Programs of the ranks that tests/step/test_dtensor.py starts. Each case runs the step on
DTensors. Its oracles are torch's own functions, and the full gradients in double."""

import math
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rank_program import run_cases
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import fastloop
from fastloop.step.grad_list import GradList

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
R, S0, S1 = Replicate(), Shard(0), Shard(1)
INF = math.inf
warnings.simplefilter("ignore")  # torch reduces over two axes in turn
Params = list[torch.nn.Parameter]


def meshes() -> tuple[Any, Any]:
    return (
        init_device_mesh("cpu", (RANKS,), mesh_dim_names=("all",)),
        init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("outer", "inner")),
    )


def param(mesh: Any, placements: Any, shape: Any = (7, 7), dtype: Any = torch.float32) -> Any:
    """A parameter with a gradient, the same in all processes: a DTensor if there is a mesh."""
    seed = len(placements) + sum(shape) + 10 * sum(p.is_shard() for p in placements)
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if mesh is not None:
        whole = distribute_tensor(whole, mesh, placements)
    p = torch.nn.Parameter(torch.zeros_like(whole))
    p.grad = whole
    return p


def whole(t: Any) -> Tensor:
    found: Tensor = t.full_tensor() if isinstance(t, DTensor) else t
    return found


def grads_of(params: Params) -> list[Tensor]:
    return [whole(p.grad).clone() for p in params if p.grad is not None]


def norm_of(grads: list[Tensor], p: float) -> Tensor:
    return torch.linalg.vector_norm(torch.cat([g.double().flatten() for g in grads]), p)


def count(call: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Call it: its result, and how many collectives that took."""
    with CommDebugMode() as mode:
        result = call(*args)
    return result, mode.get_total_counts()


def near(found: Tensor, exact: Tensor, ulps: float = 4) -> None:
    step = torch.finfo(found.dtype).eps * exact.double().abs()
    off = (found.double() - exact.double()).abs()
    assert bool((off <= ulps * step).all()), (found, exact)


def layouts() -> dict[str, tuple[Callable[..., Params], int, bool]]:
    """Lists of parameters, how many mesh axes of several processes shard, and whether torch clips
    them at all."""
    one, two = meshes()
    inner, more = two["inner"], int(RANKS > 2)
    return {
        "uneven": (lambda d: [param(one, [S0], dtype=d), param(one, [S1], (5, 7), d)], 1, True),
        "replicated": (lambda d: [param(one, [R], dtype=d)], 0, True),
        "beside": (lambda d: [param(one, [R], dtype=d), param(one, [S0], dtype=d)], 1, True),
        "hsdp": (
            lambda d: [param(two, [R, S0], dtype=d), param(two, [R, S0], (9,), d)],
            more,
            True,
        ),
        "two axes": (
            lambda d: [param(two, pl, (6, 5), d) for pl in ([S0, S1], [S0, R], [R, S1], [R, R])],
            1 + more,
            True,
        ),
        "nested": (lambda d: [param(two, [S0, S0], (11, 3), d)], 1 + more, True),
        "off the mesh": (lambda d: [param(None, [], dtype=d), param(one, [S0], dtype=d)], 1, False),
        "meshes": (
            lambda d: [param(one, [S0], dtype=d), param(two, [R, S0], dtype=d), param(None, [])],
            1 + more,
            False,
        ),
        "submesh": (
            lambda d: [param(two, [S1, S0], dtype=d), param(inner, [S0], dtype=d)],
            1 + more,
            False,
        ),
    }


def case_norms() -> None:
    for name, (make, axes, is_torchs) in layouts().items():
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            if name == "meshes" and dtype is not torch.float32:
                continue  # of two dtypes then
            for p in (2.0, 1.0, INF):
                params = make(dtype)
                before = grads_of(params)
                exact = norm_of(before, p)
                found, collectives = count(fastloop.clip_grad_norm_, params, 0.25, p)
                assert collectives == axes, (name, dtype, p, collectives)
                near(whole(found), exact, 1 if dtype is torch.bfloat16 else 4)
                for g, was in zip(grads_of(params), before, strict=True):
                    near(g, was.double() * (0.25 / (exact + 1e-6)))
                assert type(found) is (DTensor if is_torchs else Tensor)
                if is_torchs:
                    theirs = torch.nn.utils.clip_grad_norm_(make(dtype), 0.25, p)
                    assert theirs.dtype is found.dtype and theirs.device_mesh == found.device_mesh
                    near(whole(found), whole(theirs), 8)
                    assert found.shape == theirs.shape and found.item() == whole(found).item()


def case_others() -> None:
    """Norms, dtypes and placements that the engine leaves to torch, and lists without gradients."""
    one, _ = meshes()
    for p in (3.0, 0.5):
        params = [param(one, [S0]), param(one, [R])]
        exact = norm_of(grads_of(params), p)
        near(whole(fastloop.clip_grad_norm_(params, 0.25, p)), exact, 16)
    params = [param(one, [S0]), param(one, [S0], dtype=torch.bfloat16)]
    exact = norm_of(grads_of(params), 2)
    near(whole(fastloop.clip_grad_norm_(params, 0.25)), exact, 2**15)
    p = param(one, [S0])
    p.grad = DTensor.from_local(torch.full((7, 7), float(RANK + 1)), one, [Partial()])
    grads = GradList().collect_grads([p])
    assert not grads.can_run and "placement Partial" in grads.why_not_plain()
    total = sum(range(1, RANKS + 1)) * 7.0
    near(whole(fastloop.clip_grad_norm_([p], 0.25)), torch.tensor(total))
    empty = [torch.nn.Parameter(distribute_tensor(torch.zeros(3), one, [S0])), *params[:1]]
    empty[1].grad = None
    assert whole(fastloop.clip_grad_norm_(empty, 1.0)).item() == 0.0
    nothing = [param(one, [S0], (0, 3))]
    assert whole(fastloop.clip_grad_norm_(nothing, 1.0)).item() == 0.0


def case_empty() -> None:
    """Shards without elements, also for the largest element, which torch refuses; a parameter that
    is there twice, which the rank with an empty shard does not see in memory."""
    one, _ = meshes()
    for p in (2.0, 1.0, INF):
        params = [param(one, [S0], (RANKS - 1, 3)), param(one, [S0], (1,))]
        before = grads_of(params)
        near(whole(fastloop.clip_grad_norm_(params, 0.1, p)), norm_of(before, p))
        scale = 0.1 / (norm_of(before, p) + 1e-6)
        for g, was in zip(grads_of(params), before, strict=True):
            near(g, was.double() * min(1.0, scale))
    params = [param(one, [S0], (1, 3))] * 2
    exact = norm_of(grads_of(params), 2)
    near(whole(fastloop.clip_grad_norm_(params, 100.0)), exact)


def case_missing() -> None:
    """Gradients that some ranks lack count as zeros there; nobody waits."""
    one, two = meshes()
    params = [param(one, [S0]), param(one, [S0], (9,)), param(two, [R, S0], (8, 2))]
    parts = [p.grad.clone() for p in params]
    if RANK == 1:
        for p in params:
            p.grad = None
    for part in parts if RANK == 1 else ():
        part.to_local().zero_()
    replica = whole(parts[2]) if RANKS == 2 else None
    found = whole(fastloop.clip_grad_norm_(params, 1e3))
    squares = norm_of([whole(parts[0]), whole(parts[1])], 2) ** 2
    if replica is not None:  # with four ranks the replicas differ, and so do the norms
        near(found, (squares + norm_of([replica], 2) ** 2).sqrt())
    frozen = torch.nn.Parameter(distribute_tensor(torch.ones(3), two, [S0, S0]), False)
    both = [param(one, [S0]), frozen]
    _, collectives = count(fastloop.clip_grad_norm_, both, 1.0)
    assert collectives == 1


def scaler_of(kind: Any, scale: float = 8.0) -> Any:
    scaler = kind("cpu", init_scale=scale)
    scaler.scale(torch.zeros(()))
    return scaler


def flag_of(scaler: Any, optimizer: Any) -> float:
    (flag,) = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    assert type(flag) is Tensor
    return float(flag)


def same_bits(a: Params, b: Params) -> None:
    assert all(map(torch.equal, grads_of(a), grads_of(b)))


def case_scaler() -> None:
    """unscale_ and unscale_and_clip_ against torch's two calls; two optimizers share a scaler."""
    for make, axes, is_torchs in layouts().values():
        mine, theirs = make(torch.float32), make(torch.float32)
        optimizers = [torch.optim.SGD(params, 0.1) for params in (mine, theirs)]
        ours, torchs = scaler_of(fastloop.GradScaler), scaler_of(torch.amp.GradScaler)
        _, collectives = count(ours.unscale_, optimizers[0])
        assert collectives == axes and flag_of(ours, optimizers[0]) == 0
        if is_torchs:
            torchs.unscale_(optimizers[1])
            same_bits(mine, theirs)
        other = make(torch.float32)
        optimizer = torch.optim.SGD(other, 0.1)
        norm, collectives = count(ours.unscale_and_clip_, optimizer, 0.25)
        assert collectives == axes
        near(whole(norm), norm_of(grads_of(mine), 2))
        fastloop.clip_grad_norm_(mine, 0.25)
        for g, was in zip(grads_of(other), grads_of(mine), strict=True):
            near(g, was)
        ours.step(optimizer)
        ours.update()


def case_flags() -> None:
    """A number that is not finite, on one rank, reaches all."""
    for name, (make, _, _) in layouts().items():
        for value in (INF, -INF, math.nan):
            for at in (0, -1):
                if name in ("replicated", "hsdp"):
                    continue  # replicas that differ
                params = make(torch.float32)
                local = params[at].grad
                local = local.to_local() if isinstance(local, DTensor) else local
                if RANK == RANKS - 1 and local.numel():
                    local.view(-1)[0] = value
                has_it = name != "two axes" or at == 0
                optimizer = torch.optim.SGD(params, 0.1)
                for is_clipped in (False, True):
                    scaler = scaler_of(fastloop.GradScaler, 2.0)
                    if is_clipped:
                        norm = whole(scaler.unscale_and_clip_(optimizer, 0.25))
                        assert not has_it or not norm.isfinite(), (name, value, at)
                        assert not has_it or norm.isnan() == math.isnan(value), (name, value, at)
                    else:
                        scaler.unscale_(optimizer)
                    assert not has_it or flag_of(scaler, optimizer) == 1.0, (name, value, at)
                    scaler.step(optimizer)
                    assert not has_it or scaler.last_step_skipped()
                    scaler.update()
                    assert not has_it or scaler.get_scale() == 1.0
    one, _ = meshes()
    large = param(one, [S0], (RANKS, 4), torch.float64)
    large.grad = distribute_tensor(torch.full((RANKS, 4), 1e200, dtype=torch.float64), one, [S0])
    optimizer, scaler = torch.optim.SGD([large], 0.1), scaler_of(fastloop.GradScaler)
    assert whole(scaler.unscale_and_clip_(optimizer, 1.0)) == INF  # overflows, and is finite
    assert flag_of(scaler, optimizer) == 0.0
    for p in (2.0, INF):
        bad = [param(one, [S0])]
        if RANK == 0:
            bad[0].grad.to_local().fill_(math.nan)
        try:
            fastloop.clip_grad_norm_(bad, 1.0, p, error_if_nonfinite=True)
        except RuntimeError as error:
            assert "is non-finite" in str(error)
        else:
            raise AssertionError("no error")
        assert whole(bad[0].grad).isnan().any() and whole(bad[0].grad).isfinite().any()


def case_apart() -> None:
    """Ranks that lack gradients, or list them in another order, have the same numbers."""
    one, two = meshes()
    for p in (2.0, INF):
        lacking = param(one, [S0])
        lacking.grad.to_local().fill_(math.nan)
        if RANK == 1:
            lacking.grad = None
        try:
            fastloop.clip_grad_norm_([lacking], 1.0, p, error_if_nonfinite=True)
            raise AssertionError("no error")
        except RuntimeError as error:
            assert "is non-finite" in str(error)
    inner, outer = two["inner"], two["outer"]
    params = [param(inner, [S0], (8, 3)), param(outer, [S0], (8, 5)), param(two, [S0, S1], (8, 6))]
    exact = norm_of(grads_of(params), 2.0)
    listed = params if RANK % 2 == 0 else params[::-1]
    near(whole(fastloop.clip_grad_norm_(listed, 0.5)), exact)
    scaler, optimizer = scaler_of(fastloop.GradScaler), torch.optim.SGD(params, 0.1)
    scaler._scale.zero_()  # the norm is infinite, and every element finite
    assert whole(scaler.unscale_and_clip_(optimizer, 1.0)) == INF
    assert flag_of(scaler, optimizer) == 0.0


def case_none() -> None:
    """Without a gradient on any rank the step fails as torch's; with one somewhere it does not."""
    one, _ = meshes()

    def step(kind: Any, has_grad: bool, clips: bool) -> str:
        p = param(one, [S0])
        if not has_grad:
            p.grad = None
        scaler, optimizer = scaler_of(kind), torch.optim.SGD([p], 0.1)
        if clips:
            scaler.unscale_and_clip_(optimizer, 1.0)
        else:
            scaler.unscale_(optimizer)
        try:
            scaler.step(optimizer)
        except AssertionError as error:
            return str(error)
        scaler.update()
        return ""

    theirs = step(torch.amp.GradScaler, False, False)
    assert "No inf checks were recorded" in theirs
    for clips in (False, True):
        assert step(fastloop.GradScaler, False, clips) == theirs
        assert step(fastloop.GradScaler, RANK == 1, clips) == ""
    with fastloop.patched():
        assert step(torch.amp.GradScaler, False, False) == theirs


def case_patch() -> None:
    """Under patch() torch's names give torch's bits, and the engine writes."""
    for make, _, is_torchs in layouts().values():
        if not is_torchs:
            continue
        results = []
        for is_patched in (False, True):
            for p in (2.0, INF):
                params = make(torch.float32)
                optimizer, scaler = torch.optim.SGD(params, 0.1), scaler_of(torch.amp.GradScaler)
                if is_patched:
                    with fastloop.patched():
                        scaler.unscale_(optimizer)
                        norm = torch.nn.utils.clip_grad_norm_(params, 0.25, p)
                        status = fastloop.patch_status()
                    for seam in ("grad_scaler", "clip_grad_norm"):
                        assert status.seams[seam].native == 1, str(status)
                        assert not status.seams[seam].fallbacks, str(status)
                else:
                    scaler.unscale_(optimizer)
                    norm = torch.nn.utils.clip_grad_norm_(params, 0.25, p)
                scaler.step(optimizer)
                results.append([whole(norm), *grads_of(params)])
        half = len(results) // 2
        for ours, theirs in zip(results[half:], results[:half], strict=True):
            assert all(map(torch.equal, ours, theirs))
    one, _ = meshes()
    p = param(one, [S0])
    p.grad = DTensor.from_local(torch.ones(7, 7), one, [Partial()])
    with fastloop.patched():
        torch.nn.utils.clip_grad_norm_([p], 0.25)
        assert "placement Partial" in str(fastloop.patch_status())


class Model(torch.nn.Sequential):
    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__(*layers)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, input: Tensor) -> Any:
        return self[2](self[1](self[0](input)))


def case_fsdp() -> None:
    """FSDP2 with a tied weight, HSDP, FSDP2 over tensor parallelism: odd sizes, a layer that is not
    used, two optimizers of one scaler."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    one, two = meshes()
    for mesh, inner in ((one, None), (two, None), (two["outer"], two["inner"])):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(7, 6), torch.nn.Linear(6, 7), torch.nn.Linear(7, 6)]
        model = Model(*layers)
        if inner is None:
            layers[2].weight = layers[0].weight
        else:
            plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model, inner, plan)
        fully_shard(model, mesh=mesh)
        data = torch.randn(4, 7, generator=torch.Generator().manual_seed(2))
        scaler = scaler_of(fastloop.GradScaler)
        scaler.scale(model(data).square().sum()).backward()
        params = [p for p in model.parameters() if p.requires_grad]
        assert GradList().collect_grads(params).has_shards
        half = len(params) // 2
        for part in (params[:half], params[half:]):
            exact = norm_of([g / 8 for g in grads_of(part)] or [torch.zeros(1)], 2)
            optimizer = torch.optim.SGD(part, 0.1)
            near(whole(scaler.unscale_and_clip_(optimizer, 0.25)), exact)
            scaler.step(optimizer)
        scaler.update()
        assert not scaler.last_step_skipped()


def case_disagree() -> None:
    """Ranks with other parameters on one axis go on; one that calls alone gets an error after the
    group's timeout."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    mesh = DeviceMesh.from_group(group, "cpu")
    params = [param(mesh, [S0]), param(mesh, [S0], (9,))]
    exact = norm_of(grads_of(params), 2)
    mine = params if RANK == 0 else [*params, param(None, [], (2,))]
    found = fastloop.clip_grad_norm_(mine, 1e3)
    if RANK == 0:
        near(whole(found), exact)
    dist.barrier()
    if RANK == 0:
        try:
            fastloop.clip_grad_norm_(params, 1.0)
        except RuntimeError as error:
            assert "rank 0 has sent 1 number(s) of its gradients, and ranks [1" in str(error)
        else:
            raise AssertionError("no error")
    dist.barrier()


run_cases(globals())
