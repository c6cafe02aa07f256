"""Subclasses of datasets, fields, collates, samplers and transforms: what a subclass overrides is
called, by torch's loader and by ours, on every path."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, epoch
from image_folders import write_folder
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

import fastloop
from fastloop import ArrayDataset, DataLoader, ImageFolder, RaggedArray, TokenDataset
from fastloop import transforms as T
from fastloop.tools.report.loader_source import find_remedy

N = 12
X = np.arange(2.0 * N).reshape(N, 2)
IMAGES = np.arange(N * 3 * 6 * 5).reshape(N, 3, 6, 5).astype(np.uint8)
FLIPS = T.RandomHorizontalFlip(p=1.0)


class _Numbered:
    """Adds the index of a sample to it, where fields have names by name."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)  # type: ignore[misc]
        return {**sample, "at": index} if isinstance(sample, dict) else (*sample, index)


class Arrays(_Numbered, ArrayDataset):
    pass


class Tokens(_Numbered, TokenDataset):
    pass


class Images(_Numbered, ImageFolder):
    pass


class _NumberedBatches(ArrayDataset):
    """Adds the index in batches alone, to what its base makes of them."""

    def __getitems__(self, indices: Any) -> Any:
        return [
            (*sample, i) for sample, i in zip(super().__getitems__(indices), indices, strict=True)
        ]


class _NumberedBoth(_Numbered, _NumberedBatches):
    pass


class _Shorter(ArrayDataset):
    def __len__(self) -> int:
        return 5


class _LookAlike(ArrayDataset):
    """Has the name and the module of its base, as functools.update_wrapper() gives them."""

    def __getitem__(self, index: Any) -> Any:
        return (*super().__getitem__(index), index)


_LookAlike.__name__, _LookAlike.__module__ = ArrayDataset.__name__, ArrayDataset.__module__


def _tokens(folder: Path, **options: Any) -> Any:
    np.arange(5 * N, dtype=np.uint16).tofile(folder / "t.bin")
    return Tokens(folder / "t.bin", 4, dtype="uint16", **options)


def _images(folder: Path, **options: Any) -> Any:
    return Images(write_folder(folder / "images", 9), T.Resize((4, 4)), **options)


def _on_a_device(data: Any) -> Any:
    """The CPU stands in for it."""
    there = data.to("cpu")
    there._load(torch.device("cpu"))
    return there


MAKE: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda _: Arrays(X, torch.arange(N)),
    "arrays by name": lambda _: Arrays(x=X, y=torch.arange(N)),
    "arrays with a transform": lambda _: Arrays(IMAGES, transform=FLIPS),
    "a class of its base's name": lambda _: _LookAlike(X),
    "tokens": _tokens,
    "tokens on a device": lambda folder: _on_a_device(_tokens(folder)),
    "jittered tokens": lambda folder: _tokens(folder, mode="jittered"),
    "images": _images,
    "cached images": lambda folder: _images(folder, cache=f"u8:{folder / 'cache'}"),
}
KINDS: list[Any] = [{"path": "auto"}, {"num_workers": 2}, {"path": "thread", "num_workers": 2}]


@pytest.mark.parametrize("kind", MAKE)
def test_a_subclass_that_overrides_getitem_makes_the_samples(kind: str, tmp_path: Path) -> None:
    data = MAKE[kind](tmp_path)
    nested = Subset(Subset(data, range(1, 8)), [5, 0, 2])
    wrapped = ConcatDataset([data, data]), StackDataset(data, data)
    for dataset in (data, nested, *wrapped):
        made = torch.utils.data.default_collate([dataset[i] for i in range(3)])
        assert_same(next(iter(TorchLoader(dataset, 3))), made)
        for options in KINDS:
            with DataLoader(dataset, 3, **options) as loader:
                assert_same(next(iter(loader)), made, f"{type(dataset).__name__}, {options}")


