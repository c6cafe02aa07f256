"""What a collate_fn of the user's returns, once it is on a device: here host memory that every
batch is copied to whole, as to a device. Copies themselves are tested in test_uploads.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from collate_results import MAKES, RESULTS, UNMOVED, base
from compare import LOADERS, Raised, assert_identical, collating_loader, results
from image_folders import write_folder
from samples import dtypes, tensor_of
from torch.utils.data import DataLoader as TorchLoader

from fastloop import DataLoader, ImageFolder, _core
from fastloop import transforms as T
from fastloop.base.nested import list_leaves, map_leaves
from fastloop.device.accelerator import HostAccelerator
from fastloop.device.destinations import Destination, DeviceMemory
from fastloop.loader.shared import Shared
from fastloop.loader.workers import processes as process_iter
from fastloop.loader.workers.batch_pickle import unpack


class HostMemory(DeviceMemory):
    """Stands in for the device."""

    def __init__(self) -> None:
        super().__init__(HostAccelerator(torch.device("cpu")))
        self.has_moved: list[bool] = []  # each batch

    def unpack(self, reply: _core.Reply, destination: Destination | None = None) -> Any:
        self.has_moved.append(destination is not None)
        return unpack(reply, destination)

    def send(self, batch: Any) -> Any:
        return batch


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> HostMemory:
    memory = HostMemory()
    monkeypatch.setattr(
        Shared, "open_destination", lambda shared, *_, is_shared: (shared.memory(is_shared), memory)
    )
    monkeypatch.setattr(process_iter, "unpack", memory.unpack)
    return memory


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


def test_results_of_every_kind_move_as_by_to(memory: HostMemory) -> None:
    given = [results(collating_loader(cls, lambda k: MAKES[k](), len(MAKES), 1)) for cls in LOADERS]
    for name, ours, theirs, has_moved in zip(RESULTS, *given, memory.has_moved, strict=True):
        if isinstance(ours, Raised):  # there are dtypes that torch has no copies of
            with pytest.raises(NotImplementedError):
                moved(theirs)
        elif not any(name.startswith(f"{dtype}") for dtype in UNMOVED):
            assert_identical(ours, moved(theirs) if has_moved else theirs, name)
    assert sum(memory.has_moved) > len(RESULTS) // 2


@pytest.mark.parametrize("dtype", sorted({*dtypes()} - {*UNMOVED}, key=str), ids=str)
def test_every_dtype(memory: HostMemory, dtype: torch.dtype) -> None:
    batch = [tensor_of(dtype, 3, 5), tensor_of(dtype, 2), tensor_of(dtype, 3, 4).t()]
    (ours,) = collating_loader(DataLoader, lambda _: batch, 1, 1)
    assert memory.has_moved == [True]
    assert_identical(ours, moved(batch))


def test_tensors_are_apart_but_one_is_one(memory: HostMemory) -> None:
    one = torch.ones(4)
    batch = {"a": base[:50], "b": base[40:], "c": base, "one": [one, one], "gaps": base[::2]}
    (ours,) = collating_loader(DataLoader, lambda _: batch, 1, 1)
    assert memory.has_moved == [True]
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
    ("name", "has_moved"),
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
def test_what_hides_tensors_stays_on_the_host(
    memory: HostMemory, name: str, has_moved: bool
) -> None:
    make = RESULTS[name]
    results(collating_loader(DataLoader, lambda _: make(), 1, 1))
    assert memory.has_moved == [has_moved]


def test_batches_that_all_workers_make_are_sent_whole(
    memory: HostMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(memory, "send", lambda batch: sent.append(batch) or batch)
    recipe = T.Compose([T.RandomResizedCrop(16), T.ToDtype(torch.float32)])
    dataset = ImageFolder(write_folder(tmp_path), recipe)
    with DataLoader(dataset, 3, num_workers=2, persistent_workers=True) as loader:
        for epoch in range(2):
            dataset.set_epoch(epoch)
            for batch, expected in zip(loader, TorchLoader(dataset, 3), strict=True):
                assert all(map(torch.equal, batch, expected))
    assert [len(batch[0]) for batch in sent] == [3] * 4
    assert memory.has_moved.count(True) == 6
