"""``ArrayDataset(gather="device")`` where no device reads its rows: it has no effect, and stats()
says why. What it refuses. Over kernels: tests/programs/fetched_batches.py."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same_trace, trace
from torch.utils.data import Subset

from fastloop import ArrayDataset, DataLoader, PadCollate, RaggedArray
from fastloop import transforms as T
from fastloop.base.machine import Memory
from fastloop.compat import moves
from fastloop.data import columns
from fastloop.data.field import Field
from fastloop.device import availability
from fastloop.device.accelerator import HostAccelerator
from fastloop.device.upload import loading_iterator
from fastloop.loader.arrays import resident

N = 30
IMAGES = torch.randint(256, (N, 3, 8, 8), dtype=torch.uint8)
LABELS = np.arange(N)


def fetched() -> ArrayDataset:
    return ArrayDataset(IMAGES, LABELS, transform=T.RandomHorizontalFlip(), gather="device")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "with device=None"),
        ({"device": "cpu"}, "with device='cpu'"),
        ({"device": "cpu", "num_workers": 2}, "with device='cpu'"),
    ],
)
def test_it_has_no_effect_without_a_device(arguments: dict[str, Any], reason: str) -> None:
    for data in (fetched(), Subset(fetched(), range(20))):
        loader = DataLoader(data, 8, shuffle=True, **arguments)
        stats = loader.stats()
        assert stats.path == "array"
        assert stats.why.endswith(f"; gather='device' has no effect {reason}"), stats.why
        assert_same_trace(trace(loader), trace(DataLoader(data, 8, shuffle=True, **arguments)))


@pytest.mark.parametrize(
    ("arguments", "disabled", "reason"),
    [
        ({"num_workers": 2}, "0", "with num_workers=2"),
        ({"collate_fn": PadCollate()}, "0", "with PadCollate"),
        ({}, "1", "without kernels (FASTLOOP_DISABLE_CUDA)"),
        ({}, "0", "without kernels (no driver"),
    ],
)
def test_it_has_no_effect_beside_a_device(
    arguments: dict[str, Any], disabled: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(index: int) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", disabled)
    monkeypatch.setattr(availability, "_check", check)
    data = ArrayDataset(x=torch.ones(N, 3), gather="device")
    why = DataLoader(data, 8, device="cuda:1", **arguments).stats().why
    assert f"; gather='device' has no effect {reason}" in why


def test_a_device_reads_rows_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_check", lambda index: None)
    for pin in (False, True):
        stats = DataLoader(fetched(), 8, device="cuda:1", pin_memory=pin).stats()
        assert stats.path == "array"
        assert "arrays in host memory, read by cuda:1" in stats.why
    assert "read by" not in DataLoader(ArrayDataset(IMAGES), 8, device="cuda").stats().why


HOST_RANGES = [SimpleNamespace(fences=0), SimpleNamespace(fences=0)]


class Streams(HostAccelerator):
    """The CPU with two streams: what is done on which, in turn."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.stream, self.done = "loop", list[Any]()

    @contextmanager
    def copy_stream(self) -> Iterator[None]:  # type: ignore[override]
        self.stream = "copy"
        yield
        self.stream = "loop"

    def current_stream(self) -> Any:
        return self.stream

    def record_event(self, stream: Any = None) -> Any:
        self.done.append(("record", self.stream))

    def wait_event(self, event: Any) -> None:
        self.done.append(("wait", self.stream))

    def record_stream(self, value: Any) -> None:
        self.done.append(("note", self.stream, value))

    def move(self, value: Any) -> Any:
        self.done.append(("send", self.stream))
        return super().move(value)


def test_batches_are_made_on_the_stream_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory they have; the loop's stream waits."""
    streams = Streams()
    monkeypatch.setattr(columns, "_RESIDENT", ("cpu",))
    monkeypatch.setattr(resident, "open_accelerator", lambda device: streams)
    monkeypatch.setattr(resident, "runs_kernels", lambda device: True)
    monkeypatch.setattr(ArrayDataset, "_register", lambda data, device: HOST_RANGES)
    host_ranges: list[Any] = []

    class Gatherer:
        def __init__(self, *args: Any) -> None:
            host_ranges.extend(host_range for _, host_range, _ in args[3])

        def stream(self) -> None: ...

        def set_rows(self, indices: Any, length: int) -> None: ...

        def take(self, first: int, count: int, epoch: int, *more: Any) -> list[torch.Tensor]:
            streams.done.append(("gather", streams.stream))
            return [torch.zeros(count), torch.zeros(count)]

    monkeypatch.setattr(resident, "Gatherer", Gatherer)
    loader = DataLoader(fetched(), 10, device="cpu")
    iterator = loading_iterator(iter(loader))
    assert streams.done == [("send", "copy"), ("send", "copy"), ("record", "copy")]
    streams.done.clear()
    batch = next(iterator)
    order = ["send", "record", "gather", "record"]  # rows, all fields
    assert streams.done[:4] == [(what, "copy") for what in order]
    assert streams.done[4] == ("wait", "loop") and len(batch) == 2 and len(streams.done) == 7
    for (what, stream, noted), made in zip(streams.done[5:], batch, strict=True):
        assert (what, stream) == ("note", "loop") and noted is made
    assert host_ranges == HOST_RANGES


