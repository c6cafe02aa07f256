"""fastloop: the training loop that never waits.

Drop-in pieces for PyTorch-style training loops, backed by C. Importing this package imports neither
NumPy nor torch; they are imported when a name that needs them is first used.
"""

from __future__ import annotations

# Where the public names live; __init__.pyi says the same to type checkers.
_HOMES = {
    "ArrayDataset": "fastloop.data.arrays",
    "BatchPlan": "fastloop.tools.batch_size",
    "DataLoader": "fastloop.loader.dataloader",
    "Diagnosis": "fastloop.tools.doctor.diagnosis",
    "GradScaler": "fastloop.step.scaler",
    "ImageFolder": "fastloop.data.image_folder.dataset",
    "LengthBucketBatchSampler": "fastloop.data.samplers",
    "LoaderStats": "fastloop.loader.stats",
    "MemoryUse": "fastloop.tools.memory",
    "PackCollate": "fastloop.data.sequences.pad",
    "PadCollate": "fastloop.data.sequences.pad",
    "ParameterCount": "fastloop.tools.memory",
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
    "count_parameters": "fastloop.tools.memory",
    "doctor": "fastloop.tools.doctor.doctor",
    "find_batch_size": "fastloop.tools.batch_size",
    "memory": "fastloop.tools.memory",
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
__all__ = [*_HOMES, "build_info"]


def build_info() -> dict[str, str | int]:
    """Return what was built (version, compiler, DLPack, CUDA and its architectures, or why without)
    and what was found here (CPUs and their instructions, how mapped files are read)."""
    from fastloop._core import build_info

    return build_info()


def load_ipython_extension(shell: object) -> None:
    """``%load_ext fastloop`` calls `patch()`, now or as soon as the notebook imports torch."""
    from fastloop.cli import notebook

    notebook.load()


def unload_ipython_extension(shell: object) -> None:
    """``%unload_ext fastloop`` takes out the seams that ``%load_ext`` has put in."""
    from fastloop.cli import notebook

    notebook.unload()


def __getattr__(name: str) -> object:
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
