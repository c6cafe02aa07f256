"""fastloop: the training loop that never waits.

Drop-in pieces for PyTorch-style training loops, backed by C. Importing this package imports
NumPy but not torch; torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fastloop._core import build_info as _core_build_info
from fastloop._core import version as _core_version
from fastloop.saved_by_0_1 import PickleFinder as _PickleFinder

if TYPE_CHECKING:
    from fastloop import transforms
    from fastloop.data.arrays import ArrayDataset
    from fastloop.data.pad import PackCollate, PadCollate
    from fastloop.data.ragged import RaggedArray
    from fastloop.data.samplers import LengthBucketBatchSampler, ShuffleSampler
    from fastloop.data.tokens import TokenDataset
    from fastloop.device.prefetch import prefetch
    from fastloop.loader.dataloader import DataLoader
    from fastloop.loader.stats import LoaderStats, WorkerStats
    from fastloop.step.clip import clip_grad_norm_
    from fastloop.step.scaler import GradScaler
    from fastloop.step.stepper import Stepper

__all__ = [
    "ArrayDataset",
    "DataLoader",
    "GradScaler",
    "LengthBucketBatchSampler",
    "LoaderStats",
    "PackCollate",
    "PadCollate",
    "RaggedArray",
    "ShuffleSampler",
    "Stepper",
    "TokenDataset",
    "WorkerStats",
    "build_info",
    "clip_grad_norm_",
    "prefetch",
    "transforms",
]

_HOMES = {
    "ArrayDataset": "fastloop.data.arrays",
    "DataLoader": "fastloop.loader.dataloader",
    "GradScaler": "fastloop.step.scaler",
    "LengthBucketBatchSampler": "fastloop.data.samplers",
    "LoaderStats": "fastloop.loader.stats",
    "PackCollate": "fastloop.data.pad",
    "PadCollate": "fastloop.data.pad",
    "RaggedArray": "fastloop.data.ragged",
    "ShuffleSampler": "fastloop.data.samplers",
    "Stepper": "fastloop.step.stepper",
    "TokenDataset": "fastloop.data.tokens",
    "WorkerStats": "fastloop.loader.stats",
    "clip_grad_norm_": "fastloop.step.clip",
    "prefetch": "fastloop.device.prefetch",
    "transforms": "fastloop.transforms",
}


def build_info() -> dict[str, str | int]:
    """What was built: version, compiler, DLPack, CUDA and for which architectures, or why without;
    and what was found: CPUs and their instructions, how mapped files are read."""
    return _core_build_info()


__version__ = _core_version

if _PickleFinder not in sys.meta_path:
    sys.meta_path.append(_PickleFinder)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fastloop' has no attribute {name!r}")
    from importlib import import_module

    from fastloop.base.requirements import require_torch

    require_torch(f"fastloop.{name}")
    module = import_module(_HOMES[name])
    value = module if name == "transforms" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
