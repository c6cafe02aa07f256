"""accelerate makes a loader of torch's class from the attributes of torch's class, which loses
fastloop's own arguments. While ``patch()`` is on for loaders, the loaders that two functions of
accelerate return become fastloop's, with the same arguments.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch.utils.data

from fastloop.base.checks import refuse_if
from fastloop.loader.dataloader import DataLoader
from fastloop.loader.stats import unwrap

MODULE = "accelerate.data_loader"
MAKERS = ("prepare_data_loader", "skip_first_batches")


def make_maker(seam: Any, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maker of accelerate whose loaders keep fastloop's arguments while a seam is on."""

    @functools.wraps(make)
    def call(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        given = unwrap(dataloader)
        is_ours = seam.is_on and isinstance(given, DataLoader)
        arguments = given._own_arguments() if is_ours else {}
        if arguments.get("static_buffers"):
            fault = "accelerate's loaders hold two batches, and both would lie in the same memory"
            raise ValueError(f"static_buffers must be False with accelerate, got True ({fault})")
        made = make(dataloader, *args, **kwargs)
        if arguments:
            _copy_arguments(unwrap(made), arguments)
        return made

    return call


def _copy_arguments(loader: Any, arguments: dict[str, Any]) -> None:
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
