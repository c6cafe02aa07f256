"""GradList: which tensors the engine takes, and that its passes mean what torch's functions do."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from passes import ByTorch
from torch import Tensor

from fastloop.base.threads import make_thread_pool, thread_pool
from fastloop.step.grad_list import GradList, new_flag

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SIZES = [1, 2, 31, 32, 33, 1000, 16383, 16384, 16385, 300_000]
CPU = torch.device("cpu")


def make(dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, generator=generator) * scale).to(dtype) for n in SIZES]


def both_paths(dtype: torch.dtype, seed: int = 0) -> tuple[GradList, GradList]:
    return GradList().collect(make(dtype, seed)), ByTorch().collect(make(dtype, seed))


def same(ours: GradList, theirs: GradList) -> None:
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


class Other(Tensor):
    pass


def over(tensor: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    change(tensor)
    return tensor


PLAIN = {
    "contiguous": lambda: torch.ones(3, 4),
    "0-d": lambda: torch.tensor(2.0),
    "empty": lambda: torch.ones(0, 3),
    "transposed": lambda: torch.ones(3, 4).t(),
    "channels last": lambda: torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "permuted": lambda: torch.ones(2, 3, 4, 5).permute(2, 0, 3, 1),
    "of size 1 with odd strides": lambda: torch.ones(4, 7)[:, :1].as_strided((1, 4, 1), (99, 1, 7)),
    "part of a larger one": lambda: torch.ones(100)[7:20],
    "wants a gradient": lambda: torch.ones(3, requires_grad=True),
    "has a history": lambda: torch.ones(3, requires_grad=True) * 2,
    "negated lazily": lambda: torch._neg_view(torch.ones(3)),
    "negated lazily, 0-d": lambda: torch.tensor(1j).conj().imag,
    "64 dimensions": lambda: torch.ones([1] * 63 + [3]),
}
OTHER = {
    "not dense": lambda: torch.ones(3, 8)[:, ::2],
    "expanded": lambda: torch.ones(3, 1).expand(3, 4),
    "overlapping itself": lambda: torch.ones(9).as_strided((3, 3), (1, 1)),
    "a subclass": lambda: torch.ones(3).as_subclass(Other),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "integers": lambda: torch.ones(3, dtype=torch.int64),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(3, device="meta"),
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "without memory": lambda: over(torch.ones(3), lambda t: t.untyped_storage().resize_(0)),
    "no tensor": lambda: [1.0],
}


@pytest.mark.parametrize("kind", PLAIN)
def test_the_engine_takes(kind: str) -> None:
    assert GradList().collect([torch.ones(5), PLAIN[kind](), torch.ones(2)]).is_plain


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHER)
def test_the_engine_leaves_to_torch(kind: str) -> None:
    assert not GradList().collect([torch.ones(5), OTHER[kind](), torch.ones(2)]).is_plain


def test_the_engine_leaves_fake_and_functorch_tensors_to_torch() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert not GradList().collect([torch.ones(3)]).is_plain

    def inside(x: Tensor) -> Tensor:
        assert not GradList().collect([x]).is_plain
        return x.sum()

    torch.func.grad(inside)(torch.ones(3))
    torch.vmap(inside)(torch.ones(2, 3))


def test_tensors_that_share_memory_are_left_to_torch() -> None:
    whole = torch.ones(100)
    assert GradList().collect([whole[50:], whole[:50], torch.ones(3)]).is_plain
    for other in (whole, whole[:50], whole[49:60], whole[99:]):
        assert not GradList().collect([torch.ones(3), other, whole[50:], whole[:50]]).is_plain


def test_gradients_are_collected_as_torch_does() -> None:
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4, 5)]
    parameters[0].grad, parameters[2].grad = torch.ones(3), torch.ones(5)
    optimizer = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=1.0)
    wrapper: Any = SimpleNamespace(param_groups=optimizer.param_groups)  # no torch Optimizer
    for source in (optimizer, wrapper, parameters, iter(parameters)):
        grads = GradList().collect_grads(source)
        assert grads.is_plain
        assert [id(t) for t in grads.tensors] == [id(parameters[0].grad), id(parameters[2].grad)]
    parameters[1].grad = torch.eye(4)[1].to_sparse()
    assert not GradList().collect_grads(optimizer).is_plain


def test_collecting_sees_what_has_changed() -> None:
    grads, found = GradList(), new_flag(CPU)
    first, second = torch.full((3,), 2.0), torch.full((4,), 3.0)
    for tensors in ([first], [first, second], [second, first], [second], [], [first[:2], second]):
        expected = sum(float(t.square().sum()) for t in tensors) ** 0.5
        assert float(grads.collect(tensors).norm_check(found)) == pytest.approx(expected, rel=1e-15)
    first.untyped_storage().resize_(1 << 20)
    assert float(grads.collect([first]).norm_check(found)) == pytest.approx(12**0.5)


@pytest.mark.parametrize("path", [GradList, ByTorch])
def test_a_default_device_does_not_matter(path: type[GradList]) -> None:
    found, scale, tensor = new_flag(CPU), torch.tensor(4.0), torch.full((3,), 2.0)
    parameter = torch.nn.Parameter(tensor.clone())
    parameter.grad = tensor
    with torch.device("meta"):
        assert float(path().collect([]).norm_check(found)) == 0
        grads = path().collect([tensor])
        norm = grads.norm_check(found, scale=scale)
        grads.scale_(grads.clip_factor(norm, 1.0, scale, 1.0))
        if path is GradList:
            assert grads.unscale_and_clip(
                thread_pool(), [{"params": [parameter]}], scale, found, None
            )
    assert tensor.tolist() == [0.5 if path is ByTorch else 0.125] * 3


def test_the_norm_of_a_sparse_gradient_adds_up_its_repeated_rows() -> None:
    grads, found = GradList(), new_flag(CPU)
    rows, values = torch.tensor([[1, 1, 0]]), torch.tensor([1.0, 2.0, 4.0])
    repeated = torch.sparse_coo_tensor(rows, values, check_invariants=True)
    assert float(grads.collect([repeated]).norm_check(found)) == 5.0
    norm = grads.collect([repeated.requires_grad_()]).norm_check(found)
    assert not norm.requires_grad


def test_tensors_are_held_until_release() -> None:
    tensor = torch.ones(3)
    watch, grads = weakref.ref(tensor), GradList()
    grads.collect([tensor])
    del tensor
    gc.collect()
    assert watch() is not None
    grads.release()
    assert watch() is None
    with pytest.raises(RuntimeError, match="no plain tensors"):
        grads.run_scale(make_thread_pool(1, os.getpid()), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_type", [2.0, 1.0, inf])
def test_norms(dtype: torch.dtype, norm_type: float) -> None:
    ours, theirs = both_paths(dtype)
    found, scale = new_flag(CPU), torch.tensor(64.0)
    for options in ({}, {"scale": scale}, {"scale": scale, "divisor": 3.0}, {"divisor": -2.0}):
        norm = ours.norm_check(found, p=norm_type, **options)
        expected = theirs.norm_check(found, p=norm_type, **options)
        assert norm.dtype is torch.float64 and norm.dim() == 0
        torch.testing.assert_close(norm, expected.abs(), rtol=1e-13, atol=0)
    assert found == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [inf, -inf, nan])
@pytest.mark.parametrize("place", [0, 3, -1])
def test_what_is_not_finite_is_found(dtype: torch.dtype, value: float, place: int) -> None:
    for norm_type in (2.0, 1.0, inf):
        for at in (0, -1):
            ours, _ = both_paths(dtype)
            ours.tensors[place][at] = value
            found = new_flag(CPU)
            norm = ours.norm_check(found, p=norm_type)
            assert found == 1.0
            assert norm.isnan() if value != value else norm == inf
    found = new_flag(CPU)
    ours.run_unscale(thread_pool(), torch.tensor(0.5), found)
    assert found == 1.0


@pytest.mark.parametrize("norm_type", [2.0, 1.0, inf])
def test_large_gradients_are_no_false_alarm(norm_type: float) -> None:
    found = new_flag(CPU)
    grads = GradList().collect(
        [torch.full((4,), 3e38), torch.full((2,), -1e200, dtype=torch.float64)]
    )
    norm = grads.norm_check(found, p=norm_type)
    assert found == 0
    assert norm == (inf if norm_type == 2 else 2e200 if norm_type == 1 else 1e200)
    norm = GradList().collect([torch.full((4,), 3e38)]).norm_check(found)
    assert found == 0
    torch.testing.assert_close(norm, torch.tensor(6e38, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inv_scale", [1.0, 1 / 65536, 1 / 3, 700.0])
def test_unscale_is_torchs_bit_for_bit(dtype: torch.dtype, inv_scale: float) -> None:
    for magnitude in (1.0, 1e-6):
        ours = GradList().collect(make(dtype, scale=magnitude))
        theirs = make(dtype, scale=magnitude)
        found, expected = new_flag(CPU), new_flag(CPU)
        by = torch.tensor(inv_scale)
        ours.run_unscale(thread_pool(), by, found)
        torch._amp_foreach_non_finite_check_and_unscale_(theirs, expected, by)
        same(ours, ByTorch().collect(theirs))
        assert found == expected == 0


def test_unscaling_by_1_only_reads() -> None:
    grads, found = GradList().collect([torch.tensor([1.0, inf])]), new_flag(CPU)
    grads.run_unscale(thread_pool(), torch.tensor(1.0), found)
    assert found == 1 and grads.tensors[0]._version == 0
    assert grads.tensors[0].tolist() == [1.0, inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale(dtype: torch.dtype) -> None:
    for factor in (1.0, 0.5, 1 / 3, 0.0, -2.0, nan):
        ours, theirs = both_paths(dtype)
        by = torch.tensor(factor, dtype=torch.float64)
        versions = [t._version for t in ours.tensors]
        ours.scale_(by)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        for t in theirs.tensors:
            t.copy_((t.to(wide) * by.to(wide)).to(dtype))
        same(ours, theirs)
        assert [t._version for t in ours.tensors] == [v + (factor != 1) for v in versions]


@pytest.mark.parametrize("max_norm", [0.0, 1e-3, 1.0, 1e9, inf, -1.0, None])
def test_clip_factor(max_norm: float | None) -> None:
    ours, theirs = both_paths(torch.float32)
    scale = torch.tensor(8.0)
    for value in (0.0, 1e-9, 0.9, 1.0, 1.1, 3e10, inf, nan):
        norm = torch.tensor(value, dtype=torch.float64)
        for by in ((None, 1.0), (scale, 1.0), (scale, 3.0)):
            factor = ours.clip_factor(norm, max_norm, *by)
            expected = theirs.clip_factor(norm, max_norm, *by)
            torch.testing.assert_close(factor, expected, rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("into", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_combine(into: torch.dtype, source: torch.dtype) -> None:
    for alpha in (1.0, 1 / 3, torch.tensor(0.7, dtype=torch.float64)):
        for beta in (0.0, 1.0, -0.5):
            (a, b), (x, y) = both_paths(into, 1), both_paths(source, 2)
            if beta == 0:
                for t in a.tensors:
                    t.fill_(nan)  # is not read
            found = new_flag(CPU)
            a.combine_(x, found, alpha=alpha, beta=beta)
            b.combine_(y, alpha=alpha, beta=beta)
            for left, right in zip(a.tensors, b.tensors, strict=True):
                torch.testing.assert_close(
                    left,
                    right,
                    rtol=2e-7 if into.itemsize > 2 else 8e-3,
                    atol=1e-6 if into.itemsize > 2 else 1e-2,
                )
            assert found == 0
    x.tensors[3][5] = inf
    a.combine_(x, found)
    assert found == 1


def test_a_list_cannot_change_while_it_is_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_neg(_: Tensor) -> bool:
        source.collect([])
        return False

    monkeypatch.setattr(Tensor, "is_neg", is_neg)
    into, source = GradList().collect([torch.zeros(8)]), GradList().collect([torch.ones(8)])
    with pytest.raises(RuntimeError, match="is working on these gradients"):
        into.combine_(source)
    assert not into.tensors[0].any()


def test_a_list_cannot_change_while_it_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter, grads = torch.nn.Parameter(torch.ones(8)), GradList()
    parameter.grad = torch.ones(8)
    monkeypatch.setattr(Tensor, "isfinite", lambda _: grads.release())
    with pytest.raises(RuntimeError, match="is working on these gradients"):
        grads.clip_parameters(thread_pool(), [parameter], 0.1, 2.0, True)
    assert parameter.grad.tolist() == [1.0] * 8 and not grads.tensors


def test_only_lists_are_combined() -> None:
    grads = GradList().collect([torch.zeros(8)])
    with pytest.raises(TypeError, match="GradListBase"):
        grads.run_combine(thread_pool(), object(), 1.0, None, 1.0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ThreadPool"):
        grads.run_scale(grads, torch.ones((), dtype=torch.float64))  # type: ignore[arg-type]


def test_combine_pairs_elements_by_position_not_by_memory() -> None:
    into, source = torch.zeros(3, 4), torch.arange(12.0).view(4, 3).t()
    GradList().collect([into]).combine_(GradList().collect([source]), beta=0.0)
    assert torch.equal(into, source)
    into = torch.zeros(4, 3).t()
    GradList().collect([into]).combine_(GradList().collect([source]), beta=0.0)
    assert torch.equal(into, source)


def test_lazily_negated_tensors() -> None:
    found, factor = new_flag(CPU), torch.tensor(0.5, dtype=torch.float64)
    negated = torch._neg_view(torch.tensor([1.0, -2.0]))
    grads = GradList().collect([negated])
    assert grads.norm_check(found) == pytest.approx(5**0.5)
    grads.scale_(factor)
    assert negated.tolist() == [-0.5, 1.0]
    into = torch.ones(2)
    GradList().collect([into]).combine_(grads)
    assert into.tolist() == [0.5, 2.0]
    grads.combine_(GradList().collect([into]), beta=0.0)
    assert negated.tolist() == [0.5, 2.0]
    assert negated.is_neg()


def test_the_same_bits_with_any_number_of_threads() -> None:
    tensors = make(torch.float32) * 6
    norms = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            norms.append(
                float(GradList().collect([t.clone() for t in tensors]).norm_check(new_flag(CPU)))
            )
    finally:
        torch.set_num_threads(threads)
    assert len(set(norms)) == 1, norms


def test_an_empty_list() -> None:
    grads, found = GradList().collect([]), new_flag(CPU)
    assert grads.is_plain
    assert grads.norm_check(found) == 0
    grads.scale_(torch.zeros((), dtype=torch.float64))
    grads.combine_(GradList().collect([]), found)
    assert found == 0


def test_autograd_knows_of_writes() -> None:
    weight = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    out = (weight * saved).sum()
    GradList().collect([saved]).scale_(torch.tensor(2.0, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
