"""Samples of TokenDataset against slices of NumPy: windows, targets, types, documents, epochs; the
dataset in torch's own loader and behind a pickle."""

import copy
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_writers import Tokens, some_tokens, write_datatrove, write_llmc, write_megatron
from torch.utils.data import DataLoader, Subset

from fastloop import TokenDataset

COUNTS = (57, 9, 31, 40)
FILES = [some_tokens(count, seed=count) for count in COUNTS]
EOS = 3


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [write_llmc(tmp_path / f"{i}.bin", tokens) for i, tokens in enumerate(FILES)]


def slices(length: int, stride: int, ahead: int) -> list[list[int]]:
    """Length + ahead tokens of each window."""
    need = length + ahead
    return [
        tokens[begin : begin + need].tolist()
        for tokens in FILES
        for begin in range(0, len(tokens) - need + 1, stride)
    ]


@pytest.mark.parametrize("length", [1, 8, 9, 10, 57])
@pytest.mark.parametrize("stride", [None, 1, 3, 10, 100])
def test_strided_windows(paths: list[Path], length: int, stride: int | None) -> None:
    if length == 57:
        dataset = TokenDataset(paths, length, stride=stride, targets=None)
        assert [x.tolist() for x in map(dataset.__getitem__, range(len(dataset)))] == slices(
            length, stride or length, 0
        )
        return
    dataset = TokenDataset(paths, length, stride=stride)
    expected = slices(length, stride or length, 1)
    assert len(dataset) == len(expected) > 0
    for i, window in enumerate(expected):
        for x, y in (dataset[i], dataset[i - len(dataset)], dataset.__getitems__([i])[0]):
            assert x.tolist() == window[:-1]
            assert y.tolist() == window[1:]


@pytest.mark.parametrize("targets", ["shift", "same", None])
@pytest.mark.parametrize("out", [torch.int64, torch.int32, torch.uint16, torch.uint32])
def test_targets_and_types(paths: list[Path], targets: Any, out: torch.dtype) -> None:
    dataset = TokenDataset(paths, 10, targets=targets, out_dtype=out)
    window = FILES[0][10:21]
    sample = dataset[1]
    assert isinstance(sample, torch.Tensor if targets is None else tuple)
    tensors = (sample,) if targets is None else sample
    expected = [window[:10], window[1:] if targets == "shift" else window[:10]][: len(tensors)]
    for tensor, tokens in zip(tensors, expected, strict=True):
        assert tensor.dtype == out
        assert tensor.shape == (10,)
        assert tensor.is_contiguous()
        assert tensor.tolist() == tokens.tolist()


def test_samples_share_no_memory(paths: list[Path]) -> None:
    dataset = TokenDataset(paths, 10, targets="same")
    (x, y), (again, _) = dataset[0], dataset[0]
    expected = x.clone()
    x.zero_()
    assert torch.equal(y, expected)
    assert torch.equal(again, expected)


