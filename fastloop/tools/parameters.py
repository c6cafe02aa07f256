"""How many parameters a model has."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy


@dataclass(frozen=True)
class ParameterCount:
    """What ``count_parameters`` found. ``str()`` gives one line.

    Attributes:
        total: elements of all parameters, tied ones once.
        trainable: those of parameters with ``requires_grad``.
        bytes: what all of them take in their dtypes.
        tied: names of parameters that are another one, and were not counted again.
        uninitialized: names of lazy parameters, which have no shape yet and were not counted.
    """

    total: int
    trainable: int
    bytes: int
    tied: tuple[str, ...] = ()
    uninitialized: tuple[str, ...] = ()

    @property
    def frozen(self) -> int:
        return self.total - self.trainable

    def __str__(self) -> str:
        text = (
            f"{self.total:,} parameters ({self.trainable:,} trainable, {self.frozen:,} frozen), "
            f"{self.bytes / 2**20:,.1f} MiB"
        )
        if self.tied:
            text += f"; tied, counted once: {', '.join(self.tied)}"
        if self.uninitialized:
            text += f"; not counted, run a batch first: {', '.join(self.uninitialized)}"
        return text


def count_parameters(model: torch.nn.Module) -> ParameterCount:
    """The parameters of a model, tied ones once, trainable ones apart.

    Parameters are tied if they are one object, or look at the same elements of one storage; they
    are trainable if any of them is. Buffers are not parameters. Under FSDP the elements of all
    ranks are counted. Nothing is copied, and no device is waited for.

    Raises:
        TypeError: model is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}; pass the torch.nn.Module whose parameters are to "
            "be counted"
        )
    found: dict[Hashable, torch.nn.Parameter] = {}
    trainable: set[Hashable] = set()
    tied = []
    named: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    uninitialized = [name for name, parameter in named.items() if is_lazy(parameter)]
    for name, parameter in named.items():
        if name in uninitialized:
            continue
        key = _identity(parameter)
        if key in found:
            tied.append(name)
        found.setdefault(key, parameter)
        if parameter.requires_grad:
            trainable.add(key)
    return ParameterCount(
        total=sum(p.numel() for p in found.values()),
        trainable=sum(found[key].numel() for key in trainable),
        bytes=sum(p.numel() * p.element_size() for p in found.values()),
        tied=tuple(tied),
        uninitialized=tuple(uninitialized),
    )


def _identity(parameter: torch.nn.Parameter) -> Hashable:
    """Equal for parameters that are the same elements of memory, where there is any."""
    is_plain = type(parameter) is torch.nn.Parameter and parameter.layout is torch.strided
    if not is_plain or parameter.numel() == 0 or parameter.data_ptr() == 0:
        return id(parameter)
    return parameter.data_ptr(), parameter.dtype, parameter.shape, parameter.stride()
