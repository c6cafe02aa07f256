"""Makes the samples of torchvision's ``ImageFolder`` by a decoder and a native plan.

Bits and random numbers are torchvision's. docs/internals/zero-change.md tells the rules.

A loader's worker process, or its loop without workers, reads samples from ``FolderSamples`` in
place of the dataset, and draws from the generator that torchvision would draw from. Without workers
threads decode ahead. ``CutSamples`` and ``CalledSamples`` are for transforms that no plan does as a
whole, and for the user's collate. If fastloop cannot make a sample, torchvision makes it or raises
the error.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import cache, partial
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from fastloop._core import JpegImage, usable_cpus
from fastloop.adapters import originals, torchvision_parts
from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters.torchvision_parts import Parts, Pixels, finished, size_of
from fastloop.base.checks import refuse_if
from fastloop.compat.decoded import decoded
from fastloop.compat.verification import DECODERS, verification_of
from fastloop.data.collate import borrow_slots
from fastloop.data.columns import below_subsets
from fastloop.data.image_folder.decode import AutoDecoder, find_module
from fastloop.data.image_folder.planes import find_asked

_CHECKED = 3  # samples of a plan, in each process
_KNOWN = "torchvision.", "torch."  # modules of transforms that may have plans
_SAVED = 0.9  # of the time of decoding, if a plan reads planes
_SAVED_OF_PART = 0.6  # of the time of a plan that decodes the part that it reads
_AHEAD = 8  # images that threads decode before they are asked for


@cache
def _threads_of(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cpus(), DECODERS)


class _Submitting(threading.local):
    is_inside = False


_submitting = _Submitting()


def submit(work: Callable[[], Any]) -> Future[Any] | None:
    """Give work to a thread. Return None if the caller has to do the work: the main thread has
    ended, or a signal's handler calls within ``submit()``, which would wait for its own lock."""
    if _submitting.is_inside:
        return None
    _submitting.is_inside = True
    try:
        return _threads_of(os.getpid()).submit(work)
    except RuntimeError:
        return None
    finally:
        _submitting.is_inside = False


def _has_cpus() -> bool:
    return usable_cpus() > 1


def _new_decoder() -> AutoDecoder:
    return AutoDecoder(SimpleNamespace(), keeps_pillow=True)


def _decode(path: str, decode: AutoDecoder, has_no_cache: bool, least: float) -> Any:
    """Decode a file, or open a file of `least` pixels that the plan decodes. If `has_no_cache`,
    count the CPU time of decoding that a cache of images would save."""
    begin_ns = decoded.begin()
    with open(path, "rb") as file:
        data = file.read()
    image = decode.open(data, least)
    if type(image) is JpegImage:
        return image
    if has_no_cache and data.startswith(b"\xff\xd8\xff"):
        width, height = size_of(image)
        decoded.add(path, width * height, begin_ns, _SAVED)
    return image


