"""ImageFolder: images in files, a folder for each class, as a map-style dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any

import torch

from fastloop.base.checks import make_message, read_choice, read_int
from fastloop.data.arrays import ArrayDataset, read_item
from fastloop.data.collate import borrow_places
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import Array
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.cache import open_cache
from fastloop.data.transforms.dataset_transform import SizedPlans, compile_transform
from fastloop.data.transforms.ops import CenterCrop, Compose, Resize, ToDtype
from fastloop.data.transforms.plan import OUT_LAYOUTS, Geometry, Values

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_MAX_SKIPPED = 32  # files in a row; more are not an accident


def _read_function(name: str, value: Any, words: Sequence[str], rule: str) -> Any:
    """Return `value` if it is a function or one of the words; a class is neither."""
    is_function = callable(value) and not isinstance(value, type)
    if not is_function and not (isinstance(value, str) and value in words):
        raise TypeError(make_message(name, rule, value))
    return value


def _read_extensions(extensions: Any) -> tuple[str, ...]:
    """Return the extensions in lower case, as names of files are compared."""
    if extensions is None:
        return _EXTENSIONS
    given = (extensions,) if isinstance(extensions, str) else tuple(extensions)
    if not given or not all(isinstance(name, str) and name.startswith(".") for name in given):
        raise ValueError(make_message("extensions", "a list of names such as '.jpg'", extensions))
    return tuple(name.lower() for name in given)


def _list_samples(
    root: str, extensions: tuple[str, ...]
) -> tuple[list[str], list[tuple[str, int]]]:
    """List the classes, which are the folders in the root, and (path, number of the class) of each
    file with one of the extensions, at any depth and behind links, in torchvision's order."""
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    # torchvision sorts the triples of os.walk, so a folder comes before its contents.
    samples = [
        (os.path.join(folder, file), target)
        for target, name in enumerate(classes)
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True))
        for file in sorted(files)
        if file.lower().endswith(extensions)
    ]
    there = {target for _, target in samples}
    if len(there) < len(classes):
        empty = ", ".join(name for target, name in enumerate(classes) if target not in there)
        raise FileNotFoundError(
            f"Found no valid file for the classes {empty}. "
            f"Supported extensions are: {', '.join(extensions)}"
        )
    return classes, samples


