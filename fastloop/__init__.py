"""fastloop: the training loop that never waits.

Drop-in pieces for PyTorch-style training loops, backed by C. Importing this package imports neither
NumPy nor torch; they are imported when a name that needs them is first used.
"""

from __future__ import annotations

# The public names of each module. __init__.pyi lists the same names for type checkers.
_NAMES = {
    "fastloop.adapters.trackers": "log_to",
    "fastloop.data.arrays": "ArrayDataset",
    "fastloop.data.cost_batches": "CostBatchSampler",
    "fastloop.data.image_folder.dataset": "ImageFolder",
    "fastloop.data.mixture": "MixtureDataset",
    "fastloop.data.packed": "PackedDataset",
    "fastloop.data.samplers": "BlockShuffleSampler LengthBucketBatchSampler ShuffleSampler",
    "fastloop.data.sequences.pad": "PackCollate PadCollate",
    "fastloop.data.sequences.ragged": "RaggedArray",
    "fastloop.data.shared_list": "SharedList",
    "fastloop.data.shards.arrow": "ArrowDataset",
    "fastloop.data.shards.mds": "MDSDataset",
    "fastloop.data.shards.parquet": "ParquetDataset",
    "fastloop.data.shards.tar": "TarDataset",
    "fastloop.data.tokens.dataset": "TokenDataset",
    "fastloop.loader.device_iter": "prefetch",
    "fastloop.loader.dataloader": "DataLoader stats",
    "fastloop.loader.stats": "LoaderStats WorkerStats",
    "fastloop.patching.patch": "PatchState patch patch_status patched unpatch",
    "fastloop.compat.seams": "SeamStatus",
    "fastloop.step.grad_list": "clip_grad_norm_",
    "fastloop.step.graph": "GraphStep graph_step",
    "fastloop.step.scaler": "GradScaler",
    "fastloop.step.stepper": "Stepper",
    "fastloop.tools.batch_size": "BatchPlan find_batch_size",
    "fastloop.tools.doctor": "Diagnosis doctor",
    "fastloop.tools.memory": "MemoryUse ParameterCount count_parameters memory",
    "fastloop.tools.report.report": "Report",
    "fastloop.tools.report.updates": "LoaderUpdate Update",
    "fastloop.tools.scalars": "ScalarLog",
    "fastloop.tools.tune": "Suggestion tune",
    "fastloop.tools.watch.report": "report",
    "fastloop.transforms": "transforms",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES, "build_info"]


def build_info() -> dict[str, str | int]:
    """Return facts about the build and this machine.

    The build's facts are the versions of fastloop, the compiler and DLPack, and CUDA with its
    architectures or the reason why CUDA is missing. The machine's facts are the number of CPUs,
    their instructions, and how fastloop reads mapped files."""
    from fastloop._core import build_info

    return build_info()


def load_ipython_extension(shell: object) -> None:
    """``%load_ext fastloop`` calls `patch()`, now or as soon as the notebook imports torch."""
    from fastloop.cli.start import load_extension

    load_extension()


def unload_ipython_extension(shell: object) -> None:
    """``%unload_ext fastloop`` calls `unpatch()`."""
    from fastloop.cli.start import unload_extension

    unload_extension()


def __getattr__(name: str) -> object:
    if name == "__version__":
        from fastloop._core import version

        return version
    if name not in _HOMES:
        from fastloop.base.names import suggest

        text = f"module 'fastloop' has no attribute {name!r}{suggest(name, __all__)}"
        raise AttributeError(text, name=name)  # without `name` Python would add a suggestion
    from importlib import import_module

    from fastloop.compat.requirements import require_torch

    require_torch(f"fastloop.{name}")
    module = import_module(_HOMES[name])
    value = module if name == "transforms" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
