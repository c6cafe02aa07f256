"""The hooks by which open reports watch a loop: replaced methods of torch's classes and fastloop's.

Replaced are `iter()` of loaders, `next()` of their iterators, and the methods of scalers and
clipping; optimizers have torch's own hooks. Without an open report nothing is replaced. Any thread
may come through here: a report hears of its own thread alone, and counts the calls of others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import BaseIter, clip_module
from fastloop.device.prefetch import Prefetcher
from fastloop.loader.dataloader import DataLoader as FastDataLoader
from fastloop.patching import seams
from fastloop.patching.seams import Function, Place, find_subclasses
from fastloop.step.boundary import Boundary
from fastloop.step.grad_list import GradList
from fastloop.step.scaler import BoundedScaler
from fastloop.tools.report.observer import LoopObserver

_lock = threading.Lock()
_observers: dict[int, tuple[LoopObserver, ...]] = {}  # by thread; replaced under the lock
_places: dict[tuple[Any, str], Place] = {}
_handles: list[Any] = []  # of torch's hooks


def _list_observers() -> tuple[LoopObserver, ...]:
    """Return the observers that hear of this thread."""
    observers, ident = _observers, get_ident()
    if seams.checking_thread == ident:
        return ()
    own = observers.get(ident, ())
    if len(observers) > bool(own):
        for others in observers.values():
            for observer in others:
                observer.elsewhere += observer.thread != ident
    return own


def _wrap(enter: str, leave: str) -> Callable[[Function], Function]:
    """Return a maker of hooks: functions that call these methods of each observer before and after
    the function that they replace."""

    def make(before: Function) -> Function:
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

        return hook

    return make


_of_closure = _wrap("enter_closure", "leave_closure")


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    observers = _list_observers()
    for observer in observers:
        observer.enter_step(optimizer)
    if observers and len(args) > 1 and callable(args[1]):
        return (args[0], _of_closure(args[1]), *args[2:]), kwargs
    if observers and callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _of_closure(kwargs["closure"])}
    return None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for observer in _list_observers():
        observer.leave_update(optimizer, None, None)


def _list_places() -> Iterator[tuple[Any, str, Callable[[Function], Function]]]:
    of_iter, of_next = _wrap("enter_iter", "leave_iter"), _wrap("enter_next", "leave_next")
    of_step = _wrap("enter_scaler_step", "leave_scaler_step")
    of_update = _wrap("enter_update", "leave_update")
    for root, name, make in (
        (BaseIter, "__next__", of_next),
        (Prefetcher, "__next__", of_next),
        (torch.amp.GradScaler, "step", of_step),
        (torch.amp.GradScaler, "unscale_", of_update),
    ):
        for kind in (root, *find_subclasses(root)):
            if name in vars(kind):
                yield kind, name, make
    for owner, name, make in (
        (DataLoader, "__iter__", of_iter),
        (FastDataLoader, "__iter__", of_iter),
        (Boundary, "step", of_step),
        (BoundedScaler, "unscale_and_clip_", of_update),
        (GradList, "clip_parameters", of_update),
        (clip_module, "_get_total_norm", of_update),
        (clip_module, "_clip_grads_with_norm_", of_update),
    ):
        if name in vars(owner):
            yield owner, name, make


def open_hooks(observer: LoopObserver) -> None:
    """Tell this observer of all that its thread does from now on."""
    global _observers
    with _lock:
        for owner, name, make in _list_places():
            _places.setdefault((owner, name), Place(owner, name, make)).put_in()
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_before_step))
            _handles.append(register_optimizer_step_post_hook(_after_step))
        own = _observers.get(observer.thread, ())
        _observers = {**_observers, observer.thread: (*own, observer)}


def close_hooks(observer: LoopObserver) -> None:
    """Tell this observer of nothing more; the last one puts back what was replaced."""
    global _observers
    with _lock:
        own = tuple(one for one in _observers.get(observer.thread, ()) if one is not observer)
        others = {thread: kept for thread, kept in _observers.items() if thread != observer.thread}
        _observers = {**others, observer.thread: own} if own else others
        if not _observers:
            _take_out()


def _take_out() -> None:
    for key in [key for key, place in _places.items() if place.take_out()]:
        del _places[key]
    while _handles:
        _handles.pop().remove()


def _forget() -> None:
    """Close everything in a forked child, which nobody reads."""
    global _observers, _lock
    _lock = threading.Lock()
    _observers = {}
    _take_out()


os.register_at_fork(after_in_child=_forget)
