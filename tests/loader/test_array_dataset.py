"""ArrayDataset: every kind of field, alone, in torch's loader and in ours."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, bits, epoch, outcome
from torch.utils.data import Dataset, RandomSampler, Subset

from fastloop import ArrayDataset, DataLoader

ROWS = 11
NUMPY_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128 longlong"
).split()
TORCH_DTYPES = [
    torch.bfloat16,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint64,
]


def values(dtype: Any = np.float32, shape: tuple[int, ...] = (ROWS, 4, 3)) -> np.ndarray:
    """Different bytes everywhere, NaNs included."""
    rng = np.random.default_rng(7)
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape).copy()


def expected(array: np.ndarray, index: Any) -> torch.Tensor:
    """The batch as NumPy makes it: the truth, whatever torch and we do."""
    return torch.from_numpy(np.array(np.asarray(array)[index]))


def assert_loads(dataset: Dataset[Any], truth: np.ndarray, get: Callable[[Any], Any]) -> None:
    """Samples and batches of torch's loader and of ours are the rows of `truth`."""
    n = len(truth)
    for i in [*range(n), *range(-n, 0)]:
        assert_same(get(dataset[i]), expected(truth, i), f"sample {i}")
    order = list(RandomSampler(range(n), generator=torch.Generator().manual_seed(1))) if n else []
    for cls, workers in ((TorchLoader, 0), (DataLoader, 0), (DataLoader, 2)):
        seen = epoch(cls(dataset, 4, sampler=order, num_workers=workers))
        assert len(seen) == (n + 3) // 4
        for k, batch in enumerate(seen):
            chosen = order[4 * k : 4 * k + 4]
            assert_same(get(batch), expected(truth, chosen), f"{cls.__module__} {workers} {k}")
    assert DataLoader(dataset).stats().path == "array"


def first(sample: Any) -> Any:
    return sample[0]


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 3), (ROWS, 1, 2), (ROWS, 5, 0), (1, 130)])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_dtypes_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    array = values(dtype, shape)
    assert_loads(ArrayDataset(array), array, first)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 5), (ROWS, 0)])
