"""Tests that need a CUDA device, run by `make gpu`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@contextmanager
def _waits_are(mode: str) -> Iterator[None]:
    """In this block torch raises ("error") or warns ("warn") where it waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def waits_are() -> Callable[[str], AbstractContextManager[None]]:
    return _waits_are


@pytest.fixture
def no_sync() -> Iterator[None]:
    with _waits_are("error"):
        yield