READ_ONLY = np.zeros((N, 2))
READ_ONLY.setflags(write=False)
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "is read-only or not aligned": (READ_ONLY, {}),
    "has rows with gaps": (IMAGES[..., ::2], {}),
    "is on meta": (torch.empty(N, device="meta"), {}),
    "is a RaggedArray": (RaggedArray.from_list([[1.0]] * N), {}),
    "has a transform that no single kernel runs": (IMAGES, {"transform": T.RandomRotation(9)}),
    "has a transform that no single kernel": (IMAGES, {"transform": lambda image: image}),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_devices_cannot_read_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field, arguments = REFUSED[fault]
    if fault == "is on meta":
        monkeypatch.setattr("fastloop.data.arrays.Field", resident_field)
    text = f"gather='device': field 0 {fault}.*numpy.array"
    with pytest.raises(ValueError, match=text):
        ArrayDataset(field, gather="device", **arguments)
    ArrayDataset(field, **arguments)


def resident_field(name: str, value: Any, may_be_resident: bool) -> Any:
    """A field that lies elsewhere."""
    made = Field(name, torch.zeros(N))
    made.source = made.rows = value
    return made


def test_a_mapped_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((N, 2)))
    with pytest.raises(ValueError, match="field 'x' is mapped from a file"):
        ArrayDataset(x=str(tmp_path / "rows.npy"), gather="device")
    with pytest.raises(ValueError, match="gather must be one of 'auto', 'device', got 'gpu'"):
        ArrayDataset(LABELS, gather="gpu")


def test_explain_says_what_it_costs() -> None:
    views = {"a": T.RandomCrop(6), "b": T.RandomHorizontalFlip()}
    data = ArrayDataset(image=IMAGES, y=LABELS, transform=views, gather="device")
    assert (
        f"{IMAGES.nbytes + LABELS.nbytes:,} bytes that the first iter() registers" in data.explain()
    )
    assert "host memory" not in data.to("cpu").explain()
    for again in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert again.explain() == data.explain()


def test_a_tenth_of_the_memory_stays_unlocked() -> None:
    assert Memory(1000, 50).lockable == 900 and Memory(1000, 50, 400).lockable == 360


@pytest.mark.parametrize(
    ("locked", "workers", "context", "is_refused"),
    [
        (40, 1, None, False),
        (40, 2, None, True),
        (60, 1, multiprocessing.get_context("fork"), True),
        (60, 1, multiprocessing.get_context("spawn"), False),
        (60, 0, None, False),
        (0, 9, None, False),
    ],
)
def test_forks_that_copy_half_of_the_memory_are_refused(
    locked: int, workers: int, context: Any, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "_host_ranges", [SimpleNamespace(locked=locked, sources=())])
    monkeypatch.setattr(moves, "available_bytes", lambda: 100)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")
    if not is_refused:
        return moves.check_forks(context, workers)
    text = f"num_workers={workers}: each fork copies the {locked} bytes.*'forkserver' or 'spawn'"
    with pytest.raises(RuntimeError, match=text):
        moves.check_forks(context, workers)
    for path in ("process", "torch"):
        loader = DataLoader(
            [1, 2], num_workers=workers, path=path, multiprocessing_context=context or "fork"
        )
        with pytest.raises(RuntimeError, match=text):
            iter(loader)
    assert next(iter(DataLoader([1, 2]))).tolist() == [1]


def test_a_fence_of_other_data_waits_for_nothing() -> None:
    fetched().fence()
    ArrayDataset(IMAGES, LABELS).fence()


def test_samples_are_those_of_the_arrays() -> None:
    data, same = ArrayDataset(IMAGES, LABELS, gather="device"), ArrayDataset(IMAGES, LABELS)
    assert_same_trace(trace(TorchLoader(data, 4)), trace(TorchLoader(same, 4)))
