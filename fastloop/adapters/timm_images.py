"""Samples of timm's ``ImageDataset`` over a folder, with timm's bits and random numbers.

Transforms of evaluation are chains of torchvision's operations. In training the loop's thread draws
for one sample after the other, and threads decode the parts of files that plans read.
docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import torch

from fastloop._core import JpegImage, usable_cpus
from fastloop.adapters import originals
from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters.timm_draws import Draws, get_states, set_states
from fastloop.adapters.torchvision_folder import FolderSamples, _new_decoder, submit
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import verification_of
from fastloop.data.columns import Columns, NotCoveredError, Request, below_subsets

_CHECKED = 3  # samples of a process
_NO_END = "the transform does not end as those of create_transform() do"
_GROUP = 8  # the random numbers of 8 samples or more are drawn, then these samples are made


class _Work(threading.local):
    """The work on samples of the batch that this thread makes.

    Attributes:
        waiting: functions that make samples from what was drawn. Python and native code take turns
            once a group, because each finds the processor's caches full of the other's.
        started: futures of groups that threads make.
        has_failed: this thread has failed to make a sample.
        is_attempt: timm makes the batch if fastloop cannot.
        group: how many samples wait at most.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.waiting, self.started, self.has_failed = list[Any](), list[Any](), False
        self.is_attempt, self.group = False, _GROUP

    def start(self, has_threads: bool) -> None:
        """Make the samples that wait, now or in a thread."""
        works, self.waiting = self.waiting, []
        try:
            future = submit(partial(_do_all, works)) if has_threads else None
            if future is not None:
                self.started.append(future)
            else:
                _do_all(works)
        except Exception:
            self.has_failed = True


_work = _Work()


def _do_all(works: list[Any]) -> None:
    for work in works:
        work()


def _have_failed() -> bool:
    """Wait until no thread writes to the batch's memory any more. Tell whether work has failed."""
    failed = [each for each in _work.started if each.exception() is not None]
    return _work.has_failed or len(failed) > 0


def _all_states() -> tuple[Any, torch.Tensor]:
    return get_states(), torch.default_generator.get_state()


def _set_all_states(states: tuple[Any, torch.Tensor]) -> None:
    set_states(states[0])
    torch.default_generator.set_state(states[1])


class FastCollate:
    """Does the work of timm's ``fast_collate`` for samples that lie in the batch already."""

    _uses_core = _takes_slots = True

    def __call__(self, batch: Any) -> Any:
        return sys.modules["timm.data.loader"].fast_collate(batch)

    def collate(self, core: Any, batch: Any) -> Any:
        first = batch[0][0]
        are_plain = all(
            type(label) is int
            and type(image) is torch.Tensor
            and image.is_contiguous()
            and (image.dtype, image.shape) == (torch.uint8, first.shape)
            for image, label in batch
        )
        return tuple(core(batch)) if are_plain else self(batch)


class TimmFolder(FolderSamples):
    """Samples of an ImageDataset of timm, or of Subsets of one, whose transform has torchvision's
    operations on images of PIL, and timm's conversion to tensors."""

    _is_stand_in = _borrows_slots = True
    _whose = "timm's"

    def _open(self) -> None:
        names = [type(op).__name__ for op in chains.parts_of(self._transform) or ()]
        names = names[: -1 if names[-1:] == ["Normalize"] else None]
        refuse_if(names[-1:] not in (["MaybePILToTensor"], ["MaybeToTensor"]), _NO_END)
        super()._open()

    def _find_obstacle(self) -> str:
        inner, timm = self._inner, sys.modules["timm.data.readers.reader_image_folder"]
        if type(inner.reader) is not timm.ReaderImageFolder:
            return f"the reader is a {type(inner.reader).__name__}"
        is_odd = inner.load_bytes or inner.additional_features or inner._max_retries < 1
        if is_odd or inner.input_img_mode != "RGB":
            return "the dataset hands out more than images of RGB"
        return chains.find_obstacle("timm", "called.arrays", "called.files")

    def _entry(self, row: Any) -> tuple[str, Any]:
        entry: tuple[str, Any] = self._inner.reader.samples[row]
        return entry

    def _collate_of(self, collate_fn: Any) -> Any:
        """Return the function in place of a loader's collate function."""
        is_theirs = collate_fn is getattr(sys.modules["timm.data.loader"], "fast_collate", None)
        is_known = is_theirs and not originals.find_unknown("fast_collate")
        return FastCollate() if is_known else collate_fn

    def _make(self, read: Any, row: Any, slot: Any) -> Any:
        has_label = read is not None and read[1] is not None  # else timm's is -1
        return super()._make(read if has_label else None, row, slot)

    def _transformed(self, image: Any, target: Any, row: Any, slot: Any) -> Any:
        made, target = super()._transformed(image, target, row, slot)
        if slot is None and made.dtype is torch.uint8:  # the program may see the strides
            made = made.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return made, target