def test_dtypes_of_torch_alone(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    if tensor.numel() > 0:
        tensor.view(torch.uint8).random_()
    for dataset in (ArrayDataset(tensor), torch.utils.data.TensorDataset(tensor)):
        pairs = zip(
            DataLoader(dataset, 4, num_workers=1, path="array"), tensor.split(4), strict=True
        )
        for (batch,), truth in pairs:
            assert_same(batch, truth)
            assert_same(dataset[len(truth) - 1][0], tensor[len(truth) - 1])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("stride", [1, 2, -1])
def test_rows_of_every_size_class(size: int, stride: int) -> None:
    array = values(np.uint8, (40, size))[::stride]
    assert_loads(ArrayDataset(array), array, first)


def _unaligned(array: np.ndarray) -> np.ndarray:
    buffer = np.empty(array.nbytes + 1, np.uint8)[1:]
    out = buffer.view(array.dtype).reshape(array.shape)
    out[...] = array
    assert not out.flags.aligned
    return out


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _odd_stride(array: np.ndarray) -> np.ndarray:
    """Aligned nowhere and strides that are no multiple of the item size: a column of records."""
    record = np.zeros(array.shape, [("tag", np.uint8), ("value", array.dtype)])
    record["value"] = array
    return record["value"]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda a: a,
    "fortran": np.asfortranarray,
    "rows reversed": lambda a: a[::-1],
    "all reversed": lambda a: a[::-1, ::-1, ::-1],
    "columns reversed": lambda a: a[..., ::-1],
    "every second row": lambda a: a[1::2],
    "every second column": lambda a: a[:, ::2, 1:],
    "transposed": lambda a: a.transpose(2, 0, 1),
    "swapped": lambda a: a.swapaxes(1, 2),
    "broadcast rows": lambda a: np.broadcast_to(a[0], (9, *a.shape[1:])),
    "broadcast within rows": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "broadcast, writable": lambda a: np.lib.stride_tricks.as_strided(a[0], (9, 4, 3), (0, 12, 4)),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a[:, 0, 0].copy(), 5),
    "read-only": _read_only,
    "unaligned": _unaligned,
    "odd stride": _odd_stride,
    "one row": lambda a: a[3:4],
    "no rows": lambda a: a[:0],
    "empty rows": lambda a: a[:, :0],
    "scalar rows": lambda a: a[:, 1, 1],
    "scalar rows reversed": lambda a: a[::-1, 1, 1],
    "twenty dimensions": lambda a: a.reshape(a.shape[0], *(1,) * 17, 4, 3),
    "subclass": lambda a: a.view(type("Labelled", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_arrays(layout: Callable[[np.ndarray], np.ndarray]) -> None:
    array = layout(values())
    assert_loads(ArrayDataset(array), np.array(array), first)
    assert_loads(ArrayDataset(x=array), np.array(array), lambda sample: sample["x"])


@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t,
        lambda t: t.permute(2, 0, 1),
        lambda t: t[2::3, :, 1:],
        lambda t: t[:, :1].expand(ROWS, 4, 3),
        lambda t: t[0].expand(8, 4, 3),
        lambda t: t.as_strided((6, 4), (1, 2), 5),
        lambda t: t.unsqueeze(3).to(memory_format=torch.channels_last),
        lambda t: t[:0],
        lambda t: t[..., :0],
        lambda t: t.requires_grad_().detach(),
    ],
)
def test_layouts_of_tensors(layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = layout(torch.from_numpy(values()))
    assert_loads(ArrayDataset(tensor), tensor.numpy(), first)
    assert_loads(torch.utils.data.TensorDataset(tensor), tensor.numpy(), first)


def _memmap(mode: str) -> Callable[[np.ndarray, Path], Any]:
    def make(array: np.ndarray, folder: Path) -> np.ndarray:
        path = folder / "data.bin"
        path.write_bytes(b"head" + array.tobytes())
        return np.memmap(path, array.dtype, mode, 4, array.shape)

    return make


def _npy(order: str, wrap: Callable[[Path], Any]) -> Callable[[np.ndarray, Path], Any]:
    def make(array: np.ndarray, folder: Path) -> Any:
        path = folder / "data é.npy"
        np.save(path, np.array(array, order=order))  # type: ignore[call-overload]
        return wrap(path)

    return make


def _frombuffer(array: np.ndarray, folder: Path) -> np.ndarray:
    view = _memmap("r")(array, folder)
    return np.frombuffer(view, array.dtype).reshape(array.shape)


MAPPED: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "memmap r": _memmap("r"),
    "memmap r+": _memmap("r+"),
    "memmap c": _memmap("c"),
    "view of memmap": lambda a, d: np.asarray(_memmap("r+")(a, d)).view(np.ndarray),
    "buffer of memmap": _frombuffer,
    "npy str": _npy("C", str),
    "npy Path": _npy("C", Path),
    "npy fortran": _npy("F", str),
    "npy loaded": _npy("C", lambda path: np.load(path, mmap_mode="c")),
}


