"""Calls of the step that a user passes to find_batch_size or tune, which take different ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def check_step(name: str, step: object, takes: str) -> Callable[..., object]:
    """Raises TypeError where ``step``, the argument ``name``, cannot be called."""
    if not callable(step):
        raise TypeError(f"{name} must be a function of {takes}, got {type(step).__name__}")
    return step


@contextmanager
def explaining(call: str) -> Iterator[None]:
    """Around the first call of a step: an error that a wrong argument gives says what the step is
    called with. ``call`` begins with what was called."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        kind = TypeError if isinstance(error, TypeError) else AttributeError
        raise kind(
            f"{call}; it raised {type(error).__name__}: {error}. find_batch_size() calls its step "
            "with a number of samples, tune() with a batch of the loader"
        ) from error
