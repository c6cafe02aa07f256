"""ArrayDataset: arrays of equal length as a map-style dataset."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastloop._core import HostRange, ImagePlan
from fastloop.base.checks import make_message, read_choice, read_int, refuse_if
from fastloop.data.collate import borrow_slots
from fastloop.data.columns import Columns, NotCoveredError, Request, check_single, gathers
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import Field, check_room, read_item, read_views, register_fields
from fastloop.data.sequences.column import whole_column
from fastloop.data.sequences.ragged import RaggedArray
from fastloop.data.transforms.dataset_transform import FieldTransform, for_masks, is_torchvision
from fastloop.data.transforms.plan import LAYOUTS, OUT_LAYOUTS, Plan
from fastloop.data.transforms.split import SplitPlan

_NUMBERS = (int, float, np.bool_, np.integer, np.floating)


def _make_field(name: str, value: object) -> Field | RaggedArray:
    if isinstance(value, RaggedArray):
        return value._over(slice(0, len(value)), name)
    if isinstance(value, (list, tuple)) and all(isinstance(x, _NUMBERS) for x in value):
        value = torch.tensor(value, device="cpu")
    return Field(name, value, may_be_resident=True)


class ArrayDataset(EpochDataset):
    """Arrays of equal length as a map-style dataset.

    Args:
        *fields: fields by position, or
        **named: fields by name. Each is a ``numpy.ndarray`` of any strides, a ``numpy.memmap``, the
            path of a ``.npy`` file (opened as a read-only memmap), a torch tensor on the CPU or a
            CUDA device, a ``RaggedArray``, or a list of numbers (labels), which is copied. The
            first dimension counts samples and must be the same for all.
        transform: an operation or a ``Compose`` of ``fastloop.transforms`` for the first field, or
            a dict with an operation by field name (or position); fastloop applies operations to
            uint8 images. A tuple of names is an image and its masks: masks get the image's
            geometry, with the nearest pixel. Two or more names that are not fields are views: they
            replace the first field, and each is made of this field with its own seed (``seed`` + 0,
            1, ...). Transforms of torchvision's ``v2`` are translated. Python calls any other
            callable with each row.
        layout: the layout of images in fields with transforms, ``"CHW"`` or ``"HWC"``.
        out_layout: the layout of results, ``"CHW"``, ``"HWC"``, or ``"channels_last"``: the shape
            of CHW with the strides of HWC.
        seed: the seed of the transforms' random parameters.
        gather: ``"device"``: in a loader with ``device="cuda"`` and without workers, the device
            reads the rows of each batch from host memory. This memory is registered with the driver
            (about 0.1 s a GB, at the first ``iter()``) for the dataset's lifetime. In any other
            loader, ``"device"`` has no effect. Experimental: ``gather="device"`` has run on a
            simulated device only, not on a GPU yet. ``"auto"``: the CPU copies the rows.

    Sample ``i`` is the tuple (for named fields, the dict) of row ``i`` of every field as torch
    tensors, 0-d for 1-d fields, 1-d for a RaggedArray. Rows share memory with their source, as in
    ``torch.utils.data.TensorDataset``. Rows of read-only or mapped arrays, and of arrays with
    strides that torch does not have, are copies.

    With transforms, random parameters are a function of (seed, epoch, ``i``, view, operation) only.
    Sample ``(i, view)``, view 0 to 255, is a different random result for row ``i``; ``i`` alone is
    view 0. A slice, a list, a vector or a mask gives a batch. fastloop's loaders count epochs; with
    torch's loader, call ``set_epoch()`` before each epoch.

    For example, ``ArrayDataset(image=images, label=labels)`` gives samples
    ``{"image": ..., "label": ...}``. ``fastloop.DataLoader`` gathers batches straight from the
    arrays; in ``torch.utils.data.DataLoader`` the dataset gives the same batches.

    Raises:
        TypeError: no field; positional and named fields together; a field of a type that is not
            listed, or with a dtype that torch does not have; images that are not uint8.
        ValueError: fields of different length or without a dimension; a file that is not a regular
            .npy file; transforms that do not go with the images; ``gather="device"`` for fields or
            transforms that devices cannot read or do.
        OSError: a file that cannot be opened; later, a mapped file that has become shorter.
    """

    _borrows_slots = True  # in the batch that is being made

    def __init__(
        self,
        *fields: object,
        transform: Any = None,
        layout: str = "CHW",
        out_layout: str = "CHW",
        seed: int = 0,
        gather: str = "auto",
        **named: object,
    ) -> None:
        self._gather = read_choice("gather", gather, ("auto", "device"))
        self._seed = read_int("seed", seed, 0, 2**64 - 1)
        read_choice("layout", layout, LAYOUTS)
        read_choice("out_layout", out_layout, OUT_LAYOUTS)
        if bool(fields) == bool(named):
            got = f"{len(fields)} by position and {len(named)} by name"
            raise TypeError(f"fields must be given all by position or all by name, got {got}")
        self._keys = tuple(named) if named else None
        values = list(named.values() if named else fields)
        given: Any = transform if isinstance(transform, Mapping) else {}
        for key, aug in [pair for pair in given.items() if pair[0] and isinstance(pair[0], tuple)]:
            first, *masks = key
            mask = for_masks(aug) if masks else None
            given = {**given, first: aug, **dict.fromkeys(masks, mask)}
            del given[key]
        if views := read_views(given, self._keys or range(len(values))):
            values[:1] = values[:1] * len(views)
            self._keys = (*views, *self._keys[1:]) if self._keys else None
        self._views = len(views)
        keys = self._names = [*views, *(self._keys or range(len(values)))[len(views) :]]
        self._fields = tuple(
            _make_field(f"field {k!r}", v) for k, v in zip(keys, values, strict=True)
        )
        if len(set(map(len, self._fields))) > 1:
            each = ", ".join(f"{field.name} has {len(field)}" for field in self._fields)
            raise ValueError(f"fields must have the same number of rows, got {each}")
        if not isinstance(transform, Mapping):
            given = {keys[0]: transform}
        positions = [keys.index(read_choice("each key of transform", key, keys)) for key in given]
        self._transforms = {  # by position of the field
            i: self._make_transform(i, each, layout, out_layout)
            for i, each in zip(positions, given.values(), strict=True)
            if each is not None
        }
        transforms = self._transforms.values()
        if any(t.plan is not None and t.plan.is_random for t in transforms):
            self._epoch = Epoch()
        # A function gets rows unchanged: only operations have layouts.
        has_layouts = any(t.plan is not None or is_torchvision(t.transform) for t in transforms)
        if (layout, out_layout) != ("CHW", "CHW") and not has_layouts:
            raise ValueError(
                "layout and out_layout must be left out without image operations in transform, "
                f"got {layout!r} and {out_layout!r} "
                "(pass ToDtype(torch.uint8) of fastloop.transforms to change the layout alone)"
            )
        if gather == "device":
            remedy = "pass a copy, numpy.array(...), or leave gather out"
            for field, fault in zip(self._fields, self._unfetched(), strict=True):
                refuse_if(fault, f"gather='device': {field.name} {fault}; {remedy}")

    def _unfetched(self) -> Iterator[str]:
        """Yield for each field why devices cannot make its rows from host memory, or ""."""
        for i, (field, plan) in enumerate(zip(self._fields, self._plans, strict=True)):
            if isinstance(field, RaggedArray):
                yield "is a RaggedArray"
            elif i in self._transforms and (plan is None or plan.map_length == 0):
                yield "has a transform that no single kernel runs (docs/use/devices.md)"
            else:
                yield field.unfetched

    def _register(self, device: int) -> tuple[HostRange, ...]:
        return register_fields(self._fields, device)

    def fence(self) -> None:
        """Wait until devices have read the rows of all batches that were taken (SYNC). Call this
        before you write to the fields of a dataset with ``gather="device"``: the device reads the
        rows of a batch after ``next()`` has returned. For any other dataset nothing waits.

        Raises:
            torch.AcceleratorError: a device has failed.
        """
        for host_range in {field.host_range for field in self._fields if isinstance(field, Field)}:
            if host_range is not None:
                host_range.fence()

    def to(self, device: torch.device | str | int) -> ArrayDataset:
        """Return a dataset with its fields on a device. In loaders without workers, the device
        gathers the batches, pads and packs sequences, and crops, pads, flips, resizes, colours,
        erases and casts images. The new dataset counts its own epochs.

        Experimental: loaders over data on a GPU have run on a simulated device only, not on a GPU.

        Raises:
            TypeError: a transform is a function, or has operations that the device cannot do.
            MemoryError: a CUDA device has less free memory than the fields take.
        """
        if self._python_reason:
            text = "transform must be one that fastloop runs for to(), got Python's"
            raise TypeError(f"{text}: {self._python_reason}")
        device = torch.empty(0, device=device).device
        # Views share a field.
        indices = [0 if i < self._views else i for i in range(len(self._fields))]
        sources = {i: self._fields[i] for i in indices}
        check_room(device, sum(each.bytes_for(device) for each in sources.values()), "the fields")
        moved = {i: source.to(device) for i, source in sources.items()}
        made = copy.copy(self)
        made._gather = "auto"
        pairs = zip(self._fields, indices, strict=True)
        made._fields = tuple(_make_field(field.name, moved[i]) for field, i in pairs)
        there: Any = made._fields
        made._transforms = {i: transform.on(there[i]) for i, transform in self._transforms.items()}
        made._epoch = self._epoch and Epoch()
        return made

    def _make_transform(
        self, position: int, transform: Any, layout: str, out_layout: str
    ) -> FieldTransform:
        field = self._fields[position]
        if isinstance(field, RaggedArray):
            rule = "images to have a transform, got a RaggedArray"
            raise TypeError(
                f"{field.name} must be {rule} (name a field: transform={{'image': ...}})"
            )
        if isinstance(transform, type) or not callable(transform):
            rule = "an operation of fastloop.transforms, a Compose of several, or a function"
            kind = transform if isinstance(transform, type) else type(transform)
            raise TypeError(make_message(f"{field.name}: transform", rule, kind))
        seed = (self._seed + position * (position < self._views)) % 2**64
        return FieldTransform(field, transform, layout, out_layout, seed)

    @property
    def _plans(self) -> tuple[ImagePlan | None, ...]:
        """The plan for each field; None if the field has none, or Python runs a part."""
        found = map(self._transforms.get, range(len(self._fields)))
        return tuple(t.plan.core if t and isinstance(t.plan, Plan) else None for t in found)

    @property
    def _python_reason(self) -> str:
        """The reason why Python runs a transform or a part, so that the loader's threads cannot
        make the samples; or ""."""
        plans = (t.plan for t in self._transforms.values())
        reasons = (plan.reason for plan in plans if isinstance(plan, SplitPlan))
        return next(reasons, self._untranslated)

    @property
    def _untranslated(self) -> str:
        """The reason why Python runs a whole transform, or ""."""
        return next((t.untranslated for t in self._transforms.values() if t.untranslated), "")

    def _columns(self, request: Request) -> Columns:
        has_sequences = not all(isinstance(field, Field) for field in self._fields)
        check_single(request, "RaggedArray" if has_sequences else "", gives_views=False)
        if self._python_reason:
            raise NotCoveredError(self._python_reason)
        structure = dict.fromkeys(self._keys) if self._keys else (None,) * len(self._fields)
        columns = Columns(structure, gives_views=False)
        columns.note = ", native transforms" if self._transforms else ""
        for field, plan in zip(self._fields, self._plans, strict=True):
            if isinstance(field, Field):
                columns.add(field.name, field.source, field.file, plan)
            elif request.is_batched:
                fault = f"{field.name} is a RaggedArray; pass PadCollate or PackCollate"
                raise NotCoveredError(fault)
            else:
                columns.add(*whole_column(field))
        return self._fetched(columns, request) if self._gather == "device" else columns

    def _fetched(self, columns: Columns, request: Request) -> Columns:
        """Return the columns for a device that reads the rows from host memory, if it can."""
        device = torch.device("cpu" if request.device is None else request.device)
        fault, reason = request.why_no_kernels(device), ""
        if not gathers(device):
            reason = f"with device={request.device!r}"
        elif request.workers > 0:
            reason = f"with num_workers={request.workers}"
        elif fault:
            reason = f"without kernels ({fault})"
        if reason:
            columns.note += f"; gather='device' has no effect {reason}"
            return columns
        fields: Any = self._fields
        pairs = zip(columns.all, fields, strict=True)
        columns.all = tuple(column._replace(source=field.rows) for column, field in pairs)
        columns.device, columns.register = device, self._register
        columns.kind = f"arrays in host memory, read by {device}"
        return columns

    def __len__(self) -> int:
        return len(self._fields[0])

    def __getitem__(self, index: Any) -> Any:
        return self._get(index, None)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._has_own_samples(ArrayDataset):
            return [self[index] for index in indices]
        like = next((each.like() for each in self._transforms.values()), None)
        items = list(indices)
        with borrow_slots(like, len(items)) as slots:
            return [self._get(*pair) for pair in zip(items, slots, strict=True)]

    def _get(self, index: Any, slot: torch.Tensor | None) -> Any:
        """Return the sample, or the batch, at an index. A slot is memory for the result of the
        first transform."""
        if not self._transforms:  # each field takes any index that its array takes
            return self._as_sample([field[index] for field in self._fields])
        rows: Any
        epoch, several = self._epoch_now(), self._items_of(index)
        if several is None:
            rows, view = read_item(index, len(self))
            made = {}
            for i, each in self._transforms.items():
                made[i] = each.apply(rows, epoch, view, slot)
                slot = None
        else:
            items = [read_item(item, len(self)) for item in several]
            rows = [row for row, _ in items]
            made = {i: each.stack(items, epoch) for i, each in self._transforms.items()}
        fields = enumerate(self._fields)
        return self._as_sample([made[i] if i in made else field[rows] for i, field in fields])

    def _size_remedy(self) -> str:
        if not any(isinstance(field, RaggedArray) for field in self._fields):
            return ""
        return (
            "Sequences of a RaggedArray have several lengths: pass "
            "collate_fn=fastloop.PadCollate() or fastloop.PackCollate()."
        )

    def _as_sample(self, rows: list[Any]) -> Any:
        return tuple(rows) if self._keys is None else dict(zip(self._keys, rows, strict=True))

    def _items_of(self, index: Any) -> list[Any] | None:
        """Return the items of an index for several samples; None if the index is for one sample."""
        if isinstance(index, slice):
            return list(range(len(self))[index])
        if isinstance(index, torch.Tensor) and index.dtype is torch.uint8 and index.ndim > 0:
            index = index.bool()  # a mask, as torch takes it
        if isinstance(index, (np.ndarray, torch.Tensor)) and index.ndim > 0:
            index = index.tolist()
        if not isinstance(index, (list, range)):
            return None
        if len(index) == 0 or not all(isinstance(item, (bool, np.bool_)) for item in index):
            return list(index)
        if len(index) != len(self):
            raise IndexError(f"a mask must have the dataset's length {len(self)}, got {len(index)}")
        return [row for row, is_taken in enumerate(index) if is_taken]

    def params(
        self, index: int, epoch: int | None = None, view: int = 0, field: Any = None
    ) -> list[dict[str, Any]]:
        """Return the random parameters of a sample: one dict for each operation, in order.

        Args:
            index: the sample's index, an int.
            epoch: an epoch; None: the epoch that ``dataset[index]`` has now.
            view: the sample's view, 0 to 255.
            field: the name or position of a field, if several fields have transforms.
        """
        if not self._transforms:
            raise TypeError("transform must be one that fastloop runs for params(), got None")
        row, view = read_item((index, view), len(self))
        epoch = self._epoch_now() if epoch is None else check_epoch(epoch)
        keys = self._names
        transforms = {keys[i]: transform for i, transform in self._transforms.items()}
        only = next(iter(transforms)) if field is None and len(transforms) == 1 else field
        return transforms[read_choice("field", only, tuple(transforms))].params(row, epoch, view)

    def explain(self) -> str:
        """Return a text with a line for each field and operation: the place and the reason of its
        work, and the source of random parameters."""
        lines, reason = [], self._python_reason
        for i, field in enumerate(self._fields):
            transform = self._transforms.get(i)
            lines += transform.explain(reason) if transform else [f"{field.name}: {field!r}"]
        if self._gather == "device":
            fields: Any = self._fields[max(0, self._views - 1) :]
            total = sum(int(field.source.nbytes) for field in fields)
            lines.append(
                "batches: in loaders with device='cuda' and without workers the device reads the "
                f"rows in host memory, {total:,} bytes that the first iter() registers"
            )
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        parts = []
        for i, key in enumerate(self._names):
            transform = self._transforms.get(i)
            result = f" -> {transform.describe_result()}" if transform else ""
            parts.append(f"{key}: {self._fields[i]!r}{result}")
        return f"ArrayDataset({', '.join(parts)})"