class TimmSamples(TimmFolder):
    """Samples whose transform draws from three generators, as ``create_transform`` makes it for
    training."""

    _is_stand_in = _borrows_slots = _draws_first = True

    def _open(self) -> None:
        compose = self._transform
        parts = chains.parts_of(compose)
        refuse_if(parts is None, "the transform is no Compose of torchvision")
        try:
            draws = Draws(parts, compose)
            verdict = draws.judge()
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"timm's transforms have unusual attributes: {error}") from error
        refuse_if(verdict.why, verdict.why)
        plan = draws.plan("CHW")
        for layout in ("CHW", draws.layout):
            draws.plan(layout)
            draws.plan(layout, "bicubic")
        _new_decoder().finds_jpeg()  # before workers fork
        what = f"samples with {compose}"
        verification = verification_of(what, what, "timm's", _CHECKED, not verdict.about)
        vars(self).update(_plan=plan, _timm=draws, _verification=verification)
        vars(self).update(_has_same=draws.has_same)

    def __getitems__(self, rows: Sequence[Any]) -> Any:
        outer = vars(_work).copy()  # a signal's handler may load a batch while another is made
        _work.reset()
        try:
            return self._make_all(rows)
        finally:
            vars(_work).update(outer)

    def _make_all(self, rows: Sequence[Any]) -> Any:
        before = _all_states()
        # With a function of labels each sample that fails is made again alone.
        _work.is_attempt = self._inner.target_transform is None
        _work.group = max(_GROUP, len(rows) // (2 * usable_cpus()))  # two groups for each thread
        try:
            made = super().__getitems__(rows)
            _work.start(self._has_threads())
        except BaseException as error:
            _have_failed()
            if not isinstance(error, Exception) or not _work.is_attempt:
                raise
        else:
            if not _have_failed():
                return made
        # timm skips a file that it cannot decode before it draws, and raises errors of its own.
        _set_all_states(before)
        return self._fetch(rows)

    def _fetch(self, rows: Sequence[Any]) -> Any:
        _work.is_attempt = False  # the program's code may follow, and is called once
        return super()._fetch(rows)

    def _transformed(self, image: Any, target: Any, row: Any, slot: Any) -> Any:
        height, width = image.shape[:2] if hasattr(image, "shape") else image.size[::-1]
        draws, verification = self._timm, self._verification
        layout = draws.layout if slot is None else "CHW"
        if not draws.takes(width, height) or verification.falls_back:
            return self._by_timm(row, slot)
        out = draws.plan(layout).empty() if slot is None else slot
        if not verification.is_due():
            draw = partial(draws.draw, width, height)
            work = partial(self._apply, image, row, out, layout)
            if self._inner.target_transform is None:
                _work.waiting.append(partial(work, draw()))
                # The memory of other images is used again.
                if type(image) is not JpegImage or len(_work.waiting) >= _work.group:
                    _work.start(type(image) is JpegImage and self._has_threads())
                return out, target
            before = _all_states()  # takes longer than the draws
            try:
                work(draw())
            except Exception:  # nobody may call a function of labels twice: this sample alone again
                _set_all_states(before)
                return self._by_timm(row, slot)
            return out, target
        before = get_states()

        def native(generator: torch.Generator) -> Any:
            after = _all_states()
            _set_all_states((before, generator.get_state()))
            try:
                given = draws.draw(width, height)
                generator.set_state(torch.default_generator.get_state())
                self._apply(image, row, made := torch.empty_like(out), layout, given)
                return made, target, get_states()
            finally:
                _set_all_states(after)

        compared = verification.compare(lambda: (*self._by_timm(row, slot), get_states()), native)
        return compared[:2]

    def _by_timm(self, row: Any, slot: Any) -> Any:
        others = copy(self._inner)
        others.target_transform = None  # is called once, at the end: it may draw numbers
        made, target = others[row]
        if slot is not None and (made.shape, made.dtype) == (slot.shape, slot.dtype):
            made = slot.copy_(made)
        return made, target

    def _apply(self, image: Any, row: Any, out: Any, layout: str, given: Any) -> None:
        try:
            self._timm.apply(image, out, layout, given)
        except ValueError:
            if type(image) is not JpegImage:
                raise
            with open(self._entry(row)[0], "rb") as file:  # libjpeg has refused the part
                image = _new_decoder()(file.read())
            self._timm.apply(image, out, layout, given)


def columns_of(dataset: Any, request: Request) -> Columns:
    raise NotCoveredError(f"fastloop makes no columns of a {type(dataset).__name__}")


def samples_of(dataset: Any, is_collated: bool, workers: int) -> TimmFolder | None:
    """Return the samples of an ImageDataset in a folder, or of Subsets of one. Raises ValueError,
    which says why timm makes them."""
    inner = below_subsets(dataset)[0]
    if type(inner) is not sys.modules["timm.data.dataset"].ImageDataset:
        return None
    first = next(iter(getattr(inner.transform, "transforms", ())), None)
    draws = type(first).__name__ == "RandomResizedCropAndInterpolation"
    return TimmSamples(dataset) if draws else TimmFolder(dataset)
