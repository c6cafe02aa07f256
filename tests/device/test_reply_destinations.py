"""What a collate_fn of the user's returns, once it has landed on a device: here memory that every
batch is copied to whole, as an upload copies it. Copies themselves are tested in test_upload.py."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from collate_results import MAKES, RESULTS, UNMOVED, base
from compare import LOADERS, Raised, assert_identical, collating_loader, results
from samples import dtypes, tensor_of

from fastloop import DataLoader, _core
from fastloop.base.nested import list_leaves, map_leaves
from fastloop.device.reply_destinations import _Block
from fastloop.loader import process_iter
from fastloop.workers import worker_main
from fastloop.workers.batch_pickle import _BYTE, OBJECT, TensorTarget, pack, unpack


class Landings:
    """Stands in for the device."""

    def __init__(self) -> None:
        self.landed: list[bool] = []  # of each batch

    def unpack(self, parcel: _core.Reply) -> Any:
        self.landed.append(parcel.kind != OBJECT and parcel.upload > 0)
        if not self.landed[-1]:
            return unpack(parcel)
        parcel.open()
        memory = parcel.tensor((0, _BYTE, parcel.upload)).clone()
        return unpack(parcel, TensorTarget(_Block(memory).tensor, torch.clone, is_dense=True))


@pytest.fixture
def landings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Landings]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # for forks
    landings = Landings()
    monkeypatch.setattr(process_iter, "unpack", landings.unpack)
    monkeypatch.setattr(worker_main, "pack", lambda port, data, _: pack(port, data, True))
    yield landings
    torch.set_num_threads(before)


def moved(batch: Any) -> Any:
    """What moving each tensor by itself makes of a batch."""
    copies: dict[int, torch.Tensor] = {}

    def move(_: Any, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = torch.empty_like(leaf).copy_(leaf)
        return copies[id(leaf)]

    return map_leaves(batch, move)


def test_results_of_every_kind_land_as_to_moves_them(landings: Landings) -> None:
    given = [results(collating_loader(cls, lambda k: MAKES[k](), len(MAKES), 1)) for cls in LOADERS]
    for name, ours, theirs, lands in zip(RESULTS, *given, landings.landed, strict=True):
        if isinstance(ours, Raised):  # there are dtypes that torch has no copies of
            with pytest.raises(NotImplementedError):
                moved(theirs)
        elif not any(name.startswith(f"{dtype}") for dtype in UNMOVED):
            assert_identical(ours, moved(theirs) if lands else theirs, name)
    assert sum(landings.landed) > len(RESULTS) // 2


@pytest.mark.parametrize("dtype", sorted({*dtypes()} - {*UNMOVED}, key=str), ids=str)
def test_every_dtype(landings: Landings, dtype: torch.dtype) -> None:
    batch = [tensor_of(dtype, 3, 5), tensor_of(dtype, 2), tensor_of(dtype, 3, 4).t()]
    (ours,) = collating_loader(DataLoader, lambda _: batch, 1, 1)
    assert landings.landed == [True]
    assert_identical(ours, moved(batch))


def test_tensors_are_apart_but_one_is_one(landings: Landings) -> None:
    one = torch.ones(4)
    batch = {"a": base[:50], "b": base[40:], "c": base, "one": [one, one], "gaps": base[::2]}
    (ours,) = collating_loader(DataLoader, lambda _: batch, 1, 1)
    assert landings.landed == [True]
    assert ours["one"][0] is ours["one"][1]
    tensors = {id(leaf): leaf for _, leaf in list_leaves(ours)}.values()
    before = [tensor.clone() for tensor in tensors]
    for i, tensor in enumerate(tensors):
        versions = [other._version for other in tensors]
        tensor.fill_(-1)
        for j, other in enumerate(tensors):
            if j > i:
                assert torch.equal(other, before[j])
            if j != i:
                assert other._version == versions[j]
    assert ours["gaps"].is_contiguous()


@pytest.mark.parametrize(
    ("name", "lands"),
    {
        "torch.float32": True,
        "named tuple": True,
        "dataclass": True,
        "BatchEncoding": True,
        "channels last": True,
        "overlapping": True,
        "PyG": False,
        "__reduce__": False,
        "SimpleNamespace": False,
        "PackedSequence": False,
        "requires grad": False,
        "Parameter": False,
        "sparse": False,
    }.items(),
)
def test_what_hides_tensors_stays_on_the_host(landings: Landings, name: str, lands: bool) -> None:
    make = RESULTS[name]
    results(collating_loader(DataLoader, lambda _: make(), 1, 1))
    assert landings.landed == [lands]
