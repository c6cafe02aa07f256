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
    from fastloop.data.image_folder.dataset import ImageFolder
    from fastloop.data.samplers import LengthBucketBatchSampler, ShuffleSampler
    from fastloop.data.sequences.pad import PackCollate, PadCollate
    from fastloop.data.sequences.ragged import RaggedArray
    from fastloop.data.tokens.dataset import TokenDataset
    from fastloop.device.prefetch import prefetch
    from fastloop.loader.dataloader import DataLoader
    from fastloop.loader.stats import LoaderStats, WorkerStats, stats
    from fastloop.patching.patch import PatchState, patch, patch_status, patched, unpatch
    from fastloop.patching.seams import SeamStatus
    from fastloop.step.clip import clip_grad_norm_
    from fastloop.step.scaler import GradScaler
    from fastloop.step.stepper import Stepper
    from fastloop.tools.batch_size.device_memory import MemoryUse, memory
    from fastloop.tools.batch_size.plan import BatchPlan, find_batch_size
    from fastloop.tools.doctor.doctor import Diagnosis, doctor
    from fastloop.tools.parameters import ParameterCount, count_parameters
    from fastloop.tools.report.report import Report, report
    from fastloop.tools.scalars import ScalarLog
    from fastloop.tools.tune.tune import Suggestion, tune

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
    "BatchPlan": "fastloop.tools.batch_size.plan",
    "DataLoader": "fastloop.loader.dataloader",
    "Diagnosis": "fastloop.tools.doctor.doctor",
    "GradScaler": "fastloop.step.scaler",
    "ImageFolder": "fastloop.data.image_folder.dataset",
    "LengthBucketBatchSampler": "fastloop.data.samplers",
    "LoaderStats": "fastloop.loader.stats",
    "MemoryUse": "fastloop.tools.batch_size.device_memory",
    "PackCollate": "fastloop.data.sequences.pad",
    "PadCollate": "fastloop.data.sequences.pad",
    "ParameterCount": "fastloop.tools.parameters",
    "PatchState": "fastloop.patching.patch",
    "RaggedArray": "fastloop.data.sequences.ragged",
    "Report": "fastloop.tools.report.report",
    "ScalarLog": "fastloop.tools.scalars",
    "SeamStatus": "fastloop.patching.seams",
    "ShuffleSampler": "fastloop.data.samplers",
    "Stepper": "fastloop.step.stepper",
    "Suggestion": "fastloop.tools.tune.tune",
    "TokenDataset": "fastloop.data.tokens.dataset",
    "WorkerStats": "fastloop.loader.stats",
    "clip_grad_norm_": "fastloop.step.clip",
    "count_parameters": "fastloop.tools.parameters",
    "doctor": "fastloop.tools.doctor.doctor",
    "find_batch_size": "fastloop.tools.batch_size.plan",
    "memory": "fastloop.tools.batch_size.device_memory",
    "patch": "fastloop.patching.patch",
    "patch_status": "fastloop.patching.patch",
    "patched": "fastloop.patching.patch",
    "prefetch": "fastloop.device.prefetch",
    "report": "fastloop.tools.report.report",
    "stats": "fastloop.loader.stats",
    "transforms": "fastloop.transforms",
    "tune": "fastloop.tools.tune.tune",
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
