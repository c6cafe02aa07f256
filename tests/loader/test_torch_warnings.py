"""Warnings that torch gives keep torch's module, which users' filters name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import small_dataset
from torch.utils.data import DataLoader as TorchLoader

import fastloop
from fastloop import DataLoader

_MODULE = r"torch\.utils\.data"


@pytest.fixture(params=["torch", "class", "patch"])
def loader_class(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "patch":
        with fastloop.patched("dataloader"):
            yield TorchLoader
    else:
        yield DataLoader if request.param == "class" else TorchLoader


@pytest.mark.parametrize(
    "arguments", [{"pin_memory": True}, {"num_workers": 500}], ids=["pinning", "workers"]
)
def test_a_filter_by_module_meets_warnings_of_iter(loader_class: Any, arguments: Any) -> None:
    loader = loader_class(small_dataset(), 5, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module=_MODULE)
        with pytest.raises(UserWarning, match=r"no accelerator is found|500 worker processes"):
            iter(loader)


@pytest.mark.parametrize(
    "arguments",
    [{"pin_memory": True}, {"pin_memory": True, "num_workers": 1}, {"num_workers": 70}],
    ids=["pinning", "pinning of workers", "workers"],
)
def test_warnings_name_the_places_that_torch_names(arguments: Any) -> None:
    def read_places(loader_class: Any) -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = loader_class(small_dataset(), 5, **arguments)
            for _ in range(2):
                list(loader)
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    wanted = read_places(TorchLoader)
    assert wanted and wanted == read_places(DataLoader)
    with fastloop.patched("dataloader"):
        assert wanted == read_places(TorchLoader)
