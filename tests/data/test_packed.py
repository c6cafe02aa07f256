"""PackedDataset: each token once, rows by best fit, tensors of rows, epochs, and bad input.
The properties are stated here; the core's rows have tests in C as well."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from token_writers import some_tokens, write_datatrove, write_megatron
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import fastloop
from fastloop import (
    MixtureDataset,
    PackedDataset,
    RaggedArray,
    ShuffleSampler,
    TokenDataset,
)

Row = list[tuple[int, int, int]]


def ragged(lengths: Any, dtype: Any = np.int32, first: int = 0) -> RaggedArray:
    offsets = np.append(0, np.cumsum(lengths))
    return RaggedArray((np.arange(offsets[-1]) + first).astype(dtype), offsets)


def draw(seed: int, most: int = 200) -> tuple[np.random.Generator, Any]:
    """Return random lengths, some of them 0 and at least one not."""
    any_of = np.random.default_rng(seed)
    lengths = np.clip(np.exp(any_of.normal(2.3, 1, int(any_of.integers(1, 300)))), 0, most)
    lengths = lengths.astype(np.int64) * (any_of.random(len(lengths)) > 0.1)
    lengths[0] = 1
    return any_of, lengths


def rows_of(data: PackedDataset) -> list[Row]:
    return [data.row(i) for i in range(len(data))]


def count_best_fit(lengths: list[int], room: int) -> int:
    """Return the rows that best fit decreasing opens, found as slowly as can be."""
    left: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, free in enumerate(left) if free >= length]
        if fits:
            left[min(fits, key=left.__getitem__)] -= length
        else:
            left.append(room - length)
    return len(left)


def check_pieces(rows: list[Row], lengths: Any, length: int, overlong: str) -> None:
    """Check that the pieces of each document are the document, each token once."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        assert 0 < sum(count for _, _, count in row) <= length
        for document, first, count in row:
            assert count > 0
            found.setdefault(document, []).append((first, count))
    for document, had in enumerate(lengths.tolist()):
        kept = {"split": had, "truncate": length, "drop": 0}[overlong] if had > length else had
        at = 0
        for first, count in sorted(found.pop(document, [])):
            assert first == at
            at += count
        assert at == kept
    assert not found


