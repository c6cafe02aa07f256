"""The arguments that torch's class does not have, and how they follow a loader into accelerate.

``accelerator.prepare()`` reads the arguments of torch's class from a loader's attributes and makes
a loader of torch's class from them. One of them is ``pin_memory_device``, a string that is nearly
always empty and that torch only prints. accelerate is given one that remembers ours: it goes into
the new loader, and on into each that accelerate makes from that one. Where ``fastloop.patch()`` is
on, the iterators of such a loader are made with them. Where it is not they are lost, and a warning
says so.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

_ACCELERATE = "accelerate.data_loader"
_PREPARES, _IS_STATEFUL = "prepare_data_loader", "use_stateful_dataloader"


def _is_unserved(loader: DataLoader[Any]) -> bool:
    return False


#: Whether a loader of torch's class over the dataset of this one would get our iterators now; the
#: seam of loaders sets it.
is_served_as_torchs: Callable[[DataLoader[Any]], bool] = _is_unserved


@dataclass(frozen=True)
class Extras:
    """As the arguments of ``fastloop.DataLoader``."""

    device: torch.device | str | int | None = None
    path: str = "auto"
    device_transform: Callable[[Any], Any] | None = None
    static_buffers: bool = False
    memory_budget: int | None = None
    snapshot_every_n_steps: int = 1
    resume: str | None = None
    on_worker_death: str = "raise"

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Extras:
        """Of a loader of ours: its attributes, now."""
        return cls(**{f.name: getattr(loader, f.name) for f in fields(cls)})

    def names_given(self) -> list[str]:
        """Of those that are not the default."""
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]


_NONE = Extras()
# A loader of torch's class has no state_dict() that they could be about.
_OF_STATES = {"snapshot_every_n_steps", "resume"}
# Without them the loop would be given other batches than those it was written for.
_OF_BATCHES = {"device_transform", "static_buffers"}

# What loaders have been given that are still there, by its address: as strings they are equal.
_given: weakref.WeakValueDictionary[int, PinMemoryDevice] = weakref.WeakValueDictionary()


class PinMemoryDevice(str):
    """A ``pin_memory_device`` that remembers the extras of the loader it was read from."""

    extras: Extras

    def __new__(cls, value: str, extras: Extras) -> PinMemoryDevice:
        self = super().__new__(cls, value)
        self.extras = extras
        _given[id(self)] = self
        return self

    def __reduce__(self) -> Any:
        return PinMemoryDevice, (str(self), self.extras)


def extras_of_torchs(loader: DataLoader[Any]) -> Extras:
    """Those of the loader of ours that one of torch's class was made from."""
    device = loader.pin_memory_device
    return device.extras if isinstance(device, PinMemoryDevice) else _NONE


def say_lost_without_seam() -> str:
    """What loaders lose that accelerate has made, are still there and get torch's iterators from
    now on; "" if their batches stay as they are."""
    names = {name for device in list(_given.values()) for name in device.extras.names_given()}
    lost = sorted(names & (_OF_BATCHES | {"device"}))
    if not lost:
        return ""
    return (
        "fastloop.unpatch() leaves loaders that accelerate has made from a fastloop.DataLoader; "
        f"from their next iter() on they lose {', '.join(lost)}"
    )


def value_for_reader(loader: DataLoader[Any], value: str) -> str:
    """The ``pin_memory_device`` of a loader of ours for whoever reads its attribute.

    Warns:
        RuntimeWarning: accelerate reads it, and some extras do not get into the loader that it is
            about to make.

    Raises:
        ValueError: nor do some without which its batches would be wrong.
    """
    frame: FrameType | None = sys._getframe(2)
    if frame is None or frame.f_globals.get("__name__") != _ACCELERATE:
        return value
    extras = Extras.of(loader)
    names = extras.names_given()
    if not names:
        return value
    if extras.static_buffers:
        raise ValueError(
            "static_buffers=True does not go with accelerate: its loaders take the next batch "
            "before they hand one out, which would lie in the same memory; leave it out, or do not "
            "pass this loader to prepare()"
        )
    depth, is_stateful = _look_up(frame)
    is_kept = is_served_as_torchs(loader) and not is_stateful
    lost = [name for name in names if not is_kept or name in _OF_STATES]
    if lost:
        text = _say_lost(lost, is_stateful)
        if _OF_BATCHES.intersection(lost):
            raise ValueError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=depth + 3)
    return PinMemoryDevice(value, extras)


def _look_up(frame: FrameType | None) -> tuple[int, bool]:
    """How many frames are accelerate's, and whether it makes a StatefulDataLoader."""
    depth, is_stateful = 0, False
    while frame is not None and frame.f_globals.get("__name__", "").startswith("accelerate."):
        if frame.f_code.co_name == _PREPARES:
            is_stateful |= bool(frame.f_locals.get(_IS_STATEFUL))
        frame = frame.f_back
        depth += 1
    return depth, is_stateful


def _say_lost(lost: list[str], is_stateful: bool) -> str:
    text = (
        "accelerate makes a loader of torch's class from this fastloop.DataLoader, and does not "
        f"take over {', '.join(lost)}"
    )
    if _OF_STATES.issuperset(lost):
        return f"{text}: they belong to state_dict(), which the loader it makes does not have"
    if is_stateful:
        return f"{text}; leave out use_stateful_dataloader, whose loader makes its own iterators"
    return f"{text}; call fastloop.patch() before prepare() to keep what batches need"