def read_begins(dataset: TokenDataset) -> list[int]:
    """The first token of each window, of files whose tokens are their places."""
    return [int(dataset[i][0]) for i in range(len(dataset))]


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Tokens that say where they are."""
    return write_llmc(tmp_path / "x.bin", np.arange(1000, dtype=np.uint16))


def test_jittered_windows_begin_at_an_offset_of_the_epoch(places: Path) -> None:
    dataset = TokenDataset(places, 10, mode="jittered", stride=20, targets=None)
    offsets = set()
    for epoch in range(60):
        dataset.set_epoch(epoch)
        begins = read_begins(dataset)
        assert len(begins) == (1000 - 10 - 19) // 20 + 1
        assert {b - a for a, b in pairwise(begins)} == {20}
        assert 0 <= begins[0] < 20
        offsets.add(begins[0])
    assert len(offsets) > 12
    dataset.set_epoch(0)
    once = read_begins(dataset)
    assert read_begins(dataset) == once
    assert read_begins(TokenDataset(places, 10, mode="jittered", stride=20, targets=None)) == once


def test_random_windows_begin_anywhere(places: Path) -> None:
    dataset = TokenDataset(places, 10, mode="random", seed=1)
    assert len(dataset) == 100
    begins = []
    for epoch in range(200):
        dataset.set_epoch(epoch)
        for x, y in dataset.__getitems__(range(len(dataset))):
            begins.append(int(x[0]))
            assert torch.equal(y, x + 1)
    counts = np.bincount(begins, minlength=990)
    assert len(counts) == 990  # starts of windows of 10 and their target
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 989 - 6 * 44.5 < chi2 < 989 + 6 * 44.5


def test_random_windows_are_a_function_of_seed_epoch_and_index(places: Path) -> None:
    dataset = TokenDataset(places, 10, mode="random", seed=1, targets=None)
    first = read_begins(dataset)
    assert read_begins(dataset) == first
    assert [int(x[0]) for x in dataset.__getitems__([7, 3])] == [first[7], first[3]]
    dataset.set_epoch(1)
    assert read_begins(dataset) != first
    dataset.set_epoch(0)
    assert read_begins(dataset) == first
    other = TokenDataset(places, 10, mode="random", seed=2, targets=None)
    assert read_begins(other) != first


def test_random_windows_of_several_files(paths: list[Path]) -> None:
    """A file has its share of starts; one that is too short has none."""
    dataset = TokenDataset(paths, 10, mode="random", targets=None)
    assert len(dataset) == sum(COUNTS) // 10
    starts = [max(0, count - 9) for count in COUNTS]
    assert dataset._windows.counts == tuple(starts)
    windows = {tuple(w) for w in slices(10, 1, 0)}
    found = set()
    for epoch in range(300):
        dataset.set_epoch(epoch)
        found |= {tuple(x.tolist()) for x in dataset.__getitems__(range(len(dataset)))}
    assert found == windows


def test_set_epoch_is_for_what_is_random(paths: list[Path]) -> None:
    strided = TokenDataset(paths, 10)
    strided.set_epoch(3)
    assert "random numbers" not in strided.explain()
    random = TokenDataset(paths, 10, mode="random", seed=5)
    assert "seed 5, epoch 0, counted by fastloop's loaders" in random.explain()
    random.set_epoch(3)
    assert "seed 5, epoch 3, set by set_epoch()" in random.explain()
    with pytest.raises(ValueError, match=r"epoch must be an int in .*, got -1"):
        random.set_epoch(-1)


# ---- documents


def documents_of(tokens: Tokens, ends: Sequence[int], begin: int, length: int) -> dict[str, Any]:
    """What return_docs says of a window, token by token. `ends`: after which token each document
    ends; the last of the file too."""
    after = {end for end in ends if end > 0}
    position_ids, doc_ids, same_next = [], [], []
    position = document = 0
    for t in range(begin, begin + length):
        if t > begin and t in after:
            position, document = 0, document + 1
        position_ids.append(position)
        doc_ids.append(document)
        same_next.append(t + 1 not in after)
        position += 1
    return {
        "input_ids": tokens[begin : begin + length].tolist(),
        "position_ids": position_ids,
        "doc_ids": doc_ids,
        "loss_mask": same_next,
    }


def check_documents(
    dataset: TokenDataset, tokens: Tokens, ends: Sequence[int], targets: Any
) -> None:
    length = len(dataset[0]["input_ids"])
    crossed = 0
    for i, sample in enumerate(dataset.__getitems__(range(len(dataset)))):
        expected = documents_of(tokens, ends, i * length, length)
        if targets == "shift":
            expected["labels"] = tokens[i * length + 1 : (i + 1) * length + 1].tolist()
        else:
            expected["loss_mask"] = [position > 0 for position in expected["position_ids"]]
            if targets == "same":
                expected["labels"] = expected["input_ids"]
        assert {key: value.tolist() for key, value in sample.items()} == expected
        types = {key: value.dtype for key, value in sample.items()}
        assert types == dict.fromkeys(expected, torch.int64) | {"loss_mask": torch.bool}
        assert {key: value.tolist() for key, value in dataset[i].items()} == expected
        crossed += expected["doc_ids"][-1]
    assert crossed > 3


@pytest.mark.parametrize("targets", ["shift", "same", None])
def test_documents_that_a_token_ends(tmp_path: Path, targets: Any) -> None:
    tokens = np.random.default_rng(0).integers(0, 12, 300, np.uint16)
    ends = (np.flatnonzero(tokens == EOS) + 1).tolist()
    path = write_llmc(tmp_path / "x.bin", tokens)
    dataset = TokenDataset(path, 10, targets=targets, eos_id=EOS, return_docs=True)
    check_documents(dataset, tokens, ends, targets)


@pytest.mark.parametrize("targets", ["shift", "same", None])
def test_documents_of_an_index(tmp_path: Path, targets: Any) -> None:
    """Empty documents are none. The last end is that of the file."""
    tokens = np.random.default_rng(0).integers(0, 12, 300, np.int32)
    ends = [0, 4, 4, 5, 20, 41, 41, 79, 80, 90, 110, 150, 151, 155, 250, 300]
    lengths = np.diff([0, *ends]).tolist()
    prefix = write_megatron(tmp_path / "x", tokens, lengths)
    options: dict[str, Any] = {"targets": targets, "return_docs": True}
    check_documents(TokenDataset.from_megatron(prefix, 10, **options), tokens, ends, targets)
    path = write_datatrove(tmp_path / "x.ds", tokens, ends)
    check_documents(TokenDataset(path, 10, **options), tokens, ends, targets)
    buffers = TokenDataset.from_buffers(tokens, np.array([0, *ends]), 10, **options)
    check_documents(buffers, tokens, ends, targets)
    part = TokenDataset.from_buffers(tokens, np.array(ends[4:]), 10, **options)
    check_documents(part, tokens[20:], [end - 20 for end in ends[4:]], targets)


def test_sequences_of_a_document_are_not_documents(tmp_path: Path) -> None:
    """Megatron's documents are of several sequences."""
    tokens = np.arange(300, dtype=np.uint16)
    prefix = write_megatron(tmp_path / "x", tokens, [10, 20, 30, 240], documents=[0, 2, 2, 4])
    dataset = TokenDataset.from_megatron(prefix, 60, return_docs=True)
    assert dataset[0]["doc_ids"].tolist() == [0] * 30 + [1] * 30


