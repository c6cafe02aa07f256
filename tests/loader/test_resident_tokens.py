"""Tokens that lie on a device: batches, order and random states are those of the dataset that reads
files. Here the CPU stands in for the device, and torch's operations for the kernel; over the kernel
the same is tried by tests/programs/resident_batches.py, on a device by tests/gpu/test_resident.py.
"""

from __future__ import annotations

import copy
import errno
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SAMPLERS, TorchLoader, assert_same, leave_100_bytes
from token_writers import some_tokens, write_llmc, write_megatron
from torch.utils.data import ConcatDataset, StackDataset, Subset

from fastloop import DataLoader, TokenDataset
from fastloop._core import Windows
from fastloop.data.tokens import dataset as dataset_module
from fastloop.loader.arrays.resident import ResidentIter

LENGTH = 10
COUNTS = (57, 9, 131, 40)


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of one type; the second is shorter than a window."""
    tokens = [some_tokens(count, seed=count) for count in COUNTS]
    return [write_llmc(tmp_path / f"{i}.bin", each) for i, each in enumerate(tokens)]


def moved(data: TokenDataset) -> TokenDataset:
    """The dataset that data.to(device) is, with the CPU as the device."""
    there = data.to("cpu")
    there._load(torch.device("cpu"))
    return there


OPTIONS: dict[str, dict[str, Any]] = {
    "shifted": {},
    "same": {"targets": "same", "out_dtype": torch.int32},
    "alone": {"targets": None, "out_dtype": torch.uint16},
    "overlapping": {"stride": 3, "out_dtype": torch.uint32},
    "random": {"mode": "random"},
    "jittered": {"mode": "jittered", "stride": 4, "targets": "same"},
}


def epochs_of(cls: Any, data: TokenDataset, *args: Any, **kwargs: Any) -> list[Any]:
    found: list[Any] = []
    loader = cls(data, *args, **kwargs)
    assert cls is TorchLoader or "tensors on cpu" in loader.stats().why
    torch.manual_seed(3)
    for epoch in range(3):
        data.set_epoch(epoch)
        found += list(loader)
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("size", [1, 6, 100])
def test_batches_are_those_of_the_files(paths: list[Path], option: str, size: int) -> None:
    data = TokenDataset(paths, LENGTH, seed=5, **OPTIONS[option])
    for more in ({}, {"shuffle": True}, {"shuffle": True, "drop_last": True}):
        ours = epochs_of(DataLoader, moved(data), size, **more)
        assert_same(ours, epochs_of(TorchLoader, data, size, **more))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_draw_what_they_draw_in_torch(paths: list[Path], kind: str) -> None:
    data, seen = TokenDataset(paths, LENGTH, mode="jittered", stride=2), []
    for cls, each in ((DataLoader, moved(data)), (TorchLoader, data)):
        arguments = SAMPLERS[kind](len(data), torch.Generator().manual_seed(9))
        seen.append(epochs_of(cls, each, 7, **arguments))
    assert_same(*seen)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"])
def test_every_type(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(limits.min, limits.max, 500, dtype, endpoint=True)
    data = TokenDataset.from_buffers(values, np.array([0, 500]), LENGTH)
    assert moved(data)._dtype is getattr(torch, dtype)
    assert_same(epochs_of(DataLoader, moved(data), 9), epochs_of(TorchLoader, data, 9))


def test_files_of_several_types_that_are_sent_in_parts(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "_PART", 32)
    wide = write_llmc(tmp_path / "wide.bin", np.arange(70_000, 70_055, dtype=np.uint32))
    data = TokenDataset([*paths, wide], LENGTH, mode="random")
    there = moved(data)
    assert there._dtype is torch.uint32 and there._tokens is not None
    assert len(there._tokens) == sum(COUNTS) + 55
    assert_same(epochs_of(DataLoader, there, 4), epochs_of(TorchLoader, data, 4))


def test_tokens_are_as_narrow_as_vocab_size_lets_them_be() -> None:
    values = np.random.default_rng(0).integers(0, 50257, 500)
    data = TokenDataset.from_buffers(values, np.array([0, 500]), LENGTH, vocab_size=50257)
    there = moved(data)
    assert there._dtype is torch.uint16
    assert_same(epochs_of(DataLoader, there, 9), epochs_of(TorchLoader, data, 9))


def test_an_epoch_goes_on_where_it_was_left(paths: list[Path]) -> None:
    for stop in range(6):

        def make() -> DataLoader[Any]:
            data = moved(TokenDataset(paths, LENGTH, mode="jittered", stride=5))
            return DataLoader(data, 7, shuffle=True, generator=torch.Generator().manual_seed(1))

        loader = make()
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = loader.state_dict()
        rest, after = list(iterator), list(loader)
        again = make()
        again.load_state_dict(state)
        assert_same([list(again), list(again)], [rest, after])


def test_epochs_are_counted_and_are_its_own(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH, mode="random")
    there = moved(data)
    there.set_epoch(3)
    assert data._epoch is not None and data._epoch.value == 0
    seen = [[list(loader) for _ in range(3)] for loader in map(DataLoader, (moved(data), data))]
    assert_same(*seen)
    (first, *_), (second, *_), _ = seen[0]
    assert not torch.equal(first[0], second[0])


def test_batches_may_be_kept_and_x_is_not_y(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH, targets="same")
    for loader in (DataLoader(moved(data), 4), TorchLoader(moved(data), 4)):
        batches = list(loader)
        expected = copy.deepcopy(batches)
        batches[0][0].zero_()
        assert torch.equal(batches[0][1], expected[0][1])
        assert_same(batches[1:], expected[1:])


def test_samples_and_subsets(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH, mode="jittered")
    there = moved(data)
    for each in (there, data):
        each.set_epoch(2)
    for index in (0, -1, len(data) - 1):
        assert_same(there[index], data[index])
    assert_same(there.__getitems__([3, -2, 3]), data.__getitems__([3, -2, 3]))
    assert there.__getitems__([]) == data.__getitems__([]) == []
    with pytest.raises(IndexError):
        there[len(data)]
    parts = [Subset(each, [5, -1, 2, 2, 0]) for each in (there, data)]
    loader = DataLoader(parts[0], 2)
    assert type(iter(loader)) is ResidentIter
    assert_same(list(loader), list(TorchLoader(parts[1], 2)))
    for cls in (ConcatDataset, lambda both: StackDataset(*both)):
        there_twice, twice = (cls([each, each]) for each in (there, data))
        loader = DataLoader(there_twice, 5)
        assert loader.stats().path == "sync"
        assert_same(list(loader), list(TorchLoader(twice, 5)))


def test_a_batch_sampler_of_the_user(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH)
    lists = [[3, 1], [-1], [0, 0, 7]]
    loader = DataLoader(moved(data), batch_sampler=lists)
    assert_same(list(loader), list(TorchLoader(data, batch_sampler=lists)))
    with pytest.raises(IndexError, match="out of bounds"):
        list(DataLoader(moved(data), batch_sampler=[[len(data)]]))


def test_without_a_batch_size(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH, mode="random")
    assert_same(epochs_of(DataLoader, moved(data), None), epochs_of(TorchLoader, data, None))
    alone = TokenDataset(paths, LENGTH, targets=None)
    order = torch.randperm(len(alone)).tolist()
    assert_same(
        list(DataLoader(moved(alone), None, sampler=order)),
        list(TorchLoader(alone, None, sampler=order)),
    )


def test_what_the_device_does_not_gather_is_torchs(paths: list[Path]) -> None:
    there = moved(TokenDataset(paths, LENGTH))
    cases: dict[str, dict[str, Any]] = {
        "num_workers=0": {"num_workers": 1},
        "pin_memory is for data in host memory": {"pin_memory": True},
    }
    for text, arguments in cases.items():
        stats = DataLoader(there, **arguments).stats()
        assert stats.path != "array" and text in stats.why


def test_explain_says_where_the_tokens_lie(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH)
    assert "mmap" in data.explain() or "pread" in data.explain()
    lines = moved(data).explain().splitlines()
    assert len(lines) == 5 and all(line.endswith("on cpu as uint16") for line in lines[1:])
    assert repr(moved(data)) == repr(data)


def test_copies(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH, mode="random")
    there = moved(data)
    for other in (pickle.loads(pickle.dumps(there)), copy.deepcopy(there), copy.copy(there)):
        assert other._tokens is not None
        assert_same(epochs_of(DataLoader, other, 9), epochs_of(DataLoader, there, 9))
    back = there.to("cpu")
    assert back._tokens is None
    assert_same(list(DataLoader(back, 9)), list(DataLoader(data, 9)))


def test_files_that_have_changed_are_refused(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH)
    write_llmc(paths[2], some_tokens(200))
    with pytest.raises(OSError, match="has changed since the dataset was made") as error:
        moved(data)
    assert error.value.errno == errno.ESTALE and error.value.filename == str(paths[2])


def test_a_token_that_no_window_holds_is_checked_too(tmp_path: Path) -> None:
    tokens = some_tokens(100) % 50
    tokens[99] = 50
    data = TokenDataset(write_llmc(tmp_path / "a.bin", tokens), 60, vocab_size=50)
    assert len(list(data)) == 1
    with pytest.raises(ValueError, match=r"a\.bin.*token 99 must be in \[0, 49\], got 50"):
        moved(data)


def test_what_cannot_be_moved(tmp_path: Path, paths: list[Path]) -> None:
    prefix = tmp_path / "corpus"
    write_megatron(prefix, some_tokens(70), [30, 40])
    documents = TokenDataset.from_megatron(prefix, LENGTH, return_docs=True)
    with pytest.raises(TypeError, match=r"return_docs must be False .*, got True \(leave the tok"):
        documents.to("cpu")
    with pytest.raises(TypeError, match="device must be the CPU or a CUDA device, got"):
        TokenDataset(paths, LENGTH).to("meta")


def test_a_device_without_room_is_named_before_anything_is_copied(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_100_bytes(monkeypatch)
    with pytest.raises(MemoryError, match=r"tokens must fit .* of cuda:0, 100 bytes, got 474"):
        TokenDataset(paths, LENGTH).to("cuda")


def test_starts_and_tokens_of_windows(paths: list[Path]) -> None:
    data = TokenDataset(paths, LENGTH)
    windows: Windows = data._windows
    begins = np.cumsum([0, *COUNTS])
    counts = zip(begins, windows.counts, strict=False)
    expected = [begin + LENGTH * i for begin, count in counts for i in range(count)]
    for indices in (list(range(len(data))), np.arange(len(data))):
        assert windows.starts(indices, 0).tolist() == expected
    assert windows.starts([], 0).shape == (0,)
    assert windows.read_tokens(2, 3, 5).tolist() == some_tokens(131, seed=131)[3:8].tolist()
    with pytest.raises(IndexError):
        windows.starts([len(data)], 0)
    with pytest.raises(TypeError, match="a list of ints or an int64 array"):
        windows.starts(["a"], 0)
    for wrong in ((-1, 0, 1), (4, 0, 1), (0, -1, 1), (0, 0, -1), (0, 50, 8), (0, 58, 0)):
        with pytest.raises(IndexError, match=f"file {wrong[0]} must have {wrong[2]} tokens from"):
            windows.read_tokens(*wrong)
