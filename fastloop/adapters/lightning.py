"""Lightning, where it loads the state of a loader: 2.6.6 is tested.

Lightning makes the calls of a `for` loop: load_state_dict(), iter(), next(). In two places it
means something else by them. Only the progress that it loads beside the state tells; no argument
and no hook brings that here, so the stack is searched for the loop that loads.

- The last batch. A `for` loop whose body saved the state has yet to meet the end of that epoch:
  if next() gave a batch, an epoch would be trained twice. Lightning counts batches and never asks
  for the end. If it saved in a hook of that batch, it counts the epoch as trained and takes the
  first iterator for the next one: if that gave no batch, an epoch would be lost. If it saved
  after those hooks (in or after the validation that follows), it does not use the first iterator.
- A batch that was fetched and not trained: an exception, or a hook before the step. Lightning
  trains it again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

from fastloop.loader.resume.epoch import LoaderState

_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def as_counted(state: LoaderState) -> LoaderState:
    """Return the state as Lightning counts it, if Lightning is loading it on this thread."""
    progress = _find_progress()
    if progress is None or state.yielded == 0:
        return state
    try:
        total, is_last = progress.total, progress.is_last_batch
        untrained = total.ready - total.processed
        is_in_hook = total.completed < total.processed
    except AttributeError:  # a loop of another version: iter() warns of an end
        return state
    if untrained > 0:
        return replace(state, yielded=max(state.yielded - untrained, 0))
    if not is_last:
        return state
    return state.next_epoch() if is_in_hook else replace(state, is_spent=True)


def check_count(batches: int) -> None:
    """Raise ValueError if Lightning is loading on this thread, and would not end the epoch where
    the loader does.

    Args:
        batches: of the whole epoch that the loader will not give any more.
    """
    trained = getattr(getattr(_find_progress(), "current", None), "processed", batches)
    if trained != batches:
        raise ValueError(
            f"Lightning counts {trained} batches of the epoch as trained, and with this number of "
            f"ranks and batch_size the rest begins at batch {batches}, so that Lightning would "
            "train too few or too many; resume with the ranks and the batch_size of the "
            "checkpoint, or from a checkpoint of the end of an epoch"
        )


def _find_progress() -> Any:
    """Return what Lightning counts its batches in, if it is loading on this thread; else None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name == "_load_combined_loader_states"
        and frame.f_globals.get("__name__") in _FIT_LOOPS
    ):
        frame = frame.f_back
    loop = None if frame is None else getattr(frame.f_locals.get("self"), "epoch_loop", None)
    return getattr(loop, "batch_progress", None)
