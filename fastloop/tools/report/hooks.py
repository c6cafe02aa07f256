"""Where a loop is watched: methods of torch's classes and ours, while a report is open.

Replaced are `iter()` of loaders, `next()` of their iterators, and what scalers and clipping do;
optimizers have hooks of torch's own for it. Nothing is replaced where no report is open. Any
thread may come through here: a report is told of its own thread alone, and counts the others.
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
from fastloop.step.scaler import GradScaler
from fastloop.tools.report.observer import LoopObserver

_lock = threading.Lock()
_observers: tuple[LoopObserver, ...] = ()  # of open reports; replaced under the lock
_places: dict[tuple[Any, str], Place] = {}
_handles: list[Any] = []  # of torch's hooks


def _find() -> tuple[LoopObserver, ...]:
    """The observers that are told of what this thread does."""
    observers = _observers
    ident = get_ident()
    if seams.checking_thread == ident:
        return ()
    for observer in observers:
        if observer.thread != ident:
            break
    else:
        return observers
    for observer in observers:
        observer.elsewhere += observer.thread != ident
    return tuple(observer for observer in observers if observer.thread == ident)


def _make_iter(before: Function) -> Function:
    def __iter__(self: Any) -> Any:  # noqa: N807
        observers = [observer for observer in _find() if observer.enter_iter()]
        if not observers:
            return before(self)
        iterator = None
        try:
            iterator = before(self)
        finally:
            for observer in observers:
                observer.leave_iter(self, iterator)
        return iterator

    return __iter__


def _make_next(before: Function) -> Function:
    def __next__(self: Any) -> Any:  # noqa: N807
        observers = _find()
        if not observers:
            return before(self)
        for observer in observers:
            observer.enter_next(self)
        try:
            batch = before(self)
        except BaseException as error:
            for observer in observers:
                observer.leave_next(error)
            raise
        for observer in observers:
            observer.leave_next(None)
        return batch

    return __next__


def _make_update(before: Function) -> Function:
    def update(*args: Any, **kwargs: Any) -> Any:
        observers = _find()
        if not observers:
            return before(*args, **kwargs)
        token = object()
        for observer in observers:
            observer.enter_update(id(token))
        try:
            return before(*args, **kwargs)
        finally:
            for observer in observers:
                observer.leave_update(id(token))

    return update


def _make_step(before: Function, find_optimizer: Callable[..., Any]) -> Function:
    """Of what calls an optimizer's step, or skips it."""
    update = _make_update(before)

    def step(*args: Any, **kwargs: Any) -> Any:
        observers = _find()
        decided = [observer.steps_decided for observer in observers]
        result = update(*args, **kwargs)
        for observer, count in zip(observers, decided, strict=True):
            if observer.steps_decided == count:
                observer.note_skip(find_optimizer(*args, **kwargs))
        return result

    return step


def _make_scaler_step(before: Function) -> Function:
    return _make_step(before, lambda scaler, optimizer, *args, **kwargs: optimizer)


def _make_boundary_step(before: Function) -> Function:
    return _make_step(before, lambda boundary, *args, **kwargs: boundary._optimizer)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    observers = _find()
    for observer in observers:
        observer.enter_step(optimizer)
    if observers and len(args) > 1 and callable(args[1]):
        return (args[0], _time_closure(args[1], observers), *args[2:]), kwargs
    if observers and callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _time_closure(kwargs["closure"], observers)}
    return None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for observer in _find():
        observer.leave_update(id(optimizer))


def _time_closure(closure: Function, observers: tuple[LoopObserver, ...]) -> Function:
    def timed() -> Any:
        for observer in observers:
            observer.enter_closure()
        try:
            return closure()
        finally:
            for observer in observers:
                observer.leave_closure()

    return timed


def _find_places() -> Iterator[tuple[Any, str, Callable[[Function], Function]]]:
    for loader in (DataLoader, FastDataLoader):
        yield loader, "__iter__", _make_iter
    for root in (BaseIter, Prefetcher):
        for kind in (root, *find_subclasses(root)):
            if "__next__" in vars(kind):
                yield kind, "__next__", _make_next
    for kind in (torch.amp.GradScaler, *find_subclasses(torch.amp.GradScaler)):
        if "step" in vars(kind):
            yield kind, "step", _make_scaler_step
        if "unscale_" in vars(kind):
            yield kind, "unscale_", _make_update
    yield Boundary, "step", _make_boundary_step
    yield GradScaler, "unscale_and_clip_", _make_update
    yield GradList, "clip_parameters", _make_update
    for name in ("_get_total_norm", "_clip_grads_with_norm_"):
        if name in vars(clip_module):
            yield clip_module, name, _make_update


def open_hooks(observer: LoopObserver) -> None:
    """From now on it is told."""
    global _observers
    with _lock:
        for owner, name, make in _find_places():
            place = _places.setdefault((owner, name), Place(owner, name, make))
            place.put_in()
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_before_step))
            _handles.append(register_optimizer_step_post_hook(_after_step))
        _observers = (*_observers, observer)


def close_hooks(observer: LoopObserver) -> None:
    """From now on it is not; the last one takes out what was replaced."""
    global _observers
    with _lock:
        _observers = tuple(other for other in _observers if other is not observer)
        if not _observers:
            _take_out()


def _take_out() -> None:
    for key in [key for key, place in _places.items() if place.take_out()]:
        del _places[key]
    while _handles:
        _handles.pop().remove()


def _forget() -> None:
    """In a forked child, where nobody would read it."""
    global _observers, _lock
    _lock = threading.Lock()
    _observers = ()
    _take_out()


os.register_at_fork(after_in_child=_forget)