@pytest.mark.parametrize("make", MAPPED.values(), ids=MAPPED)
@pytest.mark.parametrize("shape", [(ROWS, 4, 3), (ROWS,), (1, 5), (ROWS, 0), (0, 3), (0,)])
def test_mapped_files(
    make: Callable[[np.ndarray, Path], Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = values(np.float64, shape)
    assert_loads(ArrayDataset(make(array, tmp_path)), array, first)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_mapped_files(
    layout: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    array = values()
    mapped = layout(_memmap("r")(array, tmp_path))
    truth = np.array(layout(array.copy()))
    assert_loads(ArrayDataset(mapped), truth, first)


def test_long_rows_of_a_mapped_file(tmp_path: Path) -> None:
    array = values(np.uint8, (6, 70_001))
    assert_loads(ArrayDataset(_memmap("r")(array, tmp_path)), array, first)


def test_memory_shared_between_processes() -> None:
    truth = values()
    memory = SharedMemory(create=True, size=truth.nbytes)
    try:
        array: Any = np.ndarray(truth.shape, truth.dtype, memory.buf)
        array[...] = truth
        dataset: Any = ArrayDataset(array)
        assert_loads(dataset, truth, first)
    finally:
        dataset = array = None
        memory.close()
        memory.unlink()


def test_samples_are_tuples_or_dicts_of_tensors() -> None:
    x, y = np.zeros((5, 2)), torch.arange(5)
    assert_same(ArrayDataset(x, y)[2], (torch.zeros(2, dtype=torch.float64), torch.tensor(2)))
    assert_same(ArrayDataset(b=y, a=y)[-1], {"b": torch.tensor(4), "a": torch.tensor(4)})
    assert isinstance(ArrayDataset(x), Dataset)
    assert len(ArrayDataset(x)) == 5
    assert [label.item() for (label,) in ArrayDataset(y)] == [0, 1, 2, 3, 4]
    assert repr(ArrayDataset(x, y)) == "ArrayDataset(0: float64 (5, 2), 1: int64 (5,))"
    assert repr(ArrayDataset(x=x, y=y)) == "ArrayDataset(x: float64 (5, 2), y: int64 (5,))"


FIELDS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "array": lambda a, d: a,
    "read-only": lambda a, d: _read_only(a),
    "reversed": lambda a, d: a[::-1].copy()[::-1],
    "tensor": lambda a, d: torch.from_numpy(a),
    **{name: MAPPED[name] for name in ("memmap r", "npy str")},
}
INDICES: list[Any] = [
    0,
    -1,
    np.int64(3),
    np.uint8(3),
    np.array(3),
    torch.tensor(3),
    torch.tensor(-2),
    [1, 2],
    [-1],
    [],
    torch.tensor([0, 4]),
    torch.tensor([[0, 4], [1, 1]]),
    np.array([0, 4]),
    slice(1, 4),
    slice(None, None, 3),
    slice(9, 99),
    [True] * ROWS,
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("make", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2)])
def test_indexing_gives_what_a_tensor_gives(
    make: Callable[[np.ndarray, Path], Any], shape: tuple[int, ...], index: Any, tmp_path: Path
) -> None:
    array = values(np.int32, shape)
    truth = torch.from_numpy(array.copy())[index]
    assert_same(ArrayDataset(make(array, tmp_path))[index], (truth,))


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("make", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, 2**40, 2**70, 1.0, "0", torch.tensor(1.5)])
def test_indices_that_no_row_has(
    make: Callable[[np.ndarray, Path], Any], index: Any, tmp_path: Path
) -> None:
    dataset = ArrayDataset(make(values(np.int32, (ROWS, 2)), tmp_path))
    raised = outcome(lambda: dataset[index])
    assert raised[0] == "raised"
    if isinstance(index, int) and index < 2**63:
        assert raised[1] is IndexError
    assert_same(dataset[0], (torch.from_numpy(values(np.int32, (ROWS, 2)))[0],))


def dataset_of_all(folder: Path) -> ArrayDataset:
    array = values(np.float32, (ROWS, 2))
    fields = {name.replace(" ", "_"): make(array, folder) for name, make in FIELDS.items()}
    return ArrayDataset(**fields, label=np.arange(ROWS), half=torch.ones(ROWS, 2).bfloat16())


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_in_torchs_workers_it_gives_what_ours_gives(context: str, tmp_path: Path) -> None:
    if context not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {context} here")
    dataset = dataset_of_all(tmp_path)
    list(DataLoader(dataset, 3))
    dataset[0]
    theirs = epoch(TorchLoader(dataset, 4, True, num_workers=1, multiprocessing_context=context))
    assert_same(epoch(DataLoader(dataset, 4, True, num_workers=2)), theirs)
    assert_same(epoch(DataLoader(dataset, 4, True)), theirs)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
