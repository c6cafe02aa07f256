"""Data that lie on a device, which gathers their batches: batches, order and random states are
torch's. Here the CPU stands in for the device, and torch's operations for the kernel; over kernels
the same is tried by tests/programs/resident_batches.py, on a device by tests/gpu/test_resident.py.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    SAMPLERS,
    TorchLoader,
    assert_same,
    assert_same_trace,
    leave_100_bytes,
    outcome,
    trace,
)
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop._core import Gatherer
from fastloop.data import columns
from fastloop.device.accelerator import HostAccelerator
from fastloop.loader.arrays import resident as resident_module
from fastloop.loader.arrays.resident import ResidentIter

N = 50
ROWS = torch.randn(N, 3, 5)
LABELS = torch.arange(N)
IMAGES = torch.randint(256, (N, 3, 8, 8), dtype=torch.uint8)


@pytest.fixture(autouse=True)
def the_cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_RESIDENT", ("cpu",))
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")


def resident(dataset: Any, *args: Any, **kwargs: Any) -> DataLoader[Any]:
    loader = DataLoader(dataset, *args, **kwargs)
    assert type(iter_of(loader)) is ResidentIter, loader.stats().why
    return loader


def iter_of(loader: DataLoader[Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        state = loader.generator.get_state() if loader.generator is not None else None
        iterator = iter(loader)
        if loader.generator is not None:
            loader.generator.set_state(state)
    return iterator


DATASETS: dict[str, Any] = {
    "tensors": lambda: TensorDataset(ROWS, LABELS),
    "one": lambda: ROWS,
    "named": lambda: ArrayDataset(x=ROWS, y=LABELS),
    "array": lambda: ArrayDataset(ROWS, LABELS),
    "subset": lambda: Subset(TensorDataset(ROWS, LABELS), list(range(N - 1, -N, -1))[:N]),
    "subsets": lambda: Subset(Subset(ArrayDataset(x=ROWS), range(5, N, 2)), torch.randperm(20)),
    "stack": lambda: StackDataset(a=TensorDataset(ROWS), b=TensorDataset(LABELS)),
    "empty": lambda: TensorDataset(ROWS[:, :0], LABELS),
    "strided": lambda: TensorDataset(torch.randn(2 * N, 4)[::2], LABELS),
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("drop", [False, True])
def test_batches_are_torchs(kind: str, drop: bool) -> None:
    dataset = DATASETS[kind]()
    for size in (1, 7, N, 3 * N):
        ours = resident(dataset, size, shuffle=True, drop_last=drop)
        theirs = TorchLoader(dataset, size, shuffle=True, drop_last=drop)
        assert_same_trace(trace(ours), trace(theirs))


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("size", [4, 33])
def test_samplers_draw_what_they_draw_in_torch(kind: str, size: int) -> None:
    dataset = TensorDataset(ROWS, LABELS)
    seen = []
    for loader in (DataLoader, TorchLoader):
        generator = torch.Generator().manual_seed(9)
        arguments = SAMPLERS[kind](N, generator)
        seen.append(trace(loader(dataset, size, **arguments), generator))
    assert_same_trace(*seen)


@pytest.mark.parametrize("most", [1, 13, 100])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_indices_are_sent_in_parts(kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is longer than it may be, and batches are those of whole blocks."""
    sent: list[int] = []
    send = resident_module._send
    monkeypatch.setattr(resident_module, "_MOST_SENT", most)
    monkeypatch.setattr(
        resident_module, "_send", lambda rows, where: sent.append(len(rows)) or send(rows, where)
    )
    seen = []
    for loader in (DataLoader, TorchLoader):
        arguments = SAMPLERS[kind](N, torch.Generator().manual_seed(9))
        if "batch_sampler" in arguments:
            pytest.skip("its batches are sent one by one")
        seen.append(trace(loader(TensorDataset(ROWS, LABELS), 7, **arguments)))
    assert_same_trace(*seen)
    assert max(sent) < most + 7


def test_a_batch_may_be_kept_and_data_that_change_are_seen() -> None:
    rows = torch.zeros(N, 2)
    batches = []
    for i, (batch,) in enumerate(resident(TensorDataset(rows), 10)):
        rows += 1
        batches.append(batch)
        assert torch.equal(batch, torch.full((10, 2), float(i)))
    assert [batch[0, 0].item() for batch in batches] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop", range(6))
