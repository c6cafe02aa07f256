"""fastloop: the training loop that never waits.

Drop-in pieces for PyTorch-style training loops, backed by C. Importing this package imports neither
NumPy nor torch; they are imported when a name that needs them is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from fastloop import transforms
    from fastloop.data.arrays import ArrayDataset
    from fastloop.data.image_folder import ImageFolder
    from fastloop.data.pad import PackCollate, PadCollate
    from fastloop.data.ragged import RaggedArray
    from fastloop.data.samplers import LengthBucketBatchSampler, ShuffleSampler
    from fastloop.data.tokens import TokenDataset
    from fastloop.device.prefetch import prefetch
    from fastloop.loader.any_loader import stats
    from fastloop.loader.dataloader import DataLoader
    from fastloop.loader.stats import LoaderStats, WorkerStats
    from fastloop.patching.patch import PatchState, patch, patch_status, patched, unpatch
    from fastloop.patching.seams import SeamStatus
    from fastloop.see.batch_plan import BatchPlan, find_batch_size
    from fastloop.see.device_memory import MemoryUse, memory
    from fastloop.see.doctor import Diagnosis, doctor
    from fastloop.see.parameters import ParameterCount, count_parameters
    from fastloop.see.report import Report, report
    from fastloop.see.scalar_log import ScalarLog
    from fastloop.see.tune import Suggestion, tune
    from fastloop.step.clip import clip_grad_norm_
    from fastloop.step.scaler import GradScaler
    from fastloop.step.stepper import Stepper

__version__: str

__all__ = [
    "ArrayDataset",
    "BatchPlan",
    "DataLoader",
    "Diagnosis",
    "GradScaler",
    "ImageFolder",
    "LengthBucketBatchSampler",
    "LoaderStats",
    "MemoryUse",
    "PackCollate",
    "PadCollate",
    "ParameterCount",
    "PatchState",
    "RaggedArray",
    "Report",
    "ScalarLog",
    "SeamStatus",
    "ShuffleSampler",
    "Stepper",
    "Suggestion",
    "TokenDataset",
    "WorkerStats",
    "build_info",
    "clip_grad_norm_",
    "count_parameters",
    "doctor",
    "find_batch_size",
    "memory",
    "patch",
    "patch_status",
    "patched",
    "prefetch",
    "report",
    "stats",
    "transforms",
    "tune",
    "unpatch",
]

_HOMES = {
    "ArrayDataset": "fastloop.data.arrays",
    "BatchPlan": "fastloop.see.batch_plan",
    "DataLoader": "fastloop.loader.dataloader",
    "Diagnosis": "fastloop.see.doctor",
    "GradScaler": "fastloop.step.scaler",
    "ImageFolder": "fastloop.data.image_folder",
    "LengthBucketBatchSampler": "fastloop.data.samplers",
    "LoaderStats": "fastloop.loader.stats",
    "MemoryUse": "fastloop.see.device_memory",
    "PackCollate": "fastloop.data.pad",
    "PadCollate": "fastloop.data.pad",
    "ParameterCount": "fastloop.see.parameters",
    "PatchState": "fastloop.patching.patch",
    "RaggedArray": "fastloop.data.ragged",
    "Report": "fastloop.see.report",
    "ScalarLog": "fastloop.see.scalar_log",
    "SeamStatus": "fastloop.patching.seams",
    "ShuffleSampler": "fastloop.data.samplers",
    "Stepper": "fastloop.step.stepper",
    "Suggestion": "fastloop.see.tune",
    "TokenDataset": "fastloop.data.tokens",
    "WorkerStats": "fastloop.loader.stats",
    "clip_grad_norm_": "fastloop.step.clip",
    "count_parameters": "fastloop.see.parameters",
    "doctor": "fastloop.see.doctor",
    "find_batch_size": "fastloop.see.batch_plan",
    "memory": "fastloop.see.device_memory",
    "patch": "fastloop.patching.patch",
    "patch_status": "fastloop.patching.patch",
    "patched": "fastloop.patching.patch",
    "prefetch": "fastloop.device.prefetch",
    "report": "fastloop.see.report",
    "stats": "fastloop.loader.any_loader",
    "transforms": "fastloop.transforms",
    "tune": "fastloop.see.tune",
    "unpatch": "fastloop.patching.patch",
}


def build_info() -> dict[str, str | int]:
    """What was built: version, compiler, DLPack, CUDA and for which architectures, or why without;
    and what was found: CPUs and their instructions, how mapped files are read."""
    from fastloop._core import build_info

    return build_info()


def load_ipython_extension(shell: object) -> None:
    """``%load_ext fastloop``: `patch()` for the notebook, now or as soon as it imports torch."""
    from fastloop.patching import notebook

    notebook.load()


def unload_ipython_extension(shell: object) -> None:
    """``%unload_ext fastloop``: takes out what ``%load_ext`` has put in."""
    from fastloop.patching import notebook

    notebook.unload()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from fastloop._core import version

        return version
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
