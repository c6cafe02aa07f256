"""The base of datasets with encoded images: decoder, transforms, and what errors of images do.

A class says where the bytes of a row's images are. ``ImageFolder`` reads files. This base never
reads.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from fastloop.base.checks import read_choice, read_function, read_int
from fastloop.data.collate import borrow_slots
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import Array, read_item
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.views import compile_views
from fastloop.data.transforms.split import SplitPlan

_MAX_SKIPPED = 32  # rows after each other; more than this many are not an accident


class EncodedImages(EpochDataset):
    """Samples with images that are decoded and transformed when the sample is read.

    A subclass calls ``_prepare`` in its ``__init__``, and defines ``__len__`` and the four methods
    below that raise NotImplementedError. The subclass itself must set ``_borrows_slots`` if a
    sample has one image, and ``_decodes_files``: loaders ask the exact class.
    """

    _unit = "file"  # the word for what a row is read from, in errors
    _fatal: tuple[int, ...] = ()  # numbers of the OSErrors that on_error does not apply to
    _cache_remedy = ""  # the argument that makes a cache of images, if there is such an argument

    def _prepare(
        self, transform: Any, decode: Any, on_error: Any, out_layout: str, seed: Any
    ) -> None:
        """Check and keep the arguments that images depend on."""
        self._seed = read_int("seed", seed, 0, 2**64 - 1)
        self._out_layout = out_layout
        rule = "'auto', or a function from bytes to an array [height, width, 3] of uint8"
        decode = read_function("decode", decode, rule, ("auto",))
        self._decode = decoders.AutoDecoder() if isinstance(decode, str) else decode
        rule = "'raise', 'skip', or a function from (path, error) to an image"
        self._on_error = read_function("on_error", on_error, rule, ("raise", "skip"))
        self._transform = transform
        self._plans, self._why_python = compile_views(transform, out_layout, self._seed)
        self._epoch = Epoch() if any(each.is_random for each in self._plans.values()) else None
        self.skipped_files: list[str] = []

    # ---- what a subclass defines

    def __len__(self) -> int:
        raise NotImplementedError

    def _name(self, row: int) -> str:
        """Return the name of a row in errors."""
        raise NotImplementedError

    def _load(self, row: int) -> Any:
        """Read a row, and decode its images with ``_decode_image``.

        Raises:
            OSError: the row cannot be read or decoded; ``on_error`` applies.
        """
        raise NotImplementedError

    def _sample(self, row: int, view: int, slot: torch.Tensor | None = None) -> Any:
        """Return the sample of what ``_read`` gives; the one image may be written to ``slot``."""
        raise NotImplementedError

    def _pixels(self, row: int) -> Any:
        """Return the image of a row for which ``params`` is asked."""
        raise NotImplementedError

    def _announce(self, indices: Sequence[Any]) -> None:
        """Do what helps before the samples of a batch are read one by one."""

    # ---- samples

    @property
    def transform(self) -> Any:
        """The transform that was given. Read-only, because ``__init__`` has compiled it."""
        return self._transform

    def __getitem__(self, index: Any) -> Any:
        return self._sample(*read_item(index, len(self)))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._has_own_samples(EncodedImages):
            return [self[index] for index in indices]
        self._announce(indices)
        with borrow_slots(self._like(), len(indices)) as slots:
            # One by one, because a worker thread that is closed stops between two samples.
            pairs = zip(indices, slots, strict=True)
            return [self._sample(*read_item(index, len(self)), slot) for index, slot in pairs]

    def _one_plans(self) -> SplitPlan | None:
        """Return the plans of a transform without views; None if Python runs the transform."""
        return next(iter(self._plans.values())) if len(self._plans) == 1 else None

    def _like(self) -> torch.Tensor | None:
        """Return a tensor like the image of every sample, or None if images differ or are not
        written to the memory of the batch."""
        plans = self._one_plans()
        plan = None if plans is None else plans.whole
        # torch's collate changes the layout of channels_last.
        return plan.empty() if plan is not None and plan.out_layout != "channels_last" else None

    def _apply(
        self, pixels: Array, row: int, view: int, slot: torch.Tensor | None = None
    ) -> list[Any]:
        """Return the transformed image, or its views."""
        if not self._plans:
            return [self._transform(import_module("PIL.Image").fromarray(pixels))]
        epoch = self._epoch_now()
        return [each.apply(pixels, row, epoch, view, slot) for each in self._plans.values()]

    def _decode_image(self, name: str, read: Callable[[], bytes], least: float = math.inf) -> Any:
        """Return the image in the bytes that ``read()`` gives, or else the image that the function
        ``on_error`` gives. The image may lie in the decoder's memory. An image of ``least`` pixels
        may be a JpegImage."""
        try:
            return decoders.read_image(self._decode, name, read, least)
        except OSError as error:
            if isinstance(self._on_error, str):
                raise
            image = self._on_error(name, error)
            who = f"on_error={decoders.name_of(self._on_error)}"
            return decoders.check_image(image, who, name)

    def _read(self, row: int, load: Callable[[int], Any] | None = None) -> tuple[Any, int]:
        """Return what a row has, and the row that was read instead if ``on_error`` is "skip".

        Args:
            load: reads a row in place of ``_load``.
        """
        first: OSError | None = None
        tries = min(_MAX_SKIPPED, len(self)) if self._on_error == "skip" else 1
        for following in range(row, row + tries):
            source = following % len(self)
            try:
                return (load or self._load)(source), source
            except OSError as error:
                if self._on_error != "skip" or error.errno in self._fatal:
                    raise
                self._note_skipped(self._name(source), error)
                first = first or error
        text = f"nor can the {tries - 1} {self._unit}s after it be read"
        raise OSError(f"{first}; {text}") from first

    def _note_skipped(self, name: str, error: object) -> None:
        if not self.skipped_files:
            text = f"the next {self._unit} is read instead"
            text += f" (skipped_files lists this process's {self._unit}s)"
            warnings.warn(f"{type(self).__name__} skips {error}; {text}", stacklevel=2)
        if name not in self.skipped_files:
            self.skipped_files.append(name)

    # ---- reports

    def params(
        self, index: int, epoch: int | None = None, view: int = 0, field: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the random parameters of a sample: one dict for each operation, in order.

        Reads the image, because random parameters depend on the image's size.

        Args:
            index: the sample's index.
            epoch: an epoch; None: the epoch that ``dataset[index]`` has now.
            view: the sample's view, 0 to 255.
            field: the name of a view, if ``transform`` has several.
        """
        if not self._plans or self._transform is None:
            got = f"Python's: {self._why_python}" if self._why_python else "None"
            raise TypeError(f"transform must be one that fastloop runs for params(), got {got}")
        row, view = read_item((index, view), len(self))
        epoch = self._epoch_now() if epoch is None else check_epoch(epoch)
        plans = self._one_plans()
        if plans is None:
            plans = self._plans[read_choice("field", field, tuple(self._plans))]
        return self._params(plans, row, epoch, view, field)

    def _params(
        self, plans: SplitPlan, row: int, epoch: int, view: int, field: str | None
    ) -> list[dict[str, Any]]:
        return plans.params(self._pixels(row), row, epoch, view)

    def _explain_images(self) -> list[str]:
        """Return lines that say who decodes and transforms images, and where."""
        is_ours = isinstance(self._decode, decoders.AutoDecoder)
        who = self._decode.name if is_ours else decoders.name_of(self._decode)
        lines = [f"decode: {who}, in the worker that loads the sample, or in dataset[i]"]
        if not self._plans:
            numbers = "with a PIL.Image, and random numbers of the process"
            lines.append(f"transform: Python, {numbers}, because {self._why_python}")
        for name, each in self._plans.items():
            lines.append(f"{name}: native, after the decoder, to {self._out_layout}")
            lines += each.explain()
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return lines
