"""Makes the samples of torchvision's ``ImageFolder`` by a decoder and a plan of C, with the bits
and random numbers of torchvision. docs/zero-change.md tells the rules.

A loader's worker process, or its loop without workers, reads samples from ``FolderSamples`` in
place of the dataset, and draws from the generator that torchvision would draw from. Without workers
threads decode ahead of it. torchvision makes what C cannot, and raises every error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from fastloop.base.checks import refuse_if
from fastloop.base.requirements import read_check_interval
from fastloop.data.collate import below_subsets, borrow_places
from fastloop.data.field import Array
from fastloop.data.image_folder.decode import AutoDecoder
from fastloop.data.transforms import torchvision_chain as chains

_CHECKED = 3  # samples of a plan, in each process
_AHEAD = 8  # images that threads decode before they are asked for

_same: Counter[str] = Counter()  # by plan: samples that C has made as torchvision does
_left: set[str] = set()  # plans that are left to torchvision for good


@functools.cache
def _threads_of(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), chains.DECODERS)


def _new_decoder() -> AutoDecoder:
    return AutoDecoder(SimpleNamespace())


class FolderSamples:
    """Samples of an ImageFolder of torchvision, or of Subsets of one, for torch's default collate.

    Attributes are those of the dataset: a ``worker_init_fn`` may read and set them.

    Raises:
        ValueError: C does not make these samples; the text says why.
    """

    def __init__(self, dataset: Any) -> None:
        own = vars(self)
        own["_dataset"], (own["_inner"], own["_subsets"]) = dataset, below_subsets(dataset)
        refuse_if(fault := self._find_fault(), fault)
        opened = chains.open_plan(self._inner.transform, (0, 0, 3), "HWC")
        own["_plan"], own["_draws"], own["_snapshot"], own["_key"] = opened
        own["_transform"], own["_count"] = self._inner.transform, 0
        own["_every"] = read_check_interval()
        own["_spare"] = [_new_decoder()]

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
        is_same = self._inner.transform is self._transform and self._key not in _left
        if self._find_fault() or not is_same or not self._snapshot.is_same():
            return [self._dataset[row] for row in rows]
        found = rows
        try:
            for subset in reversed(self._subsets):
                found = [subset.indices[row] for row in found]
        except (IndexError, TypeError):  # torchvision makes the samples before it
            return [self._dataset[row] for row in rows]
        with borrow_places(self._plan.empty(), len(found)) as places:
            return list(map(self._make, found, self._read_ahead(found), places))

    def _find_fault(self) -> str:
        """Say why C does not make what torchvision would make now; "": it does."""
        inner, torchvision = self._inner, sys.modules["torchvision"]
        is_default = inner.loader is torchvision.datasets.folder.default_loader
        if not is_default or torchvision.get_image_backend() != "PIL":
            return "the ImageFolder has a loader of its own"
        if inner.transform is None or inner.target_transform is not None:
            return "the ImageFolder has no transform, or a target_transform"
        return chains.why_not_now()

    # ---- images

    def _read(self, row: Any, decode: AutoDecoder) -> Array | None:
        """Return an image, in memory that the decoder uses again. None: it cannot be decoded, or is
        larger than Pillow likes; torchvision then raises the error or warns."""
        try:
            with open(self._inner.samples[row][0], "rb") as file:
                image = decode(file.read())
        except Exception:
            return None
        limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
        return image if limit is None or image.size <= 3 * limit else None

    def _submit(self, row: Any, decode: AutoDecoder) -> Future[Array | None]:
        try:
            return _threads_of(os.getpid()).submit(self._read, row, decode)
        except RuntimeError:  # the main thread has ended, and this one goes on
            read: Future[Array | None] = Future()
            read.set_result(self._read(row, _new_decoder()))
            return read

    def _read_ahead(self, rows: Sequence[Any]) -> Iterator[Array | None]:
        """Yield the images. Each is good until the next is asked for."""
        if get_worker_info() is not None or len(os.sched_getaffinity(0)) == 1:
            yield from (self._read(row, self._spare[0]) for row in rows)
            return
        ahead = deque[tuple[AutoDecoder, Future[Array | None]]]()

        def take_first() -> Iterator[Array | None]:
            decode, image = ahead.popleft()
            yield image.result()
            self._spare.append(decode)

        for row in rows:
            decode = self._spare.pop() if self._spare else _new_decoder()
            ahead.append((decode, self._submit(row, decode)))
            if len(ahead) == _AHEAD:
                yield from take_first()
        while ahead:
            yield from take_first()

    # ---- samples

    def _make(self, row: Any, image: Array | None, place: Tensor | None) -> Any:
        if image is None or self._key in _left:
            return self._inner[row]
        vars(self)["_count"] += 1
        is_due = self._every > 0 and self._count % self._every == 0
        is_due = is_due or _same[self._key] < _CHECKED
        out = self._plan.empty() if is_due or place is None else place
        generator = torch.default_generator
        if is_due:
            generator = torch.Generator()
            generator.set_state(torch.get_rng_state())
        try:
            self._draws.apply(image, out, generator)
        except (TypeError, ValueError):  # nothing is drawn: torchvision's turn
            return self._inner[row]
        return self._compare(row, out, generator) if is_due else (out, self._inner.samples[row][1])

    def _compare(self, row: Any, found: Tensor, generator: torch.Generator) -> Any:
        """Return torchvision's sample, and compare it and the state after it with those of C."""
        with chains.leaving_torchvision():
            expected, target = self._inner[row]
        is_same = chains.same_bits(expected.as_subclass(Tensor).contiguous(), found)
        if is_same and torch.equal(generator.get_state(), torch.get_rng_state()):
            _same[self._key] += 1
        elif chains.is_alone():  # no other thread has drawn meanwhile
            _left.add(self._key)
            chains.warn_of_other("samples", self._transform, stacklevel=4)
        return expected, target


def samples_or_dataset(dataset: Any) -> Any:
    """Return the samples of a dataset, or the dataset itself where C does not make them."""
    try:
        return FolderSamples(dataset)
    except ValueError:
        return dataset
