"""ScalarLog: reads losses and norms of a loop from the device without waiting.

The device copies each number into a pinned slot of 8 bytes after the queued work. An event follows
the copies of a step. One thread uses a log.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fastloop.base.checks import check_callable, check_type, read_int
from fastloop.base.shown import repr_of
from fastloop.device.accelerator import Accelerator, open_accelerator

Number = int | float
OnNonfinite = Callable[[int, str, float], object]
# A step's number, a function for each name that returns the value, and an event for each device.
_Record = tuple[int, dict[str, Callable[[], Number]], list[tuple[Accelerator, Any]]]

_SLOT_BYTES = 8  # the size of the widest real dtype
_SLOTS = 64  # slots that are allocated at a time


class ScalarLog:
    """Collects tensors of one element in a training loop, and returns their numbers later.

    ``loss.item()`` makes the host wait until the device has caught up. With a log the device copies
    the number into pinned memory after the queued work, and the log reads the number a step or two
    later. ``push``, ``poll`` and ``last`` never wait; ``drain`` waits (SYNC). A CPU tensor's number
    is read at once. For example:

        log = fastloop.ScalarLog(on_nonfinite=lambda step, name, value: print(step, name, value))
        for step, (x, y) in enumerate(bar := tqdm(loader)):
            loss = train_step(x, y)
            log.push(step, loss=loss)
            bar.set_postfix(log.last(), refresh=False)

    With TensorBoard:

            log.push(step, {"loss/train": loss, "lr": scheduler.get_last_lr()[0]})
            for at, values in log.poll():
                for name, value in values.items():
                    writer.add_scalar(name, value, at)
        for at, values in log.drain():
            ...

    One log belongs to one thread. The first push from a device allocates pinned memory and may
    therefore wait.

    Args:
        capacity: the number of arrived steps that the log keeps for poll() and drain(). If there
            are more, the log drops the oldest steps and counts them in ``dropped``. Numbers that
            have not arrived are never dropped.
        on_nonfinite: a function of step, name and value, called for each number that is inf or NaN
            by the method that receives the number. If the function raises, this method raises the
            error, and no number is lost.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names the argument.
    """

    def __init__(self, capacity: int = 4096, *, on_nonfinite: OnNonfinite | None = None) -> None:
        if on_nonfinite is not None:
            check_callable("on_nonfinite", on_nonfinite, "a function of step, name and value")
        self._capacity, self._on_nonfinite = read_int("capacity", capacity, 1), on_nonfinite
        self._travelling: deque[_Record] = deque()  # steps whose numbers have not arrived, in order
        self._arrived: deque[tuple[int, dict[str, Number]]] = deque()  # steps for poll()
        self._nonfinite: deque[tuple[int, str, float]] = deque()  # numbers for on_nonfinite
        self._last: dict[str, Number] = {}
        self._free: dict[torch.device, list[Tensor]] = {}  # pinned slots that hold no number
        self.dropped = 0

    def __repr__(self) -> str:
        numbers = (f"{name}={value:.4g}" for name, value in self._last.items())
        arrived, sent = len(self._arrived), len(self._travelling)
        return repr_of(self, f"{arrived:,} to poll", f"{sent:,} on their way", *numbers)

    def push(self, step: int, scalars: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Send the numbers of a step to the host. Never waits.

        Args:
            step: the number of the step, which poll() and drain() return with the values.
            scalars, named: numbers, or tensors of one element, of any real dtype, on any device.
                The log reads a tensor at this point of the tensor's stream, so you may overwrite
                the tensor afterwards.

        Raises:
            TypeError, ValueError: the step or a value has a wrong type or shape; the step is not
                logged.
            RuntimeError: a tensor is on a device that is capturing a graph.
        """
        number = read_int("step", step)
        values = {**(scalars or {}), **named}
        for name, value in values.items():
            _check_scalar(name, value)
        used: set[Accelerator] = set()
        sent = {name: self._send(value, used) for name, value in values.items()}
        events = [(accelerator, accelerator.record_event()) for accelerator in used]
        self._travelling.append((number, sent, events))
        self._receive()

    def poll(self) -> list[tuple[int, dict[str, Number]]]:
        """Return the steps that have arrived since the last call, in the order of the pushes. Never
        waits."""
        self._receive()
        fetched = list(self._arrived)
        self._arrived.clear()
        return fetched

    def last(self) -> dict[str, Number]:
        """Return each name's newest number that has arrived. Never waits."""
        self._receive()
        return dict(self._last)

    def drain(self) -> list[tuple[int, dict[str, Number]]]:
        """Wait for all numbers and return the steps like poll(). SYNC.

        Call drain() at the end of an epoch, before a checkpoint or in an exception's handler."""
        for accelerator, event in (pair for *_, events in self._travelling for pair in events):
            accelerator.synchronize(event)
        return self.poll()

    def _send(self, value: Any, used: set[Accelerator]) -> Callable[[], Number]:
        """Start the copy of a value. Return a function that reads the number after the copy."""
        accelerator = _accelerator_of(value) if isinstance(value, Tensor) else None
        if accelerator is None:
            number: Number = value.item() if isinstance(value, Tensor) else value
            return lambda: number
        used.add(accelerator)
        free = self._free.setdefault(value.device, [])
        if not free:
            free += accelerator.allocate_pinned(_SLOTS * _SLOT_BYTES).view(_SLOTS, _SLOT_BYTES)
        source, slot = value.detach(), free.pop()
        target = slot[: value.dtype.itemsize].view(value.dtype)[0]
        accelerator.copy(target, source.reshape(()))
        return partial(_take, target, slot, free, source)

    def _receive(self) -> None:
        """Receive all steps before the first step that has not arrived. Then report numbers that
        are not finite."""
        while self._travelling and all(one.is_done(event) for one, event in self._travelling[0][2]):
            step, sent, _ = self._travelling.popleft()
            values = {name: take() for name, take in sent.items()}
            self._last.update(values)
            wrong = [name for name, value in values.items() if not abs(value) < math.inf]
            self._nonfinite.extend((step, name, values[name]) for name in wrong)
            self._arrived.append((step, values))
        while len(self._arrived) > self._capacity:
            self._arrived.popleft()
            self.dropped += 1
        while self._nonfinite:
            report = self._nonfinite.popleft()  # is removed first, because the callback may raise
            if self._on_nonfinite is not None:
                self._on_nonfinite(*report)


def _take(target: Tensor, slot: Tensor, free: list[Tensor], source: Tensor) -> Number:
    """Return the number in a slot, and give the slot back. `source` kept the copied memory alive
    until now."""
    free.append(slot)
    return target.item()


def _accelerator_of(tensor: Tensor) -> Accelerator | None:
    """Return None for a tensor in host memory, which can be read at once."""
    return None if tensor.is_cpu else _open(tensor.device)


_open = cache(open_accelerator)


def _check_scalar(name: Any, value: Any) -> None:
    check_type("the name of a scalar", name, isinstance(name, str), "a str")
    if not isinstance(value, Tensor):
        check_type(name, value, isinstance(value, Real), "a 0-d tensor or a number")
    elif value.numel() != 1 or value.is_meta:
        rule = "a tensor of one element, not on meta"
        raise ValueError(f"{name} must be {rule}, got {tuple(value.shape)} on {value.device}")
    elif value.is_complex():
        raise TypeError(f"{name} must be real, got {value.dtype} (for example, pass {name}.abs())")
    elif value.is_cuda and torch.cuda.is_current_stream_capturing():
        text = f"{name} must be pushed outside of a graph's capture, got a capturing stream"
        raise RuntimeError(f"{text} (push after the replay)")