def test_an_epoch_goes_on_where_it_was_left(stop: int) -> None:
    dataset = TensorDataset(ROWS, LABELS)

    def make() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        return resident(dataset, 11, shuffle=True, generator=generator)

    loader = make()
    iterator = iter(loader)
    for _ in range(stop if stop < 5 else 4):
        next(iterator)
    state = loader.state_dict()
    rest, after = list(iterator), list(loader)
    again = make()
    again.load_state_dict(state)
    assert_same([list(again), list(again)], [rest, after])


def test_the_batch_size_of_the_sampler_may_change() -> None:
    seen = []
    for loader in (DataLoader, TorchLoader):
        made: Any = loader(TensorDataset(LABELS), 10)
        iterator = iter(made)
        lengths = [len(next(iterator)[0])]
        made.batch_sampler.batch_size = 7
        seen.append(lengths + [len(batch[0]) for batch in iterator])
    assert seen[0][0] == 10 and sum(seen[0]) == N and seen[0][1] == 7


@pytest.mark.parametrize("indices", [[3, N], [-N - 1, 0]])
def test_an_index_that_is_not_there(indices: list[int]) -> None:
    for data in (TensorDataset(ROWS), Subset(TensorDataset(ROWS), [0, *indices])):
        sampler = indices if isinstance(data, TensorDataset) else [0, 1, 2]
        loader = DataLoader(data, 2, sampler=sampler)
        with pytest.raises(IndexError, match=f"is out of bounds for dimension 0 with size {N}"):
            list(loader)


def test_what_is_no_integer_is_torchs_to_fetch() -> None:
    mask = torch.arange(N) % 2 == 0
    items = [[mask, mask]]
    expected = outcome(lambda: list(TorchLoader(TensorDataset(ROWS), batch_sampler=items)))
    assert_same(list(DataLoader(TensorDataset(ROWS), batch_sampler=items)), expected)


SINGLES: dict[str, Any] = {
    "named": lambda: ArrayDataset(x=ROWS, y=LABELS),
    "array": lambda: ArrayDataset(ROWS, LABELS),
    "subset": lambda: Subset(ArrayDataset(ROWS, LABELS), list(range(N))),
    "tensors": lambda: TensorDataset(ROWS, LABELS),
    "one": lambda: ROWS,
}


@pytest.mark.parametrize("kind", SINGLES)
def test_without_a_batch_size(kind: str) -> None:
    data, order = SINGLES[kind](), torch.randperm(N).tolist()
    samplers: list[Any] = [None, order, *(BatchSampler(order, 7, drop) for drop in (False, True))]
    samplers += [[item] for item in ([1, 2], [-1], slice(2, 5), [True] * N, (1, 2), [], [1.5])]
    for sampler in samplers:
        found = outcome(lambda s=sampler: list(DataLoader(data, None, sampler=s)))
        assert_same(found, outcome(lambda s=sampler: list(TorchLoader(data, None, sampler=s))))
    assert path_and_why(data, batch_size=None)[0] == (
        "sync" if kind in ("tensors", "one") else "array"
    )


def test_an_epoch_of_lists_goes_on_where_it_was_left() -> None:
    def make() -> DataLoader[Any]:
        return resident(TensorDataset(LABELS), None, sampler=BatchSampler(range(N), 7, False))

    loader = make()
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(3)]
    again = make()
    again.load_state_dict(loader.state_dict())
    assert_same([*seen, *again], list(TorchLoader(TensorDataset(LABELS), 7)))


def test_an_empty_batch_is_torchs_error() -> None:
    items: list[list[int]] = [[1], []]
    data = TensorDataset(ROWS)
    expected = outcome(lambda: list(TorchLoader(data, batch_sampler=items)))
    assert outcome(lambda: list(DataLoader(data, batch_sampler=items))) == expected
    assert expected[1] is IndexError


def test_indices_that_are_read_only(recwarn: pytest.WarningsRecorder) -> None:
    indices = np.arange(6)
    indices.setflags(write=False)
    data = TensorDataset(ROWS)
    batches = list(DataLoader(data, batch_sampler=[indices]))
    assert torch.equal(batches[0][0], ROWS[:6]) and len(recwarn) == 0


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bool])
def test_dtypes_that_torch_does_little_with(dtype: torch.dtype) -> None:
    for rows in (torch.arange(N), torch.arange(2 * N).view(N, 2)):
        data = TensorDataset(rows.to(dtype))
        assert_same(list(resident(data, 7)), list(TorchLoader(data, 7)))


