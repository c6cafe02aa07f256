"""Both ways in which a pass over gradients runs, for the tests of what is built on fastloop._grads:
the engine's, and torch's functions."""

import pytest

import fastloop._clip
import fastloop._scaler
from fastloop._grads import GradList


class Forced(GradList):
    """A list that torch's functions work on, whatever is in it."""

    is_plain = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


NAMES = ("engine", "torch")


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pass run that way, until the test ends."""
    if name == "torch":
        monkeypatch.setattr(fastloop._clip, "GradList", Forced)
        monkeypatch.setattr(fastloop._clip, "_idle", [])
        monkeypatch.setattr(fastloop._scaler, "GradList", Forced)
