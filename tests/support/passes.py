"""Both ways in which a pass over gradients runs, for the tests of what is built on
fastloop.step.grad_list: the engine's, and torch's functions."""

import pytest

import fastloop.step.clip
import fastloop.step.scaler
from fastloop.step.grad_list import GradList


class Forced(GradList):
    """A list that torch's functions work on, whatever is in it."""

    is_plain = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


NAMES = ("engine", "torch")


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pass run that way, until the test ends."""
    if name == "torch":
        monkeypatch.setattr(fastloop.step.clip, "GradList", Forced)
        monkeypatch.setattr(fastloop.step.clip, "_idle", [])
        monkeypatch.setattr(fastloop.step.scaler, "GradList", Forced)