@pytest.mark.parametrize("cls", [_NumberedBatches, _NumberedBoth, _Shorter])
def test_a_subclass_with_batches_or_a_length_of_its_own_is_torchs(cls: Any) -> None:
    for dataset in (cls(X), Subset(cls(X), [3, 1])):
        want = epoch(TorchLoader(dataset, 2))
        for options in KINDS:
            with DataLoader(dataset, 2, **options) as loader:
                assert_same(epoch(loader), want)
    assert len(cls(X).__getitems__([1])[0]) == 1 + (cls is not _Shorter)


def test_a_subclass_that_overrides_nothing_gives_the_batches_of_its_base(tmp_path: Path) -> None:
    class Mine(ArrayDataset):
        def __init__(self) -> None:
            super().__init__(IMAGES, transform=FLIPS)

    want = epoch(DataLoader(ArrayDataset(IMAGES, transform=FLIPS), 5))
    assert_same(epoch(TorchLoader(Mine(), 5)), want)
    assert_same(epoch(DataLoader(Mine(), 5, num_workers=2)), want)


def test_getitems_that_is_put_on_a_subset_is_called() -> None:
    part: Any = Subset(TensorDataset(torch.arange(N)), range(6))
    part.__getitems__ = lambda indices: [(-i,) for i in indices]
    want = epoch(TorchLoader(part, 4))
    assert_same(epoch(DataLoader(part, 4)), want)
    assert_same(
        epoch(DataLoader(Subset(part, [2, 1]), 4)), epoch(TorchLoader(Subset(part, [2, 1]), 4))
    )


@pytest.mark.parametrize("collate", [fastloop.PadCollate(), fastloop.PackCollate()])
def test_getitems_that_is_put_on_a_dataset_is_called_for_other_collates(collate: Any) -> None:
    data: Any = ArrayDataset(input_ids=RaggedArray.from_list([[1, 2], [3], [4, 5, 6], [7]]))
    data.__getitems__ = lambda indices: [{"input_ids": torch.tensor([-i])} for i in indices]
    for each in (data, Subset(data, [2, 1])):
        want = epoch(TorchLoader(each, 2, collate_fn=collate))
        assert_same(epoch(DataLoader(each, 2, collate_fn=collate)), want)


class _Tensors(_Numbered, TensorDataset):
    pass