def test_a_token_goes_before_an_index(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 12, 300, np.uint16)
    path = write_datatrove(tmp_path / "x.ds", tokens, [50, 300])
    dataset = TokenDataset(path, 10, eos_id=EOS, return_docs=True)
    check_documents(dataset, tokens, (np.flatnonzero(tokens == EOS) + 1).tolist(), "shift")


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    tokens = np.array([7, 4, 9, EOS, 5, EOS, 8, 8, 1], np.uint16)
    path = write_llmc(tmp_path / "x.bin", tokens)
    sample = TokenDataset(path, 8, eos_id=EOS, return_docs=True)[0]
    assert {key: value.int().tolist() for key, value in sample.items()} == {
        "input_ids": [7, 4, 9, EOS, 5, EOS, 8, 8],
        "labels": [4, 9, EOS, 5, EOS, 8, 8, 1],
        "position_ids": [0, 1, 2, 3, 0, 1, 0, 1],
        "doc_ids": [0, 0, 0, 0, 1, 1, 2, 2],
        "loss_mask": [1, 1, 1, 0, 1, 0, 1, 1],
    }
    ends, longest = TokenDataset.cu_seqlens(sample["position_ids"])
    assert (ends.tolist(), longest) == ([0, 4, 6, 8], 4)


def test_keys_in_order(paths: list[Path]) -> None:
    keys = ["input_ids", "labels", "position_ids", "doc_ids", "loss_mask"]
    options: dict[str, Any] = {"eos_id": EOS, "return_docs": True}
    assert list(TokenDataset(paths, 10, **options)[0]) == keys
    assert list(TokenDataset(paths, 10, **options, targets=None)[0]) == [keys[0], *keys[2:]]


def test_cu_seqlens(tmp_path: Path) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    ends, longest = TokenDataset.cu_seqlens(positions)
    assert ends.tolist() == [0, 3, 5, 6, 10]
    assert ends.dtype == torch.int32
    assert longest == 4
    ends, longest = TokenDataset.cu_seqlens(positions[0])
    assert (ends.tolist(), longest) == ([0, 3, 5], 3)
    ends, longest = TokenDataset.cu_seqlens(positions[:0])
    assert (ends.tolist(), longest) == ([0], 0)
    for wrong in (positions[:, 1:], positions[None], torch.tensor(0), torch.ones(2, 2)):
        with pytest.raises(ValueError, match=r"position_ids must be .*with 0, got shape"):
            TokenDataset.cu_seqlens(wrong)


