"""Helpers of `find_batch_size()` and `tune()`. Both functions run the step of a loop many times,
restore the random generators afterwards, and explain the error if the step takes a different
argument."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch


def keep_state(generator: Any) -> Callable[[], object]:
    """Return a function that restores the present state of a generator, or of a module's generator
    (for example, `random`)."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if hasattr(generator, "getstate"):  # Python's
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())


def keep_random_state() -> Callable[[], None]:
    """Return a function that restores the generators of Python, NumPy and torch devices. SYNC."""
    undo = ExitStack()
    for generator in (random, np.random, torch.default_generator):
        undo.callback(keep_state(generator))
    module: Any = torch.get_device_module()
    if hasattr(module, "get_rng_state_all"):
        undo.callback(module.set_rng_state_all, module.get_rng_state_all())
    return undo.close


@contextmanager
def explaining_step(call: str) -> Iterator[None]:
    """If the first call of a step raises an error that a wrong argument would cause, add to the
    message how the step is called.

    Args:
        call: a description of the call, which begins the message.
    """
    try:
        yield
    except (TypeError, AttributeError) as error:
        kind = TypeError if isinstance(error, TypeError) else AttributeError
        text = f"{call}; it raised {type(error).__name__}: {error}; find_batch_size() calls its "
        text += "step with a number of samples, tune() with a batch of the loader"
        raise kind(text) from error