def test_data_that_shrink_between_two_blocks_are_refused() -> None:
    rows = torch.arange(100.0)
    iterator = iter(resident(TensorDataset(rows), 40, sampler=RandomSampler(rows, True, 200)))
    next(iterator)
    rows.resize_(99)
    with pytest.raises((ValueError, IndexError)):
        list(iterator)


def test_data_that_shrink_between_two_lists_are_read_as_they_are() -> None:
    rows = torch.arange(100.0)
    iterator = iter(DataLoader(TensorDataset(rows), batch_sampler=[[99], [98], [99]]))
    next(iterator)
    rows.resize_(99)
    assert next(iterator)[0].tolist() == [98]
    with pytest.raises(IndexError, match="index 99 is out of bounds for dimension 0 with size 99"):
        next(iterator)


def test_small_blocks_of_a_large_batch_take_no_time() -> None:
    rows = torch.arange(1 << 17)
    loader = resident(TensorDataset(rows), 1 << 17, sampler=RandomSampler(rows, True))
    assert next(iter(loader))[0].shape == rows.shape  # a sum for each of 4096 blocks took seconds


class Streams(HostAccelerator):
    """The CPU with a stream for each batch: what is done with events, in turn."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.done: list[str] = []
        self.noted: list[torch.Tensor] = []
        self.stream = 0

    def current_stream(self) -> Any:
        return self.stream

    def record_event(self, stream: Any = None) -> Any:
        self.done.append("record")

    def wait_event(self, event: Any) -> None:
        self.done.append("wait")

    def record_stream(self, value: Any) -> None:
        self.noted.append(value)

    def move(self, value: Any) -> Any:
        self.done.append("move")
        return super().move(value)


def test_rows_that_are_left_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory is that of the sent ones, or of a cat behind these."""
    streams = Streams()
    monkeypatch.setattr(resident_module, "open_accelerator", lambda device: streams)
    true_cat = torch.cat

    def cat(*args: Any) -> Any:
        streams.done.append("cat")
        return true_cat(*args)

    monkeypatch.setattr(torch, "cat", cat)
    iterator = iter(DataLoader(TensorDataset(LABELS), 20, sampler=RandomSampler(LABELS, True)))
    found = []
    for streams.stream in range(3):
        found += next(iterator)
    assert "cat" in streams.done and streams.done.count("wait") == 2
    for i, what in enumerate(streams.done):
        if what == "cat":
            assert streams.done[i + 1] == "record", streams.done


