"""The ``transform=`` of a dataset: translated to operations and compiled to plans, or called.

Transforms of torchvision's v2 are translated without an import of torchvision: a program with an
object of torchvision has imported torchvision. The class must be torchvision's own, because a
subclass may do anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import default_collate

from fastloop.base.checks import check_type, look_up, make_message
from fastloop.data.field import Field, torch_dtype
from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.arguments import DTYPES
from fastloop.data.transforms.plan import Geometry, ImageOp, Plan, Values, compile_plan, explain_ops
from fastloop.data.transforms.split import Piece, SplitPlan, join_pieces, lay_out

Pieces = tuple[Piece, ...]
WHOLE: Pieces = (Piece((), ()),)  # the pieces of a transform that changes nothing
_T = TypeVar("_T")

_V2 = "torchvision.transforms.v2"
# torchvision's names, with a replacement for each.
_INSTEAD = {
    "ToTensor": "ToImage(), ToDtype(torch.float32, scale=True)",
    "PILToTensor": "ToImage()",
    "ConvertImageDtype": "ToDtype(dtype, scale=True)",
    "functional": "torchvision.transforms.v2.functional, or an operation called with a tensor",
    "Lambda": "your function itself in the Compose",
}
_ANY_OTHER = (
    "apply the operation to the batch, on the device, or pass torchvision's own v2.Compose as "
    "transform= to ArrayDataset and path='process' to DataLoader (path='sync' without workers)"
)


def remedy_for(name: str) -> str:
    """Return the advice for an operation with this name, which fastloop does not have."""
    return f"use {_INSTEAD[name]}" if name in _INSTEAD else _ANY_OTHER


def is_torchvision(transform: object) -> bool:
    return type(transform).__module__.partition(".")[0] == "torchvision"


def _translate(transform: Any) -> Iterator[Geometry | Values]:
    """Yield fastloop's operations for a transform. A ValueError says why there are none."""
    name = type(transform).__name__
    if image_ops.is_own(transform):
        yield from transform._operations()
    elif getattr(sys.modules.get(_V2), name, None) is not type(transform):
        reason = f"must be of fastloop.transforms or {_V2}"
        if is_torchvision(transform):
            own = name if image_ops.get_operation(name) else _INSTEAD.get(name)
            reason += f", got v1's of torchvision{f' (write {own} of v2)' if own else ''}"
        raise ValueError(f"{look_up(transform, '__name__', name)} {reason}")
    elif name == "Compose":
        for part in transform.transforms:
            yield from _translate(part)
    elif operation := image_ops.get_operation(name):
        yield from make_own(operation, transform)._operations()
    else:
        instead = f"; write {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise ValueError(f"fastloop.transforms has no {name}{instead}")


def make_own(cls: Any, transform: Any, **others: Any) -> Any:
    """Make fastloop's operation from torchvision's. torchvision's attributes have the names of the
    arguments.

    Args:
        others: arguments that replace attributes.
    """
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    if hasattr(transform, "transforms"):
        arguments = {name: value for name, value in vars(transform).items() if name == "p"}
        arguments["transforms"] = [_make_one(part) for part in transform.transforms]
        return cls(**arguments)
    arguments = {name: getattr(transform, name) for name in names} | others
    is_v2 = type(transform).__module__.startswith(_V2)
    if is_v2 and cls is image_ops.RandomCrop and transform.padding is not None:
        left, right, top, bottom = transform.padding
        arguments["padding"] = [left, top, right, bottom]
    if cls is image_ops.RandomErasing and transform.value is None:
        arguments["value"] = "random"
    return cls(**arguments)


def _make_one(transform: Any) -> ImageOp:
    """Make one operation of fastloop for a transform."""
    ops = list(_translate(transform))
    return image_ops.Compose(ops) if ops else image_ops.Identity()


