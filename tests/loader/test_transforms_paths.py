"""Transforms of an ArrayDataset: a sample is augmented the same way in every loader and on every
path, in each epoch another way, and after a resume as it would have been."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

N, SIDE = 41, 16
CONTEXTS = ["fork", "spawn"]
# Those without worker processes, then those with.
IN_PROCESS = [
    (TorchLoader, {"num_workers": 0}),
    (DataLoader, {"num_workers": 0, "path": "array"}),
    (DataLoader, {"num_workers": 1, "path": "array"}),
    (DataLoader, {"num_workers": 2, "path": "array"}),
    (DataLoader, {"num_workers": 0, "path": "sync"}),
    (DataLoader, {"num_workers": 0, "path": "torch"}),
]
WITH_WORKERS = [
    (cls, {"num_workers": 2, "multiprocessing_context": context, **more})
    for context in CONTEXTS
    for cls, more in (
        (TorchLoader, {}),
        (DataLoader, {"path": "process"}),
        (DataLoader, {"path": "torch"}),
    )
]


def name_of(case: Any) -> str:
    cls, more = case
    kind = "torchs" if cls is TorchLoader else more["path"]
    return f"{kind}-{more['num_workers']}-{more.get('multiprocessing_context', 'none')}"


def slowest(case: Any) -> Any:
    return pytest.param(case, marks=pytest.mark.slowest)


FORKED = [case for case in WITH_WORKERS if case[1]["multiprocessing_context"] == "fork"]
forked_loaders = pytest.mark.parametrize("case", IN_PROCESS + FORKED, ids=name_of)
# A spawned worker takes seconds to start, so few tests have them.
SPAWNED = (DataLoader, {"num_workers": 1, "path": "process", "multiprocessing_context": "spawn"})
own_loaders = pytest.mark.parametrize(
    "case",
    [*(c for c in IN_PROCESS + FORKED if c[0] is DataLoader), slowest(SPAWNED)],
    ids=name_of,
)


def images(count: int = N, side: int = SIDE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    shape = (count, 3, side, side + 2)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def augmentation() -> T.Compose:
    return T.Compose(
        [
            T.RandomCrop(12, padding=2, padding_mode="reflect"),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]),
        ]
    )


def make_dataset(source: Any = None, **kwargs: Any) -> ArrayDataset:
    source = images() if source is None else source
    arguments = {"transform": {"image": augmentation()}, "seed": 3, **kwargs}
    rows = N if isinstance(source, Path) else len(source)
    return ArrayDataset(image=source, label=torch.arange(rows), **arguments)


_TRUTHS: dict[int, torch.Tensor] = {}


def truth(epoch: int) -> torch.Tensor:
    """All samples of the dataset in this epoch, by their number, one by one."""
    if epoch not in _TRUTHS:
        dataset = make_dataset()
        dataset.set_epoch(epoch)
        _TRUTHS[epoch] = torch.stack([dataset[i]["image"] for i in range(N)])
    return _TRUTHS[epoch]


def test_every_epoch_is_another() -> None:
    differ = [(truth(a)[i] != truth(b)[i]).any() for a, b in ((0, 1), (1, 2)) for i in range(N)]
    assert sum(map(bool, differ)) > 1.5 * N


def check(batches: Iterator[Any], epoch: int, expect: torch.Tensor | None = None) -> list[int]:
    """Each batch holds what becomes of its samples in this epoch. Which samples those were."""
    seen: list[int] = []
    whole = truth(epoch) if expect is None else expect
    for batch in batches:
        labels = batch["label"].tolist()
        assert_same(batch["image"].contiguous(), whole[labels], f"epoch {epoch}, rows {labels}")
        seen += labels
    return seen


def check_epochs(loader: Any, dataset: ArrayDataset, count: int = 3) -> None:
    for epoch in range(count):
        if type(loader) is TorchLoader:
            dataset.set_epoch(epoch)
        assert sorted(check(iter(loader), epoch)) == list(range(N))


# ---- the matrix


@forked_loaders
def test_shuffled(case: Any) -> None:
    cls, more = case
    dataset = make_dataset()
    check_epochs(cls(dataset, 7, shuffle=True, **more), dataset)


@pytest.mark.parametrize("case", [*FORKED, *map(slowest, WITH_WORKERS[3:])], ids=name_of)
def test_the_epoch_reaches_workers_that_live_on(case: Any) -> None:
    cls, more = case
    dataset = make_dataset()
    loader = cls(dataset, 7, shuffle=True, persistent_workers=True, **more)
    check_epochs(loader, dataset)


@own_loaders
def test_resumed_in_the_middle_of_an_epoch(case: Any) -> None:
    cls, more = case
    if more["num_workers"] > 0:
        more = {**more, "persistent_workers": True}  # fewer processes to start
    loader = cls(make_dataset(), 6, shuffle=True, **more)
    seen = check(iter(loader), 0)
    iterator = iter(loader)
    first = check((next(iterator) for _ in range(3)), 1)
    state = loader.state_dict()
    again = cls(make_dataset(), 6, shuffle=True, **more)
    again.load_state_dict(state)
    rest = check(iter(again), 1)
    assert sorted(first + rest) == sorted(seen) == list(range(N))
    check(iter(again), 2)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resumed_with_other_workers(workers: int) -> None:
    loader = DataLoader(make_dataset(), 6, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    first = check((next(iterator) for _ in range(2)), 0)
    again = DataLoader(make_dataset(), 6, shuffle=True, num_workers=2 - workers)
    again.load_state_dict(loader.state_dict())
    assert sorted(first + check(iter(again), 0)) == list(range(N))


@forked_loaders
def test_two_ranks(case: Any) -> None:
    cls, more = case
    seen = []
    for rank in range(2):
        dataset = make_dataset()
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=rank, drop_last=True)
        sampler.set_epoch(6)
        dataset.set_epoch(6)
        seen += check(iter(cls(dataset, 5, sampler=sampler, **more)), 6)
    assert len(seen) == len(set(seen)) == N // 2 * 2


# ---- batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_of_every_size(size: int, workers: int) -> None:
    dataset = make_dataset()
    check_epochs(DataLoader(dataset, size, shuffle=True, num_workers=workers), dataset, 2)


def test_batches_in_any_order() -> None:
    dataset = make_dataset()
    check_epochs(DataLoader(dataset, 4, shuffle=True, num_workers=2, in_order=False), dataset)


def test_singles() -> None:
    loader = DataLoader(make_dataset(), batch_size=None, num_workers=2, path="array")
    for i, sample in enumerate(loader):
        assert_same(sample["image"], truth(0)[i], f"sample {i}")
        assert int(sample["label"]) == i


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_keys_on_the_row_of_the_dataset(workers: int) -> None:
    dataset = make_dataset()
    inner = Subset(dataset, list(range(N - 1, 3, -2)))
    subset = Subset(inner, [5, 0, 3, -1, 5])
    expected = [inner.indices[i] for i in subset.indices]
    loader = DataLoader(subset, 3, num_workers=workers, path="array")
    assert check(iter(loader), 0) == expected
    assert check(iter(loader), 1) == expected


def test_negative_indices_key_on_the_positive_ones() -> None:
    batches: Any = [[-1, 0], [N - 1, -N]]
    loader = DataLoader(make_dataset(), batch_sampler=batches, path="array")
    assert check(iter(loader), 0) == [N - 1, 0, N - 1, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_mapped_files(workers: int, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", images().numpy())
    dataset = make_dataset(tmp_path / "images.npy")
    check_epochs(DataLoader(dataset, 7, shuffle=True, num_workers=workers, path="array"), dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mapped_file_that_shrinks(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    np.save(path, images().numpy())
    loader = DataLoader(make_dataset(path), 7, num_workers=workers, path="array")
    whole = path.stat().st_size
    os.truncate(path, whole // 2)
    first_lost = (whole // 2 - 128) // images()[0].nbytes
    with pytest.raises(OSError, match=rf"field 'image', row {first_lost} can no longer be read"):
        list(loader)


class ViewSampler(Sampler[Any]):
    """Two views of each sample in a batch, as contrastive training wants them."""

    def __init__(self, size: int, rows: int = N) -> None:
        self.batches = [
            [(i, view) for i in range(at, min(at + size, rows)) for view in (0, 1)]
            for at in range(0, rows, size)
        ]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@forked_loaders
def test_views(case: Any) -> None:
    cls, more = case
    dataset = make_dataset()
    dataset.set_epoch(4)
    views = [torch.stack([dataset[(i, view)]["image"] for i in range(N)]) for view in (0, 1)]
    assert_same(views[0], truth(4), "view 0")
    assert (views[0] != views[1]).flatten(1).any(1).sum() > N // 2
    for batch in cls(dataset, batch_sampler=ViewSampler(6), **more):
        rows = batch["label"]
        assert rows[::2].equal(rows[1::2])
        for view in (0, 1):
            assert_same(batch["image"][view::2], views[view][rows[::2]], f"view {view}")


def test_views_are_gathered_by_c(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(make_dataset(), batch_sampler=ViewSampler(6), num_workers=2)
    monkeypatch.setattr(ArrayDataset, "__getitem__", None)
    monkeypatch.setattr(ArrayDataset, "__getitems__", None, raising=False)
    assert sum(len(batch["label"]) for batch in loader) == 2 * N


@pytest.mark.parametrize("item", [(1, 256), (1, -1), (1, 2, 3), (N, 0), (1.5, 0)])
def test_views_that_are_none(item: Any) -> None:
    batches: Any = [[(0, 1), (2, 0)], [(3, 1), item], [(4, 1)]]
    outcomes = []
    for cls in (TorchLoader, DataLoader):
        iterator = iter(cls(make_dataset(), batch_sampler=batches))
        next(iterator)
        with pytest.raises((IndexError, TypeError, ValueError)) as error:
            next(iterator)
        outcomes.append(error.type)
        next(iterator)
    assert outcomes[0] is outcomes[1]


def test_items_of_two_indices_without_transforms_are_torchs() -> None:
    dataset = ArrayDataset(images())
    batches: Any = [[(0, 1), (2, 0)]]
    seen = [next(iter(cls(dataset, batch_sampler=batches))) for cls in (TorchLoader, DataLoader)]
    assert_same(seen[1], seen[0], "rows of rows")


# ---- what comes out


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_dtypes_and_layouts(out_layout: str, dtype: torch.dtype, workers: int) -> None:
    ops: list[Any] = [T.RandomCrop(12), T.RandomVerticalFlip()]
    ops += [T.ToDtype(dtype, scale=True)] if dtype.is_floating_point else []
    dataset = make_dataset(transform=T.Compose(ops), out_layout=out_layout)
    whole = torch.stack([dataset[i]["image"] for i in range(N)])
    assert whole.dtype is dtype
    for batch in DataLoader(dataset, 8, num_workers=workers, path="array"):
        image = batch["image"]
        assert_same(image.contiguous(), whole[batch["label"]].contiguous(), out_layout)
        if out_layout == "channels_last":
            assert image.is_contiguous(memory_format=torch.channels_last)
        else:
            assert image.is_contiguous()
        assert image.shape[1:] == ((12, 12, 3) if out_layout == "HWC" else (3, 12, 12))


def test_a_field_without_a_transform_is_as_it_is() -> None:
    dataset = ArrayDataset(images(), torch.arange(N), images().float(), transform=augmentation())
    for x, label, y in DataLoader(dataset, 8, num_workers=2, path="array"):
        assert x.shape[2:] == (12, 12)
        assert_same(y, images()[label].float(), "third field")


def test_images_that_interleave_their_channels() -> None:
    source = images().permute(0, 2, 3, 1).contiguous().numpy()
    dataset = make_dataset(source, layout="HWC")
    assert check(iter(DataLoader(dataset, 9, num_workers=2, path="array")), 0) == list(range(N))


# ---- the epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_epoch_is_not_overwritten(workers: int) -> None:
    dataset = make_dataset()
    loader = DataLoader(dataset, 7, num_workers=workers)
    dataset.set_epoch(5)
    for _ in range(2):
        check(iter(loader), 5)
    dataset.set_epoch(2)
    check(iter(loader), 2)


def test_an_iterator_keeps_its_epoch() -> None:
    loader = DataLoader(make_dataset(), 7, num_workers=1)
    first, second = iter(loader), iter(loader)
    for _ in range(5):
        check(iter([next(first)]), 0)
        check(iter([next(second)]), 1)


def test_datasets_that_torch_joins() -> None:
    halves = [make_dataset(images()[:20]), make_dataset(images()[20:])]
    loader = DataLoader(ConcatDataset(halves), 7)
    seen = [torch.cat([batch["image"] for batch in loader]) for _ in range(2)]
    for epoch in range(2):
        for half, rows in zip(halves, (slice(0, 20), slice(20, N)), strict=True):
            half.set_epoch(epoch)
            expected = torch.stack([half[i]["image"] for i in range(len(half))])
            assert_same(seen[epoch][rows], expected, f"epoch {epoch}")


# ---- what C cannot run


class Invert:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return 255 - image


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(5))])
@pytest.mark.parametrize("path", ["auto", "array"])
def test_what_is_not_translated_is_refused(path: str, wrap: Any) -> None:
    dataset = wrap(make_dataset(transform={"image": Invert()}))
    for workers, remedy in ((0, "sync"), (2, "process")):
        loader = DataLoader(dataset, 4, num_workers=workers, path=path)
        with pytest.raises(ValueError, match=rf"(?s)'image'.*Invert.*path='{remedy}'"):
            iter(loader)


@pytest.mark.parametrize("path", ["sync", "process", "torch"])
def test_what_is_not_translated_runs_as_it_is_where_asked_for(path: str) -> None:
    dataset = make_dataset(transform={"image": Invert()})
    loader = DataLoader(dataset, 4, num_workers=2 if path == "process" else 0, path=path)
    for batch in loader:
        assert_same(batch["image"], 255 - images()[batch["label"]], "inverted")


def test_stats_say_where_transforms_run() -> None:
    assert "native transforms" in DataLoader(make_dataset()).stats().why
    plain: list[Dataset[Any]] = [ArrayDataset(images()), TensorDataset(images())]
    assert all("transforms" not in DataLoader(dataset).stats().why for dataset in plain)


# ---- threads


def test_large_images_have_helpers_without_workers() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU has no helpers")
    small_output = T.Compose([T.CenterCrop(8)])  # reads much, writes little: no small batch
    dataset = make_dataset(images(64, 200), transform=small_output)
    before = set(os.listdir("/proc/self/task"))
    iterator = iter(DataLoader(dataset, 32, path="array"))
    next(iterator)
    assert set(os.listdir("/proc/self/task")) - before


@pytest.mark.slowest
def test_threads_keep_plan_and_images_alive() -> None:
    for _ in range(20):
        dataset = make_dataset(images(200, 40))
        iterator = iter(DataLoader(dataset, 50, shuffle=True, num_workers=2, path="array"))
        del dataset
        gc.collect()
        next(iterator)
        del iterator


def test_other_threads_run_while_images_are_made() -> None:
    """A batch of large images without workers does not hold the interpreter lock."""
    dataset = make_dataset(images(128, 300), transform=T.Compose([T.RandomResizedCrop(64)]))
    loader = DataLoader(dataset, 64, path="array")
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begin = ticks[0]
        for _ in loader:
            pass
        assert ticks[0] > begin
    finally:
        stop.set()
        thread.join()


def test_batch_samplers_of_torch_are_read_in_blocks() -> None:
    dataset = make_dataset()
    sampler: Any = BatchSampler(SequentialSampler(dataset), 9, False)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=1)
    assert check(iter(loader), 0) == list(range(N))


class Around(torch.utils.data.Dataset[Any]):
    """A dataset of the user's with another one in it, and itself."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.me = inner, self

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@pytest.mark.parametrize("wrap", [Around, torch.utils.data.StackDataset], ids=["user's", "stack"])
def test_epochs_go_on_within_other_datasets(wrap: Any) -> None:
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    aug = T.Compose([T.RandomCrop(8)])
    loader = DataLoader(wrap(ArrayDataset(images, transform=aug)), 8)
    first, second = (torch.stack(list_tensors(next(iter(loader)))) for _ in range(2))
    assert not torch.equal(first, second)


def list_tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [tensor for part in batch for tensor in list_tensors(part)]


@pytest.mark.parametrize("workers", [0, 2])
def test_views_under_a_subset_and_beside_plain_indices(workers: int) -> None:
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    dataset = ArrayDataset(images, transform=T.Compose([T.RandomCrop(8)]), seed=4)
    part = torch.utils.data.Subset(dataset, [5, 2, 7])
    batches: list[list[Any]] = [[(0, 0), (0, 1)], [1, (2, 3)]]
    loader = DataLoader(part, batch_sampler=batches, num_workers=workers)
    got = [image for (batch,) in loader for image in batch]
    wanted = [dataset[key][0] for key in [(5, 0), (5, 1), (2, 0), (7, 3)]]
    assert all(map(torch.equal, got, wanted))
    assert loader.stats().samples == 4
