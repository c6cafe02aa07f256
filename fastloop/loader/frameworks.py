"""Loaders that frameworks wrap or rebuild.

accelerate makes a loader of torch's class from the attributes that torch's class has, and would so
lose fastloop's own arguments. ``keep_arguments`` wraps the two functions of accelerate that do it,
``prepare_data_loader`` and ``skip_first_batches``: the loader that they return becomes a
``fastloop.DataLoader`` with the same arguments.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from torch.utils import data as torch_data

from fastloop.base.late_import import after_import

# The attributes in which frameworks keep a loader that they have wrapped: accelerate, its wrapper
# for XLA, Fabric.
_WRAPPED = ("base_dataloader", "dataloader", "_dataloader")
_ACCELERATE = "accelerate.data_loader"
_MAKERS = ("prepare_data_loader", "skip_first_batches")


def unwrap(loader: Any) -> Any:
    """Return the loader of torch's class, or of a subclass, inside the wrappers of frameworks; the
    innermost object where there is none."""
    # By type(), not isinstance(): accelerate's wrappers fake `__class__`.
    while not issubclass(type(loader), torch_data.DataLoader):
        inside = (getattr(loader, "__dict__", {}).get(name) for name in _WRAPPED)
        found = next((value for value in inside if value is not None), None)
        if found is None:
            break
        loader = found
    return loader


def keep_arguments(cls: type[Any]) -> None:
    """Let accelerate, once it is imported, keep the arguments of loaders of `cls`."""
    after_import(_ACCELERATE, functools.partial(_wrap_makers, cls))


def _wrap_makers(cls: type[Any]) -> None:
    for name in _MAKERS:
        before = vars(sys.modules[_ACCELERATE]).get(name)
        if before is None or hasattr(before, "is_fastloops"):
            continue
        keeping: Any = _keeping(before, cls)
        keeping.is_fastloops = True
        # Modules that have imported the function by name: accelerate's, transformers', the user's.
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is before:
                setattr(module, name, keeping)


def _keeping(make: Callable[..., Any], cls: type[Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def call(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        given = unwrap(dataloader)
        arguments = given._own_arguments() if isinstance(given, cls) else {}
        if arguments.get("static_buffers"):
            raise ValueError(
                "static_buffers must be False with accelerate, whose loaders take the next batch "
                "before they hand one out: both would lie in the same memory"
            )
        made = make(dataloader, *args, **kwargs)
        if arguments:
            _give(unwrap(made), arguments, cls)
        return made

    return call


def _give(loader: Any, arguments: dict[str, Any], cls: type[Any]) -> None:
    """Make `loader`, which accelerate has just made, one of `cls` with these arguments."""
    if type(loader) is torch_data.DataLoader:
        loader.__class__ = cls
    if isinstance(loader, cls):
        vars(loader).update(arguments)
        return
    text = (
        f"accelerate makes a {type(loader).__qualname__} of this fastloop.DataLoader, which loses "
        f"{', '.join(arguments)}; leave out use_stateful_dataloader"
    )
    if "device_transform" in arguments:  # batches would be wrong
        raise ValueError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
