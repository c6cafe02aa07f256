"""Names for the parts of a step, on the timelines of tools: torch's profiler, and Nsight
Systems (NVTX) if Nsight has started the program.

A call site writes ``named("check", function)(arguments)``. Without a tool that asks one attribute
and calls the function itself: no frame and no context manager stands between. Code that every
batch passes through reads ``tools._is_profiler_enabled`` itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import profiler

from fastloop.compat.torch_parts import is_known

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Nsight sets this variable in the programs that Nsight starts.
_nvtx = torch.cuda.nvtx if os.environ.get("NVTX_INJECTION64_PATH") and torch.version.cuda else None
_threads = threading.local()  # the names of the ranges that each has open
_has_profiler = is_known("profiler", "The profiler's timeline is left")
_profiler: Any = profiler if _has_profiler else SimpleNamespace(_is_profiler_enabled=False)
# Nsight is attached from the beginning to the end; torch's profiler says when it runs.
tools: Any = _profiler if _nvtx is None else SimpleNamespace(_is_profiler_enabled=True)


def named(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function, or one whose call is a range "fastloop::<name>" if a tool is attached.

    A range inside a range of the same name does not count."""
    return partial(_call, name, function) if tools._is_profiler_enabled else function


def _call(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    names = vars(_threads).setdefault("names", [])
    if name in names:
        return function(*args, **kwargs)
    with ExitStack() as stack:
        names.append(name)
        stack.callback(names.pop)
        if _profiler._is_profiler_enabled:
            stack.enter_context(profiler.record_function(f"fastloop::{name}"))
        if _nvtx is not None:
            _nvtx.range_push(f"fastloop::{name}")
            stack.callback(_nvtx.range_pop)
        return function(*args, **kwargs)
