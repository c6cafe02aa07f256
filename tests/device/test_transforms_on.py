"""DataLoader(transforms_on=...): what it takes, where it says that transforms run, and batches that
no kernel makes. tests/device/test_uploads.py has those that one makes."""

from typing import Any

import pytest
import torch
from helpers import TorchLoader, bits
from lazy_device import LazyAccelerator, LazyDevice

import fastloop.loader.device_iter
from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop.data import columns
from fastloop.loader.route import choose_route

COUNT = 30
IMAGES = torch.randint(256, (COUNT, 3, 12, 10), dtype=torch.uint8)
MOVED = T.Compose([T.RandomCrop(8, 2), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, True)])


def dataset(transform: Any = MOVED) -> ArrayDataset:
    return ArrayDataset(IMAGES, torch.arange(COUNT), transform=transform)


def loader_of(data: Any, **more: Any) -> Any:
    return DataLoader(data, 8, **{"num_workers": 1, "device": "cpu", **more})


@pytest.mark.parametrize("wrong", ["gpu", None, True])
def test_it_is_one_of_three(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="transforms_on must be"):
        loader_of(dataset(), transforms_on=wrong)
    loader = loader_of(dataset())
    assert loader.transforms_on == "auto"
    loader.transforms_on = wrong
    with pytest.raises((TypeError, ValueError), match="transforms_on must be"):
        iter(loader)


TURNED = T.RandomRotation(9)
PADDED = T.Compose([T.Pad(2), T.Resize(9)])
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (dataset(), {"device": None}, "no device= is passed"),
    (dataset(), {"num_workers": 0}, "num_workers is 0, and threads must fill"),
    (
        dataset(),
        {"path": "process"},
        "the loader takes path='process': path='process' was asked for",
    ),
    (dataset(), {"collate_fn": list}, "the loader takes path='process': collate_fn is not torch's"),
    ([torch.ones(3)] * 9, {"num_workers": 0}, "the loader takes path='sync'"),
    (dataset(TURNED), {}, "field 0: its transform does more than crop, pad, flip"),
    (dataset(PADDED), {}, "pads before it resizes"),
    (dataset(T.Compose([T.RandomInvert(), T.CenterCrop(4)])), {}, "cast, in this order"),
]


@pytest.mark.parametrize(("data", "more", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_a_kernel_cannot_do_is_refused(data: Any, more: Any, text: str) -> None:
    rule = "transforms_on must be 'auto' or 'cpu' for this loader, got 'device' "
    loader = loader_of(data, transforms_on="device", **more)
    with pytest.raises(ValueError, match=rule) as error:
        iter(loader)
    assert text in str(error.value)
    loader.transforms_on = "cpu"
    assert len(list(loader)) == len(loader)


def assert_epochs(loader: Any, data: ArrayDataset) -> None:
    for epoch in range(2):
        ours = list(loader)
        data.set_epoch(epoch)
        for batch, other in zip(ours, TorchLoader(data, 8), strict=True):
            assert list(map(bits, batch)) == list(map(bits, other))
        data.set_epoch(epoch + 1)


def test_the_cpu_does_it_where_the_device_is_the_cpu() -> None:
    data = dataset()
    data.set_epoch(0)
    loader = loader_of(data, transforms_on="device")
    assert_epochs(loader, data)
    why = "native transforms; transforms on the CPU, because the device runs no kernel of fastloop"
    assert loader.stats().why.endswith(why)


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_the_cpu_does_it_where_no_kernel_can(disabled: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", disabled)
    device = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    data = dataset()
    for where in ("auto", "cpu", "device"):
        loader = loader_of(data, transforms_on=where, device="cuda")
        batches = []
        for batch in loader:
            device.run()
            batches.append([tensor.clone() for tensor in batch])
        data.set_epoch(0)
        for ours, theirs in zip(batches, TorchLoader(data, 8), strict=True):
            assert list(map(bits, ours)) == list(map(bits, theirs))
        data.set_epoch(0)
        why, says = loader.stats().why, "FASTLOOP_DISABLE_CUDA is set"
        assert ("; transforms on the CPU, because" in why) is (where == "device")
        assert (says in why) is (where == "device" and disabled == "1"), why


def test_data_that_lie_on_a_device_are_not_for_the_cpu(monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "_RESIDENT", ("cpu",))
    loader = loader_of(dataset(), transforms_on="cpu", num_workers=0)
    rule = r"'auto' or 'device' for this loader, got 'cpu' \(the data are on cpu"
    with pytest.raises(ValueError, match=rule):
        iter(loader)


def test_data_without_transforms_have_nothing_to_do_there() -> None:
    loader = loader_of(dataset(None), transforms_on="device")
    assert torch.equal(torch.cat([x for x, _ in loader]), IMAGES)
    assert "kernel" not in loader.stats().why


def test_explain_says_what_a_kernel_does() -> None:
    does = "one kernel runs the transform"
    for transform, text in ((MOVED, does), (T.ColorJitter(0.5), does), (TURNED, "an error")):
        assert f"with transforms_on='device': {text}" in dataset(transform).explain()


def test_a_table_for_a_device_takes_images_as_they_are() -> None:
    def table_of(transform: Any) -> Any:
        data = dataset(transform)
        return choose_route(DataLoader(data), "auto", "").columns.table

    table, computed = table_of(T.RandomHorizontalFlip()), table_of(TURNED)
    assert table.for_device() is table and table.for_device(True) is not table
    assert computed.for_device(True) is computed
