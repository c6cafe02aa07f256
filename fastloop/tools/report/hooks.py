"""The hooks of open reports: functions of torch and fastloop that tell the observers of the thread
what a loop does.

Hooks replace `iter()` of loaders, `next()` of iterators, and the methods of scalers and clipping.
Optimizers have torch's own hooks. If no report is open, nothing is replaced. Any thread may call a
hook, but an observer records the events of one thread only and merely counts all other calls.

A StepHook logs what a single observer expects, and calls the Python hook for everything else.
"""

from __future__ import annotations

import os
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

from fastloop._core import StepHook
from fastloop.base.threads import lock_over_forks
from fastloop.compat import seams
from fastloop.compat.seams import Function, Patch, find_subclasses
from fastloop.compat.torch_parts import BaseIter, clip_module
from fastloop.device.upload import Prefetcher
from fastloop.loader.dataloader import DataLoader as FastDataLoader
from fastloop.step.boundary import Boundary
from fastloop.step.grad_list import GradList
from fastloop.step.scaler import BoundedScaler
from fastloop.tools.report.observer import LoopObserver

# The functions that are watched, and the event of each. Subclasses may override a function.
_WATCHED: tuple[tuple[Any, str, str], ...] = (
    (DataLoader, "__iter__", "iter"),
    (FastDataLoader, "__iter__", "iter"),
    (BaseIter, "__next__", "next"),
    (Prefetcher, "__next__", "next"),
    (torch.amp.GradScaler, "step", "scaler_step"),
    (Boundary, "step", "scaler_step"),
    (torch.amp.GradScaler, "unscale_", "update"),
    (BoundedScaler, "unscale_and_clip_", "update"),
    (GradList, "clip_parameters", "update"),
    (clip_module, "_get_total_norm", "update"),
    (clip_module, "_clip_grads_with_norm_", "update"),
)
_lock = lock_over_forks()
_observers: tuple[LoopObserver, ...] = ()  # a new tuple is set under the lock
_patches: dict[tuple[Any, str], Patch] = {}
_handles: list[Any] = []  # handles of torch's hooks


def _list_observers() -> tuple[LoopObserver, ...]:
    """Return the observers of this thread. The remaining observers count the call."""
    ident, observers = get_ident(), _observers
    if seams.checking_thread == ident:
        return ()
    if len(observers) == 1 and observers[0].thread == ident:  # nearly always
        return observers
    for observer in observers:
        observer.elsewhere += observer.thread != ident
    return tuple(observer for observer in observers if observer.thread == ident)


def _make_hook(event: str, before: Function) -> Function:
    """Return a function that calls each observer's `enter_EVENT`, then `before`, then each
    observer's `leave_EVENT`."""
    enter, leave = f"enter_{event}", f"leave_{event}"

    def hook(*args: Any, **kwargs: Any) -> Any:
        observers, token = _list_observers(), object()
        for observer in observers:
            getattr(observer, enter)(token, args, kwargs)
        result = error = None
        try:
            result = before(*args, **kwargs)
            return result
        except BaseException as raised:
            error = type(raised)  # the exception itself would keep this frame alive
            raise
        finally:
            for observer in observers:
                getattr(observer, leave)(token, result, error)

    if event != "next":
        return hook
    _step_hooks.append(StepHook(event, hook, before))
    return _step_hooks[-1]


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    observers = _list_observers()
    for observer in observers:
        observer.enter_step(optimizer)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not observers or not callable(closure):
        return None
    if len(args) > 1:
        return (args[0], _make_hook("closure", closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": _make_hook("closure", closure)}


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for observer in _list_observers():
        observer.leave_step(optimizer)


_STEP_HOOKS = StepHook("enter_step", _before_step), StepHook("leave_step", _after_step)
# All hooks that log without Python. A tool may have kept one that is no longer a Patch's.
_step_hooks: list[StepHook] = [*_STEP_HOOKS]


def _serve() -> None:
    """Let the hooks log without Python if there is a single observer."""
    log = _observers[0] if len(_observers) == 1 else None
    for hook in _step_hooks:
        hook.serve(log)


def open_hooks(observer: LoopObserver) -> None:
    """Tell this observer about the events of the observer's thread from now on."""
    global _observers
    with _lock:
        for root, name, event in _WATCHED:
            others = find_subclasses(root) if name in ("__next__", "step", "unscale_") else ()
            for owner in (one for one in (root, *others) if name in vars(one)):
                patch = Patch(owner, name, partial(_make_hook, event))
                _patches.setdefault((owner, name), patch).put_in()
        if not _handles:
            _handles.append(optimizers.register_optimizer_step_pre_hook(_STEP_HOOKS[0]))
            _handles.append(optimizers.register_optimizer_step_post_hook(_STEP_HOOKS[1]))
        _observers = (*_observers, observer)
        _serve()


def close_hooks(*observers: LoopObserver) -> None:
    """Tell these observers about no further events. Without observers torch gets its functions
    back."""
    global _observers
    with _lock:
        _observers = tuple(one for one in _observers if one not in observers)
        _serve()
        if not _observers:
            for key in [key for key, patch in _patches.items() if patch.take_out()]:
                del _patches[key]
            while _handles:
                _handles.pop().remove()
            ours = [patch.ours for patch in _patches.values()]  # others will not log again
            _step_hooks[2:] = [hook for hook in _step_hooks[2:] if hook in ours]


# Nobody reads the reports of a forked child.
os.register_at_fork(after_in_child=lambda: close_hooks(*_observers))
