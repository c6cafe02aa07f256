"""The batches themselves: ordinary tensors with memory of their own, for as long as they live."""

import copy
import gc
import io
import multiprocessing.reduction
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import N, TorchLoader, assert_same, epoch, small_dataset
from torch.utils.data import TensorDataset

from fastloop import ArrayDataset, DataLoader, LoaderStats

both = pytest.mark.parametrize("workers", [0, 2])


@both
@pytest.mark.parametrize("width", [1, 3, 100, 40_000])
def test_every_batch_kept_stays_as_it_was(workers: int, width: int) -> None:
    """Lent means lent: all batches of three epochs at once, beside copies taken at once."""
    x = torch.arange(N * width, dtype=torch.float32).reshape(N, width)
    loader = DataLoader(TensorDataset(x, torch.arange(N)), 4, True, num_workers=workers)
    kept, copies = [], []
    for _ in range(3):
        for batch in loader:
            kept.append(batch)
            copies.append([t.clone() for t in batch])
    for batch, (rows, labels) in zip(kept, copies, strict=True):
        assert_same(batch, [rows, labels])
        assert_same(batch[0], x[labels])
    pointers = {t.data_ptr() for batch in kept for t in batch}
    assert len(pointers) == 2 * len(kept)
    assert loader.stats().slots_lent == len(kept)
    del batch, kept, rows, labels
    assert loader.stats().slots_lent == 0


@both
def test_one_field_kept_keeps_its_batch(workers: int) -> None:
    x = torch.arange(200_000).reshape(1000, 200)
    loader = DataLoader(TensorDataset(x, x + 1, x + 2), 10, num_workers=workers)
    kept = [batch[i % 3] for i, batch in enumerate(loader)]
    list(loader)
    for i, field in enumerate(kept):
        assert_same(field, x[10 * i : 10 * i + 10] + i % 3)


