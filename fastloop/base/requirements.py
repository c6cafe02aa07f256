"""What the environment has and allows: whether a usable torch is installed, which is checked when a
name that needs it is used, and whether FASTLOOP_DISABLE_CUDA leaves CUDA to torch."""

from __future__ import annotations

import os
import re

OLDEST = (2, 10)
INSTALL = "pip install 'torch>=2.10'"


def require_torch(user: str) -> None:
    """Raise ImportError, naming the command to run, unless torch >= 2.10 can be imported."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"{user} needs PyTorch, which is not installed; run: {INSTALL}", name="torch"
        ) from error
    version = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        raise ImportError(
            f"{user} needs PyTorch 2.10 or newer, found {version}; run: {INSTALL}", name="torch"
        )


def kernels_are_disabled() -> bool:
    """Whether FASTLOOP_DISABLE_CUDA is set: torch's operations run in place of our kernels."""
    return os.environ.get("FASTLOOP_DISABLE_CUDA", "0") not in ("", "0")
