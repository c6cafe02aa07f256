"""Transforms of torchvision's v2 as operations of ours.

torchvision is never imported: whoever has an object of it has imported it. A class must be
torchvision's own, because a subclass may do anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.plan import ImageOp

_V2 = "torchvision.transforms.v2"
_NOTHING = ("Identity", "ToImage", "ToPureTensor")  # change no bit of a tensor

# The attributes of each that are the arguments of ours, in order.
_ARGUMENTS = {
    "Pad": "padding fill padding_mode",
    "CenterCrop": "size",
    "RandomCrop": "size padding pad_if_needed fill padding_mode",
    "Resize": "size interpolation max_size antialias",
    "RandomResizedCrop": "size scale ratio interpolation antialias",
    "RandomHorizontalFlip": "p",
    "RandomVerticalFlip": "p",
    "RandomErasing": "p scale ratio value inplace",
    "ToDtype": "dtype scale",
    "Normalize": "mean std inplace",
}


class UntranslatedError(Exception):
    """C cannot do what this transform does. The text says why."""


# Of torchvision's names, with what to write instead.
_INSTEAD = {
    "ToTensor": "ToImage(), ToDtype(torch.float32, scale=True)",
    "PILToTensor": "ToImage()",
    "ConvertImageDtype": "ToDtype(dtype, scale=True)",
    "functional": "that of torchvision.transforms.v2, or an operation called with a tensor",
    "Lambda": "a Dataset around the ArrayDataset, or a collate_fn, with your function",
}


def remedy_for(name: str) -> str:
    """What to do where C cannot do the operation of this name."""
    if name in _INSTEAD:
        return f"use {_INSTEAD[name]}"
    return (
        "apply it to the batch, on the device, or pass torchvision's own v2.Compose as transform= "
        "to ArrayDataset and path='process' to DataLoader (path='sync' without workers)"
    )


def is_torchvision(transform: object) -> bool:
    return type(transform).__module__.partition(".")[0] == "torchvision"


def _name_of(transform: Any) -> str:
    """Of a transform in errors; of a function, its own."""
    return str(getattr(transform, "__name__", type(transform).__name__))


def _is_v2(transform: object) -> bool:
    """Whether its class is one that torchvision.transforms.v2 has under that name."""
    return getattr(sys.modules.get(_V2), type(transform).__name__, None) is type(transform)


def _arguments(transform: Any, name: str) -> list[Any]:
    arguments = [getattr(transform, attribute) for attribute in _ARGUMENTS[name].split()]
    if name == "RandomCrop" and transform.padding is not None:
        left, right, top, bottom = transform.padding
        arguments[1] = [left, top, right, bottom]
    if name == "RandomErasing" and transform.value is None:
        arguments[3] = "random"
    return arguments


def translate(transform: Any) -> Iterator[ImageOp]:
    """The operations that a transform is: our own, or torchvision's. Raises UntranslatedError."""
    name = type(transform).__name__
    if image_ops.is_own(transform):
        yield transform
    elif not _is_v2(transform):
        reason = "is not of fastloop.transforms or torchvision.transforms.v2"
        if is_torchvision(transform):
            own = name if hasattr(image_ops, name) else _INSTEAD.get(name)
            reason = "is of torchvision.transforms, not of torchvision.transforms.v2" + (
                f"; write {own} of v2's" if own else ""
            )
        raise UntranslatedError(f"{_name_of(transform)} {reason}")
    elif name == "Compose":
        for part in transform.transforms:
            yield from translate(part)
    elif name in _ARGUMENTS:
        make: Callable[..., ImageOp] = getattr(image_ops, name)
        try:
            yield make(*_arguments(transform, name))
        except (TypeError, ValueError) as error:
            raise UntranslatedError(str(error)) from error
    elif name not in _NOTHING:
        instead = f"; write {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise UntranslatedError(
            f"{name} is not among the operations of fastloop.transforms{instead}"
        )
