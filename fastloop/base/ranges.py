"""Names for what fastloop does in a step, on the timelines of tools: of torch's profiler while that
runs, of Nsight Systems (NVTX) where that has started the program.

What every batch and step passes through asks `tools._is_profiler_enabled`, one attribute, and does
no more for it where no tool is attached.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import profiler

from fastloop.base.torch_parts import is_known

_DOMAIN = "fastloop"
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Attached:
    """In the place of torch's profiler where another tool is attached from the beginning."""

    _is_profiler_enabled = True


class _Detached:
    """In the place of torch's profiler where nobody knows whether it runs."""

    _is_profiler_enabled = False


def _find_nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """What begins and ends a range; None where nobody would read it. Only the package has domains
    of its own."""
    if not os.environ.get("NVTX_INJECTION64_PATH"):  # as Nsight sets it
        return None
    try:
        import nvtx  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        push: Callable[[str], Any] = torch.cuda.nvtx.range_push
        try:
            torch.cuda.nvtx.mark(_DOMAIN)  # type: ignore[no-untyped-call]
        except RuntimeError:  # torch is built without
            return None
        return lambda name: push(f"{_DOMAIN}::{name}"), torch.cuda.nvtx.range_pop
    return partial(nvtx.push_range, domain=_DOMAIN), partial(nvtx.pop_range, domain=_DOMAIN)


class _Open(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_nvtx = _find_nvtx()
_open = _Open()
_profiler: Any = profiler if is_known("profiler", "The profiler's timeline is left") else _Detached
tools: Any = _profiler if _nvtx is None else _Attached


def named(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, of which each call is a range "fastloop::<name>" for the tools that are
    attached; one inside another of the same name is a part of that."""
    return partial(_call, name, function)


def _call(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if name in _open.names:
        return function(*args, **kwargs)
    with ExitStack() as stack:
        _open.names.append(name)
        stack.callback(_open.names.pop)
        if _profiler._is_profiler_enabled:
            stack.enter_context(profiler.record_function(f"{_DOMAIN}::{name}"))
        if _nvtx is not None:
            push, pop = _nvtx
            push(name)
            stack.callback(pop)
        return function(*args, **kwargs)
