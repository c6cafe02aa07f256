"""The leaves of nested batches. Containers are those that torch's pin_memory looks into, and
dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

from fastloop.base.checks import look_up

Path = tuple[Any, ...]


def _refill(value: Any, items: Any) -> Any:
    """Return a container like `value` with these items; the bare items if it cannot be made."""
    try:
        if not isinstance(value, (MutableMapping, MutableSequence)):
            return type(value)(items)
        clone = copy.copy(value)  # because the type may have further attributes
        if isinstance(clone, MutableMapping):
            clone.update(items)
        else:
            for i, item in enumerate(items):
                clone[i] = item
    except TypeError:
        return items
    return clone


def map_leaves(value: Any, leaf: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return the same containers, with ``leaf(path, x)`` in place of each x that is not one.

    Args:
        value: any batch.
        leaf: takes the keys, indices and field names that lead to x, and x.
        path: to ``value`` itself.
    """
    kind = type(value)
    if kind is dict:
        return {key: map_leaves(item, leaf, (*path, key)) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind([map_leaves(item, leaf, (*path, i)) for i, item in enumerate(value)])
    # An object with a pin_memory() is moved by its own methods, as in torch's loader.
    if isinstance(value, (torch.Tensor, str, bytes)) or look_up(value, "pin_memory") is not None:
        return leaf(path, value)
    if isinstance(value, Mapping):
        fields = {key: map_leaves(item, leaf, (*path, key)) for key, item in value.items()}
        return _refill(value, fields)
    if isinstance(value, Sequence):
        items = [map_leaves(item, leaf, (*path, i)) for i, item in enumerate(value)]
        return kind(*items) if look_up(value, "_fields") is not None else _refill(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        clone = copy.copy(value)
        for field in dataclasses.fields(value):
            item = map_leaves(getattr(value, field.name), leaf, (*path, field.name))
            object.__setattr__(clone, field.name, item)  # it may be frozen
        return clone
    return leaf(path, value)


def list_leaves(value: Any) -> list[tuple[Path, Any]]:
    """List all leaves with their paths."""
    found: list[tuple[Path, Any]] = []
    map_leaves(value, lambda path, leaf: found.append((path, leaf)))
    return found


def describe_path(path: Path) -> str:
    return "batch" + "".join(f"[{key!r}]" for key in path)
