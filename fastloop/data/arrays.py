"""ArrayDataset: arrays of equal length as a map-style dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fastloop._core import ImagePlan
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import Field as _Field
from fastloop.data.field import torch_dtype
from fastloop.data.sequences.ragged import RaggedArray, RaggedField
from fastloop.data.transforms.dataset_transform import FieldTransform, is_torchvision
from fastloop.data.transforms.ops import is_own
from fastloop.data.transforms.plan import LAYOUTS, OUT_LAYOUTS


def _make_field(name: str, value: object) -> _Field | RaggedField:
    if isinstance(value, RaggedArray):
        return RaggedField(name, value)
    if isinstance(value, (list, tuple)) and all(isinstance(x, _NUMBERS) for x in value):
        value = torch.tensor(value, device="cpu")
    return _Field(name, value)


_NUMBERS = (int, float, np.bool_, np.integer, np.floating)
_RESERVED = ("transform", "layout", "out_layout", "seed")
_VIEWS = 256
_ITEMS = "take an index, (index, view), or a slice, a list or a vector of these"


def read_item(item: Any, rows: int) -> tuple[int, int]:
    """The row and the view of `index` or `(index, view)`, of so many rows."""
    index, view = item if isinstance(item, tuple) and len(item) == 2 else (item, 0)
    try:
        row, view = operator.index(index), operator.index(view)
    except TypeError:
        raise TypeError(f"{item!r} is no sample of a dataset with transforms; {_ITEMS}") from None
    if not 0 <= view < _VIEWS:
        raise ValueError(
            f"view={view} is not in [0, {_VIEWS}); pass (index, view) with a view from 0 to "
            f"{_VIEWS - 1}"
        )
    if not -rows <= row < rows:
        raise IndexError(f"index {row} is out of range for a dataset of length {rows}")
    return row % rows, view


def _check_arguments(transform: object, layout: object, out_layout: object, seed: object) -> int:
    for name, value in zip(_RESERVED, (transform, layout, out_layout, seed), strict=True):
        is_path = isinstance(value, os.PathLike) or (name == "transform" and isinstance(value, str))
        if is_path or isinstance(value, (np.ndarray, torch.Tensor)):
            raise TypeError(
                f"{name} is a {type(value).__name__}, but {name!r} is an argument of ArrayDataset "
                "and cannot be the name of a field; call the field otherwise"
            )
    for name, value, known in (
        ("layout", layout, LAYOUTS),
        ("out_layout", out_layout, OUT_LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}")
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"seed={seed!r} is no integer; pass one from 0 to 2**64 - 1") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"seed={seed!r} is not in [0, 2**64); pass an integer that is")
    return number


class ArrayDataset(EpochDataset):
    """Arrays of equal length as a map-style dataset.

    Args:
        *fields: or
        **named: each a ``numpy.ndarray`` of any strides, a ``numpy.memmap``, the path of a
            ``.npy`` file (opened as a read-only memmap), a torch CPU tensor, a ``RaggedArray``,
            or a list of numbers (labels), which is copied. The first dimension counts samples and
            must be the same for all.
        transform: what is done to images of uint8, in C: an operation or a ``Compose`` of
            ``fastloop.transforms`` for the first field, or a dict of them by field name (or
            position). Transforms of torchvision's ``v2`` are translated; any other callable is
            called with each row, by Python.
        layout: of images in fields with transforms, ``"CHW"`` or ``"HWC"``.
        out_layout: of the results, ``"CHW"``, ``"HWC"``, or ``"channels_last"``: the shape of CHW
            with the strides of HWC.
        seed: of the transforms' random parameters.

    Sample ``i`` is the tuple (for named fields, the dict) of row ``i`` of every field as torch
    tensors, 0-d for 1-d fields, 1-d for a RaggedArray. Rows share memory with their source, as in
    ``torch.utils.data.TensorDataset``, except rows of read-only or mapped arrays and of arrays
    whose strides torch does not have, which are copied.

    With transforms, random parameters are a function of (seed, epoch, ``i``, view, operation) and
    of nothing else. Sample ``(i, view)``, view 0 to 255, is another random result for row ``i``;
    ``i`` alone is view 0. A slice, a list, a vector or a mask gives a batch. Loaders of fastloop
    count epochs by themselves; with torch's, call ``set_epoch()`` before each.

    In ``fastloop.DataLoader`` batches are gathered by C; in ``torch.utils.data.DataLoader`` the
    dataset works too and gives the same batches.

    Raises:
        TypeError: no field, positional and named fields together, a field that is none of the
            above or whose dtype torch does not have, images that are not uint8.
        ValueError: fields of different length or without a dimension; a file that is not .npy, or
            no regular file; transforms that do not go with the images.
        OSError: a file that cannot be opened; later, a mapped file that has become shorter.
    """

    _transforms: Mapping[int, FieldTransform] = MappingProxyType({})  # by position of the field

    def __init__(
        self,
        *fields: object,
        transform: Any = None,
        layout: str = "CHW",
        out_layout: str = "CHW",
        seed: int = 0,
        **named: object,
    ) -> None:
        self._seed = _check_arguments(transform, layout, out_layout, seed)
        if fields and named:
            raise TypeError("pass fields either all by position or all by name, not both")
        if not fields and not named:
            raise TypeError("ArrayDataset needs at least one field, as in ArrayDataset(x, y)")
        self._keys = tuple(named) if named else None
        names = [f"field {key!r}" for key in named] or [f"field {i}" for i in range(len(fields))]
        values = named.values() if named else fields
        self._fields = tuple(map(_make_field, names, values))
        lengths = {len(field) for field in self._fields}
        if len(lengths) > 1:
            each = ", ".join(f"{field.name} has {len(field)}" for field in self._fields)
            raise ValueError(f"fields must have the same number of rows, but {each}")
        self._transforms = {
            i: self._make_transform(i, given, layout, out_layout)
            for i, given in self._given_transforms(transform).items()
        }
        plans = [transform.plan for transform in self._transforms.values()]
        if any(plan is not None and plan.is_random for plan in plans):
            self._epoch = Epoch()
        self._check_layouts(layout, out_layout)

    def _check_layouts(self, layout: str, out_layout: str) -> None:
        found = self._transforms.values()
        if (layout, out_layout) == ("CHW", "CHW") or any(t.has_layouts for t in found):
            return
        what = f"layout={layout!r} and out_layout={out_layout!r} are for fields with transforms"
        if found:
            raise ValueError(
                f"{what} of fastloop.transforms or torchvision, and a function of yours gets rows "
                "as they are; leave layout and out_layout out, and permute in the function"
            )
        raise ValueError(
            f"{what}; pass transform=, as it may be fastloop.transforms.ToDtype(torch.uint8) to "
            "change the layout alone"
        )

    def _given_transforms(self, transform: Any) -> dict[int, Any]:
        """By position of the field."""
        if transform is None:
            return {}
        if not isinstance(transform, Mapping):
            self._check_is_for_first(transform)
            return {0: transform}
        keys = list(self._keys or range(len(self._fields)))
        unknown = [key for key in transform if key not in keys]
        if unknown:
            raise ValueError(
                f"transform has a key {unknown[0]!r}, which is no field; fields are "
                f"{', '.join(map(repr, keys))}"
            )
        return {keys.index(key): given for key, given in transform.items() if given is not None}

    def _check_is_for_first(self, transform: Any) -> None:
        """Operations on images are not for labels, which often come first."""
        first, *others = self._fields
        has_images = isinstance(first, _Field) and first.source.ndim > 2
        if has_images or not (is_own(transform) or is_torchvision(transform)):
            return
        for i, field in enumerate(others, 1):
            if isinstance(field, RaggedField):
                continue
            if field.source.ndim == 4 and torch_dtype(field.source) is torch.uint8:
                key = i if self._keys is None else self._keys[i]
                raise ValueError(
                    f"transform= is for the first field, and {first.name}, {first!r}, has no "
                    f"images; pass transform={{{key!r}: ...}} for {field.name}"
                )

    def _make_transform(
        self, i: int, transform: Any, layout: str, out_layout: str
    ) -> FieldTransform:
        field = self._fields[i]
        if isinstance(field, RaggedField):
            raise TypeError(f"{field.name} is a RaggedArray, which has no transforms")
        is_class = isinstance(transform, type)
        if is_class or not callable(transform):
            what = (
                f"the class {transform.__name__}" if is_class else f"a {type(transform).__name__}"
            )
            raise TypeError(
                f"{field.name}: transform is {what}; pass an operation of fastloop.transforms, or "
                "Compose([...]) of several"
            )
        dtype, shape = torch_dtype(field.source), field.source.shape[1:]
        return FieldTransform(field.name, transform, shape, dtype, layout, out_layout, self._seed)

    @property
    def _plans(self) -> tuple[ImagePlan | None, ...]:
        """One for each field."""
        found = (self._transforms.get(i) for i in range(len(self._fields)))
        return tuple(t.plan.core if t and t.plan else None for t in found)

    @property
    def _untranslated(self) -> str:
        """Why C cannot do all of the transforms, or ""."""
        return next((t.untranslated for t in self._transforms.values() if t.untranslated), "")

    def __len__(self) -> int:
        return len(self._fields[0])

    def __getitem__(self, index: Any) -> Any:
        if not self._transforms:
            return self._plain_sample(index)
        several = self._items_of(index)
        if several is not None:
            return self._batch([self._read_item(item) for item in several])
        return self._sample(*self._read_item(index))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self[index] for index in indices]

    def _size_remedy(self) -> str:
        if not any(isinstance(field, RaggedField) for field in self._fields):
            return ""
        return (
            "Sequences of a RaggedArray have several lengths: pass "
            "collate_fn=fastloop.PadCollate() or fastloop.PackCollate()."
        )

    def _as_sample(self, rows: list[Any]) -> Any:
        return tuple(rows) if self._keys is None else dict(zip(self._keys, rows, strict=True))

    def _plain_sample(self, index: Any) -> Any:
        """As a TensorDataset's: each field takes any index that its array takes."""
        try:
            return self._as_sample([field[index] for field in self._fields])
        except IndexError as error:
            if not isinstance(index, tuple):
                raise
            raise IndexError(
                f"{error}; {index!r} is an index for each dimension here, because (index, view) is "
                "for datasets with transforms: pass an index, or transform="
            ) from None

    def _items_of(self, index: Any) -> list[Any] | None:
        """Where several samples are asked for at once, these; else None."""
        if isinstance(index, slice):
            return list(range(len(self))[index])
        if isinstance(index, (np.ndarray, torch.Tensor)) and index.ndim > 0:
            if index.ndim > 1:
                raise TypeError(f"an index of {index.ndim} dimensions; {_ITEMS}")
            if isinstance(index, torch.Tensor) and index.dtype is torch.uint8:
                index = index.bool()  # a mask, as torch takes it
            index = index.tolist()
        if not isinstance(index, (list, range)):
            return None
        if len(index) == 0 or not all(isinstance(item, (bool, np.bool_)) for item in index):
            return list(index)
        if len(index) != len(self):
            raise IndexError(f"a mask of {len(index)} is not for a dataset of length {len(self)}")
        return [row for row, is_taken in enumerate(index) if is_taken]

    def _batch(self, items: list[tuple[int, int]]) -> Any:
        """Samples as one batch, as an array gives rows."""
        epoch, fields, rows = self._epoch_now(), [], [row for row, _ in items]
        for i, field in enumerate(self._fields):
            transform = self._transforms.get(i)
            if transform is None:
                fields.append(field[rows])
            else:
                assert isinstance(field, _Field)
                get = field.image if transform.plan else field.__getitem__
                fields.append(transform.stack(map(get, rows), items, epoch))
        return self._as_sample(fields)

    def _sample(self, index: int, view: int) -> Any:
        epoch, rows = self._epoch_now(), []
        for i, field in enumerate(self._fields):
            transform = self._transforms.get(i)
            if transform is None:
                rows.append(field[index])
            else:
                assert isinstance(field, _Field)
                image = field.image(index) if transform.plan else field[index]
                rows.append(transform.apply(image, index, epoch, view))
        return self._as_sample(rows)

    def _read_item(self, item: Any) -> tuple[int, int]:
        return read_item(item, len(self))

    def params(
        self, index: int, epoch: int | None = None, view: int = 0, field: Any = None
    ) -> list[dict[str, Any]]:
        """The random parameters of a sample: one dict for each operation, in order.

        Args:
            index: of the sample.
            epoch: None: the one that ``dataset[index]`` has now.
            view: of the sample.
            field: its name or position, where several have transforms.
        """
        if not self._transforms:
            raise TypeError("params() is for datasets with transforms; pass transform= to this")
        try:
            operator.index(index)
        except TypeError:
            raise TypeError(
                f"params: index={index!r} is no integer; pass that of one sample, and its view by "
                "name: params(0, view=1)"
            ) from None
        row, view = self._read_item((index, view))
        if epoch is None:
            epoch = self._epoch_now()
        keys = list(self._keys or range(len(self._fields)))
        transformed = [keys[i] for i in self._transforms]
        if field is None and len(transformed) > 1:
            raise ValueError(f"several fields have transforms; pass field=, one of {transformed}")
        key = transformed[0] if field is None else field
        if key not in transformed:
            raise ValueError(f"field={key!r} has no transform; pass one of {transformed}")
        return self._transforms[keys.index(key)].params(row, check_epoch(epoch), view)

    def explain(self) -> str:
        """Where each operation runs, and why: a line for each field and each operation; and whose
        random parameters they have."""
        lines, others = [], self._untranslated
        for i, field in enumerate(self._fields):
            transform = self._transforms.get(i)
            lines += (
                transform.explain(others) if transform else [f"{field.name}: {field!r} as it is"]
            )
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        parts = []
        for i, key in enumerate(self._keys or range(len(self._fields))):
            transform = self._transforms.get(i)
            result = f" -> {transform.describe_result()}" if transform else ""
            parts.append(f"{key}: {self._fields[i]!r}{result}")
        return f"ArrayDataset({', '.join(parts)})"
