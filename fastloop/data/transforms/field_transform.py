"""What an ArrayDataset makes of the images of one field: in C where there is a plan, else by
calling the transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from fastloop.data.transforms.arguments import DTYPES
from fastloop.data.transforms.ops import is_own
from fastloop.data.transforms.plan import Geometry, Plan, Values, compile_plan
from fastloop.data.transforms.torchvision import UntranslatedError, is_torchvision, translate

_Chain = tuple[Geometry | Values, ...]


class FieldTransform:
    """One field's transform. Compiled when it is made, and again when it is unpickled.

    Args:
        name: of the field, in errors.
        transform: ours, torchvision's or a callable; from a pickle, a plan's operations.
        shape: of a row.
        dtype: of the field.
        layout: of rows.
        out_layout: of results.
        seed: of random parameters.

    Raises:
        TypeError, ValueError: operations of ours that these images do not go with.
    """

    def __init__(
        self,
        name: str,
        transform: Any,
        shape: Sequence[int],
        dtype: torch.dtype,
        layout: str,
        out_layout: str,
        seed: int,
    ) -> None:
        self._arguments = name, tuple(shape), dtype, layout, out_layout, seed
        self._transform: Callable[[Any], Any] | None = None
        self.plan: Plan | None = None
        self.untranslated = ""  # or why there is no plan
        is_ours = isinstance(transform, tuple) or is_own(transform)
        try:
            self.plan = self._compile(transform)
        except UntranslatedError as reason:
            self.untranslated = f"{name}: {reason}"
        except (TypeError, ValueError) as error:
            if is_ours:
                raise type(error)(f"{name}: {error}") from None
            self.untranslated = f"{name}: {error}"  # torchvision may do what C cannot
        if self.plan is None:
            self._transform = transform

    def _compile(self, transform: Any) -> Plan:
        _, shape, dtype, layout, out_layout, seed = self._arguments
        chain: _Chain = transform if isinstance(transform, tuple) else ()
        if not isinstance(transform, tuple):
            chain = tuple(part for op in translate(transform) for part in op._chain())
        if dtype is not torch.uint8:
            kind = str(dtype).removeprefix("torch.")
            numbers, change = "[0, 1]", "(x * 255).round().astype('uint8')"
            if not dtype.is_floating_point and dtype is not torch.bool:
                numbers, change = "[0, 255]", "x.astype('uint8')"
            raise TypeError(
                f"images are {kind}, and transforms work on uint8; keep images as uint8 (from "
                f"numbers in {numbers}: {change})"
            )
        return compile_plan(chain, shape, layout, out_layout, seed)

    def apply(self, image: Any, index: int, epoch: int, view: int) -> Any:
        """The result for one row."""
        if self.plan is not None:
            return self.plan.apply(image, index, epoch, view)
        assert self._transform is not None
        if not is_torchvision(self._transform):
            return self._transform(image)
        layout = self._arguments[3]
        return self._in_out_layout(
            self._transform(image.permute(2, 0, 1) if layout == "HWC" else image)
        )

    def stack(self, images: Iterable[Any], items: Sequence[tuple[int, int]], epoch: int) -> Any:
        """The results for several rows, of these (index, view), as one batch."""
        pairs = zip(images, items, strict=True)
        if self.plan is None:
            if not items:
                raise IndexError(
                    f"{self._arguments[0]}: only its transform, a function, knows the shape of "
                    "results, so there is no batch of none; take at least one row"
                )
            return default_collate(
                [self.apply(image, i, epoch, view) for image, (i, view) in pairs]
            )
        out = self.plan.empty(len(items))
        for place, (image, (i, view)) in zip(out, pairs, strict=True):
            self.plan.write(image, place, i, epoch, view)
        return out

    @property
    def has_layouts(self) -> bool:
        """Whether layout and out_layout mean anything to it: not to a function of the user's."""
        return self.plan is not None or is_torchvision(self._transform)

    def _in_out_layout(self, result: Any) -> Any:
        """What one of torchvision's transforms has made, a tensor [C, H, W]."""
        name, *_, out_layout, _ = self._arguments
        if out_layout == "CHW":
            return result
        if not isinstance(result, torch.Tensor) or result.ndim != 3:
            raise TypeError(
                f"{name}: out_layout={out_layout!r} is for tensors [C, H, W], and the transform "
                f"returns a {type(result).__name__}; leave out_layout out"
            )
        interleaved = result.permute(1, 2, 0)
        return interleaved if out_layout == "HWC" else interleaved.contiguous().permute(2, 0, 1)

    def params(self, index: int, epoch: int, view: int) -> list[dict[str, Any]]:
        if self.plan is None:
            raise TypeError(f"{self.untranslated}; so its parameters are its own")
        _, shape, _, layout, _, _ = self._arguments
        height, width = shape[1:] if layout == "CHW" else shape[:2]
        return self.plan.params(index, epoch, view, (height, width))

    def describe_result(self) -> str:
        if self.plan is None:
            return "what the transform returns"
        return f"{DTYPES[self.plan.dtype]} {self.plan.core.out_shape}"

    def explain(self, others: str) -> list[str]:
        """A line on the whole, and one for each operation.

        Args:
            others: why other fields keep the dataset from the loader's threads, or "".
        """
        name, shape, _, layout, out_layout, _ = self._arguments
        if self.plan is None:
            return [
                f"{name}: Python, a sample at a time, in worker processes or in this one "
                f"(path='process' or 'sync'), because {self.untranslated.removeprefix(name + ': ')}"
            ]
        result = f"{self.describe_result()} {out_layout}"
        where = f"when dataset[i] is asked for, because {others}" if others else ""
        where = where or (
            "in the threads of loaders that take path='array' (stats() says which), elsewhere "
            "where dataset[i] is asked for"
        )
        lines = [f"{name}: uint8 {shape} {layout} -> {result}, by C, {where}"]
        lines += [f"  {op!r}: {op.work}" for op in self.plan.ops]
        if self.plan.dtype is not torch.uint8 and not others:
            lines.append(
                f"  on a CUDA device, with workers: {self._explain_cut(self.plan.core.uncut)}"
            )
        return lines

    def _explain_cut(self, uncut: str) -> str:
        if uncut:
            return f"nothing, the result is uploaded, because {uncut}"
        return "the table of numbers; uint8 is uploaded"

    def __reduce__(self) -> tuple[type[FieldTransform], tuple[Any, ...]]:
        name, *rest = self._arguments
        transform = self._transform if self.plan is None else self.plan.ops
        return FieldTransform, (name, transform, *rest)