# ---- rows


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
@pytest.mark.parametrize("strategy", ["best_fit", "wrapped"])
def test_each_token_comes_once_and_windows_are_full(strategy: str, overlong: str) -> None:
    for seed in range(12):
        any_of, lengths = draw(seed)
        length, window = int(any_of.integers(1, 64)), int(any_of.integers(1, 120))
        data = PackedDataset(
            ragged(lengths), length, strategy=strategy, overlong=overlong, window=window, seed=seed
        )
        rows = rows_of(data)
        check_pieces(rows, lengths, length, overlong)
        halves = sum(2 * sum(piece[2] for piece in row) <= length for row in rows)
        short = sum(sum(piece[2] for piece in row) < length for row in rows)
        windows = -(-len(lengths) // window)
        assert halves <= windows
        assert strategy == "best_fit" or short <= windows


def test_best_fit_decreasing_opens_as_few_rows_as_the_slow_form() -> None:
    for seed in range(15):
        any_of, lengths = draw(seed)
        length = int(any_of.integers(1, 300))
        pieces = [k for n in lengths for k in [length] * int(n // length) + [int(n % length)] if k]
        assert len(PackedDataset(ragged(lengths), length)) == count_best_fit(pieces, length)


@pytest.mark.parametrize("length", [2048, 8192])
@pytest.mark.parametrize("mean, spread, most", [(6.5, 1.1, 20_000), (6.0, 0.9, 8_000)])
def test_little_padding(length: int, mean: float, spread: float, most: int) -> None:
    lengths = np.exp(np.random.default_rng(0).normal(mean, spread, 300_000))
    lengths = np.clip(lengths, 20, most).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    data = PackedDataset(RaggedArray(np.zeros(offsets[-1], np.uint8), offsets), length)
    assert 1 - lengths.sum() / (len(data) * length) < 0.001


@pytest.mark.parametrize("repack", [True, False])
def test_epochs(repack: bool) -> None:
    _, lengths = draw(5)
    data = PackedDataset(ragged(lengths), 40, window=30, repack=repack, seed=2)
    epochs = []
    for epoch in (0, 1, 2, 0):
        data.set_epoch(epoch)
        rows = rows_of(data)
        check_pieces(rows, lengths, 40, "split")
        epochs.append(rows)
    assert epochs[0] == epochs[3]
    assert epochs[0] != epochs[1] != epochs[2]
    alike = [sorted(map(sorted, rows)) for rows in epochs]
    assert (alike[0] == alike[1] == alike[2]) is not repack
    other = PackedDataset(ragged(lengths), 40, window=30, repack=repack, seed=3)
    assert rows_of(other) != epochs[0]


def test_documents_and_rows_in_order() -> None:
    data = PackedDataset(ragged([3, 9, 2, 4, 1]), 4, window=3, shuffle=False)
    assert rows_of(data)[:2] == [[(1, 0, 4)], [(1, 4, 4)]]
    assert rows_of(data)[2:] == [[(0, 0, 3), (1, 8, 1)], [(2, 0, 2)], [(3, 0, 4)], [(4, 0, 1)]]
    wrapped = PackedDataset(ragged([3, 9, 2]), 4, strategy="wrapped", shuffle=False)
    assert rows_of(wrapped) == [
        [(0, 0, 3), (1, 0, 1)],
        [(1, 1, 4)],
        [(1, 5, 4)],
        [(2, 0, 2)],
    ]


def test_the_length_of_an_epoch_is_not_needed_for_its_first_rows() -> None:
    """A row needs the windows before the row alone, and a window is packed on its own."""
    lengths = np.full(4000, 3)
    whole = PackedDataset(ragged(lengths), 10, window=100, seed=1)
    rows = rows_of(whole)
    for i in (0, 5, 1000, -1, -len(rows)):
        fresh = PackedDataset(ragged(lengths), 10, window=100, seed=1)
        sample = fresh[i]
        tokens = [
            3 * document + k for document, first, n in rows[i] for k in range(first, first + n)
        ]
        assert sample["input_ids"].tolist() == tokens + [0] * (10 - len(tokens))
    for i in (len(rows), -len(rows) - 1, 2**62):
        with pytest.raises(IndexError, match="out of bounds"):
            whole[i]


# ---- tensors


def expect(row: Row, columns: dict[str, Any], offsets: Any, length: int, pad: int) -> Any:
    """Return the tensors of a row, element by element."""
    out: dict[str, list[Any]] = {key: [] for key in [*columns, "position_ids", "doc_ids"]}
    labels = columns.get("labels", columns["input_ids"])
    out["labels"] = []
    for number, (document, first, count) in enumerate(row):
        begin = int(offsets[document]) + first
        for key, values in columns.items():
            if key != "labels":
                out[key] += values[begin : begin + count].tolist()
        out["labels"] += [-100, *labels[begin + 1 : begin + count].tolist()]
        out["position_ids"] += range(count)
        out["doc_ids"] += [number] * count
    left = length - len(out["labels"])
    out["position_ids"] += range(left)
    out["doc_ids"] += [len(row)] * left
    paddings = {"input_ids": pad, "labels": -100}
    return {key: (each + [paddings.get(key, 0)] * left)[:length] for key, each in out.items()}


@pytest.mark.parametrize("kind", ["one", "labels", "mask"])
def test_tensors_of_rows(kind: str) -> None:
    for seed in range(8):
        any_of, lengths = draw(seed, 40)
        length, offsets = int(any_of.integers(4, 60)), np.append(0, np.cumsum(lengths))
        tokens = any_of.integers(0, 60_000, offsets[-1]).astype(np.uint16)
        columns: dict[str, Any] = {"input_ids": tokens}
        if kind != "one":
            columns["labels"] = np.where(any_of.random(len(tokens)) < 0.5, -100, tokens)
            columns["labels"] = columns["labels"].astype(np.int32)
        if kind == "mask":
            columns["loss_mask"] = any_of.random(len(tokens)) < 0.5
        given: Any = {key: RaggedArray(each, offsets) for key, each in columns.items()}
        given = given["input_ids"] if kind == "one" else given
        data = PackedDataset(given, length, return_doc_ids=True, pad_id=7, window=50)
        for i in range(len(data)):
            sample, row = data[i], data.row(i)
            expected = expect(row, columns, offsets, length, 7)
            assert {key: each.tolist() for key, each in sample.items()} == expected
            ends, longest = PackedDataset.cu_seqlens(sample["position_ids"])
            pieces = [count for _, _, count in row]
            pieces += [length - sum(pieces)] * (sum(pieces) < length)
            assert ends.tolist() == np.append(0, np.cumsum(pieces)).tolist()
            assert ends.dtype is torch.int32 and longest == max(pieces)
        assert list(sample)[-2:] == ["position_ids", "doc_ids"]
        assert kind != "mask" or sample["loss_mask"].dtype is torch.bool


@pytest.mark.parametrize("bos, eos", [(1, None), (None, 2), (1, 2)])
@pytest.mark.parametrize("overlong", ["split", "truncate"])
def test_tokens_around_documents(bos: Any, eos: Any, overlong: str) -> None:
    """A document with such tokens is packed as if its own tokens included them."""
    _, lengths = draw(3, 40)
    plain = ragged(lengths, first=100)
    edged = []
    for i in range(len(plain)):
        own = plain[i].tolist()
        edged.append([t for t in [bos, *own, eos] if t is not None] if own else [])
    given = {"overlong": overlong, "window": 40, "return_position_ids": False}
    ours = PackedDataset(plain, 12, bos_id=bos, eos_id=eos, **given)
    theirs = PackedDataset(RaggedArray.from_list(edged), 12, **given)
    assert rows_of(ours) == rows_of(theirs)
    for i in range(len(ours)):
        one, other = ours[i], theirs[i]
        assert list(one) == ["input_ids", "labels"]
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_dtypes() -> None:
    array = ragged([3, 4, 5])
    data = PackedDataset(array, 8, out_dtype=torch.int32, return_position_ids=False)
    assert {key: each.dtype for key, each in data[0].items()} == {
        "input_ids": torch.int32,
        "labels": torch.int32,
    }
    for dtype in (torch.uint16, "float32", torch.uint32):
        with pytest.raises(ValueError, match="out_dtype must be"):
            PackedDataset(array, 8, out_dtype=dtype)


# ---- loaders of torch, processes


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader(workers: int) -> None:
    data = PackedDataset(ragged(draw(1)[1]), 30, window=20, seed=4)
    theirs = pickle.loads(pickle.dumps(data))
    rows: list[Any] = []
    for batch in DataLoader(theirs, 3, num_workers=workers):
        rows += batch["input_ids"].tolist()
    assert rows == [data[i]["input_ids"].tolist() for i in range(len(data))]


def test_a_worker_of_a_fork_server() -> None:
    data = PackedDataset(ragged(draw(1)[1]), 30, window=20, seed=4)
    loader = DataLoader(data, 200, num_workers=1, multiprocessing_context="forkserver")
    data.set_epoch(3)
    (batch,) = loader
    assert batch["labels"].tolist() == [data[i]["labels"].tolist() for i in range(len(data))]


def test_a_pickle_has_no_copy_of_a_mapped_file(tmp_path: Any) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(300_000, dtype=np.uint16))
    array = RaggedArray(tmp_path / "tokens.npy", np.arange(0, 300_001, 1000))
    data = PackedDataset(array, 999)
    text = pickle.dumps(data)
    assert len(text) < 6000
    assert rows_of(pickle.loads(text)) == rows_of(data)


# ---- bad input


@pytest.mark.parametrize(
    "given, text",
    [
        ({"length": 0}, r"length must be an int in \[1, 16777216\], got 0"),
        ({"length": 2**24 + 1}, "length must be an int in"),
        ({"window": 0}, r"window must be an int in \[1, \d+\], got 0"),
        ({"strategy": "first_fit"}, "strategy must be one of 'best_fit', 'wrapped', got"),
        ({"overlong": "cut"}, "overlong must be one of 'split', 'truncate', 'drop', 'raise'"),
        ({"seed": -1}, "seed must be an int in"),
        ({"bos_id": -1}, "bos_id must be an int >= 0, got -1"),
        ({"eos_id": 2**70}, r"eos_id must be an int in \[-9223372036854775808, "),
        ({"pad_id": 2**31, "out_dtype": torch.int32}, r"pad_id .*2147483647\], got 2147483648"),
        (
            {"overlong": "raise", "length": 4},
            r"document 2 must be at most length=4 tokens long, got 9 \(pass overlong='split'",
        ),
    ],
)
def test_bad_arguments(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PackedDataset(ragged([3, 4, 9, 0]), **{"length": 8, **given})


@pytest.mark.parametrize(
    "data, error, text",
    [
        ([[1, 2], [3]], TypeError, "data must be a RaggedArray, or a dict"),
        ({"labels": ragged([2])}, TypeError, "a dict of RaggedArrays with 'input_ids'"),
        ({"input_ids": [1, 2]}, TypeError, r"data\['input_ids'\] must be a RaggedArray, got"),
        (ragged([2], np.float32), TypeError, r"dtype of data\['input_ids'\] must be of integers"),
        (ragged([0, 0]), ValueError, "data must have a token, got none"),
        (
            {"input_ids": ragged([2]), "doc_ids": ragged([2])},
            ValueError,
            r"data must be without columns \['position_ids",
        ),
        (
            {"input_ids": ragged([2, 3]), "labels": ragged([2, 4])},
            ValueError,
            r"data\['labels'\]: document 1 must be of 3 tokens, as in data\['input_ids'\], got 4",
        ),
        (
            {"input_ids": ragged([2, 3]), "labels": ragged([2])},
            ValueError,
            r"data\['labels'\] must be 2 documents, as data\['input_ids'\] has, got 1",
        ),
        (
            {"input_ids": ragged([2]), "labels": ragged([2], np.uint16)},
            ValueError,
            None,
        ),
    ],
)
def test_bad_data(data: Any, error: Any, text: str | None) -> None:
    if text is None:  # an unsigned column of labels becomes int64, which has -100
        assert PackedDataset(data, 8)[0]["labels"].tolist() == [-100, 1] + [-100] * 6
        return
    with pytest.raises(error, match=text):
        PackedDataset(data, 8)


def test_labels_that_cannot_be_padded() -> None:
    with pytest.raises(ValueError, match=r"the padding of 'labels'"):
        PackedDataset(ragged([2, 3], np.uint16), 8, out_dtype=torch.uint16)


def test_all_documents_dropped() -> None:
    with pytest.raises(ValueError, match="data must have a document of 1 to 4 tokens, got none"):
        PackedDataset(ragged([5, 6, 0]), 4, overlong="drop")
    assert len(PackedDataset(ragged([5, 6, 0, 4]), 4, overlong="drop")) == 1


def test_tokens_around_several_columns_are_refused() -> None:
    data = {"input_ids": ragged([2]), "labels": ragged([2])}
    with pytest.raises(ValueError, match="bos_id and eos_id must be None with several columns"):
        PackedDataset(data, 8, eos_id=0)


@pytest.mark.parametrize("loader", ["shuffle", "random", "distributed", "sampler", "mixture"])
def test_a_loader_that_shuffles_is_refused(loader: str) -> None:
    data = PackedDataset(ragged([3, 4, 9]), 8)
    given: Any = {
        "random": lambda: {"sampler": RandomSampler(data)},
        "distributed": lambda: {"sampler": DistributedSampler(data, 2, 0)},
        "sampler": lambda: {"sampler": ShuffleSampler(data)},
    }
    text = r"shuffle must be False, got True \(rows of a PackedDataset are shuffled already"
    with pytest.raises(ValueError, match=text):
        what = MixtureDataset({"a": data}) if loader == "mixture" else data
        fastloop.DataLoader(what, 2, **given.get(loader, lambda: {"shuffle": True})())
    fastloop.DataLoader(data, 2, sampler=ShuffleSampler(data, shuffle=False))


def test_a_sampler_that_keeps_the_length_of_one_epoch_is_refused() -> None:
    data = PackedDataset(ragged([3, 4, 9]), 8)
    text = r"sampler must be a fastloop.ShuffleSampler\(dataset, shuffle=False\), got 'Distributed"
    with pytest.raises(ValueError, match=text):
        fastloop.DataLoader(data, 2, sampler=DistributedSampler(data, 2, 0, shuffle=False))
    data = PackedDataset(ragged([3, 4, 9]), 8, repack=False)
    loader = fastloop.DataLoader(data, 2, sampler=DistributedSampler(data, 2, 0, shuffle=False))
    assert len(list(loader)) == len(loader)


def test_offsets_that_are_changed_later_are_an_error() -> None:
    array = ragged([3, 4, 9])
    data = PackedDataset(array, 8)
    assert len(data) == 2
    array.offsets.flags.writeable = True
    array.offsets[1] = 99
    data.set_epoch(1)
    with pytest.raises(ValueError, match="the offsets have been changed"):
        len(data)


def test_explain() -> None:
    data = PackedDataset(ragged([3, 4, 9, 0]), 8, overlong="drop")
    text = data.explain()
    assert "4 documents of 16 tokens in rows of 8, best_fit in windows of 10,000" in text
    assert (
        "1 empty documents are left out" in text
        and "1 documents are longer than a row and left out" in text
    )
    assert "1 rows in this epoch" in text


def test_costs_of_rows() -> None:
    data = PackedDataset(ragged(draw(9)[1]), 30, window=25)
    for first, count in ((0, len(data)), (3, 4), (2, 0)):
        found = data.row_costs(first, count, (2.0, 0.5))
        expected = [
            sum(2 * n + 0.5 * n * n for _, _, n in data.row(i)) for i in range(first, first + count)
        ]
        assert found.tolist() == expected
    assert data.row_costs(0, 2, np.sqrt).tolist() == pytest.approx(
        [sum(n**0.5 for _, _, n in data.row(i)) for i in (0, 1)]
    )
    with pytest.raises(IndexError):
        data.row_costs(len(data), 1)


@pytest.mark.parametrize(
    "given, error, text",
    [
        ((0, 2, (1.0,)), TypeError, r"cost must be \(a, b\) for a cost of a\*n \+ b\*n\*n"),
        ((0, 2, ("a", "b")), TypeError, r"cost must be \(a, b\)"),
        ((0, 2, lambda n: n[1:]), ValueError, r"cost must be a function that returns shape \(\d+,"),
        ((0, 2, lambda n: np.append(n, 1)), ValueError, "cost must be a function that returns"),
        ((-1, 2), ValueError, "first must be an int >= 0, got -1"),
        ((0, 2.0), TypeError, "count must be an int >= 0, got 2.0"),
    ],
)
def test_costs_that_are_refused(given: Any, error: Any, text: str) -> None:
    data = PackedDataset(ragged(draw(9)[1]), 30, window=25)
    with pytest.raises(error, match=text):
        data.row_costs(*given)


@pytest.mark.parametrize("length, window", [(2**61, 2**62), (2**61, 2**61), (2**60, 1), (2**57, 1)])
def test_more_windows_or_documents_than_memory_holds(length: int, window: int) -> None:
    """Numbers of bytes do not overflow."""
    mixture = MixtureDataset({"a": ragged([3] * 10)}, {"a": 1}, length=length)
    with pytest.raises(MemoryError, match="out of memory to pack documents"):
        PackedDataset(mixture, 8, window=window)[0]


def test_a_source_that_a_state_has_left_out_is_named() -> None:
    sources = {"a": ragged([3, 4]), "b": ragged([5, 6])}
    state = MixtureDataset(sources, {"a": 1, "b": 1}).state_dict()
    mixture = MixtureDataset({"a": sources["a"]}, {"a": 1})
    mixture.load_state_dict(state)
    with pytest.raises(ValueError, match=r"sources must be with 'b', got None \(pass the dataset"):
        PackedDataset(mixture, 8)


# ---- token files and columns of Arrow


def documents_of(data: PackedDataset) -> list[list[int]]:
    return [data._documents.main[i].tolist() for i in range(len(data._documents.main))]


@pytest.mark.parametrize("kind", ["megatron", "datatrove", "eos", "buffers"])
def test_documents_of_token_files(kind: str, tmp_path: Any) -> None:
    lengths, given = [5, 9, 1, 30], {}
    parts = [some_tokens(45, seed=i) | 1 for i in range(2)]  # without 0
    ends = np.cumsum(lengths)
    paths = [tmp_path / f"{i}.{'ds' if kind == 'datatrove' else 'bin'}" for i in range(2)]
    for path, tokens in zip(paths, parts, strict=True):
        if kind == "megatron":
            write_megatron(path.with_suffix(""), tokens, lengths)
        elif kind == "datatrove":
            write_datatrove(path, tokens, ends.tolist())
        else:
            tokens[ends[:-1] - 1] = 0  # the last document has no end
            tokens.tofile(path)
            given = {"dtype": "uint16", "eos_id": 0}
    if kind == "buffers":
        tokens = parts.pop()
        source = TokenDataset.from_buffers(tokens, np.append(0, ends), 4)
        parts = [tokens]
    else:
        source = TokenDataset(paths, 4, **given)
    data = PackedDataset(source, 12)
    expected = [part.tolist() for tokens in parts for part in np.split(tokens, ends[:-1])]
    assert documents_of(data) == expected
    assert rows_of(data) == rows_of(pickle.loads(pickle.dumps(data)))
    assert data._documents.main.file is None or kind != "buffers"


def test_token_files_without_documents(tmp_path: Any) -> None:
    some_tokens(100).tofile(tmp_path / "a.bin")
    source = TokenDataset(tmp_path / "a.bin", 4, dtype="uint16")
    with pytest.raises(ValueError, match=r"eos_id must be an int for the documents of .*a.bin"):
        PackedDataset(source, 12)
    (tmp_path / "a.bin").write_bytes(b"1234" * 10)
    source = TokenDataset(tmp_path / "a.bin", 4, dtype="uint16", eos_id=3)
    (tmp_path / "a.bin").write_bytes(b"1234" * 9)
    with pytest.raises(OSError, match="has changed since the dataset was made"):
        PackedDataset(source, 12)


def test_a_mixture_takes_the_documents_of_token_files(tmp_path: Any) -> None:
    """Windows of tokens are no documents, and are refused."""
    tokens = some_tokens(600, seed=1)
    tokens.tofile(tmp_path / "a.bin")
    files = TokenDataset(tmp_path / "a.bin", 4, dtype="uint16", eos_id=int(tokens[0]))
    plain = RaggedArray(some_tokens(600, seed=2), np.arange(0, 601, 20))
    with pytest.raises(TypeError, match=r"sources\['files'\] must .* \(pass its documents\(\)\)"):
        PackedDataset(MixtureDataset({"files": files, "plain": plain}), 12)
    documents = files.documents()
    data = PackedDataset(MixtureDataset({"files": documents, "plain": plain}), 12)
    found = sorted(tuple(d) for d in documents_of(data))
    assert found == sorted(tuple(each.tolist()) for of in (documents, plain) for each in of)
    assert sum(len(d) for d in found) == 1200
    assert len(pickle.dumps(documents)) < 4000  # a path instead of the tokens
    assert pickle.loads(pickle.dumps(documents))[1].tolist() == documents[1].tolist()


def test_a_subclass_whose_length_changes_is_no_source_of_a_mixture() -> None:
    class Mine(PackedDataset):
        pass

    documents = RaggedArray(some_tokens(600, seed=2), np.arange(0, 601, 20))
    with pytest.raises(TypeError, match=r"sources\['a'\] must be a PackedDataset itself, or"):
        MixtureDataset({"a": Mine(documents, 32)})
    mixture = MixtureDataset({"a": Mine(documents, 32, repack=False)})
    assert sum(len(row["input_ids"]) for row in mixture) == 32 * len(mixture)


def test_chunks_of_a_mapped_arrow_file(tmp_path: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    draw_lengths = np.random.default_rng(1).integers(0, 60, (3, 40))
    lists = [[list(range(n)) for n in lengths] for lengths in draw_lengths.tolist()]
    schema = pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32()))])
    path = str(tmp_path / "a.arrow")
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
        for each in lists:
            writer.write_batch(pyarrow.record_batch([pyarrow.array(each)], schema=schema))
    column = pyarrow.ipc.open_stream(pyarrow.memory_map(path)).read_all().column("input_ids")
    assert column.num_chunks == 3
    data = PackedDataset(RaggedArray.from_arrow(column), 50, window=30)
    plain = PackedDataset(
        RaggedArray.from_list([one for each in lists for one in each], "int32"), 50, window=30
    )
    for batch, other in zip(DataLoader(data, 7), DataLoader(plain, 7), strict=True):
        assert all(torch.equal(batch[key], other[key]) for key in batch)
