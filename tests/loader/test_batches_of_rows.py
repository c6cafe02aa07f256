"""Several samples of a dataset with transforms at once, as torch's TensorDataset gives them:
slices, lists, vectors and masks, and loaders whose sampler yields these."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torch.utils.data import BatchSampler, Dataset, SequentialSampler, Subset

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

ROWS = 9
IMAGES = np.random.default_rng(8).integers(0, 256, (ROWS, 3, 10, 11), np.uint8)
FLOAT = T.ToDtype(torch.float32, scale=True)


def make_dataset(**kwargs: Any) -> ArrayDataset:
    transform = T.Compose([T.RandomCrop(7), T.RandomHorizontalFlip(), FLOAT])
    arguments = {"transform": {"image": transform}, "seed": 2, **kwargs}
    return ArrayDataset(image=IMAGES, label=np.arange(ROWS), **arguments)


def stacked(dataset: ArrayDataset, items: list[Any]) -> dict[str, torch.Tensor]:
    samples = [dataset[item] for item in items]
    return {key: torch.stack([sample[key] for sample in samples]) for key in ("image", "label")}


MASK = [row in (1, 2, 7) for row in range(ROWS)]
SEVERAL: list[tuple[Any, list[Any]]] = [
    (slice(2, 6), [2, 3, 4, 5]),
    (slice(None, None, -4), [8, 4, 0]),
    (range(1, 4), [1, 2, 3]),
    ([3, -1, 3], [3, 8, 3]),
    ([np.int64(4), torch.tensor(2)], [4, 2]),
    ([(3, 0), (3, 1), 5], [(3, 0), (3, 1), 5]),
    (np.array([5, 0], np.int32), [5, 0]),
    (torch.tensor([5, 0]), [5, 0]),
    (MASK, [1, 2, 7]),
    (np.array(MASK), [1, 2, 7]),
    (torch.tensor(MASK), [1, 2, 7]),
    (torch.tensor(MASK, dtype=torch.uint8), [1, 2, 7]),
]


@pytest.mark.parametrize(("index", "items"), SEVERAL, ids=[repr(index) for index, _ in SEVERAL])
def test_several_samples_are_their_batch(index: Any, items: list[Any]) -> None:
    dataset = make_dataset()
    dataset.set_epoch(3)
    assert_same(dataset[index], stacked(dataset, items))
    assert dataset[index]["label"].tolist() == [i[0] if type(i) is tuple else i for i in items]


@pytest.mark.parametrize("index", [[], slice(0, 0), np.array([], int), torch.tensor([], dtype=int)])
def test_no_sample_is_an_empty_batch(index: Any) -> None:
    batch = make_dataset()[index]
    assert batch["image"].shape == (0, 3, 7, 7) and batch["image"].dtype is torch.float32
    assert batch["label"].shape == (0,)


@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_a_batch_has_the_strides_of_the_array_paths(out_layout: str) -> None:
    dataset = make_dataset(out_layout=out_layout)
    (batch,) = DataLoader(dataset, ROWS, path="array")
    assert_same(dataset[:], batch)
    assert dataset[:]["image"].stride() == batch["image"].stride()


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        ([0, ROWS], IndexError, f"^index {ROWS} is out of bounds for a length of {ROWS}$"),
        ([(0, 1), (1, 256)], ValueError, r"^view must be an int in \[0, 255\], got 256$"),
        ([0, 1.0], TypeError, "^a sample must be an index, .* got 1.0$"),
        (torch.tensor([0.5]), TypeError, "^a sample must be .* got 0.5$"),
        (np.zeros((2, 2), int), TypeError, r"^a sample must be .* got \[0, 0\]$"),
        ([True, False], IndexError, f"^a mask must have the dataset's length {ROWS}, got 2$"),
    ],
)
def test_batches_that_there_are_not(index: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make_dataset()[index]


def test_a_function_of_the_users_is_called_for_each_row() -> None:
    dataset = ArrayDataset(IMAGES, transform=lambda row: {"mean": row.float().mean()})
    (batch,) = dataset[2:5]
    assert_same(batch["mean"], torch.stack([dataset[i][0]["mean"] for i in (2, 3, 4)]))
    with pytest.raises(IndexError):  # only the function knows the shape of its results
        dataset[:0]


ROUTES = [
    (TorchLoader, {"num_workers": 0}),
    (TorchLoader, {"num_workers": 1}),
    (DataLoader, {"num_workers": 0, "path": "array"}),
    (DataLoader, {"num_workers": 2, "path": "array"}),
    (DataLoader, {"num_workers": 0, "path": "sync"}),
    (DataLoader, {"num_workers": 1, "path": "process"}),
]


@pytest.mark.parametrize(("cls", "more"), ROUTES, ids=[f"{c.__module__}{m}" for c, m in ROUTES])
@pytest.mark.parametrize("kind", ["lists", "slices", "views"])
def test_samplers_may_yield_batches(cls: Any, more: dict[str, Any], kind: str) -> None:
    dataset = make_dataset()
    by_kind: dict[str, Any] = {
        "lists": BatchSampler(SequentialSampler(dataset), 4, False),
        "slices": [slice(0, 4), slice(4, 8), slice(8, 12)],
        "views": [[(0, 0), (0, 1)], [(5, 1), 3]],
    }
    loader = cls(dataset, sampler=by_kind[kind], batch_size=None, **more)
    lists = [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    expected = by_kind["views"] if kind == "views" else lists
    for batch, items in zip(loader, expected, strict=True):
        assert_same(batch, stacked(dataset, items))


def test_a_subset_takes_lists() -> None:
    dataset = make_dataset()
    assert_same(Subset(dataset, [5, 2, 7])[[0, 2]], stacked(dataset, [5, 7]))


@pytest.mark.parametrize("workers", [0, 2])
def test_mixed_items_are_counted(workers: int) -> None:
    batches: list[Any] = [[0, (1, 1)], [(2, 1), 3], [4]]
    loader = DataLoader(make_dataset(), batch_sampler=batches, num_workers=workers)
    for _ in loader:
        pass
    assert loader.stats().samples == 5 and loader.stats().batches == 3


# ---- without transforms


def test_a_pair_of_indices_without_transforms_is_torchs() -> None:
    images = ArrayDataset(IMAGES)
    assert_same(images[1, 2][0], torch.from_numpy(IMAGES.copy())[1, 2])
    with pytest.raises(IndexError, match="too many indices"):
        ArrayDataset(IMAGES, np.arange(ROWS))[1, 2]
    with pytest.raises(IndexError, match=r"^index 9 is out of bounds .* with size 9$"):
        images[ROWS]


# ---- within other datasets


class Around(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@pytest.mark.parametrize("path", ["auto", "array"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: torch.utils.data.ConcatDataset([make_dataset(), d]),
        lambda d: torch.utils.data.StackDataset(d, make_dataset()),
        lambda d: torch.utils.data.StackDataset(a=make_dataset(), b=d),
        Around,
        lambda d: Subset(Around(Subset(d, [0, 1])), [1]),
    ],
    ids=["concat", "stack", "named stack", "user's", "nested"],
)
def test_what_is_not_translated_is_refused_within_other_datasets(wrap: Any, path: str) -> None:
    inner = make_dataset(transform={"image": lambda row: 255 - row})
    for workers, remedy in ((0, "sync"), (1, "process")):
        with pytest.raises(ValueError, match=f"path='{path}' .*'image'.*; use path='{remedy}'"):
            iter(DataLoader(wrap(inner), 2, num_workers=workers, path=path))
    for batch in DataLoader(wrap(make_dataset()), 2):
        assert batch
    assert len(list(DataLoader(wrap(inner), 1, path="sync"))) > 0


def test_a_batch_that_no_machine_holds_is_an_error() -> None:
    dataset = ArrayDataset(IMAGES[:, :1], transform=T.CenterCrop(2**24))
    for workers in (0, 1):
        with pytest.raises(
            MemoryError, match=r"^out of memory for a batch of \d+ bytes; pass a smaller"
        ):
            next(iter(DataLoader(dataset, ROWS, num_workers=workers, path="array")))
