"""What Lightning expects of a loader whose state it loads.

Lightning makes the calls of a `for` loop: load_state_dict(), iter(), next(). In two places it means
something else by them. The calls do not tell; the progress does that Lightning loads beside the
state. No argument brings that here, so the stack is searched for the loop that holds it.

- The last batch. A `for` loop whose body saved the state has yet to meet the end of that epoch: if
  next() gave a batch, an epoch would be trained twice. Lightning counts batches and never asks for
  the end. If it saved in a hook of that batch, it counts the epoch as trained and takes the first
  iterator for the next one: if that gave no batch, an epoch would be lost. If it saved after those
  hooks (in or after the validation that follows), it does not use the first iterator.
- A batch that was fetched and not trained: an exception, or a hook before the step. Lightning
  trains it again.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import FrameType
from typing import Any

_MODULES = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_LOADS = "_load_combined_loader_states"


class Rest(Enum):
    """What the next iter() gives."""

    AS_COUNTED = 0  # what the state has not counted
    NOTHING = 1
    NEXT_EPOCH = 2


def _find_fit_loop() -> Any:
    """The one that is loading states of loaders on this thread, or None."""
    if not any(name in sys.modules for name in _MODULES):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _LOADS and frame.f_globals.get("__name__") in _MODULES:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def rest_for_caller() -> tuple[Rest, int]:
    """What the next iter() gives, and how many of the yielded batches were not trained."""
    try:
        progress = _find_fit_loop().epoch_loop.batch_progress
        total, is_last = progress.total, progress.is_last_batch
        untrained = total.ready - total.processed
        is_in_hook = total.completed < total.processed
    except AttributeError:  # no such loop, or one of another version: iter() warns of an end
        return Rest.AS_COUNTED, 0
    if untrained > 0:
        return Rest.AS_COUNTED, untrained
    if not is_last:
        return Rest.AS_COUNTED, 0
    return (Rest.NEXT_EPOCH if is_in_hook else Rest.NOTHING), 0