@both
def test_views_and_arrays_of_a_batch_keep_it(workers: int) -> None:
    loader = DataLoader(small_dataset(), 10, num_workers=workers)
    truth = torch.arange(N) * 10
    views, arrays, transposed = [], [], []
    for x, y in loader:
        views.append(y[3:])
        arrays.append(y.numpy())
        transposed.append(x.t())
        del x, y
    list(loader)
    for i in range(N // 10):
        assert views[i].tolist() == truth[10 * i + 3 : 10 * i + 10].tolist()
        assert arrays[i].tolist() == truth[10 * i : 10 * i + 10].tolist()
        assert_same(transposed[i].t(), small_dataset().tensors[0][10 * i : 10 * i + 10])


@both
def test_batches_are_contiguous_aligned_writable_and_own_their_memory(workers: int) -> None:
    fields = {
        "odd": torch.arange(3 * N, dtype=torch.uint8).reshape(N, 3),
        "flag": torch.zeros(N, dtype=torch.bool),
        "wide": torch.zeros(N, 7, 5, dtype=torch.float64).transpose(1, 2),
        "none": torch.zeros(N, 0),
        "label": torch.arange(N),
    }
    seen = []
    for batch in DataLoader(ArrayDataset(**fields), 7, num_workers=workers):
        for name, tensor in batch.items():
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % 64 == 0
            assert (tensor.storage_offset(), tensor.is_leaf, tensor.requires_grad) == (
                0,
                True,
                False,
            )
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
            assert tensor.numpy().flags.writeable
            assert tensor.numel() == 0 or tensor.data_ptr() != fields[name].data_ptr()
            seen.append((tensor, tensor.clone()))
    for tensor, was in seen:
        assert_same(tensor, was)
        tensor.view(torch.uint8).fill_(255)
    for tensor, _ in seen:
        assert tensor.view(torch.uint8).eq(255).all()


def _sources(folder: Path) -> dict[str, Any]:
    (folder / "data.bin").write_bytes(np.arange(30, dtype=np.float32).tobytes())
    array = np.arange(30, dtype=np.float32).reshape(10, 3)
    read_only = array.copy()
    read_only.flags.writeable = False
    mapped = [np.memmap(folder / "data.bin", np.float32, m, 0, (10, 3)) for m in ("r", "r+", "c")]
    reversed_rows = array.copy()[::-1]
    return {
        "array": array,
        "tensor": torch.from_numpy(array.copy()),
        "read-only": read_only,
        "reversed": reversed_rows,
        **{f"memmap {m.mode}": m for m in mapped},
    }


@both
@pytest.mark.parametrize(
    "name", ["array", "tensor", "read-only", "reversed", "memmap r", "memmap r+", "memmap c"]
)
def test_writing_to_a_batch_leaves_the_source_alone(
    name: str, workers: int, tmp_path: Path
) -> None:
    source = _sources(tmp_path)[name]
    was = np.asarray(source).copy()
    dataset = ArrayDataset(source)
    for kwargs in ({"batch_size": 10}, {"batch_size": 1}, {"batch_size": None}):
        for (rows,) in DataLoader(dataset, num_workers=workers, path="array", **kwargs):
            rows.fill_(-1)
            rows.add_(1)
    assert np.array_equal(np.asarray(source), was)
    assert (tmp_path / "data.bin").read_bytes() == np.arange(30, dtype=np.float32).tobytes()


@pytest.mark.parametrize("name", ["array", "tensor"])
def test_samples_share_memory_with_writable_sources_as_in_tensor_dataset(
    name: str, tmp_path: Path
) -> None:
    source = _sources(tmp_path)[name]
    ArrayDataset(source)[4][0].fill_(7)
    assert torch.as_tensor(source)[4].tolist() == [7, 7, 7]
    source[4] = 8
    assert ArrayDataset(source)[4][0].tolist() == [8, 8, 8]


@pytest.mark.parametrize("name", ["read-only", "reversed", "memmap r", "memmap r+", "memmap c"])
@pytest.mark.parametrize("index", [4, -6, np.int64(4), [4], slice(4, 5)])
def test_samples_of_read_only_and_mapped_sources_are_copies(
    name: str, index: Any, tmp_path: Path
) -> None:
    source = _sources(tmp_path)[name]
    was = np.asarray(source).copy()
    sample = ArrayDataset(source)[index][0]
    sample.fill_(-5)
    assert sample.numpy().flags.writeable
    assert np.array_equal(np.asarray(source), was)


@both
def test_batches_outlive_iterator_loader_and_dataset(workers: int) -> None:
    dataset = small_dataset()
    truth = [t.clone() for t in dataset.tensors]
    loader = DataLoader(dataset, 25, num_workers=workers, persistent_workers=workers > 0)
    iterator = iter(loader)
    kept = [next(iterator), next(iterator)]
    gone = weakref.ref(loader)
    del iterator, loader, dataset
    gc.collect()
    assert gone() is None
    for i in range(2):
        assert_same(kept[i], [t[25 * i : 25 * i + 25] for t in truth])


@both
def test_batches_may_be_dropped_by_any_thread(workers: int) -> None:
    loader = DataLoader(small_dataset(), 2, num_workers=workers)
    for _ in range(20):
        batches = list(loader)
        halves = [batches[::2], batches[1::2]]
        del batches
        threads = [threading.Thread(target=half.clear) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loader.stats().slots_lent == 0


@both
def test_pickle_save_copy_and_share_work_by_copying(workers: int, tmp_path: Path) -> None:
    x, y = next(iter(DataLoader(small_dataset(), 20, num_workers=workers)))
    truth = [t[:20] for t in small_dataset().tensors]
    clones = [pickle.loads(pickle.dumps([x, y])), copy.deepcopy([x, y]), [x.clone(), y.clone()]]
    torch.save([x, y], tmp_path / "batch.pt")
    assert (tmp_path / "batch.pt").stat().st_size < 10_000
    clones.append(torch.load(tmp_path / "batch.pt"))
    for clone in clones:
        assert_same(clone, truth)
        assert clone[0].data_ptr() != x.data_ptr()
    assert not x.is_shared()
    assert x.share_memory_() is x
    assert x.is_shared()
    assert_same([x, y], truth)
    buffer = io.BytesIO()
    multiprocessing.reduction.ForkingPickler(buffer).dump(y)
    assert y.is_shared()
    assert_same([x, y], truth)


@both
def test_a_batch_can_be_trained_on_in_place(workers: int) -> None:
    x, _ = next(iter(DataLoader(small_dataset(), 20, num_workers=workers)))
    x.requires_grad_()
    (x * x).sum().backward()
    assert_same(x.grad, 2 * x.detach())
    version = x.detach()._version
    x.detach().mul_(2)
    assert x._version > version


@both
def test_a_batch_cannot_be_grown(workers: int) -> None:
    x, _ = next(iter(DataLoader(small_dataset(), 20, num_workers=workers)))
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1000, 3)


def test_without_workers_memory_is_used_again() -> None:
    """A batch dropped before the next one is asked for is the next one's memory."""
    for source in (torch.zeros(1000, 50), torch.zeros(64, 1 << 16)):
        loader = DataLoader(TensorDataset(source), source.shape[0] // 8)
        pointers = set()
        for _ in range(3):
            for (batch,) in loader:
                pointers.add(batch.data_ptr())
                del batch
        assert len(pointers) <= 2


@both
def test_stats_count_what_was_given(workers: int) -> None:
    loader = DataLoader(small_dataset(), 7, num_workers=workers)
    stats = loader.stats()
    assert isinstance(stats, LoaderStats)
    assert (stats.path, stats.batches, stats.samples, stats.bytes) == ("array", 0, 0, 0)
    assert (stats.waits, stats.seconds_waited, stats.slots_lent) == (0, 0, 0)
    kept = next(iter(loader))
    assert loader.stats().slots_lent == 1
    assert (loader.stats().batches, loader.stats().samples) == (1, 7)
    assert loader.stats().bytes == 128 + 64  # 7 x 3 floats and 7 labels, each to a multiple of 64
    list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (1 + len(loader), 7 + N)
    assert 0 <= stats.waits <= stats.batches
    assert workers > 0 or stats.waits == stats.batches
    assert 0 <= stats.seconds_waited < 60
    assert stats.slots_lent == 1
    del kept
    assert loader.stats().slots_lent == 0
    for word in ("'array'", stats.why, f"{stats.batches} batches", f"{stats.samples} samples"):
        assert word in repr(stats)


@both
def test_stats_of_torchs_own_iterators(workers: int) -> None:
    kwargs = {"num_workers": workers, "collate_fn": len}
    loader = DataLoader(small_dataset(), 25, path="torch", **kwargs)
    assert list(loader) == [25, 25]
    stats = loader.stats()
    assert (stats.path, stats.batches, stats.samples, stats.bytes) == ("torch", 2, None, None)
    # The first batch is never there already; with workers the second may be.
    assert stats.waits == 2 if workers == 0 else 1 <= stats.waits <= 2
    assert stats.seconds_waited > 0
    assert "collate_fn" in DataLoader(small_dataset(), 25, **kwargs).stats().why
    assert "'torch'" in repr(stats)
    assert "2 batches" in repr(stats)


def test_stats_say_when_batches_were_held() -> None:
    loader = DataLoader(small_dataset(200), 2)
    kept = list(loader)
    assert loader.stats().slots_replaced > 0
    assert loader.stats().slots_lent == len(kept) == 100
    frozen = loader.stats()
    with pytest.raises(AttributeError):
        frozen.batches = 3  # type: ignore[misc]


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_changes_between_batches_are_seen_without_workers(batch_size: int | None) -> None:
    """In-place, by .data, by resize_, through NumPy: as torch's loader sees them."""
    seen = []
    for cls in (DataLoader, TorchLoader):
        array = np.zeros(12, np.float32)
        x, y = torch.arange(24.0).reshape(12, 2).clone(), torch.from_numpy(array)
        iterator = iter(cls(TensorDataset(x, y), batch_size))
        batches = [copy.deepcopy(next(iterator))]
        x.mul_(2)
        batches.append(copy.deepcopy(next(iterator)))
        x.data = torch.arange(24.0, 48).reshape(2, 12).t()
        batches.append(copy.deepcopy(next(iterator)))
        array[:] = 5
        x.data = torch.ones(12, 3, dtype=torch.int16)
        batches.append(copy.deepcopy(next(iterator)))
        seen.append(batches)
    assert_same(*seen)


def test_a_dataset_that_grows_between_batches_is_seen_without_workers() -> None:
    seen = []
    for cls in (DataLoader, TorchLoader):
        x = torch.arange(8.0)
        iterator = iter(cls(TensorDataset(x), batch_sampler=[[0, 7], [19, -1], [3]]))
        batches = [next(iterator)]
        x.resize_(20)
        x[8:] = 3
        batches.append(next(iterator))
        x.resize_(4)
        batches.append(next(iterator))
        x.resize_(20)[:] = 1
        seen.append(batches)
    assert_same(*seen)


def test_a_source_cannot_be_resized_while_threads_read_it() -> None:
    x = torch.arange(1000.0)
    loader = DataLoader(TensorDataset(x), 10, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(10_000_000)
    x.data = torch.zeros(3)
    assert torch.cat([batch for (batch,) in iterator]).tolist() == list(range(1000))
    assert epoch(DataLoader(TensorDataset(x), 3))[0][0].tolist() == [0, 0, 0]


@both
def test_a_source_dropped_by_the_user_is_kept_by_the_iterator(workers: int) -> None:
    array = np.arange(20_000).reshape(200, 100)
    gone = weakref.ref(array)
    iterator = iter(DataLoader(ArrayDataset(array), 10, num_workers=workers))
    del array
    gc.collect()
    assert torch.cat([batch for (batch,) in iterator]).sum().item() == sum(range(20_000))
    del iterator
    gc.collect()
    assert gone() is None
