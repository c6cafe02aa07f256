"""The kernels against the CPU's passes: the same bits but for sums, which are within some ulp."""

import pytest
import torch
from torch import Tensor

from fastloop.base.threads import thread_pool
from fastloop.step.grad_list import GradList, new_flag

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LISTS = {
    "sizes": [1, 2, 3, 7, 8, 9, 31, 32, 33, 1000, 16383, 16384, 16385, 300_001],
    "one": [5_000_003],
    "by value, large": [129] * 500,
    "in device memory": [1 + k % 7 for k in range(5000)],
}
# Where doubles are slow, 2-norms are less exact: docs/internals/cuda.md.
HAS_FAST_DOUBLES = torch.cuda.is_available() and torch.cuda.get_device_capability(CUDA) in (
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
)
GROUPED = 1.5 * 2.0**-24 * 1.001
SPECIAL = [0.0, -0.0, 1e-40, 6e-8, 65504.0, 3e38, 1e-310, 1.5]


def make(name: str, dtype: torch.dtype, offset: int, seed: int = 0) -> list[Tensor]:
    """Tensors on the CPU that begin `offset` elements into their memory."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for n in LISTS[name]:
        t = torch.randn(n + offset, generator=generator, dtype=torch.float64)
        t[offset :: max(1, n // 7)] = SPECIAL[n % len(SPECIAL)]
        most = torch.finfo(dtype).max
        made.append(t.clamp_(-most, most).to(dtype)[offset:])
    return made


def on_device(tensors: list[Tensor], offset: int) -> list[Tensor]:
    moved = []
    for t in tensors:
        memory = torch.empty(t.numel() + offset, dtype=t.dtype, device=CUDA)
        moved.append(memory[offset:].copy_(t))
    return moved


class Pair:
    """The same tensors in a list on either device."""

    def __init__(self, name: str, dtype: torch.dtype, offset: int = 0, seed: int = 0) -> None:
        tensors = make(name, dtype, offset, seed)
        self.cpu = GradList().collect(tensors)
        self.cuda = GradList().collect(on_device(tensors, offset))
        assert self.cpu.is_plain and self.cuda.is_plain

    def assert_same(self) -> None:
        for a, b in zip(self.cuda.tensors, self.cpu.tensors, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0, equal_nan=True)


each = pytest.mark.parametrize("name", LISTS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_offset = pytest.mark.parametrize("offset", [0, 1, 3])


@each
@each_dtype
@each_offset
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_norm_check(name: str, dtype: torch.dtype, offset: int, bad: float | None) -> None:
    pair = Pair(name, dtype, offset)
    if bad is not None:
        for grads in (pair.cpu, pair.cuda):
            grads.tensors[-1].view(-1)[-1] = bad
    for norm_type in (1.0, 2.0, float("inf")):
        norms, flags = [], []
        for grads in (pair.cpu, pair.cuda):
            flags.append(new_flag(grads.device))
            scale = torch.tensor(4.0, device=grads.device)
            norms += [
                grads.norm_check(flags[-1], scale=scale, divisor=3.0, p=norm_type) for _ in range(2)
            ]
        assert norms[2].device == CUDA and norms[2].dtype is torch.float64
        assert norms[2].view(torch.int64).equal(norms[3].view(torch.int64))  # in every run
        is_exact = HAS_FAST_DOUBLES or norm_type != 2.0 or dtype is torch.float64
        rtol = 1e-13 if is_exact else GROUPED
        torch.testing.assert_close(norms[2].cpu(), norms[0], rtol=rtol, atol=0, equal_nan=True)
        assert flags[0].item() == flags[1].item() == float(bad is not None)


@each
@each_dtype
@each_offset
def test_unscale_and_scale(name: str, dtype: torch.dtype, offset: int) -> None:
    pair = Pair(name, dtype, offset)
    for factor in (1.0, 1 / 3, 2.0**-16):
        flags = []
        for grads in (pair.cpu, pair.cuda):
            flags.append(new_flag(grads.device))
            grads.run_unscale(thread_pool(), torch.tensor(factor, device=grads.device), flags[-1])
        pair.assert_same()
        assert flags[0].item() == flags[1].item()
        for grads in (pair.cpu, pair.cuda):
            grads.scale_(torch.tensor(factor, dtype=torch.float64, device=grads.device))
        pair.assert_same()


@each
@pytest.mark.parametrize("into", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.3])
def test_combine(name: str, into: torch.dtype, source: torch.dtype, beta: float) -> None:
    sums, grads = Pair(name, into, 1), Pair(name, source, 3, seed=1)
    for alpha in (1.0, torch.tensor(0.7, dtype=torch.float64)):
        flags = []
        for a, b in ((sums.cpu, grads.cpu), (sums.cuda, grads.cuda)):
            flags.append(new_flag(a.device))
            by = alpha.to(a.device) if isinstance(alpha, Tensor) else alpha
            a.combine_(b, flags[-1], alpha=by, beta=beta)
        assert flags[0].item() == flags[1].item()
        is_engines = into is source or torch.float64 not in (into, source)
        if is_engines and {into, source} != {torch.float16, torch.bfloat16}:
            sums.assert_same()


def test_beta_0_reads_nothing() -> None:
    into, grads = GradList().collect([torch.full((9,), float("nan"), device=CUDA)]), GradList()
    into.combine_(grads.collect([torch.ones(9, device=CUDA)]), beta=0.0)
    assert into.tensors[0].eq(1).all()


def test_lists_that_change() -> None:
    """Other tensors, more of them, another stream: scratch and table follow."""
    grads = GradList()
    for n in (3, 5000, 5000, 2000, 6000, 1):
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                tensors = [torch.ones(7, device=CUDA) for _ in range(n)]
                norm = grads.collect(tensors).norm_check(new_flag(CUDA))
                grads.scale_(torch.tensor(2.0, dtype=torch.float64, device=CUDA))
            stream.synchronize()
            assert norm.item() == pytest.approx((7 * n) ** 0.5, rel=1e-14)  # 1s: exact in float
            assert all(t.eq(2).all() for t in tensors[:: max(1, n // 9)])


def test_more_than_two_billion_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of device memory")
    big = torch.ones((1 << 31) + 5, dtype=torch.float16, device=CUDA)
    grads, flag = GradList().collect([big]), new_flag(CUDA)
    assert grads.norm_check(flag).item() == pytest.approx(((1 << 31) + 5) ** 0.5, rel=1e-12)
    big[-1] = float("inf")
    grads.run_unscale(thread_pool(), torch.tensor(0.5, device=CUDA), flag)
    assert flag.item() == 1 and big[-2].item() == 0.5 and big[-1].item() == float("inf")


@pytest.mark.parametrize("hysteresis", [1, 2])
def test_update_scale(hysteresis: int) -> None:
    growth = (2.0, 0.5, 3, hysteresis, 1.0, 2.0**20)
    states = [
        (
            torch.tensor(65536.0, device=device),
            torch.zeros((), dtype=torch.int32, device=device),
            torch.zeros((), dtype=torch.int32, device=device),
        )
        for device in (CPU, CUDA)
    ]
    for found in [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, *[0.0] * 30, *[1.0] * 30]:
        for scale, tracker, misses in states:
            flag = torch.tensor(found, device=scale.device)
            GradList().update_scale(flag, growth, scale, tracker, misses)
        assert [t.item() for t in states[0]] == [t.item() for t in states[1]]
