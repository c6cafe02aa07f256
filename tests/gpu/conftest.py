"""Tests that need a CUDA device, run by `make gpu`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

import fastloop
from fastloop import _core
from fastloop.device.accelerator import open_accelerator
from fastloop.loader.route import fast_iterator
from fastloop.step import grad_list

DEVICE = "cuda"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def assert_ours_runs() -> None:
    """Kernels run the passes and C uploads batches; otherwise the tests here would test torch."""
    info = fastloop.build_info()
    assert info["cuda"], f"built without CUDA: {info['cuda_reason']}"
    _core.check_cuda(0)
    grads = grad_list.GradList().collect([torch.full((3,), 2.0, device=DEVICE)])
    assert grads.is_plain, "torch runs the passes over gradients"
    assert grads.norm_check(grad_list.new_flag(grads.device)).item() == 12**0.5
    data = fastloop.ArrayDataset(torch.arange(8))
    for path in ("array", "process"):
        with fastloop.DataLoader(data, 4, num_workers=1, path=path, device=DEVICE) as loader:
            iterator = fast_iterator(loader, path, loader._shared, open_accelerator(DEVICE))
            assert iterator.is_on_device, f"torch uploads: {loader.stats().why}"
            del iterator
            assert [first[0].item() for (first,) in loader] == [0, 4]


@pytest.fixture(scope="session", autouse=True)
def ours_runs() -> None:
    assert_ours_runs()


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