def _split(transform: Any) -> Iterator[Piece]:
    """Yield the parts of a Compose: fastloop's operations, and functions that have none."""
    if type(transform) in (image_ops.Compose, getattr(sys.modules.get(_V2), "Compose", None)):
        for part in transform.transforms:
            yield from _split(part)
        return
    try:
        if ops := tuple(_translate(transform)):
            yield Piece(ops, (transform,))
    except (TypeError, ValueError):
        if image_ops.is_own(transform):
            raise
        yield Piece((), (transform,))


def for_masks(transform: Any) -> ImageOp:
    """Return the transform for an image's masks.

    Raises:
        TypeError, ValueError: a part of the transform has no operation for masks.
    """
    ops = tuple(image_ops.for_masks(_translate(transform)))
    return image_ops.Compose(ops) if ops else image_ops.Identity()


def why_not(function: Any) -> str:
    """Return why Python has to call a part of a transform."""
    try:
        return f"fastloop runs {list(_translate(function))}"
    except (TypeError, ValueError) as error:
        return str(error)


def compile_transform(transform: Any, make: Callable[[Pieces], _T]) -> tuple[_T | None, str]:
    """Return the result of `make` for a transform; or None and why Python calls the transform.

    Args:
        transform: the user's transform, or the pieces of an earlier call.
        make: is called with the pieces of the transform.

    Raises:
        TypeError, ValueError: operations of fastloop that do not go with the images.
    """
    if isinstance(transform, tuple):
        return make(transform), ""
    try:
        pieces = join_pieces(list(_split(transform))) or WHOLE
        if pieces != WHOLE and not any(piece.ops for piece in pieces):
            return None, why_not(pieces[0].calls[0])
        return make(pieces if len(pieces) > 1 else (Piece(pieces[0].ops, ()),)), ""
    except (TypeError, ValueError) as error:
        if image_ops.is_own(transform):
            raise
        return None, str(error)  # torchvision may run what fastloop refuses


