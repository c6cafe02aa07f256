"""Both ways in which a pass over gradients runs, for the tests of what is built on fastloop._grads:
the engine's, and torch's functions. Where the engine is not there, GradList's own functions are put
in its place."""

from collections.abc import Callable

import pytest
import torch

import fastloop._clip
import fastloop._scaler
from fastloop._grads import GradList

HAS_ENGINE = GradList().collect([torch.ones(1)]).is_plain


def is_plain(tensors: list[torch.Tensor]) -> bool:
    """What the engine covers, as _grads says it."""
    return all(
        type(t) is torch.Tensor
        and t.layout is torch.strided
        and t.is_floating_point()
        and t.device.type == "cpu"
        for t in tensors
    ) and len({t.data_ptr() for t in tensors}) == len(tensors)


def grad_list(decide: Callable[[list[torch.Tensor]], bool]) -> type[GradList]:
    """GradList with another mind about what is plain."""

    class Forced(GradList):
        @property
        def is_plain(self) -> bool:
            return decide(self.tensors)

        @is_plain.setter
        def is_plain(self, value: bool) -> None:
            pass

    return Forced


NAMES = ("engine", "torch")


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pass run that way, until the test ends."""
    if name == "engine" and HAS_ENGINE:
        return
    forced = grad_list(is_plain if name == "engine" else lambda tensors: False)
    monkeypatch.setattr(fastloop._clip, "GradList", forced)
    monkeypatch.setattr(fastloop._scaler, "GradList", forced)
