"""Makes the samples of torchvision's ``ImageFolder`` by a decoder and a plan of C, and those of its
``FakeData``, with the bits and random numbers of torchvision. docs/zero-change.md tells the rules.

A loader's worker process, or its loop without workers, reads samples from ``FolderSamples`` in
place of the dataset, and draws from the generator that torchvision would draw from. Without workers
threads decode ahead of it. torchvision makes what C cannot, and raises every error.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cache, partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from fastloop.base.checks import refuse_if
from fastloop.compat.originals import DECODERS, trial_of
from fastloop.data.collate import below_subsets, borrow_places
from fastloop.data.field import Array
from fastloop.data.image_folder.decode import AutoDecoder
from fastloop.data.transforms import torchvision_chain as chains

_CHECKED = 3  # samples of a plan, in each process
_AHEAD = 8  # images that threads decode before they are asked for


@cache
def _threads_of(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), DECODERS)


def _new_decoder() -> AutoDecoder:
    return AutoDecoder(SimpleNamespace())


def _layout_of(dataset: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape of images, 0 for edges that differ, and how they lie in memory."""
    if not hasattr(dataset, "image_size"):
        return (0, 0, 3), "HWC"
    size = dataset.image_size
    is_size = isinstance(size, (list, tuple)) and all(type(n) is int and n < 2**31 for n in size)
    fault = "image_size of FakeData must be ints, the first of them 1 or 3 channels"
    refuse_if(not is_size or size[:1] not in ([1], [3], (1,), (3,)), fault)
    return tuple(size), "CHW"


def _make_fake(dataset: Any, row: int) -> tuple[Array, Tensor]:
    """Return an image [C, H, W] of FakeData, and its class: they are functions of the row."""
    refuse_if(row >= dataset.size, f"index {row} is out of range")
    generator = torch.Generator().manual_seed(row + dataset.random_offset)
    image = torch.randn(*dataset.image_size, generator=generator).mul_(255).byte()
    return image.numpy(), torch.randint(0, dataset.num_classes, (1,), generator=generator)[0]


class FolderSamples:
    """Samples of an ImageFolder or FakeData of torchvision, or of Subsets of one, for torch's
    default collate.

    Attributes are those of the dataset: a ``worker_init_fn`` may read and set them.

    Raises:
        ValueError: C does not make these samples; the text says why.
    """

    _kind = "FolderSamples"

    def __init__(self, dataset: Any) -> None:
        inner, subsets = below_subsets(dataset)
        own = vars(self)
        own.update(_dataset=dataset, _inner=inner, _subsets=subsets, _transform=inner.transform)
        refuse_if(fault := self._find_fault(), fault)
        shape, layout = _layout_of(inner)
        plan, draws, snapshot, key = chains.open_plan(inner.transform, shape, layout)
        own.update(_plan=plan, _draws=draws, _snapshot=snapshot, _is_fake=layout == "CHW")
        what = f"samples of {type(inner).__name__} with {inner.transform}"
        own.update(_spare=[], _trial=trial_of(key, what, "torchvision's", _CHECKED))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> Any:
        return samples_or_dataset, (self._dataset,)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        return self._dataset[row]

    def __getitems__(self, rows: Sequence[Any]) -> list[Any]:
        is_same = self._inner.transform is self._transform and self._snapshot.is_same()
        if self._find_fault() or not is_same or self._trial.is_left:
            return [self._dataset[row] for row in rows]
        found = rows
        try:
            for subset in reversed(self._subsets):
                found = [subset.indices[row] for row in found]
        except (IndexError, TypeError):  # torchvision makes the samples before it
            return [self._dataset[row] for row in rows]
        with borrow_places(self._plan.empty(), len(found)) as places:
            return list(map(self._make, self._read_ahead(found), found, places))

    def _find_fault(self) -> str:
        """Say why C does not make what torchvision would make now; "": it does."""
        inner, torchvision = self._inner, sys.modules["torchvision"]
        default = torchvision.datasets.folder.default_loader
        is_own = getattr(inner, "loader", default) is not default  # FakeData has none
        reasons = {
            "the ImageFolder has a loader of its own": is_own,
            "the image backend is another than PIL": torchvision.get_image_backend() != "PIL",
            f"the {type(inner).__name__} has no transform": inner.transform is None,
        }
        return next((why for why, applies in reasons.items() if applies), chains.why_not_now())

    # ---- images

    def _read(self, row: Any, decode: AutoDecoder) -> tuple[Array, Any] | None:
        """Return an image, in memory that the decoder uses again, and its class. None: it cannot be
        decoded, or is larger than Pillow likes; torchvision then raises the error or warns."""
        try:
            if self._is_fake:
                return _make_fake(self._inner, row)
            path, target = self._inner.samples[row]
            with open(path, "rb") as file:
                image = decode(file.read())
        except Exception:
            return None
        limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
        return (image, target) if limit is None or image.size <= 3 * limit else None

    def _read_ahead(self, rows: Sequence[Any]) -> Iterator[tuple[Array, Any] | None]:
        """Yield the images. Each is good until the next is asked for."""
        has_threads = get_worker_info() is None and len(os.sched_getaffinity(0)) > 1
        ahead = _AHEAD if has_threads else 1
        decoders = self._spare.pop() if self._spare else [_new_decoder() for _ in range(_AHEAD)]
        started = deque[Any]()
        for row, decoder in zip(rows, cycle(decoders[:ahead])):
            if len(started) == ahead:
                yield started.popleft()()
            read: Any = partial(self._read, row, decoder)
            if has_threads:
                with suppress(RuntimeError):  # the main thread has ended, and this one goes on
                    read = _threads_of(os.getpid()).submit(read).result
            started.append(read)
        yield from (read() for read in started)
        self._spare.append(decoders)  # not after an error: threads may still use them

    # ---- samples

    def _make(self, read: tuple[Array, Any] | None, row: Any, place: Tensor | None) -> Any:
        if read is None:
            return self._inner[row]
        image, target = read

        def by_torchvision() -> Any:
            """Return a sample as C makes it: the batch has neither class nor strides."""
            others = copy(self._inner)
            others.target_transform = None  # it may draw numbers, and is called once
            made, target = others[row]
            made = made.as_subclass(Tensor).clone(memory_format=torch.contiguous_format)
            return made, target

        def by_c(generator: torch.Generator) -> Any:
            out = self._plan.empty() if place is None else place
            self._draws.apply(image, out, generator)
            return out, target.item() if self._is_fake else target

        (made, found), then = self._trial.run(by_torchvision, by_c), self._inner.target_transform
        if then is None:
            return made, found
        return made, then(target).item() if self._is_fake else then(target)


def samples_or_dataset(dataset: Any) -> Any:
    """Return the samples of a dataset, or the dataset itself where C does not make them."""
    try:
        return FolderSamples(dataset)
    except ValueError:
        return dataset
