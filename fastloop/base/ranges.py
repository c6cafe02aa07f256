"""Names for the parts of a step, on the timelines of tools: torch's profiler while it runs, and
Nsight Systems (NVTX) where that has started the program.

A call site writes ``named("check", function)(arguments)``. Without a tool that asks one attribute
and calls the function itself: no frame and no context manager stands between. What every batch
passes through asks ``tools._is_profiler_enabled`` on the spot.
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

from fastloop.base.torch_parts import is_known

_DOMAIN = "fastloop"
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _load_nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """Return the functions that begin and end a range; None without Nsight. Only the nvtx package
    has domains; torch's ranges carry the domain in their names."""
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


_nvtx = _load_nvtx()
_threads = threading.local()  # the names of the ranges that each has open
_has_profiler = is_known("profiler", "The profiler's timeline is left")
_profiler: Any = profiler if _has_profiler else SimpleNamespace(_is_profiler_enabled=False)
# Nsight is attached from the beginning to the end; torch's profiler says when it runs.
tools: Any = _profiler if _nvtx is None else SimpleNamespace(_is_profiler_enabled=True)


def named(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function, or one whose call is a range "fastloop::<name>" if a tool is attached.

    A range inside another of the same name is a part of that."""
    return partial(_call, name, function) if tools._is_profiler_enabled else function


def _call(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    names = vars(_threads).setdefault("names", [])
    if name in names:
        return function(*args, **kwargs)
    with ExitStack() as stack:
        names.append(name)
        stack.callback(names.pop)
        if _profiler._is_profiler_enabled:
            stack.enter_context(profiler.record_function(f"{_DOMAIN}::{name}"))
        if _nvtx is not None:
            push, pop = _nvtx
            push(name)
            stack.callback(pop)
        return function(*args, **kwargs)
