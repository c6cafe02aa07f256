"""Lightning loads the state of a loader; this module knows what Lightning means by it.

Lightning makes the calls of a `for` loop: load_state_dict(), iter(), next(). Two
cases mean something else. Only the progress that is loaded beside the state tells them apart; no
argument and no hook brings the progress here, so the stack is searched for the loop that loads.

- The last batch. A `for` loop whose body saved the state has yet to meet the end of that epoch:
  if next() gave a batch, an epoch would be trained twice. Lightning counts batches and never asks
  for the end. If the state was saved in a hook of that batch, Lightning counts the epoch as trained
  and takes the first iterator for the next epoch: if that iterator gave no batch, an epoch would be
  lost. If the state was saved after these hooks (in or after the validation that follows),
  Lightning does not use the first iterator.
- A batch that was fetched and not trained: an exception, or a hook before the step. Lightning
  trains the batch again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from fastloop.loader.resume.epoch import LoaderState

_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def as_counted(state: LoaderState) -> LoaderState:
    """Return the state as Lightning counts batches, if Lightning is loading on this thread."""
    progress = _find_progress()
    if progress is None or state.yielded == 0:
        return state
    try:
        total, is_last = progress.total, progress.is_last_batch
        untrained = total.ready - total.processed
        is_in_hook = total.completed < total.processed
    except AttributeError:  # a loop of an unknown version: iter() warns of an end
        return state
    if untrained > 0:
        return state.but(yielded=max(state.yielded - untrained, 0))
    if not is_last:
        return state
    return state.next_epoch() if is_in_hook else state.but(is_spent=True)


def check_count(count: Callable[[], int | None]) -> None:
    """Raise ValueError if Lightning is loading on this thread, and would end the epoch earlier
    or later than the loader.

    Args:
        count: counts the batches of the whole epoch that the loader will not give any more.
    """
    trained = getattr(getattr(_find_progress(), "current", None), "processed", None)
    batches = trained if trained is None else count()
    if batches not in (None, trained):
        raise ValueError(
            f"Lightning counts {trained} batches of the epoch as trained, and with this number of "
            f"ranks and batch_size the rest begins at batch {batches}, so that Lightning would "
            "train too few or too many; resume with the ranks and the batch_size of the "
            "checkpoint, or from a checkpoint of the end of an epoch"
        )


def _find_progress() -> Any:
    """Return Lightning's counts of batches, if Lightning is loading on this thread; else None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name == "_load_combined_loader_states"
        and frame.f_globals.get("__name__") in _FIT_LOOPS
    ):
        frame = frame.f_back
    loop = None if frame is None else getattr(frame.f_locals.get("self"), "epoch_loop", None)
    return getattr(loop, "batch_progress", None)
