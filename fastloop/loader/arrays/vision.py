"""Datasets of torchvision with transforms that C does at the same random numbers.

C makes whole batches of CIFAR, MNIST and the like. Their parameters are drawn when torch would
draw them, from the generator that torch would use: the process's default one without workers, the
stream that each worker process would have with them. docs/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data
from torch.utils.data import DataLoader

from fastloop._core import ImageDraws, Snapshot
from fastloop.base.requirements import read_check_interval
from fastloop.base.torch_parts import pin_memory
from fastloop.data.transforms import torchvision_chain as chains
from fastloop.loader.arrays.columns import Columns, NotCoveredError, as_vector, leave_if
from fastloop.loader.arrays.iterator import _BATCHES, ArrayIter, make_batch

# By class: the attributes with images and labels, and how images lie in memory.
_KINDS = {
    **dict.fromkeys(("CIFAR10", "CIFAR100"), ("data", "targets", "HWC")),
    **dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "EMNIST"), ("data", "targets", "HW")),
    **dict.fromkeys(("SVHN", "STL10"), ("data", "labels", "CHW")),
}
_CODE = """
torchvision.datasets.cifar: CIFAR10.__getitem__ CIFAR10.__len__
torchvision.datasets.mnist: MNIST.__getitem__ MNIST.__len__ _Image_fromarray
torchvision.datasets.svhn: SVHN.__getitem__ SVHN.__len__
torchvision.datasets.stl10: STL10.__getitem__ STL10.__len__
"""
_KNOWN = ("9e3edab0",)  # torchvision 0.28
_SAMPLERS = (
    torch_data.RandomSampler,
    torch_data.SequentialSampler,
    torch_data.DistributedSampler,
    torch_data.WeightedRandomSampler,
    torch_data.SubsetRandomSampler,
)
_CHECKED = 3  # samples
_OTHERS = ("transform", "target_transform")  # attributes on which samples depend

# By plan: whether C made the same as torchvision, once that was checked in this process.
_verdicts: dict[str, bool] = {}
_made: Counter[str] = Counter()  # samples of each plan


@dataclass(eq=False)
class Drawn:
    """A dataset whose samples C makes, and where their parameters are drawn.

    Attributes:
        names: the dataset's attributes that samples depend on.
        snapshot: of the transform's objects.
        key: identifies the plan.
    """

    draws: ImageDraws
    dataset: Any
    names: tuple[str, ...]
    snapshot: Snapshot
    key: str

    def __post_init__(self) -> None:
        self._held = [getattr(self.dataset, name) for name in self.names]

    def is_same(self) -> bool:
        """Tell whether C still makes what torchvision would make."""
        held = zip(self._held, self.names, strict=True)
        is_same = all(getattr(self.dataset, name) is value for value, name in held)
        return is_same and not chains.why_not_now() and self.snapshot.is_same()

    def check(self, columns: Columns) -> None:
        """Make the first samples both ways, once a process. Raises NotCoveredError if they or
        random states differ; torchvision then makes all samples of the plan for good."""
        if self.key not in _verdicts:
            is_alone = chains.is_alone()
            is_same = _makes_same(columns)
            if not is_same and not is_alone:  # another thread may have drawn meanwhile
                raise NotCoveredError("other threads run, so the transform could not be checked")
            _verdicts[self.key] = is_same
            if not is_same:
                self.leave()
        leave_if(not _verdicts[self.key], "C's samples differed from torchvision's")

    def leave(self) -> None:
        """Leave the plan to torchvision for good."""
        _verdicts[self.key] = False
        what = f"samples of {type(self.dataset).__name__}"
        chains.warn_of_other(what, self.dataset.transform, stacklevel=4)


def _check_loader(loader: DataLoader[Any]) -> None:
    sampler: Any = loader._index_sampler
    inner = getattr(sampler, "sampler", None)
    is_plain = type(sampler) is torch_data.BatchSampler and type(inner) in _SAMPLERS
    if is_plain and type(inner) is torch_data.SubsetRandomSampler:
        is_plain = as_vector(inner.indices) is not None
    has_workers = loader.num_workers > 0
    leave_if(not is_plain, "the sampler is not one of torch's")
    leave_if(has_workers and loader.worker_init_fn, "worker_init_fn may seed torch's generator")
    leave_if(has_workers and not loader.in_order, "in_order=False")


def _images_of(dataset: Any, name: str, layout: str) -> tuple[Any, tuple[int, ...], str]:
    """Return the images, the shape of one and its layout."""
    images = getattr(dataset, name)
    kinds = (torch.Tensor, torch.uint8) if layout == "HW" else (np.ndarray, np.uint8)
    is_bytes = type(images) is kinds[0] and images.dtype == kinds[1]
    if not is_bytes or images.ndim != (3 if layout == "HW" else 4) or len(images) == 0:
        raise NotCoveredError(f"{name} of the {type(dataset).__name__} was replaced")
    images = images.unsqueeze(-1) if layout == "HW" else images
    layout = "HWC" if layout == "HW" else layout
    shape = tuple(images.shape[1:])
    leave_if(
        shape[layout.index("C")] not in (1, 3), f"images must have 1 or 3 channels, got {shape}"
    )
    return images, shape, layout


def _labels_of(dataset: Any, name: str, count: int) -> Tensor:
    labels = as_vector(getattr(dataset, name))
    if labels is None or len(labels) != count:
        raise NotCoveredError(f"{name} of the {type(dataset).__name__} are not plain integers")
    return torch.from_numpy(labels)


def take_vision(dataset: Any, loader: DataLoader[Any]) -> Columns:
    """Return the columns of a dataset of torchvision. Raises NotCoveredError."""
    name = type(dataset).__name__
    kinds = sys.modules["torchvision.datasets"]
    if name not in _KINDS or getattr(kinds, name, None) is not type(dataset):
        raise NotCoveredError(f"the dataset is a {name}, which C does not make")
    if dataset.transform is None or dataset.target_transform is not None:
        raise NotCoveredError(f"the {name} has no transform, or a target_transform")
    _check_loader(loader)
    if not chains.is_code_known(_CODE, _KNOWN):
        raise NotCoveredError("this version of fastloop does not know this torchvision")
    data, targets, layout = _KINDS[name]
    images, shape, layout = _images_of(dataset, data, layout)
    try:
        opened = chains.open_plan(dataset.transform, shape, layout)
    except ValueError as error:
        raise NotCoveredError(str(error)) from None
    _, draws, snapshot, key = opened
    columns = Columns((None, None), kind="torchvision's images, its transform in C")
    columns.add(data, images, None, draws)
    columns.add(targets, _labels_of(dataset, targets, len(images)))
    columns.drawn = Drawn(draws, dataset, (data, targets, *_OTHERS), snapshot, f"{name} {key}")
    columns.check = columns.drawn.check
    return columns


def _make_by_torchvision(state: Tensor, make: Callable[[], Any]) -> tuple[Any, Tensor]:
    """Call `make` with torch's generator in this state. Return its result, and the state after it;
    the generator is put back."""
    generator = torch.default_generator
    now = generator.get_state()
    generator.set_state(state)
    try:
        with chains.leaving_torchvision():
            return make(), generator.get_state()
    finally:
        generator.set_state(now)


def _makes_same(columns: Columns) -> bool:
    drawn = columns.drawn
    count = min(_CHECKED, len(drawn.dataset))
    private, before = torch.Generator(), torch.default_generator.get_state()
    try:
        expected, after = _make_by_torchvision(
            before, lambda: torch_data.default_collate([drawn.dataset[i] for i in range(count)])
        )
    except Exception as error:
        raise NotCoveredError(f"torchvision raises {type(error).__name__}") from error
    private.set_state(before)
    drawn.draws.draw_from(count, private)
    made = make_batch(columns, list(range(count)))
    return all(map(chains.same_bits, expected, made)) and torch.equal(after, private.get_state())


# ---- the iterator


class VisionIter(ArrayIter):
    """An iterator that draws for each batch when its indices are known, as torch does.

    Without workers it looks before each batch whether the program has changed the dataset or its
    transform. The rest of the epoch is then torchvision's.
    """

    _is_seeded = _is_left = False
    _due: tuple[Any, Tensor, Tensor] | None = None  # indices, states before and after the draws

    def _restart(self) -> None:
        if self._destination is not None:
            self._destination.check()
        self._drawn, self._every = self._source.drawn, read_check_interval()
        if not self._is_seeded:
            self._is_seeded = True  # persistent workers go on with their streams
            self._drawn.draws.seed(int(self._base_seed), self._num_workers)
        self._array_loader.restart(self._drawing(), _BATCHES, None, 0)

    def _drawing(self) -> Iterator[Any]:
        draws, workers = self._drawn.draws, self._num_workers
        every, generator = self._every, torch.default_generator
        for turn, batch in enumerate(self._sampler_iter):
            if workers > 0:
                draws.draw(len(batch), turn % workers)
                yield batch
                continue
            before = _made[self._drawn.key]
            _made[self._drawn.key] = count = before + len(batch)
            is_due = every > 0 and count // every > before // every
            state = generator.get_state() if is_due else None
            draws.draw_from(len(batch), generator)
            self._due = None if state is None else (batch, state, generator.get_state())
            yield batch

    def _compare(self, data: Any) -> Any:
        """Return the batch as torchvision makes it, if that is not what C has made."""
        assert self._due is not None
        (indices, before, after), self._due = self._due, None
        if not chains.is_alone():  # another thread may draw meanwhile
            return data
        fetch = partial(self._dataset_fetcher.fetch, indices)
        expected, state = _make_by_torchvision(before, fetch)
        if torch.equal(after, state) and all(map(chains.same_bits, expected, data)):
            return data
        self._is_left = True
        self._drawn.leave()
        return pin_memory(expected) if self._pin_memory else expected

    def __next__(self) -> Any:
        if self._num_workers == 0 and not self._is_left:
            self._is_left = not self._drawn.is_same()
        if not self._is_left:
            data = super().__next__()
            return data if self._due is None else self._compare(data)
        try:
            data = self._dataset_fetcher.fetch(next(self._sampler_iter))
        except StopIteration:
            self._epoch.is_over = True
            raise
        self._num_yielded += 1
        return pin_memory(data) if self._pin_memory else data
