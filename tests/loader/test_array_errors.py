"""What ArrayDataset refuses: the type of the error, and a message that names the field, what was
wrong and what to do."""

import errno
import os
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import N, run_program, small_dataset
from torch.utils.data import Subset, TensorDataset

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

GOOD = np.zeros((4, 2))
FIELDS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "objects": (lambda: np.array([1, None, "a", 2], object), TypeError, "object.*pad rows"),
    "ragged": (
        lambda: np.array([[1], [1, 2], [], [3]], object),
        TypeError,
        "object.*rows of different length",
    ),
    "text": (lambda: np.array(list("abcd")), TypeError, "<U1.*encode the text as integers"),
    "bytes": (lambda: np.array([b"a"] * 4), TypeError, r"\|S1.*encode the text as integers"),
    "records": (
        lambda: np.zeros(4, [("a", "i4"), ("b", "f4")]),
        TypeError,
        "'a'.*pass its columns as separate fields",
    ),
    "recarray": (lambda: np.rec.array([(1, 2.0)] * 4), TypeError, "separate fields"),
    "void": (lambda: np.zeros(4, "V3"), TypeError, "dtype"),
    "big-endian": (lambda: np.zeros(4, ">f4"), TypeError, r">f4.*newbyteorder\('='\)"),
    "big-endian complex": (lambda: np.zeros(4, ">c8"), TypeError, r"newbyteorder\('='\)"),
    "dates": (lambda: np.zeros(4, "M8[s]"), TypeError, r"datetime64\[s\].*view\('int64'\)"),
    "durations": (lambda: np.zeros(4, "m8[s]"), TypeError, r"timedelta64\[s\].*view\('int64'\)"),
    "long double": (lambda: np.zeros(4, "g"), TypeError, r"longdouble|float128.*astype"),
    "masked": (lambda: np.ma.zeros((4, 2)), TypeError, "MaskedArray.*numpy.asarray"),
    "list": (lambda: ["a", "b", "c", "d"], TypeError, r"list.*numpy.asarray"),
    "number": (lambda: 3, TypeError, "got int .pass numpy.asarray"),
    "None": (lambda: None, TypeError, "got NoneType .pass numpy.asarray"),
    "bytes path": (lambda: b"x.npy", TypeError, "got bytes .pass numpy.asarray"),
    "numpy scalar": (lambda: np.float32(1), TypeError, "got float32 .pass numpy.asarray"),
    "0-d array": (lambda: np.array(3.0), ValueError, r"counts samples, got shape \(\)"),
    "0-d tensor": (lambda: torch.tensor(3.0), ValueError, r"counts samples, got shape \(\)"),
    "sparse": (lambda: torch.eye(4).to_sparse(), TypeError, r"sparse_coo.*to_dense\(\)"),
    "csr": (lambda: torch.eye(4).to_sparse_csr(), TypeError, r"sparse_csr.*to_dense\(\)"),
    "meta": (lambda: torch.zeros(4, device="meta"), TypeError, r"on meta .pass t.cpu\(\)"),
    "dataset": (
        lambda: TensorDataset(torch.zeros(4)),
        TypeError,
        "got TensorDataset .pass numpy.asarray",
    ),
}
if hasattr(np.dtypes, "StringDType"):
    FIELDS["new strings"] = (
        lambda: np.array(list("abcd"), np.dtypes.StringDType()),
        TypeError,
        "StringDType.*encode the text as integers",
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(("make", "kind", "text"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_is_no_array(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"field 1 .*{text}"):
        ArrayDataset(GOOD, make())
    with pytest.raises(kind, match=f"field 'label' .*{text}"):
        ArrayDataset(x=GOOD, label=make())


def test_no_field_both_kinds_of_field_and_unequal_fields() -> None:
    with pytest.raises(TypeError, match="got 0 by position and 0 by name"):
        ArrayDataset()
    with pytest.raises(TypeError, match="all by position or all by name"):
        ArrayDataset(GOOD, x=GOOD)
    with pytest.raises(ValueError, match=r"same number of rows.*field 0 has 4, field 1 has 3"):
        ArrayDataset(GOOD, GOOD[:3])
    with pytest.raises(ValueError, match="field 'x' has 4, field 'y' has 0, field 'z' has 4"):
        ArrayDataset(x=GOOD, y=GOOD[:0], z=torch.zeros(4))


def _npy(array: Any, **kwargs: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array, **kwargs)


def _archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=GOOD)


def _truncated(keep: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        np.save(path, np.zeros((1000, 10)))
        os.truncate(path, int(path.stat().st_size * keep))

    return make


FILES: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "empty": (lambda p: p.write_bytes(b""), ValueError, "cannot be opened as a .npy file"),
    "text": (lambda p: p.write_text("1,2,3"), ValueError, "cannot be opened as a .npy file"),
    "raw": (lambda p: p.write_bytes(bytes(4096)), ValueError, "cannot be opened as a .npy"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps([1])), ValueError, "cannot be opened as"),
    "broken zip": (lambda p: p.write_bytes(b"PK\3\4...."), ValueError, "cannot be opened as"),
    "objects": (_npy(np.array([{}]), allow_pickle=True), ValueError, "cannot be opened as"),
    "half": (_truncated(0.5), ValueError, "cannot be opened as"),
    "header alone": (_truncated(0.0005), ValueError, "cannot be opened as"),
    "bad header": (
        lambda p: p.write_bytes(b"\x93NUMPY\1\0v\0{'descr': '<f8', 'fort" + bytes(200)),
        ValueError,
        "cannot be opened as",
    ),
    "archive": (_archive, ValueError, r"cannot be opened as .*for an .npz archive, pass"),
    "scalar": (_npy(np.array(1.0)), ValueError, "counts samples"),
    "strings": (_npy(np.array(["a", "b"])), TypeError, "encode the text as integers"),
    "big-endian": (_npy(np.zeros(3, ">i4")), TypeError, "newbyteorder"),
    "missing": (lambda p: None, FileNotFoundError, "No such file"),
    "directory": (lambda p: p.mkdir(), IsADirectoryError, "directory"),
    "in no directory": (lambda p: p.write_text(""), NotADirectoryError, "Not a directory"),
}


@pytest.mark.parametrize(("make", "kind", "text"), FILES.values(), ids=FILES)
def test_a_path_that_is_no_npy_file(
    make: Callable[[Path], Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.npy"
    make(path)
    if kind is NotADirectoryError:
        path = path / "data.npy"
    for value in (path, str(path)):
        with pytest.raises(kind, match=f"(?s)field 'x'.*{text}") as caught:
            ArrayDataset(x=value)
        if isinstance(caught.value, OSError):
            assert caught.value.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
            assert caught.value.filename == str(path)
        elif "opened" in text:
            assert str(path) in str(caught.value)


def test_a_path_that_is_no_regular_file(tmp_path: Path) -> None:
    """In a process of its own: a FIFO would keep this one waiting for somebody who writes to it,
    and a device may give bytes without end."""
    lines = run_program(tmp_path, "special_files").splitlines()
    kinds = ["FIFO", "FIFO", "socket", "character device", "character device"]
    names = ["fifo.npy", "link.npy", "socket.npy", "/dev/zero", "/dev/null"]
    assert len(lines) == len(kinds)
    for line, kind, name in zip(lines, kinds, names, strict=True):
        assert line.startswith("field 'x': '/")
        assert f"{name}' must be a regular file, got a {kind} (save" in line


def test_the_file_that_was_looked_at_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "data.npy", tmp_path / "other.npy"
    np.save(path, np.arange(4))
    np.save(other, np.zeros(100))
    read_magic = np.lib.format.read_magic

    def replace_and_read(file: Any) -> Any:
        os.replace(other, path)
        return read_magic(file)

    monkeypatch.setattr(np.lib.format, "read_magic", replace_and_read)
    with suppress(AttributeError):  # where NumPy has its own functions
        monkeypatch.setattr(np.lib._format_impl, "read_magic", replace_and_read)
    assert [int(x) for [x] in ArrayDataset(path)] == [0, 1, 2, 3]  # type: ignore[attr-defined]


def test_every_version_of_the_format_is_read(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(12, dtype=np.int16).reshape(4, 3))
    path = tmp_path / "data.npy"
    (tmp_path / "link.npy").symlink_to(path)
    for version in ((1, 0), (2, 0), (3, 0)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version)
        for name in ("data.npy", "link.npy"):
            dataset = ArrayDataset(tmp_path / name)
            (batch,) = next(iter(DataLoader(dataset, 4)))
            assert batch.tolist() == array.tolist()
            assert repr(dataset) == "ArrayDataset(0: int16 (4, 3))"
    path.write_bytes(path.read_bytes().replace(b"NUMPY\3", b"NUMPY\4"))
    with pytest.raises(ValueError, match=r"cannot be opened as .*version"):
        ArrayDataset(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", GOOD)
    (tmp_path / "data.npy").chmod(0)
    with pytest.raises(PermissionError, match=r"field 0.*data\.npy"):
        ArrayDataset(tmp_path / "data.npy")


def test_a_refused_file_is_closed_again(tmp_path: Path) -> None:
    for name in ("archive", "strings", "half", "text", "broken zip"):
        FILES[name][0](tmp_path / "data.npy")
        with pytest.raises(Exception, match="field 0"):
            ArrayDataset(tmp_path / "data.npy")
    folder = Path("/proc/self/fd")
    links = [os.readlink(folder / fd) for fd in os.listdir(folder) if (folder / fd).exists()]
    assert not [link for link in links if link.startswith(str(tmp_path))]


OUTSIDE = [N, -N - 1, 10**9, -(10**9), 2**62, -(2**63), 2**63 - 1]


def text_of_torch(dataset: Any, index: int) -> str:
    with pytest.raises(IndexError) as error:
        dataset[index]
    return str(error.value)


def raises_outside(iterator: Any, text: str, own: str) -> None:
    """The next batch raises the dataset's own error; its context names place and length."""
    with pytest.raises(IndexError) as error:
        next(iterator)
    assert str(error.value) == text
    assert isinstance(error.value.__context__, IndexError)
    assert re.search(own, str(error.value.__context__))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("value", OUTSIDE)
def test_an_index_outside_is_torchs_error_and_names_position_value_and_length(
    value: int, workers: int
) -> None:
    batches = [[0, 1], [2, value, 3], [4, 5], [value], [N - 1]]
    dataset = small_dataset()
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=workers, path="array")
    text = text_of_torch(dataset, value)
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, 10]
        raises_outside(iterator, text, rf"index {value} at position 1 .*length {N}\b")
        assert next(iterator)[1].tolist() == [40, 50]
        raises_outside(iterator, text, rf"index {value} at position 0 .*length {N}\b")
        assert next(iterator)[1].tolist() == [10 * (N - 1)]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)
    assert loader.stats().slots_lent == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_outside_of_a_sampler_cut_into_blocks(workers: int) -> None:
    sampler = torch.utils.data.SequentialSampler(range(N + 3))
    dataset = small_dataset()
    iterator = iter(DataLoader(dataset, 8, sampler=sampler, num_workers=workers, path="array"))
    for _ in range(N // 8):
        next(iterator)
    own = rf"index {N} at position {N % 8} .*length {N}\b"
    raises_outside(iterator, text_of_torch(dataset, N), own)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_outside_without_batching(workers: int) -> None:
    dataset = small_dataset()
    iterator = iter(DataLoader(dataset, None, sampler=[1, N, 2], num_workers=workers))
    next(iterator)
    with pytest.raises(IndexError) as error:
        next(iterator)
    assert str(error.value) == text_of_torch(dataset, N)
    assert next(iterator)[1].item() == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_outside_an_empty_dataset(workers: int) -> None:
    dataset = ArrayDataset(np.zeros((0, 3)))
    assert list(DataLoader(dataset, 2, num_workers=workers)) == []
    iterator = iter(DataLoader(dataset, batch_sampler=[[0]], num_workers=workers))
    raises_outside(iterator, text_of_torch(dataset, 0), r"index 0 at position 0 .*length 0\b")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_that_came_to_be_inside_by_its_turn_names_where_it_was_outside(
    workers: int,
) -> None:
    """The dataset raises nothing any more."""
    indices = [0, 1]
    loader = DataLoader(Subset(small_dataset(), indices), sampler=[0, 1, 2], num_workers=workers)
    iterator = iter(loader)
    indices.append(5)
    assert [next(iterator)[1].item(), next(iterator)[1].item()] == [0, 10]
    with pytest.raises(
        IndexError, match=r"index 2 at position 0 .*length 2; samplers and the"
    ) as e:
        next(iterator)
    assert e.value.__context__ is None
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_outside_with_views_is_the_datasets_error(workers: int) -> None:
    images = np.zeros((4, 3, 8, 8), np.uint8)
    dataset = ArrayDataset(images, transform=T.RandomHorizontalFlip())
    batches: list[Any] = [[(0, 1)], [(1, 1), (4, 2)], [(3, 0)]]
    iterator = iter(DataLoader(dataset, batch_sampler=batches, num_workers=workers, path="array"))
    next(iterator)
    with pytest.raises(IndexError) as wanted:
        dataset[(4, 2)]  # type: ignore[index]
    raises_outside(iterator, str(wanted.value), r"index 4 at position 1 .*length 4\b")
    next(iterator)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_batch_larger_than_memory_is_an_error_in_its_place(workers: int) -> None:
    """Rows that are one element over and over: large, and free until they are copied."""
    rows = np.broadcast_to(np.zeros(1, np.uint8), (4, 1 << 24))
    batches = [[0], torch.zeros(1 << 24, dtype=torch.int64), [1]]
    loader = DataLoader(ArrayDataset(rows), batch_sampler=batches, num_workers=workers)
    iterator = iter(loader)
    assert next(iterator)[0].shape == (1, 1 << 24)
    with pytest.raises(MemoryError, match=str(1 << 48)):
        next(iterator)
    assert next(iterator)[0].shape == (1, 1 << 24)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_whose_size_no_integer_holds_is_an_error(workers: int) -> None:
    rows = np.broadcast_to(np.zeros(1, np.uint8), (4, 1 << 44))
    batches = [torch.zeros(1 << 20, dtype=torch.int64)]
    loader = DataLoader(ArrayDataset(rows), batch_sampler=batches, num_workers=workers)
    with pytest.raises(ValueError, match=r"larger than 2\^63 bytes"):
        next(iter(loader))
