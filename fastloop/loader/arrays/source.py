"""The source of the array path: what the columns of a dataset become for one loader, a table that
threads gather from, or tensors that one device gathers from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop._core import ImagePlan, SequenceColumn, Table
from fastloop.base.checks import look_up
from fastloop.compat import torch_parts
from fastloop.compat.moves import watch
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.torch_parts import difference
from fastloop.data.collate import is_default_collate
from fastloop.data.columns import (
    Column,
    Columns,
    NotCoveredError,
    Request,
    below_subsets,
    columns_of,
    find_collate,
    gathers,
    rows_of,
)
from fastloop.device.availability import fault_of, find_fault
from fastloop.loader.arrays.blocks import find_blocks, yields_ints

_LONGEST = 2**31 - 1  # bytes of a row that a device gathers


def runs_kernels(device: torch.device | None) -> bool:
    """Tell whether kernels gather batches on a device; else torch's operations do. Warns once."""
    return not kernels_are_disabled() and not find_fault(device, "gathers batches")


def _why_no_kernels(device: torch.device) -> str:
    return "FASTLOOP_DISABLE_CUDA" if kernels_are_disabled() else fault_of(device)


def request_of(loader: DataLoader[Any], path: str) -> Request:
    """Return the question of a loader with this ``path``."""
    workers = loader.num_workers
    return Request(
        collate_fn=loader.collate_fn,
        is_batched=loader._auto_collation,
        sampler=loader.sampler,
        has_ints=lambda: yields_ints(loader.sampler),
        in_blocks=lambda: find_blocks(loader._index_sampler) is not None,
        workers=workers,
        in_order=loader.in_order,
        has_init=workers > 0 and loader.worker_init_fn is not None,
        is_asked=path == "array",
        device=look_up(loader, "device"),
        why_no_kernels=_why_no_kernels,
    )


def _columns_of_batches(dataset: Any, request: Request) -> tuple[Columns, str]:
    """Return the columns of the batches that the collate function makes, and its name."""
    collate_fn, default = request.collate_fn, torch_parts.default_collate
    is_default = collate_fn is (default if request.is_batched else torch_parts.default_convert)
    answer = None if is_default or not request.is_batched else find_collate(collate_fn)
    # PadCollate and PackCollate collate fields without sequences by torch's default.
    is_known = is_default_collate(default) or not request.is_batched
    if not (is_known and (is_default or answer is not None)):
        why = "collate_fn is not torch's default, or its registry was extended"
        raise NotCoveredError(difference("collate") or why)
    if answer is None:
        return columns_of(dataset, request), "default collate"
    if "__getitems__" in look_up(dataset, "__dict__", ()):
        raise NotCoveredError(f"a {type(dataset).__name__} has a __getitems__ of its own")
    name = look_up(collate_fn, "__name__", type(collate_fn).__name__)
    return answer(collate_fn, dataset, request), name


def open_source(dataset: Any, request: Request, pin: bool) -> Columns:
    """Return the columns of a dataset with their table. Raises NotCoveredError.

    Args:
        dataset: any.
        pin: threads will read ahead, so keep the storages of tensors from being resized.
    """
    name = type(dataset).__name__
    dataset, subsets = below_subsets(dataset)
    maps = tuple(map(rows_of, subsets))
    try:
        columns, how = _columns_of_batches(dataset, request)
        columns.dataset = dataset
        if not (request.is_batched or request.is_asked):
            for column in columns.all:
                if column.has_gaps:
                    what = f"single samples of {column.name} have strides, which torch's keep"
                    raise NotCoveredError(what)
        if columns.device is None and (on := _find_device(columns)) is not None:
            columns.device, columns.kind = on, f"tensors on {on}"
        columns.why = f"{name} of {columns.kind}, {how}{columns.note}"
        if columns.device is None:
            fields = tuple(column.for_core(pin) for column in columns.all)
            columns.table = Table(torch.Tensor, fields)
            watch(columns.table)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    if columns.original is not None:
        columns.original.check(columns)
    columns.maps += maps
    return columns


# ---- data on a device


def _tensor_of(column: Column) -> Any:
    """Return the source of a column, of sequences their values."""
    source = column.source
    return source.sources[0] if isinstance(source, SequenceColumn) else source


def _find_device(columns: Columns) -> torch.device | None:
    """Return the device that the data lie on; None: host memory. Raises NotCoveredError."""
    places: dict[torch.device, str] = {}  # and the name of the first column there
    for column in columns.all:
        source, place = _tensor_of(column), torch.device("cpu")
        if isinstance(source, torch.Tensor):
            place = source.device
        segments = source if isinstance(source, tuple) else ()
        inner = [s.array.device for s in segments if isinstance(s.array, torch.Tensor)]
        if any(map(gathers, inner)):
            raise NotCoveredError(f"{column.name} is on {inner[0]}, within another dataset")
        places.setdefault(place, column.name)
    on = next((device for device in places if gathers(device)), None)
    if on is None:
        return None
    if len(places) > 1:
        names = ", ".join(f"{name} is on {device}" for device, name in places.items())
        raise NotCoveredError(f"the data lie on several devices: {names}")
    for column in columns.all:
        if fault := _find_fault(column):
            raise NotCoveredError(f"{column.name} is on {on}, and {fault}")
    return on


def _find_fault(column: Column) -> str:
    """Return why a device does not gather the rows of a column in its memory, or ""."""
    plan, row = column.plan, _tensor_of(column)[:1]
    if plan is not None and not (isinstance(plan, ImagePlan) and plan.map_length > 0):
        return "its transform computes pixels"
    if not row.is_contiguous():
        return "its rows are not contiguous"
    if row.nbytes > _LONGEST:
        return f"a row takes {row.nbytes:,} bytes"
    if isinstance(column.source, SequenceColumn) and row.itemsize > 8:
        return f"its sequences are of {row.dtype}"
    return ""


def check_resident(loader: DataLoader[Any], source: Columns) -> None:
    """Raise NotCoveredError for a loader whose batches the device of the data does not gather."""
    where = f"the data are on {source.device}"
    if loader.num_workers > 0:
        raise NotCoveredError(f"{where}, which gathers them with num_workers=0")
    if loader.pin_memory:
        raise NotCoveredError(f"{where}, and pin_memory is for data in host memory")
    has_sequences = any(isinstance(column.source, SequenceColumn) for column in source.all)
    needs_kernels = has_sequences or any(column.plan for column in source.all)
    if needs_kernels and not runs_kernels(source.device):
        what = "sequences" if has_sequences else "a transform"
        raise NotCoveredError(f"{where}, which runs no kernel of {what}")
