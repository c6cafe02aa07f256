"""Sequences that lie on a device. Here the CPU stands in for the device, and no kernel runs, so the
collates make the batches of views; over kernels the same is tried by
tests/programs/resident_sequences.py, on a device by tests/gpu/test_resident.py."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, leave_100_bytes

from fastloop import ArrayDataset, DataLoader, PackCollate, PadCollate, RaggedArray, TokenDataset
from fastloop.data import columns

N = 20
LENGTHS = np.random.default_rng(1).integers(0, 9, N)
OFFSETS = np.append(0, np.cumsum(LENGTHS)) + 2
VALUES = torch.arange(int(OFFSETS[-1]) + 4, dtype=torch.int32)


@pytest.fixture(autouse=True)
def the_cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_RESIDENT", ("cpu",))
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")


def data(values: Any = VALUES) -> ArrayDataset:
    return ArrayDataset(input_ids=RaggedArray(values, OFFSETS), y=torch.arange(N))


def path_and_why(dataset: Any, collate: Any, **arguments: Any) -> tuple[str, str]:
    stats = DataLoader(dataset, collate_fn=collate, **arguments).stats()
    return stats.path, stats.why


@pytest.mark.parametrize("collate", [PadCollate(return_mask=True), PackCollate(20)])
def test_without_a_kernel_the_collate_makes_the_batches(collate: Any) -> None:
    moved = data().to("cpu")
    for arguments in ({"batch_size": 7, "shuffle": True}, {"batch_size": 64}):
        found = []
        for dataset, loader in ((moved, DataLoader), (data(), TorchLoader)):
            torch.manual_seed(2)
            found.append(list(loader(dataset, collate_fn=collate, **arguments)))
        assert_same(*found)
    where = "the data are on cpu, which runs no kernel of sequences"
    assert path_and_why(moved, collate) == ("sync", where)


def test_what_the_device_does_not_make_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastloop.loader.arrays.resident.runs_kernels", lambda device: True)
    assert path_and_why(data().to("cpu"), PadCollate()) == (
        "array",
        "ArrayDataset of tensors on cpu, PadCollate",
    )
    refused = {
        "its sequences are of torch.complex128": path_and_why(
            data(VALUES.to(torch.complex128)), PadCollate()
        ),
        "the values of field 'input_ids' are not contiguous": path_and_why(
            data(VALUES.repeat_interleave(2)[::2]), PadCollate()
        ),
        "which gathers them with num_workers=0": path_and_why(data(), PadCollate(), num_workers=1),
        "pin_memory is for data in host memory": path_and_why(
            data(), PadCollate(), pin_memory=True
        ),
    }
    for text, (path, why) in refused.items():
        assert path != "array" and text in why, (text, path, why)


def test_other_fields_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_RESIDENT", ("meta",))
    dataset = data()
    dataset._fields[1].source = torch.empty(N, device="meta")
    _, why = path_and_why(dataset, PadCollate())
    assert "on several devices: field 'input_ids' is on cpu, field 'y' is on meta" in why


@pytest.mark.parametrize("collate", [PadCollate(return_mask=True), PackCollate(20)])
def test_all_tensors_of_a_batch_lie_where_its_sequences_do(collate: Any) -> None:
    samples = [{"input_ids": torch.arange(n, device="meta")} for n in (3, 0, 5)]
    batch = collate(samples)
    assert all(part.is_meta for part in batch.values() if isinstance(part, torch.Tensor))
    expected = collate([{"input_ids": torch.arange(n)} for n in (3, 0, 5)])
    assert [getattr(part, "shape", part) for part in batch.values()] == [
        getattr(part, "shape", part) for part in expected.values()
    ]


# ---- to()


def test_an_array_moves_with_what_it_shows(tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", VALUES.numpy())
    whole = RaggedArray(VALUES, OFFSETS)
    for array in (
        whole,
        whole[3:9],
        whole[::3],
        RaggedArray(str(tmp_path / "values.npy"), OFFSETS.astype(np.int32)),
        RaggedArray(VALUES.numpy()[::-1], OFFSETS),
        RaggedArray(VALUES, [4]),
    ):
        moved = array.to("cpu")
        assert isinstance(moved.values, torch.Tensor) and moved.file is None
        assert len(moved.values) == moved.offsets[-1] == array.lengths.sum()
        assert moved.offsets.dtype == array.offsets.dtype and not moved.offsets.flags.writeable
        assert_same(list(moved), list(array))
    assert whole.to("cpu")[1].data_ptr() == whole[1].data_ptr()


def test_rows_are_views_of_values_elsewhere() -> None:
    array = RaggedArray(VALUES, OFFSETS)
    array._field.source = array._field.rows = array.values = VALUES.to("meta")
    assert array[3].is_meta and array[3]._base is array.values and len(array[3]) == LENGTHS[3]


def test_a_dataset_moves_with_its_sequences() -> None:
    array = RaggedArray(VALUES, OFFSETS)
    moved = ArrayDataset(x=array, y=torch.arange(N), z=np.eye(N)).to("cpu")
    assert [field.name for field in moved._fields] == ["field 'x'", "field 'y'", "field 'z'"]
    assert_same(list(moved), list(ArrayDataset(x=array, y=torch.arange(N), z=np.eye(N))))
    again = pickle.loads(pickle.dumps(moved))
    assert_same(list(again), list(moved))


def test_a_device_without_room_is_named_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array, total = RaggedArray(VALUES, OFFSETS), int(LENGTHS.sum()) * 4
    leave_100_bytes(monkeypatch)
    text = f"the values must fit into the free memory of cuda:0, 100 bytes, got {total}"
    with pytest.raises(MemoryError, match=text):
        array.to("cuda")
    with pytest.raises(MemoryError, match=f"the fields must fit .* got {total + 8 * N} bytes"):
        ArrayDataset(array, torch.arange(N)).to("cuda")


def test_tokens_are_taken_from_the_cpu_alone() -> None:
    with pytest.raises(TypeError, match="values must be a dense CPU tensor"):
        TokenDataset.from_buffers(VALUES.to("meta"), OFFSETS, 4)
