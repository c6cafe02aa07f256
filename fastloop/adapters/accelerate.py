"""accelerate (1.15 is tested) makes a loader of torch's class from the attributes that this class
has, which would lose fastloop's own arguments. Once accelerate is imported, the loaders that two of
its functions return become fastloop's, with the same arguments.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch.utils.data

from fastloop.base.checks import look_up, refuse_if
from fastloop.compat.late_import import after_import
from fastloop.loader.dataloader import DataLoader
from fastloop.loader.stats import unwrap

_MODULE = "accelerate.data_loader"
_MAKERS = ("prepare_data_loader", "skip_first_batches")


def keep_arguments() -> None:
    """Have accelerate's functions keep the arguments of fastloop's loaders, once it is imported."""
    after_import(_MODULE, _wrap_makers)


def _wrap_makers() -> None:
    for name in _MAKERS:
        before = vars(sys.modules[_MODULE]).get(name)
        if before is None or hasattr(before, "is_fastloops"):
            continue
        keeping: Any = _keeping(before)
        keeping.is_fastloops = True
        # Modules that have imported the function by name: accelerate's, transformers', the user's.
        for module in list(sys.modules.values()):
            if look_up(module, "__dict__", {}).get(name) is before:
                setattr(module, name, keeping)


def _keeping(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def call(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        given = unwrap(dataloader)
        arguments = given._own_arguments() if isinstance(given, DataLoader) else {}
        if arguments.get("static_buffers"):
            text = "static_buffers must be False with accelerate, whose loaders hold two batches"
            raise ValueError(f"{text}: both would lie in the same memory")
        made = make(dataloader, *args, **kwargs)
        if arguments:
            _give(unwrap(made), arguments)
        return made

    return call


def _give(loader: Any, arguments: dict[str, Any]) -> None:
    """Give a loader that accelerate has just made these arguments."""
    if type(loader) is torch.utils.data.DataLoader:
        loader.__class__ = DataLoader
    if isinstance(loader, DataLoader):
        vars(loader).update(arguments)
        return
    text = (
        f"accelerate makes a {type(loader).__qualname__} of this fastloop.DataLoader, which loses "
        f"{', '.join(arguments)}; leave out use_stateful_dataloader"
    )
    refuse_if("device_transform" in arguments, text)  # batches would be wrong
    warnings.warn(text, RuntimeWarning, stacklevel=3)
