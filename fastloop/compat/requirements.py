"""Requirements on the environment: a usable torch, checked when a name that needs it is used, and
variables that change what runs."""

from __future__ import annotations

import os
import re

# Releases of torch: fastloop refuses what is older; `make matrix` has run from here to there.
OLDEST = (2, 10)
NEWEST_TESTED = (2, 15)
INSTALL = "pip install 'torch>=2.10'"


def require_torch(user: str) -> None:
    """Raise ImportError, naming the command to run, unless torch >= 2.10 can be imported."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        text = f"{user} needs PyTorch, which is not installed; run: {INSTALL}"
        raise ImportError(text, name="torch") from error
    version = str(torch.__version__)
    if read_release(version) < OLDEST:
        text = f"{user} needs PyTorch 2.10 or newer, found {version}; run: {INSTALL}"
        raise ImportError(text, name="torch")


def read_release(version: str) -> tuple[int, int]:
    """Return (major, minor) of torch.__version__. A version without a number counts as tested."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else NEWEST_TESTED


def kernels_are_disabled() -> bool:
    """Tell whether FASTLOOP_DISABLE_CUDA is set: torch's operations then replace our kernels."""
    return os.environ.get("FASTLOOP_DISABLE_CUDA", "0") not in ("", "0")


def read_check_interval() -> int:
    """Return n of FASTLOOP_CHECK=n: every n-th sample is made both ways; 0: only the first ones.

    Raises:
        ValueError: it is not an int >= 0.
    """
    given = os.environ.get("FASTLOOP_CHECK") or "0"
    if not given.isdecimal():
        raise ValueError(f"FASTLOOP_CHECK must be an int >= 0, got {given!r}")
    return int(given)
