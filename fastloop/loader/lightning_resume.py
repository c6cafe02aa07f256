"""What Lightning expects of a loader whose state it loads.

Its calls are those of a `for` loop: load_state_dict(), iter(), next(). They mean something else in
two places, and no call tells which it is; only the progress does that Lightning loads beside the
state, and which no argument brings here. So the stack is searched for the loop that holds it.

- The last batch. A `for` loop whose body saved the state has yet to meet the end of that epoch: a
  next() that gave a batch would train an epoch twice. Lightning counts batches and asks for no end.
  If it saved in a hook of that batch, it counts the epoch as trained and takes the first iterator
  for the next one: without a batch, an epoch would be lost. If it saved after those hooks (in or
  after the validation that follows), it has no use for the first iterator.
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
    """And how many of the batches that were yielded were not trained."""
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
