"""Every kernel once, on small lists of every kind, for compute-sanitizer: it slows what it watches
a hundredfold. No results are looked at here, test_passes.py does. A line for each part says how far
it has come."""

import torch
from torch.utils.data import TensorDataset

from fastloop import ArrayDataset, DataLoader, TokenDataset, transforms
from fastloop.base.threads import thread_pool
from fastloop.step.grad_list import GradList, new_flag

CUDA = torch.device("cuda", 0)
# The last two lie in tables on the device: a launch carries 1 360 rows.
LISTS = ([1], [16385, 3, 40_000], [9] * 200, [5] * 1200, [3] * 1500)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def make(sizes: list[int], dtype: torch.dtype, offset: int) -> GradList:
    """Slices of one buffer, each `offset` elements behind a multiple of 16 bytes; what lies between
    them nobody has written, which initcheck would see read."""
    unit = 16 // dtype.itemsize
    begins = [0]
    for n in sizes:
        begins.append(begins[-1] + -(-(n + offset + 1) // unit) * unit)
    memory = torch.empty(begins[-1], dtype=dtype, device=CUDA)
    slices = [memory[at + offset :][:n] for at, n in zip(begins, sizes, strict=False)]
    for t in slices if len(sizes) < 10 else [memory]:
        t.fill_(1)
    grads = GradList().collect(slices)
    assert grads.is_plain
    return grads


for sizes in LISTS:
    print(f"lists of {len(sizes)}", flush=True)
    for dtype in DTYPES if len(sizes) < 10 else DTYPES[1:3]:
        for offset in (0, 1):
            grads, flag = make(sizes, dtype, offset), new_flag(CUDA)
            scale = torch.tensor(2.0, device=CUDA)
            for norm_type in (1.0, 2.0, float("inf")):
                norm = grads.norm_check(flag, scale=scale, p=norm_type)
            grads.scale_(grads.clip_factor(norm, 0.5, scale, 1.0))
            grads.run_unscale(thread_pool(), scale, flag)
            grads.combine_(make(sizes, dtype, 1 - offset), flag, beta=0.0)
            grads.combine_(make(sizes, dtype, offset), flag, alpha=norm)
    sums = make(sizes, torch.float32, 0)
    sums.combine_(make(sizes, torch.bfloat16, 1))
counts = [torch.zeros((), dtype=torch.int32, device=CUDA) for _ in range(2)]
GradList().update_scale(flag, (2.0, 0.5, 1, 2, 0.0, 1e30), scale, *counts)
weight = torch.nn.Parameter(torch.zeros(9, device=CUDA))
weight.grad = torch.ones_like(weight)
for clip in (None, (0.5, 2.0, False)):
    GradList().unscale_and_clip(thread_pool(), [{"params": [weight]}], scale, flag, clip)
print("casts", flush=True)
for dtype in (torch.float32, torch.float16):
    for channels in (3, 4):
        images = torch.zeros(9, channels, 40, 41, dtype=torch.uint8)
        cast = transforms.ToDtype(dtype, scale=True)
        for (batch,) in DataLoader(
            ArrayDataset(images, transform=cast), 4, num_workers=1, device="cuda"
        ):
            assert batch.dtype is dtype
print("transforms", flush=True)
CROPS = (transforms.RandomResizedCrop(24), transforms.RandomCrop(30, 4))
for dtype in (torch.uint8, torch.float32, torch.float16):
    for first in CROPS if dtype is torch.float32 else CROPS[:1]:
        colors = [transforms.ColorJitter(0.4, 0.4, 0.4, 0.2), transforms.RandomEqualize()]
        cast = transforms.ToDtype(dtype, scale=True)
        ops = [first, *colors, cast, transforms.RandomErasing(0.9)]
        pictures = torch.zeros(9, 3, 40, 41, dtype=torch.uint8)
        data = ArrayDataset(pictures, transform=transforms.Compose(ops))
        for (batch,) in DataLoader(data.to("cuda"), 4):
            assert batch.dtype is dtype
        for (batch,) in DataLoader(data, 4, num_workers=1, device="cuda", transforms_on="device"):
            assert batch.dtype is dtype
print("tokens", flush=True)
for kind in (torch.uint8, torch.int16, torch.uint16, torch.uint32):
    for wide in (torch.int32, torch.int64):
        if kind.itemsize < wide.itemsize:
            values = torch.arange(5000).to(kind)
            tokens = TokenDataset.from_buffers(values, torch.tensor([0, 5000]), 99, out_dtype=wide)
            for x, y in DataLoader(tokens, 8, num_workers=1, device="cuda"):
                assert x.dtype is y.dtype is wide
            for x, y in DataLoader(tokens.to("cuda"), 8):
                assert x.dtype is y.dtype is wide
print("rows", flush=True)
images = torch.zeros(9, 3, 40, 41, dtype=torch.uint8)
for chain in ([transforms.RandomCrop(30, 4), cast], [transforms.RandomResizedCrop(20)]):
    compose = transforms.Compose(chain)
    data = ArrayDataset(images, torch.arange(9), transform=compose, gather="device")
    for each in (data, data.to("cuda")):
        for x, y in DataLoader(each, 4, device="cuda"):
            assert x.is_cuda and y.is_cuda
sources = [torch.ones(50, width, dtype=dtype, device=CUDA) for dtype in DTYPES for width in (1, 9)]
for batch in DataLoader(TensorDataset(*sources), 16, shuffle=True):
    assert len(batch) == len(sources)
torch.cuda.synchronize()
