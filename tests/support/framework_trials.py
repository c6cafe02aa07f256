"""One program run three ways: with torch's loaders, with fastloop behind them, and with fastloop's
class in their place. It must not be able to tell."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from compare import assert_identical
from helpers import TorchLoader, bits

import fastloop
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.shared import PlainIter, SyncIter
from fastloop.loader.workers.processes import ProcessIter

Program = Callable[[Any], Any]
FASTLOOPS = ArrayIter, ProcessIter, SyncIter


def _run(program: Program, loader_class: Any) -> Any:
    """What it returns, and the random states it leaves behind."""
    torch.manual_seed(11)
    random.seed(12)
    np.random.seed(13)
    found = program(loader_class)
    numpys = np.random.get_state(legacy=False)["state"]["key"].tobytes()
    return found, bits(torch.get_rng_state()), random.getstate(), numpys


def _noting(make: Any, kinds: list[type]) -> Any:
    """A function that makes iterators, and notes of what kind they are."""

    def note(loader: Any) -> Any:
        iterator = make(loader)
        kinds.append(type(iterator))
        return iterator

    return note


def _run_patched(program: Program) -> tuple[Any, list[type]]:
    """Also the kinds of the iterators that it gets."""
    kinds: list[type] = []
    with fastloop.patched(), ExitStack() as noting:
        make = _noting(TorchLoader._get_iterator, kinds)
        noting.enter_context(mock.patch.object(TorchLoader, "_get_iterator", make))
        fastais: Any = sys.modules.get("fastai.data.load")
        if fastais is not None:
            pair = tuple(_noting(make, kinds) for make in fastais._loaders)
            noting.enter_context(mock.patch.object(fastais, "_loaders", pair))
        found = _run(program, TorchLoader)
        for name, seam in fastloop.patch_status().seams.items():
            is_left = bool(seam.fallbacks) and name not in ("transforms", "texts")
            assert seam.is_on and not is_left, f"{name}: {seam}"
        assert fastloop.patch_status().seams["dataloader"].native == len(kinds)
    return found, kinds


def assert_same_patched(program: Program, *kinds: type) -> Any:
    """With torch alone, and with torch patched. Returns what there was to compare.

    Args:
        program: is given the class of the loader, and returns what is to be compared.
        kinds: that each of its iterators must be one of; any of fastloop's by default.
    """
    wanted = _run(program, TorchLoader)
    found, made = _run_patched(program)
    assert_identical(found, wanted)
    wished = kinds or FASTLOOPS
    wished += (PlainIter,) * (SyncIter in wished)  # the program's own collate
    assert made and all(issubclass(kind, wished) for kind in made), made
    return wanted


def assert_same_everywhere(program: Program, *kinds: type) -> None:
    """And with fastloop's class by its import."""
    wanted = assert_same_patched(program, *kinds)
    assert_identical(_run(program, fastloop.DataLoader), wanted)


def two_epochs(loader: Iterable[Any]) -> list[Any]:
    """All batches, the errors that come in place of some, and torch's random state after each."""
    found: list[Any] = []
    for _ in range(2):
        batches = iter(loader)
        found.append(bits(torch.get_rng_state()))
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                break
            except Exception as error:
                found.append((type(error), str(error).splitlines()[0]))
            found.append(bits(torch.get_rng_state()))
    return found


def train(model: torch.nn.Module, loader: Iterable[Any], epochs: int = 2) -> list[Any]:
    """The losses of plain training on pairs, and the parameters in the end."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses: list[Any] = []
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [losses, [p.detach() for p in model.parameters()]]