class FieldTransform:
    """The transform of one field of an ArrayDataset. Unpickling compiles the transform again.

    Attributes:
        field: the field with the images.
        transform: an operation of fastloop or torchvision, or a callable. With a plan, the pieces.
        layout: the layout of rows.
        out_layout: the layout of results.
        plan: None if Python calls the transform; `untranslated` then says why.

    Args: seed: the seed of random parameters.

    Raises:
        TypeError, ValueError: operations of fastloop do not go with these images.
    """

    def __init__(
        self, field: Field, transform: Any, layout: str, out_layout: str, seed: int
    ) -> None:
        self.field, self.transform = field, transform
        self.layout, self.out_layout = layout, out_layout
        self._how = layout, out_layout, seed
        try:
            compiled = compile_transform(transform, self._compile)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{field.name}: {error}") from None
        self.plan: Plan | SplitPlan | None
        self.plan, reason = compiled
        self.untranslated = f"{self.field.name}: {reason}" if reason else ""

    def _compile(self, pieces: Pieces) -> Plan | SplitPlan:
        """Return a plan for images of the field."""
        dtype = torch_dtype(self.field.source)
        remedy = "(x * 255).round().astype('uint8') if numbers are in [0, 1]"
        check_type("images with a transform", dtype, dtype is torch.uint8, "uint8", remedy)
        images = self._shape, *self._how
        is_split, ops = len(pieces) > 1, pieces[0].ops
        plan = SplitPlan(pieces, *images) if is_split else compile_plan(ops, *images)
        device = getattr(self.field.source, "device", "cpu")  # NumPy's arrays say "cpu" as well
        has_kernel = isinstance(plan, Plan) and plan.core.map_length > 0
        if str(device) != "cpu" and not has_kernel:
            rule = "on the CPU unless one kernel runs the whole transform (docs/use/devices.md)"
            raise TypeError(make_message("images", rule, device))
        self._device, self.transform = torch.device(device), pieces
        return plan

    def on(self, field: Field) -> FieldTransform:
        """Return the transform of a field that has the same images on a device."""
        return FieldTransform(field, self.transform, *self._how)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.field.source.shape[1:])

    def like(self) -> Tensor | None:
        """Return an empty tensor with a result's dtype, shape and strides; None if they are not
        known, or if torch's collate would change the strides."""
        plan = self.plan.last if isinstance(self.plan, SplitPlan) else self.plan
        if plan is None or plan.out_layout == "channels_last" or self._device.type != "cpu":
            return None
        return plan.empty()

    def _image(self, row: int) -> Any:
        image: Any = self.field.image(row)
        return image if self._device.type == "cpu" else image.cpu()

    def apply(self, row: int, epoch: int, view: int, out: Tensor | None = None) -> Any:
        """Return the result for one row, in ``out`` if that tensor fits."""
        if isinstance(self.plan, Plan):
            made = self.plan.apply(self._image(row), row, epoch, view, out)
            return made if self._device.type == "cpu" else made.to(self._device)
        image = self.field[row]
        if self.plan is not None:
            return self.plan.apply(image, row, epoch, view, out)
        if not is_torchvision(self.transform):
            return self.transform(image)
        result = self.transform(image.permute(2, 0, 1) if self.layout == "HWC" else image)
        return lay_out(result, self.out_layout, self.field.name)

    def stack(self, items: Sequence[tuple[int, int]], epoch: int) -> Any:
        """Return the results for several (row, view) as one batch."""
        if not isinstance(self.plan, Plan):
            return default_collate([self.apply(row, epoch, view) for row, view in items])
        out = self.plan.empty(len(items))
        for slot, (row, view) in zip(out, items, strict=True):
            self.plan.apply(self._image(row), row, epoch, view, slot)
        return out.to(self._device)

    def params(self, row: int, epoch: int, view: int) -> list[dict[str, Any]]:
        """Return the random parameters of a row, one dict for each operation."""
        if self.plan is None:
            rule, got = "one that fastloop runs for params()", f"Python's: {self.untranslated}"
            raise TypeError(f"transform must be {rule}, got {got}")
        if isinstance(self.plan, SplitPlan):
            return self.plan.params(self.field[row], row, epoch, view)
        height, width = self._shape[1:] if self.layout == "CHW" else self._shape[:2]
        return self.plan.params(row, epoch, view, (height, width))

    def describe_result(self) -> str:
        if not isinstance(self.plan, Plan):
            return "the result of the transform"
        return f"{DTYPES[self.plan.dtype]} {self.plan.core.out_shape}"

    def explain(self, python_reason: str) -> list[str]:
        """Return a line on the whole transform, and one line for each operation.

        Args:
            python_reason: why a field keeps the dataset from the loader's threads, or "".
        """
        name, room = self.field.name, "a sample at a time, in worker processes or in this process"
        if self.plan is None:
            reason = self.untranslated.removeprefix(f"{name}: ")
            return [f"{name}: Python, {room} (path='process' or 'sync'), because {reason}"]
        if isinstance(self.plan, SplitPlan):
            return [f"{name}: native and Python, {room}", *self.plan.explain()]
        room = "in the threads of loaders that take path='array' (see stats()), else in dataset[i]"
        if self._device.type != "cpu":
            room = f"by a kernel on {self._device} in loaders without workers, else in dataset[i]"
        room = f"in dataset[i], because {python_reason}" if python_reason else room
        rows, result = f"{self._shape} {self.layout}", f"{self.describe_result()} {self.out_layout}"
        lines = [f"{name}: uint8 {rows} -> {result}, native, {room}"]
        lines += explain_ops(self.plan.ops)
        if not python_reason and self._device.type == "cpu":
            why_whole = self.plan.core.why_whole
            sent = "uint8 is uploaded, and the device looks numbers up"
            sent = f"the finished result is uploaded, because {why_whole}" if why_whole else sent
            work = "one kernel runs the transform" if self.plan.core.map_length else "an error"
            lines.append(f"  with workers and a CUDA device: {sent}")
            lines[-1] += f"; with transforms_on='device': {work}"
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldTransform, (self.field, self.transform, *self._how)
