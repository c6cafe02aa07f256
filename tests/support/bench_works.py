"""Contestants of a benchmark, which processes of their own import."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any


class Work:
    """Does what its variant says."""

    def __init__(self, who: str, variant: str, is_short: bool) -> None:
        if variant == "raises when made":
            raise ValueError("no such data")
        self._who = who
        self._variant = variant

    def check(self) -> tuple[str, list[float]]:
        if self._variant == "dies":
            os._exit(3)
        if self._variant == "start method":
            return multiprocessing.get_start_method(), []
        if self._variant == "other bytes":
            return self._who, [1.0]
        return "", [
            1.0 + (self._who == "torch") * {"far": 1e-3, "close": 1e-7}.get(self._variant, 0)
        ]

    def run(self) -> int:
        if self._variant == "raises":
            raise RuntimeError("out of rows")
        return 5

    def pids(self) -> list[Any]:
        return []