class FolderSamples:
    """Samples of an ImageFolder or DatasetFolder of torchvision, or of Subsets of one, for torch's
    default collate.

    Attributes are the dataset's: a ``worker_init_fn`` may read and set them.

    Args:
        reason: why other samples, which would be faster, are not made; or "".

    Raises:
        ValueError: torchvision makes these samples; the text says why.
    """

    _is_stand_in = True  # for a dataset
    _borrows_slots = True
    _whose = "torchvision's"
    _why = ""  # what users read beside "samples of ImageFolder by fastloop"
    _reads_ahead = True
    _draws_first = False  # before files are decoded, also if threads read ahead
    _form: tuple[tuple[int, ...], str] = (0, 0, 3), "HWC"  # of images: 0 for edges that differ

    def __init__(self, dataset: Any, reason: str = "") -> None:
        inner, subsets = below_subsets(dataset)
        own_items = f"a {type(inner).__name__} has a __getitems__ of its own"
        refuse_if("__getitems__" in vars(inner), own_items)
        own = vars(self)
        own.update(_dataset=dataset, _inner=inner, _subsets=subsets, _transform=inner.transform)
        own.update(_class=type(inner))
        fault = self._find_obstacle() or originals.find_unknown(type(inner).__name__)
        refuse_if(fault, fault)
        own.update(_spare=[], _plan=None, _reason=reason)
        self._open()

    def _open(self) -> None:
        """Make the plan. Raises ValueError."""
        kind = type(self._transform)
        called = (
            f"Python calls the transform, a {kind.__name__}, and fastloop serves a Compose inside"
        )
        refuse_if(not kind.__module__.startswith(_KNOWN), called)
        plan, draws, has_same, key, is_known = chains.open_plan(self._transform, *self._form)
        what = f"samples of {type(self._inner).__name__} with {list(plan.ops)}"
        vars(self).update(_plan=plan, _draws=draws, _has_same=has_same)
        if plan.least_for_part < math.inf and self._reads_ahead:
            _new_decoder().finds_jpeg()  # before workers fork
        vars(self)["_verification"] = verification_of(key, what, self._whose, _CHECKED, is_known)

    def _is_same(self) -> bool:
        """Tell whether the class of the dataset, and the transform, are what they were."""
        try:
            is_same = type(self._inner) is self._class and "__getitems__" not in vars(self._inner)
            return is_same and self._inner.transform is self._transform and self._has_same()
        except ValueError:  # it has changed too often
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> Any:
        return samples_or_dataset, (type(self), self._dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        return self._dataset[row]

    def _fetch(self, rows: Sequence[Any]) -> Any:
        """Return the dataset's own samples, as torch fetches them."""
        fetch = getattr(self._dataset, "__getitems__", None)
        return fetch(rows) if fetch else [self._dataset[row] for row in rows]

    def __getitems__(self, rows: Sequence[Any]) -> Any:
        inner, subsets = below_subsets(self._dataset)
        is_same = inner is self._inner and [*map(id, subsets)] == [*map(id, self._subsets)]
        is_same = is_same and self._is_same() and not self._find_obstacle()
        if not is_same or self._verification.falls_back:
            return self._fetch(rows)
        found = rows
        try:
            for subset in reversed(self._subsets):
                found = [subset.indices[row] for row in found]
        except (IndexError, TypeError):  # torchvision makes the earlier samples
            return self._fetch(rows)
        with borrow_slots(self._like(), len(found)) as slots:
            # A list of map() would end if a target_transform raised StopIteration.
            images = zip(self._read_ahead(found), found, slots, strict=True)
            return [self._make(*each) for each in images]

    def _like(self) -> torch.Tensor | None:
        """Return a tensor like every image; None if images differ."""
        return None if self._plan is None else self._plan.empty()

    def _find_obstacle(self) -> str:
        """Return why torchvision may make something else now than fastloop, or ""."""
        inner, torchvision = self._inner, sys.modules["torchvision"]
        default = torchvision.datasets.folder.default_loader
        if getattr(inner, "loader", None) is not default:
            return f"the {type(inner).__name__} has a loader of its own"
        if torchvision.get_image_backend() != "PIL":
            return "the image backend is not PIL"
        if inner.transform is None:
            return f"the {type(inner).__name__} has no transform"
        return chains.find_obstacle("called.arrays", "called.files")

    def _is_keyed(self) -> bool:
        """Tell whether samples draw no random numbers, so that any worker may make them."""
        return self._inner.target_transform is None and not self._plan.is_random

    # ---- images

    def _entry(self, row: Any) -> tuple[str, Any]:
        """Return the path of a file, and its target."""
        entry: tuple[str, Any] = self._inner.samples[row]
        return entry

    def _collate_of(self, collate_fn: Any) -> Any:
        """Return the function in place of a loader's collate function."""
        return collate_fn

    def _read(self, row: Any, decode: AutoDecoder) -> tuple[Any, Any] | None:
        """Return an image (an array in memory that the decoder uses again, planes, a file that the
        plan decodes, or an image of Pillow) and its target. None: the file cannot be decoded, or
        Pillow warns of its size; torchvision then raises or warns."""
        try:
            path, target = self._entry(row)
            planes = find_asked()
            image: Any = None if planes is None else planes.read(path)
            if image is None:
                is_whole = self._plan is None or (not self._draws_first and self._has_threads())
                least = math.inf if is_whole else self._plan.least_for_part
                image = _decode(path, decode, planes is None, least)
        except Exception:
            return None
        limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
        width, height = size_of(image)
        return (image, target) if limit is None or width * height <= limit else None

    def _read_all(self, files: list[Any]) -> list[tuple[Any, Any] | None]:
        return [self._read(*each) for each in files]

    def _has_threads(self) -> bool:
        return self._reads_ahead and get_worker_info() is None and _has_cpus()

    def _read_ahead(self, rows: Sequence[Any]) -> Iterator[tuple[Any, Any] | None]:
        """Yield the images. An image is valid until the next image is asked for."""
        has_threads = self._has_threads()
        ahead = _AHEAD if has_threads else 1
        decoders = self._spare.pop() if self._spare else [_new_decoder() for _ in range(_AHEAD)]
        started = deque[Any]()
        size = _AHEAD // 2 if has_threads and self._draws_first else 1  # reading alone is short
        files = zip(rows, cycle(decoders[:ahead]))
        while group := list(islice(files, size)):
            if len(started) == ahead // size:
                yield from started.popleft()()
            read: Any = partial(self._read_all, group)
            future = submit(read) if has_threads else None
            started.append(read if future is None else future.result)
        for read in started:
            yield from read()
        self._spare.append(decoders)  # not after an error: threads may still use them

    # ---- samples

    def _make(self, read: tuple[Any, Any] | None, row: Any, slot: Tensor | None) -> Any:
        if read is None or not self._is_same():
            return self._inner[row]
        made, target = self._transformed(*read, row, slot)
        then = self._inner.target_transform
        return made, target if then is None else then(target)

    def _transformed(self, image: Any, target: Any, row: Any, slot: Tensor | None) -> Any:
        """Return what the transform makes of an image, and the target."""

        def by_torchvision() -> Any:
            """Return torchvision's sample with the class and strides that the plan's sample has. A
            batch keeps neither."""
            others = copy(self._inner)
            others.target_transform = None  # is called once, at the end: it may draw numbers
            made, target = others[row]
            made = made.as_subclass(Tensor).clone(memory_format=torch.contiguous_format)
            return made, target

        def native(generator: torch.Generator) -> Any:
            out = self._plan.empty() if slot is None else slot
            if type(image) is JpegImage:
                self._decode_part(image, row, out, generator)
            else:
                self._draws.apply(image, out, generator)
            return out, target

        made, target = self._verification.run(by_torchvision, native)
        # A sample of torchvision's lies elsewhere, so the collate would copy the whole batch.
        if (
            slot is not None
            and made is not slot
            and (made.shape, made.dtype) == (slot.shape, slot.dtype)
        ):
            made = slot.copy_(made)
        return made, target

    def _decode_part(
        self, image: JpegImage, row: Any, out: Tensor, generator: torch.Generator
    ) -> None:
        """Apply the plan to a file. Raises ValueError if libjpeg refuses the file; then the
        generator has not changed."""
        state, begin_ns = generator.get_state(), decoded.begin()
        try:
            self._draws.apply(image, out, generator)
        except ValueError:
            generator.set_state(state)
            raise
        if find_asked() is None:
            height, width, _ = image.shape
            decoded.add(self._entry(row)[0], width * height, begin_ns, _SAVED_OF_PART)


class CutSamples(FolderSamples):
    """Samples of an ImageFolder whose transform has operations that Python calls, in the process in
    which torchvision would call them, or of one with the user's collate: they have torchvision's
    class and strides. Files other than JPEG are torchvision's."""

    _is_stand_in = True

    def _open(self) -> None:
        parts = Parts(torchvision_parts.counter)
        parts.read(self._transform)
        refuse_if(why := parts.find_obstacle(), why)
        verification = verification_of("JPEG", "decoded images", "Pillow's", _CHECKED)
        vars(self).update(_parts=parts, _verification=verification)
        vars(self)["_has_same"] = partial(parts.read, self._transform)

    def _read(self, row: Any, decode: AutoDecoder) -> tuple[Any, Any] | None:
        found = super()._read(row, decode)
        if found is None:
            return None
        image, target = found
        try:
            with sys.modules["PIL.Image"].open(self._inner.samples[row][0]) as file:
                is_jpeg, info = file.format == "JPEG", file.info
        except Exception:
            return None
        return (Pixels(image, "RGB", info), target) if is_jpeg else None

    def _decoded(self, pixels: Any, row: Any) -> Any:
        """Return an image that is Pillow's if a comparison is due."""

        def native(generator: torch.Generator) -> Any:
            return pixels if generator is torch.default_generator else pixels.to_pil()

        return self._verification.run(
            lambda: self._inner.loader(self._inner.samples[row][0]), native
        )

    def _transformed(self, image: Any, target: Any, row: Any, slot: Tensor | None) -> Any:
        image = self._decoded(image, row)
        return self._parts.run(image, lambda: self._transform(finished(image)))[0], target


class CalledSamples(CutSamples):
    """Samples whose transform Python calls with an image of PIL. Threads decode ahead, so they are
    for loaders without workers: in a worker Pillow is as fast."""

    _is_stand_in = True

    def _open(self) -> None:
        has_threads = _has_cpus() and find_module("simplejpeg") is not None
        refuse_if(not has_threads, "no thread can decode ahead")
        verification = verification_of("JPEG", "decoded images", "Pillow's", _CHECKED)
        why = self._reason or "Python calls the transform"
        vars(self).update(_verification=verification, _why=f", which decodes ahead; {why}")
        vars(self)["_has_same"] = lambda: True

    def _read(self, row: Any, decode: AutoDecoder) -> tuple[Any, Any] | None:
        """Return an image, and the entry of `samples` with its file."""
        try:
            entry = self._inner.samples[row]
        except Exception:  # the list is the user's
            return None
        found = super()._read(row, decode)
        return found and (found[0], entry)

    def _make(self, read: tuple[Any, Any] | None, row: Any, slot: Tensor | None) -> Any:
        # A transform may have changed the list of samples since the file was read.
        is_same = read is not None and self._inner.samples[row] is read[1]
        return super()._make(read if is_same else None, row, slot)

    def _transformed(self, image: Any, target: Any, row: Any, slot: Tensor | None) -> Any:
        return self._inner.transform(finished(self._decoded(image, row))), target[1]


def samples_or_dataset(cls: Any, dataset: Any) -> Any:
    """Return the samples of a dataset, or the dataset itself if torchvision makes them."""
    try:
        return cls(dataset)
    except ValueError:
        return dataset