@pytest.mark.parametrize("make", FIELDS.values(), ids=FIELDS)
def test_copies_hold_the_same_rows(
    make: Callable[[np.ndarray, Path], Any], how: Any, tmp_path: Path
) -> None:
    array = values(np.float32, (ROWS, 2))
    dataset = ArrayDataset(x=make(array, tmp_path))
    dataset[0]
    clone = how(dataset)
    assert repr(clone) == repr(dataset)
    assert_loads(clone, array, lambda sample: sample["x"])
    for batch in DataLoader(clone):
        batch["x"].zero_()
    assert_loads(dataset, array, lambda sample: sample["x"])


def test_a_path_is_pickled_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "big.npy", np.arange(100_000))
    monkeypatch.chdir(tmp_path)
    dataset = ArrayDataset("big.npy", Path("big.npy"))
    data = pickle.dumps(dataset)
    assert len(data) < 2_000
    monkeypatch.chdir("/")
    assert_same(pickle.loads(data)[77], (torch.tensor(77), torch.tensor(77)))
    (tmp_path / "big.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"field 0.*big\.npy"):
        pickle.loads(data)


def test_a_shuffled_subset_of_a_dict_dataset(tmp_path: Path) -> None:
    part = Subset(dataset_of_all(tmp_path), [5, -1, 0, 5])
    for workers in (0, 2):
        ours = epoch(DataLoader(part, 3, True, num_workers=workers, path="array"))
        assert_same(ours, epoch(TorchLoader(part, 3, True)))


def test_rows_beyond_what_32_bits_count() -> None:
    n = 2**33
    array = np.lib.stride_tricks.as_strided(np.arange(4, dtype=np.int16), (n, 4), (0, 2))
    dataset = ArrayDataset(array)
    assert len(dataset) == len(DataLoader(dataset)) == n
    for kwargs in ({"batch_sampler": [[n - 1, -1, -n, 2**32]]}, {"batch_size": 4}):
        (batch,) = next(iter(DataLoader(dataset, path="array", **kwargs)))  # type: ignore[arg-type]
        assert_same(batch, torch.arange(4, dtype=torch.int16).expand(4, 4))
    with pytest.raises(IndexError, match=f"^index {n} is out of .* {n}$"):
        next(iter(DataLoader(dataset, batch_sampler=[[n]])))


def test_bits_of_every_nan_survive() -> None:
    array = values(np.uint32, (ROWS, 64)).view(np.float32)
    array[::2] = np.uint32(0x7F800001).view(np.float32)
    (batch,) = next(iter(DataLoader(ArrayDataset(array), ROWS)))
    assert bits(batch) == array.tobytes()


@pytest.mark.parametrize(
    "labels", [[3, 1, 2], (0.5, 1.5, 2.5), [True, False, True], [np.int64(7)] * 3]
)
def test_a_list_of_numbers_is_a_field(labels: Any) -> None:
    x, y = torch.arange(6).view(3, 2), torch.tensor(labels)
    data = ArrayDataset(x, labels)
    assert_same([data[i] for i in range(3)], [(x[i], y[i]) for i in range(3)])
    loader = DataLoader(data, 2)
    assert_same(list(loader), list(DataLoader(ArrayDataset(x, y), 2)))
    assert loader.stats().path == "array"


def test_lists_of_other_things_are_no_field() -> None:
    for wrong in (["a", "b"], [[1], [2]], [None, 1]):
        with pytest.raises(TypeError, match=r"field 1 must be a numpy\.ndarray.*got list"):
            ArrayDataset(torch.arange(2), wrong)
