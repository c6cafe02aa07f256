"""Both ways in which a pass over gradients runs, for the tests of what is built on
fastloop.step.grad_list: the engine's, and torch's functions."""

from typing import Any

import pytest

import fastloop.step.grad_list
from fastloop.step.grad_list import GradList


class ByTorch(GradList):
    """A list that torch's functions work on, whatever is in it."""

    is_plain = property(lambda self: False)  # type: ignore[assignment]

    def unscale_and_clip(self, *args: Any) -> bool:
        return False

    def clip_parameters(self, pool: Any, parameters: Any, *args: Any) -> None:
        self.collect_parameters(parameters)


NAMES = ("engine", "torch")


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pass run that way, until the test ends."""
    if name == "torch":
        monkeypatch.setattr(fastloop.step.grad_list, "GradList", ByTorch)
        monkeypatch.setattr(fastloop.step.grad_list, "_idle", [])
