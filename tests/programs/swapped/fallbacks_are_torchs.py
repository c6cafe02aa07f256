import importlib
import itertools
import math
import pkgutil
import sys
import warnings

import torch
import torch.amp.grad_scaler
import torch.cuda.amp.grad_scaler
import torch.nn.utils.clip_grad
import torch.utils.data.dataloader
from torch.amp import GradScaler as TorchScaler
from torch.cuda.amp import GradScaler as CudaScaler
from torch.nn.utils import clip_grad_norm_ as torch_clip
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

import fastloop

assert not [name for name in sys.modules if name.startswith("fastloop._")]
if sys.argv[1] == "after":
    for module in pkgutil.iter_modules(fastloop.__path__, "fastloop."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)

torch.nn.utils.clip_grad_norm_ = fastloop.clip_grad_norm_
torch.nn.utils.clip_grad.clip_grad_norm_ = fastloop.clip_grad_norm_
torch.utils.data.DataLoader = fastloop.DataLoader
torch.utils.data.dataloader.DataLoader = fastloop.DataLoader
torch.amp.GradScaler = fastloop.GradScaler
torch.amp.grad_scaler.GradScaler = fastloop.GradScaler
torch.cuda.amp.GradScaler = fastloop.GradScaler
torch.cuda.amp.grad_scaler.GradScaler = fastloop.GradScaler


def parameters(*dtypes, bad=0.0):
    generator = torch.Generator().manual_seed(3)
    params = [torch.zeros(5, dtype=dtype).requires_grad_() for dtype in dtypes]
    for p in params:
        p.grad = torch.randn(5, generator=generator).to(p.dtype) + bad
    return params


def sparse():
    p = torch.zeros(4, requires_grad=True)
    p.grad = torch.sparse_coo_tensor([[0, 2]], [3.0, 4.0], (4,), check_invariants=True)
    return [p]


def outcome(call, *args, **kwargs):
    try:
        return repr(call(*args, **kwargs))
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]


f32, f64, c64 = torch.float32, torch.float64, torch.complex64
cases = {
    "sparse": (sparse, {}),
    "mixed": (lambda: parameters(f32, f64), {}),
    "complex": (lambda: parameters(c64), {}),
    "norm type": (lambda: parameters(f32), {"norm_type": 3.0}),
    "foreach": (lambda: parameters(f32, f64), {"foreach": True}),
    "foreach refused": (sparse, {"foreach": True}),
    "error": (lambda: parameters(f32, bad=math.inf), {"error_if_nonfinite": True}),
    "none": (list, {}),
    "deprecated": (lambda: parameters(f32, f64), None),
}
for name, (make, kwargs) in cases.items():
    ours, theirs = make(), make()
    warnings.simplefilter("ignore")
    utils = torch.nn.utils
    swapped = utils.clip_grad_norm if kwargs is None else utils.clip_grad_norm_
    result = outcome(swapped, ours, 0.5, **(kwargs or {}))
    assert result == outcome(torch_clip, theirs, 0.5, **(kwargs or {})), (name, result)
    for a, b in zip(ours, theirs):
        assert repr(a.grad) == repr(b.grad), name

for make in (
    lambda: parameters(torch.float32, torch.float64),
    sparse,
    lambda: parameters(torch.float16),
    lambda: parameters(torch.complex64),
):
    results = []
    for kind in (torch.amp.GradScaler, TorchScaler):
        params = make()
        optimizer = torch.optim.SGD(params, 1.0)
        scaler = kind("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        told = [outcome(scaler.unscale_, optimizer), outcome(scaler.step, optimizer)]
        told += [outcome(scaler.update), outcome(scaler.get_scale)]
        results.append((told, repr(params), repr([p.grad for p in params])))
    assert results[0] == results[1], results
params, theirs = (parameters(torch.float32, torch.float64) for _ in range(2))
scaler = torch.cuda.amp.GradScaler("cpu", init_scale=8.0)
scaler.scale(torch.ones(()))
norm = scaler.unscale_and_clip_(torch.optim.SGD(params, 1.0), 0.5)
assert norm == torch_clip(theirs, 0.5) / 8, norm

warnings.simplefilter("ignore")  # torch.cuda.amp.GradScaler is old, and there may be no CUDA
scalers = [
    TorchScaler("cpu", init_scale=8.0),
    torch.amp.GradScaler("cpu", init_scale=8.0),
    CudaScaler(),
    None,
]
for scaler in scalers:
    if isinstance(scaler, CudaScaler) and scaler.is_enabled():
        continue
    for dtypes in ((torch.float32, torch.float64), (torch.float32,)):
        params = parameters(*dtypes)
        for p in params:
            p.grad = None
        stepper = fastloop.Stepper(torch.optim.SGD(params, 1.0), scaler=scaler, max_norm=1.0)
        with stepper.micro():
            stepper.backward(sum(p.sum() for p in params) * 3)
        assert stepper.stepped == 1
        assert abs(sum(p.double().square().sum() for p in params) - 1) < 1e-5


class Squares(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return torch.tensor([i * i, i]), i, {"a": [str(i)]}

    def __len__(self):
        return 7


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(7))


datasets = [Squares(), Stream(), torch.utils.data.TensorDataset(torch.arange(7))]
options = [
    {},
    {"collate_fn": default_collate},
    {"batch_size": None},
    {"collate_fn": lambda batch: default_collate(batch)},
]
cases = [*itertools.product(datasets, [0], options), (datasets[0], 1, {}), (datasets[1], 1, {})]
for dataset, workers, more in cases:
    kwargs = {"batch_size": 3, "num_workers": workers, **more}
    told = [repr(list(TorchLoader(dataset, **kwargs)))]
    for path in ("auto", "torch"):
        told.append(repr(list(torch.utils.data.DataLoader(dataset, **kwargs, path=path))))
    assert told[0] == told[1] == told[2], told
device = torch.utils.data.DataLoader(Squares(), batch_size=3, device="cpu")
assert repr(list(device)) == repr(list(TorchLoader(Squares(), batch_size=3)))
given = list(fastloop.prefetch(TorchLoader(Squares(), batch_size=3), "cpu"))
assert repr(given) == repr(list(device))