class _Part(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return (*super().__getitem__(index), index)

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


class _Joined(_Numbered, ConcatDataset[Any]):
    pass


class _Stacked(StackDataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return (*super().__getitem__(index), index)

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_subclasses_of_torchs_datasets_are_torchs() -> None:
    base = TensorDataset(torch.arange(N), torch.arange(N) / 3)
    mine = _Tensors(torch.arange(N)), _Part(base, range(7)), _Joined([base, base])
    for dataset in (*mine, _Stacked(base, base), Subset(mine[0], [4, 2]), Subset(mine[1], [1, 0])):
        want = epoch(TorchLoader(dataset, 5))
        for workers in (0, 2):
            with DataLoader(dataset, 5, num_workers=workers) as loader:
                assert loader.stats().path != "array"
                assert_same(epoch(loader), want, type(dataset).__name__)


# ---- fields


class Shifted(RaggedArray):
    by = 100

    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)
        return row + self.by if isinstance(index, int) else row


@pytest.mark.parametrize("collate", [fastloop.PadCollate(), fastloop.PackCollate(), None])
def test_a_subclass_of_ragged_array_makes_the_sequences(collate: Any) -> None:
    field = Shifted.from_list([[1, 2], [3, 9], [4, 5], [7, 0]])
    field.by = 200
    data = ArrayDataset(input_ids=field)
    moved, copied = data.to("cpu"), pickle.loads(pickle.dumps(data))
    for dataset in (data, moved, copied, Subset(data, range(3))):
        assert dataset[0]["input_ids"].tolist() == [201, 202]
        size = 2 if collate else None
        want = epoch(TorchLoader(dataset, size, collate_fn=collate))
        for options in KINDS:
            with DataLoader(dataset, size, collate_fn=collate, **options) as loader:
                assert_same(epoch(loader), want, repr(options))


def test_views_and_copies_of_a_subclass_of_ragged_array_call_it_once() -> None:
    field = Shifted.from_list([[1, 2], [3], [4, 5, 6], [7]])
    assert field[1:][0].tolist() == [103]
    assert field[[1, 2]][0].tolist() == [103]  # a copy of what it gives
    assert pickle.loads(pickle.dumps(field[2:]))[1].tolist() == [107]


# ---- collates and samplers


def _add_one(batch: Any) -> Any:
    return {name: value + 1 for name, value in batch.items()}


class _Padded(fastloop.PadCollate):
    def __call__(self, samples: Any) -> Any:
        return _add_one(super().__call__(samples))


class _Packed(fastloop.PackCollate):
    def __call__(self, samples: Any) -> Any:
        return _add_one(super().__call__(samples))


@pytest.mark.parametrize("collate", [_Padded(), _Packed(return_cu_seqlens=False)])
def test_a_subclass_of_a_collate_makes_the_batches(collate: Any) -> None:
    data = ArrayDataset(input_ids=RaggedArray.from_list([[1, 2], [3], [4, 5, 6], [7]]))
    want = epoch(TorchLoader(data, 2, collate_fn=collate))
    assert want[0]["input_ids"][0, 0] == 2
    for options in KINDS:
        with DataLoader(data, 2, collate_fn=collate, **options) as loader:
            assert_same(epoch(loader), want)


class _Reversed(fastloop.ShuffleSampler):
    def __iter__(self) -> Iterator[int]:
        return reversed(list(super().__iter__()))


class _Doubled(fastloop.ShuffleSampler):
    def iter_from(self, first: int) -> Iterator[int]:
        return (index // 2 * 2 for index in super().iter_from(first))


class _OddBlocks(fastloop.ShuffleSampler):
    def blocks(self, first: int = 0, passed: int = 0) -> Iterator[torch.Tensor]:
        return (block ^ 1 for block in super().blocks(first, passed))


@pytest.mark.parametrize("cls", [_Reversed, _Doubled, _OddBlocks])
def test_a_subclass_of_a_sampler_gives_the_order_and_its_rest(cls: Any) -> None:
    data, make = TensorDataset(torch.arange(N)), lambda: cls(N, seed=5)
    want = epoch(TorchLoader(data, 3, sampler=make()))
    for workers in (0, 2):
        left = DataLoader(data, 3, sampler=make(), num_workers=workers)
        iterator = iter(left)
        assert_same([next(iterator)], want[:1])
        resumed = DataLoader(data, 3, sampler=make(), num_workers=workers)
        resumed.load_state_dict(left.state_dict())
        assert_same(list(resumed), want[1:])
        assert_same(list(iterator), want[1:])


# ---- transforms


class _Inverted(T.Compose):
    def __call__(self, image: Any) -> Any:
        return 255 - super().__call__(image)


class _InvertedFlip(T.RandomHorizontalFlip):
    def __call__(self, image: Any) -> Any:
        return 255 - super().__call__(image)


@pytest.mark.parametrize("transform", [_Inverted([FLIPS]), _InvertedFlip(p=1.0)])
def test_a_subclass_of_a_transform_is_called(transform: Any, tmp_path: Path) -> None:
    want = 255 - torch.from_numpy(IMAGES).flip(-1)
    for given in (transform, T.Compose([transform]), T.Compose([T.Identity(), transform])):
        data = ArrayDataset(IMAGES, transform=given)
        assert_same(data[0][0], want[0])
        assert_same(epoch(DataLoader(data, N, path="sync")), [[want]])
        assert_same(epoch(TorchLoader(data, N)), [[want]])
    with pytest.raises(ValueError, match="_Inverted"):
        DataLoader(ArrayDataset(IMAGES, transform=transform), N, path="array").stats()


def test_a_report_knows_whether_a_subclass_of_image_folder_has_a_cache(tmp_path: Path) -> None:
    assert find_remedy(MAKE["images"](tmp_path)) == "cache='u8:FOLDER' for the ImageFolder"
    assert find_remedy(MAKE["cached images"](tmp_path)) == ""