class ImageFolder(EpochDataset):
    """Images in files: ``root/class/.../name.jpg``. Classes and samples are torchvision's.

    Args:
        root: the folder with a folder for each class.
        transform: an operation or a ``Compose`` of ``fastloop.transforms``, or of torchvision's
            ``v2``, which is translated: C does it, and its random parameters are a function of
            (seed, epoch, index, view). Any other callable gets a ``PIL.Image`` in RGB, as from
            torchvision's ImageFolder, in Python. None: images unchanged.
        decode: ``"auto"``: simplejpeg for JPEG if it is installed, and Pillow;
            or a function from the bytes of a file to a ``numpy.ndarray`` of uint8 and shape
            [height, width, 3], RGB. It should release the interpreter lock. Its result is read
            before its next call in the same thread, so it may use memory again.
        extensions: of files that are images, ``[".jpg", ...]``; None: torchvision's.
        on_error: for a file that cannot be read or decoded. ``"raise"``; ``"skip"``: image and
            class of the next file in ``samples`` that can be read take its place, so batches keep
            their size; or a function from (path, error) to an image to take its place.
        cache: ``"u8:<folder>"``: all images, decoded and through the ``Resize`` and ``CenterCrop``
            that ``transform`` begins with, are written to a file in that folder before this
            returns, unless they are there; from then on loaders read them as arrays.
        out_layout: of results, ``"CHW"``, ``"HWC"`` or ``"channels_last"``.
        seed: of the transforms' random parameters.

    Attributes:
        classes, class_to_idx: the names of the classes, and the number of each.
        samples, imgs: a list of (path, number of the class).
        targets: a list of the numbers of the classes.
        skipped_files: the files that ``on_error="skip"`` has replaced in this process, in the
            order in which they were met, and those that were replaced in the cache.

    Sample ``i`` is (image, number of its class): a tensor, uint8 of shape [3, height, width]
    unless a transform changes that, and an int. Sample ``(i, view)``, view 0 to 255, is another
    random result for image ``i``. Works in ``torch.utils.data.DataLoader``, too, with the same
    bits; call ``set_epoch()`` before each epoch there.

    Raises:
        FileNotFoundError: no root, no class in it, or no image in a class.
        TypeError, ValueError: wrong arguments; with a cache, images of different sizes, or a
            folder that has the cache of other options.
        ImportError: neither simplejpeg nor Pillow is installed.
        OSError: from samples: a file that cannot be read or decoded. It names path and decoders.
    """

    def __init__(
        self,
        root: Any,
        transform: Any = None,
        *,
        decode: Any = "auto",
        extensions: Any = None,
        on_error: Any = "raise",
        cache: str | None = None,
        out_layout: str = "CHW",
        seed: int = 0,
    ) -> None:
        self.root = os.path.expanduser(os.fsdecode(root))
        self.extensions = _read_extensions(extensions)
        self._seed = read_int("seed", seed, 0, 2**64 - 1)
        self._out_layout = read_choice("out_layout", out_layout, OUT_LAYOUTS)
        rule = "'auto', or a function from bytes to an array [height, width, 3] of uint8"
        decode = _read_function("decode", decode, ("auto",), rule)
        self._decode = decoders.AutoDecoder() if isinstance(decode, str) else decode
        rule = "'raise', 'skip', or a function from (path, error) to an image"
        self._on_error = _read_function("on_error", on_error, ("raise", "skip"), rule)
        self._transform = transform
        self._plans, self._untranslated = self._compile(transform)
        self.classes, self.samples = _list_samples(self.root, self.extensions)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        self.skipped_files: list[str] = []
        is_random = self._plans is not None and any(op.is_random for op in self._plans.ops)
        self._epoch = Epoch() if is_random else None
        self._baked: tuple[Geometry | Values, ...] = ()
        self._cached = None if cache is None else self._open_cache(cache)

    def _compile(self, transform: Any) -> tuple[SizedPlans | None, str]:
        """Return the plans, or None and why C cannot do the transform."""
        rule = "an operation of fastloop.transforms, Compose([...]) of several, or a function"
        given = () if transform is None else _read_function("transform", transform, (), rule)
        plans, reason = compile_transform(
            given, lambda chain: SizedPlans(chain, self._out_layout, self._seed)
        )
        if plans is None and self._out_layout != "CHW":
            rule = f"'CHW' if C does not do the transform: {reason}"
            raise ValueError(make_message("out_layout", rule, self._out_layout))
        return plans, reason

    @property
    def transform(self) -> Any:
        """The transform that was given. Read-only: it was compiled then."""
        return self._transform

    def _size_remedy(self) -> str:
        return (
            "Images of a folder may have several sizes: begin the transform with "
            "Resize((height, width)), or with Resize(size) and CenterCrop(size)."
        )

    # ---- samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        return self._sample(*read_item(index, len(self)))

    def __getitems__(self, indices: Sequence[Any]) -> list[tuple[Any, int]]:
        plan = self._plans.whole if self._plans is not None and self._cached is None else None
        # torch's collate stacks channels_last in another layout.
        like = plan.empty() if plan is not None and plan.out_layout != "channels_last" else None
        with borrow_places(like, len(indices)) as places:
            # One by one: a worker thread that is closed stops between two samples.
            return [
                self._sample(*read_item(index, len(self)), place)
                for index, place in zip(indices, places, strict=True)
            ]

    def _sample(self, row: int, view: int, place: torch.Tensor | None = None) -> tuple[Any, int]:
        arrays = self._arrays
        if arrays is not None:
            image, target = arrays[row, view]
            return image, int(target)
        pixels, source = self._read(row)
        target = self.samples[source][1]
        if self._plans is None:
            return self._transform(import_module("PIL.Image").fromarray(pixels)), target
        plan = self._plans.plan_for(pixels.shape)
        return plan.apply(pixels, row, self._epoch_now(), view, place), target

    def _read(self, row: int) -> tuple[Array, int]:
        """Return the image of a row, and the row of the file that it comes from."""
        first: OSError | None = None
        tries = min(_MAX_SKIPPED, len(self)) if self._on_error == "skip" else 1
        for source in range(row, row + tries):
            path = self.samples[source % len(self)][0]
            try:
                return decoders.read_image(self._decode, path), source % len(self)
            except OSError as error:
                if self._on_error == "raise":
                    raise
                if self._on_error != "skip":
                    image = self._on_error(path, error)
                    who = f"on_error={decoders.name_of(self._on_error)}"
                    return decoders.check_image(image, who, path), row
                self._note_skipped(path, error)
                first = first or error
        raise OSError(f"{first}; nor can the {tries - 1} files after it be read") from first

    def _note_skipped(self, path: str, error: object) -> None:
        if not self.skipped_files:
            text = "the file after it takes its place. skipped_files lists those of this process"
            warnings.warn(f"ImageFolder skips {error}; {text}", stacklevel=2)
        if path not in self.skipped_files:
            self.skipped_files.append(path)

    # ---- the cache

    @property
    def _arrays(self) -> ArrayDataset | None:
        """The cached images and their classes, if there is a cache."""
        arrays = self._cached
        if arrays is not None and len(arrays) != len(self.samples):
            got = f"{len(self.samples)} (take a torch.utils.data.Subset, and leave samples alone)"
            raise RuntimeError(f"samples must have the {len(arrays)} files of the cache, got {got}")
        return arrays

    def _open_cache(self, argument: Any) -> ArrayDataset:
        if self._plans is None:
            rule = f"None if C does not do the transform: {self._untranslated}"
            raise ValueError(make_message("cache", rule, argument))
        ops = self._plans.ops
        self._baked = tuple(takewhile(lambda op: type(op) in (Resize, CenterCrop), ops))
        baked, rest = SizedPlans(self._baked, "HWC", 0), ops[len(self._baked) :]

        def make(row: int) -> tuple[Array, int]:
            pixels, source = self._read(row)
            if self._baked:
                pixels = baked.plan_for(pixels.shape).apply(pixels, 0).numpy()
            return pixels, source

        options = {
            "decode": decoders.name_of(self._decode),
            "transform": list(map(repr, self._baked)),
            "on_error": decoders.name_of(self._on_error),
        }
        paths = [path for path, _ in self.samples]
        path, replaced = open_cache(argument, self.root, paths, options, make)
        targets = [self.targets[replaced.get(row, row)] for row in range(len(self))]
        self.skipped_files = [self.samples[row][0] for row in sorted(replaced)]
        then, out = Compose(rest) if rest else ToDtype(torch.uint8), self._out_layout
        arrays = ArrayDataset(
            path, targets, transform=then, layout="HWC", out_layout=out, seed=self._seed
        )
        self._epoch = arrays._epoch
        return arrays

    # ---- reports

    def params(self, index: int, epoch: int | None = None, view: int = 0) -> list[dict[str, Any]]:
        """Return the random parameters of a sample: one dict for each operation, in order.

        Reads the file, because they depend on the size of the image.

        Args:
            index: of the sample.
            epoch: None: the one that ``dataset[index]`` has now.
            view: of the sample.
        """
        if self._plans is None or self._transform is None:
            why = self._untranslated or "there is none"
            raise TypeError(f"params() is for transforms that C does; {why}")
        row, view = read_item((index, view), len(self))
        epoch = self._epoch_now() if epoch is None else check_epoch(epoch)
        arrays = self._arrays
        if arrays is not None:
            baked: list[dict[str, Any]] = [{"op": type(op).__name__} for op in self._baked]
            return (baked + arrays.params(row, epoch, view))[: len(self._plans.ops)]
        pixels, _ = self._read(row)
        return self._plans.plan_for(pixels.shape).params(row, epoch, view, pixels.shape[:2])

    def explain(self) -> str:
        """Return a text: the decoders, where each operation runs and why, the random parameters."""
        lines = [f"{len(self)} files of {len(self.classes)} classes in {self.root!r}"]
        if self._cached is not None:
            lines.append(f"decoded: {self._cached!r}")
            lines += [f"  {op!r}: done in the cache" for op in self._baked]
            return "\n".join([*lines, self._cached.explain()])
        who = getattr(self._decode, "name", None) or decoders.name_of(self._decode)
        where = "in the worker that loads the sample, or where dataset[i] is asked for"
        lines.append(f"decode: {who}, {where}")
        if self._plans is None:
            numbers = "with a PIL.Image, and random numbers of the process"
            lines.append(f"transform: Python, {numbers}, because {self._untranslated}")
        else:
            lines.append(f"transform: by C, behind the decoder, to {self._out_layout}")
            lines += [f"  {op!r}: {op.work}" for op in self._plans.ops]
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} files of {len(self.classes)} classes)"
