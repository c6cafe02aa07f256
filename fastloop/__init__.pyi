"""The public names, for type checkers; ``__init__.py`` imports each when it is first used."""

from fastloop import transforms as transforms
from fastloop.adapters.trackers import log_to as log_to
from fastloop.compat.seams import SeamStatus as SeamStatus
from fastloop.data.arrays import ArrayDataset as ArrayDataset
from fastloop.data.cost_batches import CostBatchSampler as CostBatchSampler
from fastloop.data.image_folder.dataset import ImageFolder as ImageFolder
from fastloop.data.mixture import MixtureDataset as MixtureDataset
from fastloop.data.packed import PackedDataset as PackedDataset
from fastloop.data.samplers import (
    BlockShuffleSampler as BlockShuffleSampler,
)
from fastloop.data.samplers import (
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from fastloop.data.samplers import (
    ShuffleSampler as ShuffleSampler,
)
from fastloop.data.sequences.pad import PackCollate as PackCollate
from fastloop.data.sequences.pad import PadCollate as PadCollate
from fastloop.data.sequences.ragged import RaggedArray as RaggedArray
from fastloop.data.shards.arrow import ArrowDataset as ArrowDataset
from fastloop.data.shards.mds import MDSDataset as MDSDataset
from fastloop.data.shards.parquet import ParquetDataset as ParquetDataset
from fastloop.data.shards.tar import TarDataset as TarDataset
from fastloop.data.shared_list import SharedList as SharedList
from fastloop.data.tokens.dataset import TokenDataset as TokenDataset
from fastloop.loader.dataloader import DataLoader as DataLoader
from fastloop.loader.dataloader import (
    stats as stats,
)
from fastloop.loader.device_iter import prefetch as prefetch
from fastloop.loader.stats import (
    LoaderStats as LoaderStats,
)
from fastloop.loader.stats import (
    WorkerStats as WorkerStats,
)
from fastloop.patching.patch import (
    PatchState as PatchState,
)
from fastloop.patching.patch import (
    patch as patch,
)
from fastloop.patching.patch import (
    patch_status as patch_status,
)
from fastloop.patching.patch import (
    patched as patched,
)
from fastloop.patching.patch import (
    unpatch as unpatch,
)
from fastloop.step.grad_list import clip_grad_norm_ as clip_grad_norm_
from fastloop.step.graph import GraphStep as GraphStep
from fastloop.step.graph import graph_step as graph_step
from fastloop.step.scaler import GradScaler as GradScaler
from fastloop.step.stepper import Stepper as Stepper
from fastloop.tools.batch_size import BatchPlan as BatchPlan
from fastloop.tools.batch_size import find_batch_size as find_batch_size
from fastloop.tools.doctor import Diagnosis as Diagnosis
from fastloop.tools.doctor import doctor as doctor
from fastloop.tools.memory import (
    MemoryUse as MemoryUse,
)
from fastloop.tools.memory import (
    ParameterCount as ParameterCount,
)
from fastloop.tools.memory import (
    count_parameters as count_parameters,
)
from fastloop.tools.memory import (
    memory as memory,
)
from fastloop.tools.report.report import Report as Report
from fastloop.tools.report.updates import LoaderUpdate as LoaderUpdate
from fastloop.tools.report.updates import Update as Update
from fastloop.tools.scalars import ScalarLog as ScalarLog
from fastloop.tools.tune import Suggestion as Suggestion
from fastloop.tools.tune import tune as tune
from fastloop.tools.watch.report import report as report

__version__: str
__all__ = [
    "ArrayDataset",
    "BatchPlan",
    "BlockShuffleSampler",
    "CostBatchSampler",
    "DataLoader",
    "Diagnosis",
    "GradScaler",
    "ImageFolder",
    "LengthBucketBatchSampler",
    "LoaderStats",
    "LoaderUpdate",
    "MemoryUse",
    "MixtureDataset",
    "PackCollate",
    "PackedDataset",
    "PadCollate",
    "ParameterCount",
    "PatchState",
    "RaggedArray",
    "Report",
    "ScalarLog",
    "SeamStatus",
    "SharedList",
    "ShuffleSampler",
    "Stepper",
    "Suggestion",
    "TarDataset",
    "TokenDataset",
    "Update",
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

def build_info() -> dict[str, str | int]: ...
