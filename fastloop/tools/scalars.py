"""ScalarLog: losses and norms of a loop, read from the device without waiting.

Each number is copied into a pinned slot of 8 bytes after the queued work; one event follows the
copies of a step. One thread uses a log.
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
# A step, a function that gives each of its numbers, and an event after the copies of each device.
_Record = tuple[int, dict[str, Callable[[], Number]], list[tuple[Accelerator, Any]]]

_SLOT_BYTES = 8  # of the widest real dtype
_SLOTS = 64  # pinned at a time


class ScalarLog:
    """Collects 0-d tensors of a training loop and returns them as numbers once they have arrived.

    ``loss.item()`` makes the host wait until the device has caught up. A log copies the number into
    pinned memory after the queued work, and finds the number there a step or two later. ``push``,
    ``poll`` and ``last`` never wait; ``drain`` does (SYNC). Numbers of CPU tensors come at once.

        log = fastloop.ScalarLog(on_nonfinite=lambda step, name, value: print(step, name, value))
        for step, (x, y) in enumerate(bar := tqdm(loader)):
            loss = train_step(x, y)
            log.push(step, loss=loss)
            bar.set_postfix(log.last(), refresh=False)

    and with TensorBoard:

            log.push(step, {"loss/train": loss, "lr": scheduler.get_last_lr()[0]})
            for at, values in log.poll():
                for name, value in values.items():
                    writer.add_scalar(name, value, at)
        for at, values in log.drain():
            ...

    One log belongs to one thread. Pinned memory is allocated at the first push from a device, which
    may make that one push wait.

    Args:
        capacity: arrived steps that are kept for poll() and drain(); beyond that the oldest are
            dropped and counted in ``dropped``. Numbers on their way are never dropped.
        on_nonfinite: called with step, name and value for each number that is inf or NaN, in the
            method that finds the number arrived. An error of the function leaves that method; no
            number is lost.

    Raises:
        TypeError, ValueError: an argument is not one of the above.
    """

    def __init__(self, capacity: int = 4096, *, on_nonfinite: OnNonfinite | None = None) -> None:
        if on_nonfinite is not None:
            check_callable("on_nonfinite", on_nonfinite, "a function of step, name and value")
        self._capacity, self._on_nonfinite = read_int("capacity", capacity, 1), on_nonfinite
        self._travelling: deque[_Record] = deque()  # in order of pushing
        self._arrived: deque[tuple[int, dict[str, Number]]] = deque()  # not fetched yet
        self._nonfinite: deque[tuple[int, str, float]] = deque()  # not reported yet
        self._last: dict[str, Number] = {}
        self._free: dict[torch.device, list[Tensor]] = {}  # pinned slots of numbers that were read
        self.dropped = 0

    def __repr__(self) -> str:
        numbers = (f"{name}={value:.4g}" for name, value in self._last.items())
        arrived, sent = len(self._arrived), len(self._travelling)
        return repr_of(self, f"{arrived:,} to poll", f"{sent:,} on their way", *numbers)

    def push(self, step: int, scalars: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Send the numbers of a step to the host. Never waits.

        Args:
            step: its number, which comes back with the values.
            scalars, named: tensors of one element, of any real dtype and on any device, or
                numbers. A tensor counts with its value at this point of its stream, and may be
                overwritten afterwards.

        Raises:
            TypeError, ValueError: a step or value is something else; the step is not logged.
            RuntimeError: a tensor is on a device whose graph is being captured.
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
        """Return the steps that have arrived since the last call, in order of pushing, each once.
        Never waits."""
        self._receive()
        fetched = list(self._arrived)
        self._arrived.clear()
        return fetched

    def last(self) -> dict[str, Number]:
        """Return the newest number that has arrived for each name. Never waits."""
        self._receive()
        return dict(self._last)

    def drain(self) -> list[tuple[int, dict[str, Number]]]:
        """Wait for all numbers on their way and return what poll() would return: for the end of an
        epoch, before a checkpoint, in an exception's handler. SYNC."""
        for accelerator, event in (pair for *_, events in self._travelling for pair in events):
            accelerator.synchronize(event)
        return self.poll()

    def _send(self, value: Any, used: set[Accelerator]) -> Callable[[], Number]:
        """Return a function that gives the number once the number has arrived."""
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
        """Take in steps up to the first that has not arrived; then report numbers that are not
        finite."""
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
            report = self._nonfinite.popleft()  # removed first: the callback may raise
            if self._on_nonfinite is not None:
                self._on_nonfinite(*report)


def _take(target: Tensor, slot: Tensor, free: list[Tensor], source: Tensor) -> Number:
    """Return the number that was copied from `source`, whose memory had to stay, into a slot, and
    give the slot back."""
    free.append(slot)
    return target.item()


def _accelerator_of(tensor: Tensor) -> Accelerator | None:
    """Return None for a tensor whose number can be read at once."""
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
        raise TypeError(f"{name} must be real, got {value.dtype} (pass {name}.abs(), say)")
    elif value.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name} must be pushed outside of a graph's capture: after the replay")