def test_tables_of_images_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent by iter(), and read by kernels of any stream."""
    streams, tables = Streams(), []
    monkeypatch.setattr(resident_module, "open_accelerator", lambda device: streams)
    monkeypatch.setattr(resident_module, "runs_kernels", lambda device: True)

    class Gatherer:
        def __init__(self, *args: Any) -> None:
            tables.extend(plan[1] for _, _, plan in args[3] if plan)
            self.stream = lambda: None
            self.set_rows = self.take = lambda *args: None

    monkeypatch.setattr(resident_module, "Gatherer", Gatherer)
    data = ArrayDataset(IMAGES, transform=T.RandomHorizontalFlip()).to("cpu")
    iterator = iter(resident(data, 20))
    assert streams.done[-1] == "record", streams.done
    streams.stream = 1
    next(iterator)
    assert any(noted is tables[-1] for noted in streams.noted)
    reference = weakref.ref(iterator)
    del iterator
    assert reference() is None  # what it holds on the device is free without the collector


def path_and_why(dataset: Any, **arguments: Any) -> tuple[str, str]:
    stats = DataLoader(dataset, **arguments).stats()
    return stats.path, stats.why


def test_what_the_device_does_not_gather_is_torchs() -> None:
    data = TensorDataset(ROWS)
    assert path_and_why(data, batch_size=4) == (
        "array",
        "TensorDataset of tensors on cpu, default collate",
    )
    refused = {
        "num_workers=0": path_and_why(data, batch_size=4, num_workers=1),
        "pin_memory is for data in host memory": path_and_why(data, pin_memory=True),
        "within a combined dataset": path_and_why(ConcatDataset([data, data])),
        "its rows are not contiguous": path_and_why(TensorDataset(ROWS.mT)),
        "which runs no kernel of a transform": path_and_why(
            ArrayDataset(IMAGES, transform=T.CenterCrop(4))
        ),
        "its transform computes pixels": path_and_why(
            ArrayDataset(IMAGES, transform=T.GaussianBlur(3))
        ),
    }
    for text, (path, why) in refused.items():
        assert path != "array" and text in why, (text, path, why)


def test_data_on_several_devices_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_RESIDENT", ("meta",))
    data = TensorDataset(torch.empty(N, device="meta"), LABELS)
    path, why = path_and_why(data)
    assert path == "sync" and "several devices: tensor 0 is on meta, tensor 1 is on cpu" in why


# ---- ArrayDataset.to()


def test_a_dataset_moves_all_of_its_fields(tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", ROWS.numpy())
    for fields in ({"x": str(tmp_path / "rows.npy"), "y": LABELS.tolist()}, {"x": ROWS}):
        data = ArrayDataset(**fields)
        moved = data.to("cpu")
        assert_same(list(TorchLoader(moved, 8)), list(TorchLoader(data, 8)))
        assert all(isinstance(field.source, torch.Tensor) for field in moved._fields)
    pair = ArrayDataset(ROWS, LABELS)
    assert_same(pair.to("cpu")[3], pair[3])


def test_a_dataset_moves_with_its_transforms_and_counts_epochs_of_its_own() -> None:
    views = {"a": T.RandomCrop(6, 2), "b": T.Compose([T.RandomHorizontalFlip(), T.RandomErasing()])}
    data = ArrayDataset(image=IMAGES, label=LABELS, transform=views, out_layout="HWC", seed=3)
    moved = data.to("cpu")
    first, second = (field.source for field in moved._fields[:2])
    assert first is second and repr(moved) == repr(data)
    assert_same(moved.params(5, field="a"), data.params(5, field="a"))
    data.set_epoch(4)
    assert moved.explain() != data.explain()
    moved.set_epoch(4)
    assert moved.explain() == data.explain()
    assert_same([moved[i] for i in (0, -1, [3, (4, 2)])], [data[i] for i in (0, -1, [3, (4, 2)])])


def test_views_of_an_array_are_moved_once() -> None:
    views = {"a": T.RandomCrop(6), "b": T.RandomHorizontalFlip()}
    moved = ArrayDataset(image=IMAGES.numpy(), label=LABELS, transform=views).to("cpu")
    first, second, labels = (field.source for field in moved._fields)
    assert first is second and torch.equal(labels, LABELS)


def test_a_batch_by_index_lies_as_on_the_cpu() -> None:
    data = ArrayDataset(IMAGES, transform=T.RandomCrop(6), out_layout="channels_last")
    moved = data.to("cpu")
    moved._transforms[0]._device = torch.device("meta")
    for index in (0, [2, 1]):
        assert moved[index][0].is_meta and moved[index][0].stride() == data[index][0].stride()


def test_what_cannot_be_moved() -> None:
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"fastloop runs for to\(\), got Python's: "):
        ArrayDataset(images, transform=lambda image: image).to("cpu")
    with pytest.raises(TypeError, match="dense tensor on the CPU or CUDA"):
        ArrayDataset(images).to("meta")


def test_a_device_without_room_is_named_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_100_bytes(monkeypatch)
    with pytest.raises(
        MemoryError, match="must fit into the free memory of cuda:0, 100 bytes, got 3,400"
    ):
        ArrayDataset(ROWS, LABELS).to("cuda")


def test_lists_that_are_shorter_than_the_core_was_told() -> None:
    two: Any = {"x": None, "y": None}
    gatherer = Gatherer(torch.Tensor, (None, torch.empty_like), two, ((LABELS, 1),), 0)
    gatherer.set_rows(LABELS, N)
    with pytest.raises(ValueError, match="windows need new_batch"):
        gatherer.take(0, 2, 0, False)

    class Emptying:
        def untyped_storage(self) -> Any:
            given.clear()
            return self

        def resize_(self, count: int) -> None: ...

    def new_batch(count: int) -> Any:
        given.extend((Emptying(), Emptying()))
        return given

    given: list[Any] = []
    gatherer = Gatherer(torch.Tensor, (new_batch, repr), two, ((LABELS, None, None),) * 2, 0)
    gatherer.set_rows(LABELS, N)
    for _ in range(3):
        given.clear()
        with pytest.raises(ValueError, match="not on a CUDA device"):
            gatherer.take(0, 2, 0, False)