def test_cu_seqlens_of_batches(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 12, 300, np.uint16)
    path = write_llmc(tmp_path / "x.bin", tokens)
    dataset = TokenDataset(path, 10, eos_id=EOS, return_docs=True)
    for batch in DataLoader(dataset, batch_size=4):
        ends, longest = TokenDataset.cu_seqlens(batch["position_ids"])
        lengths = ends.diff()
        assert lengths.sum() == batch["input_ids"].numel()
        assert longest == lengths.max()
        at_ends = batch["input_ids"].reshape(-1)[ends[1:] - 1]
        row_ends = ends[1:] % 10 == 0
        assert bool(((at_ends == EOS) | row_ends).all())


# ---- a dataset among others


def test_in_torchs_own_loader(paths: list[Path]) -> None:
    dataset = TokenDataset(paths, 10)
    expected = slices(10, 10, 1)
    for source, windows in ((dataset, expected), (Subset(dataset, [4, 1, 1]), None)):
        batches = list(DataLoader(source, batch_size=3))
        rows = [row for x, y in batches for row in zip(x.tolist(), y.tolist(), strict=True)]
        if windows is None:
            windows = [expected[i] for i in (4, 1, 1)]
        assert rows == [(window[:-1], window[1:]) for window in windows]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_in_workers_of_torchs_own_loader(paths: list[Path], context: str) -> None:
    """An epoch reaches workers that are there already."""
    dataset = TokenDataset(paths, 10, mode="random", seed=3)
    loader = DataLoader(
        dataset,
        batch_size=3,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        expected = [dataset[i][0].tolist() for i in range(len(dataset))]
        assert [row for x, _ in loader for row in x.tolist()] == expected


@pytest.mark.parametrize("copied", [lambda d: pickle.loads(pickle.dumps(d)), copy.deepcopy])
def test_copies_open_their_files_again(tmp_path: Path, paths: list[Path], copied: Any) -> None:
    prefix = write_megatron(tmp_path / "x", FILES[0], [10, 40, 7])
    tokens = torch.from_numpy(FILES[0].astype(np.int32))
    datasets = [
        TokenDataset(paths, 10, mode="random", seed=3),
        TokenDataset.from_megatron(prefix, 10, return_docs=True),
        TokenDataset.from_buffers(tokens, torch.tensor([5, 9, 57]), 10, return_docs=True),
    ]
    for dataset in datasets:
        again = copied(dataset)
        assert repr(again) == repr(dataset)
        assert len(again) == len(dataset)
        assert again.explain() == dataset.explain()
        for i in range(len(dataset)):
            one, other = dataset[i], again[i]
            values = (one, other) if isinstance(one, tuple) else (one.values(), other.values())
            assert all(map(torch.equal, *values))


def test_relative_paths_are_of_the_folder_at_construction(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(TokenDataset("0.bin", 10))
    monkeypatch.chdir("/")
    assert len(pickle.loads(pickled)) == 5


def test_what_it_says_of_itself(paths: list[Path]) -> None:
    dataset = TokenDataset(paths, 10, stride=5)
    what = "10 tokens of int64, targets shift, strided, one every 5 tokens"
    assert repr(dataset) == f"TokenDataset('4 files', 137 tokens, {what})"
    lines = dataset.explain().splitlines()
    assert lines[0] == f"{len(dataset)} windows: {what}"
    assert lines[1].startswith(f"{paths[0]}: llmc, 57 tokens of uint16, 10 windows, ")
    assert lines[2].startswith(f"{paths[1]}: llmc, 9 tokens of uint16, 0 windows: shorter than 11")
    assert len(lines) == 5
    random = TokenDataset(paths[0], 10, mode="random", targets=None)
    what = "10 tokens of int64, targets None, random"
    assert repr(random) == f"TokenDataset({str(paths[0])!r}, 57 tokens, {what})"
    assert "48 begins of windows" in random.explain()
