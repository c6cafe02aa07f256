"""Functions and classes of tests that other processes cannot import by name, sent by value, so that
tests written for forked workers run with others, too."""

from __future__ import annotations

import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle


def _noticing(override: Any) -> Any:
    def reducer_override(self: Any, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)):
            # What is found by its name is left to the pickler.
            return cloudpickle.Pickler.reducer_override(_Values(self), obj)
        return override(self, obj) if override is not None else NotImplemented

    return reducer_override


class _Values:
    """What cloudpickle's method asks of its pickler, for one of another class."""

    def __init__(self, pickler: Any) -> None:
        self.globals_ref = vars(pickler).setdefault("globals_ref", {})

    def __getattr__(self, name: str) -> Any:
        return types.MethodType(getattr(cloudpickle.Pickler, name), self)


def send_by_value() -> None:
    from fastloop.loader.workers.lifecycle import _DatasetPickler

    for kind, reduce in cloudpickle.Pickler._dispatch_table.items():  # code, cells, modules, ...
        ForkingPickler.register(kind, reduce)
    for pickler in (ForkingPickler, _DatasetPickler):
        override = vars(pickler).get("reducer_override")
        pickler.reducer_override = _noticing(override)  # type: ignore[attr-defined]
