"""ImageFolder: images in files, with a folder for each class, as a map-style dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any

import torch

from fastloop.base.checks import check_value, make_message, read_choice, read_function, read_int
from fastloop.data.arrays import ArrayDataset, read_item
from fastloop.data.collate import borrow_slots
from fastloop.data.columns import Columns, NotCoveredError, Request
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.cache import ONE_SIZE, Made, open_cache
from fastloop.data.image_folder.views import compile_views
from fastloop.data.transforms.ops import CenterCrop, Compose, Resize, ToDtype
from fastloop.data.transforms.split import Piece, SplitPlan

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_MAX_SKIPPED = 32  # files in a row; more than this many are not an accident


def _read_extensions(extensions: Any) -> tuple[str, ...]:
    """Return the extensions in lower case, for comparisons with names in lower case."""
    if extensions is None:
        return _EXTENSIONS
    given = (extensions,) if isinstance(extensions, str) else tuple(extensions)
    if not given or not all(isinstance(name, str) and name.startswith(".") for name in given):
        raise ValueError(make_message("extensions", "a list of names such as '.jpg'", extensions))
    return tuple(name.lower() for name in given)


def _join(parts: Sequence[Any]) -> Any:
    return Compose(parts) if parts else ToDtype(torch.uint8)


class ImageFolder(EpochDataset):
    """Images in files: ``root/class/.../name.jpg``. Classes and samples are as in torchvision.

    Args:
        root: the folder with a folder for each class.
        transform: an operation or a ``Compose`` of ``fastloop.transforms``, or of torchvision's
            ``v2``, which is translated. fastloop runs these, and their random parameters are a
            function of (seed, epoch, index, view). Python calls any other callable with a
            ``PIL.Image`` in RGB, as from torchvision's ImageFolder. None: images unchanged. A dict
            with two or more transforms, by name, gives as many views of an image that is decoded
            once; each view has its own seed (``seed`` + 0, 1, ...), and samples are
            (view, ..., class).
        target_transform: a function of the number of a class. Python calls the function for each
            sample, after the transform; samples have the result. May be assigned later.
        decode: ``"auto"``: simplejpeg for JPEG if simplejpeg is installed, and Pillow; or a
            function from a file's bytes to a ``numpy.ndarray`` of uint8 with shape
            [height, width, 3], RGB. The function should release the interpreter lock. Its result is
            read before its next call in the same thread, so the function may reuse the memory.
        extensions: the extensions of images, ``[".jpg", ...]``; None: torchvision's.
        is_valid_file: instead of extensions, a function from a path to True if the file is an
            image.
        allow_empty: whether classes without an image are allowed.
        on_error: for a file that cannot be read or decoded. ``"raise"``; ``"skip"``: take image and
            class of the next file in ``samples`` that can be read, so that batches keep their size;
            or a function from (path, error) to an image.
        cache: ``"u8:<folder>"``: all images, decoded and after the ``Resize`` and ``CenterCrop`` at
            the begin of ``transform``, are written to a file in that folder, unless the file is
            there. The constructor waits for that. Then loaders read the images as arrays.
        out_layout: the layout of results, ``"CHW"``, ``"HWC"`` or ``"channels_last"``.
        seed: the seed of the transforms' random parameters.

    Attributes:
        classes, class_to_idx: the names of the classes, and the number of each class.
        samples, imgs: a list of (path, number of the class).
        targets: a list of the numbers of the classes.
        skipped_files: the files that ``on_error="skip"`` has replaced in this process, in the order
            of their errors, and the files that were replaced in the cache.

    Sample ``i`` is (image, number of the class): a tensor, uint8 with shape [3, height, width]
    unless a transform changes that, and an int. Sample ``(i, view)``, view 0 to 255, is a different
    random result for image ``i``. ``torch.utils.data.DataLoader`` gives the same bits; there, call
    ``set_epoch()`` before each epoch. A subclass may override ``find_classes`` and
    ``make_dataset``, as in torchvision.

    For example, ``ImageFolder("train", Compose([RandomResizedCrop(224),
    ToDtype(torch.float32, scale=True)]))``.

    Raises:
        FileNotFoundError: no root, no class in the root, or no image in a class.
        TypeError, ValueError: wrong arguments; with a cache, images of different sizes, or a folder
            with a cache that has different options.
        ImportError: neither simplejpeg nor Pillow is installed.
        OSError: from samples: a file cannot be read or decoded. The text names path and decoders.
    """

    _borrows_slots = True  # in the batch that is being made
    _decodes_files = True  # a sample takes long

    def __init__(
        self,
        root: Any,
        transform: Any = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Any = "auto",
        extensions: Any = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        on_error: Any = "raise",
        cache: str | None = None,
        out_layout: str = "CHW",
        seed: int = 0,
    ) -> None:
        self.root = os.path.expanduser(os.fsdecode(root))
        self.target_transform = target_transform
        is_by_function = extensions is None and is_valid_file is not None
        self.extensions = None if is_by_function else _read_extensions(extensions)
        self._seed = read_int("seed", seed, 0, 2**64 - 1)
        self._out_layout = out_layout
        rule = "'auto', or a function from bytes to an array [height, width, 3] of uint8"
        decode = read_function("decode", decode, rule, ("auto",))
        self._decode = decoders.AutoDecoder() if isinstance(decode, str) else decode
        rule = "'raise', 'skip', or a function from (path, error) to an image"
        self._on_error = read_function("on_error", on_error, rule, ("raise", "skip"))
        self._transform = transform
        self._plans, self._why_python = compile_views(transform, out_layout, self._seed)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        chosen: Any = {"extensions": self.extensions, "is_valid_file": is_valid_file}
        self.samples = self.make_dataset(
            self.root, self.class_to_idx, allow_empty=allow_empty, **chosen
        )
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        self.skipped_files: list[str] = []
        self._epoch = Epoch() if any(each.is_random for each in self._plans.values()) else None
        self._baked: tuple[Any, ...] = ()  # the operations that the cache has done
        self._cached = None if cache is None else self._read_images(cache)

    def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
        """Return the names of the classes, which are the folders in the root, and each class's
        number."""
        with os.scandir(directory) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {directory}.")
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(
        directory: Any,
        class_to_idx: dict[str, int],
        extensions: Any = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """Return (path, number of the class) for each file in the classes' folders that has one of
        the extensions, or that ``is_valid_file`` takes. Folders are walked to any depth, and links
        are followed."""
        if not class_to_idx:
            raise ValueError(
                "'class_to_index' must have at least one entry to collect any samples."
            )
        if (extensions is None) == (is_valid_file is None):
            rule = "cannot be None or not None at the same time"
            raise ValueError(f"Both extensions and is_valid_file {rule}")
        is_valid = is_valid_file or (lambda path: path.lower().endswith(extensions))
        samples: list[tuple[str, int]] = []
        empty: list[str] = []
        for name in sorted(class_to_idx):
            # torchvision sorts the triples of os.walk, so a folder comes before its contents.
            walked = sorted(os.walk(os.path.join(directory, name), followlinks=True))
            paths = (os.path.join(top, file) for top, _, files in walked for file in sorted(files))
            found = [(path, class_to_idx[name]) for path in paths if is_valid(path)]
            samples += found
            empty += [] if found else [name]
        if empty and not allow_empty:
            remedy = f"Supported extensions are: {', '.join(extensions)}" if extensions else ""
            text = f"Found no valid file for the classes {', '.join(empty)}. {remedy}"
            raise FileNotFoundError(text)
        return samples

    @property
    def transform(self) -> Any:
        """The transform that was given. Read-only, because ``__init__`` has compiled it."""
        return self._transform

    def _size_remedy(self) -> str:
        return f"Images of a folder may have several sizes: {ONE_SIZE}."

    # ---- samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self._sample(*read_item(index, len(self)))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._has_own_samples(ImageFolder):
            return [self[index] for index in indices]
        plans = self._one_plans() if self._cached is None else None
        plan = None if plans is None else plans.whole
        # torch's collate changes the layout of channels_last.
        like = plan.empty() if plan is not None and plan.out_layout != "channels_last" else None
        with borrow_slots(like, len(indices)) as slots:
            # One by one, because a worker thread that is closed stops between two samples.
            pairs = zip(indices, slots, strict=True)
            return [self._sample(*read_item(index, len(self)), slot) for index, slot in pairs]

    def _one_plans(self) -> SplitPlan | None:
        """Return the plans of a transform without views; None if Python runs the transform."""
        return next(iter(self._plans.values())) if len(self._plans) == 1 else None

    def _sample(self, row: int, view: int, slot: torch.Tensor | None = None) -> Any:
        arrays = self._arrays
        images: list[Any]
        target: Any
        if arrays is not None:
            *images, target = arrays[row, view]
            target = int(target)
        else:
            pixels, source = self._read(row)
            target, plans, epoch = self.samples[source][1], self._plans.values(), self._epoch_now()
            images = [each.apply(pixels, row, epoch, view, slot) for each in plans]
            if not plans:
                images = [self._transform(import_module("PIL.Image").fromarray(pixels))]
        if self.target_transform is not None:
            target = self.target_transform(target)
        return (*images, target)

    def _read(self, row: int) -> Made:
        """Return the image of a row, and the row of the image's file."""
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
            text = "the next file is read instead (skipped_files lists this process's files)"
            warnings.warn(f"ImageFolder skips {error}; {text}", stacklevel=2)
        if path not in self.skipped_files:
            self.skipped_files.append(path)

    # ---- the cache

    @property
    def _arrays(self) -> ArrayDataset | None:
        """The cached images and their classes, if there is a cache."""
        arrays = self._cached
        if arrays is not None and len(arrays) != len(self.samples):
            got = f"{len(self.samples)} (pass a torch.utils.data.Subset, and leave samples alone)"
            raise RuntimeError(f"samples must have the {len(arrays)} files of the cache, got {got}")
        return arrays

    def _columns(self, request: Request) -> Columns:
        if not request.is_batched:
            raise NotCoveredError("a single sample of an ImageFolder has an int for its class")
        if self._arrays is None:
            raise NotCoveredError(
                "the files of an ImageFolder without cache= are decoded in Python"
            )
        if self.target_transform is not None:
            raise NotCoveredError("target_transform of the ImageFolder runs in Python")
        columns = self._arrays._columns(request)
        columns.kind, columns.note = "cached images", ""
        return columns

    def _read_images(self, argument: Any) -> ArrayDataset:
        rule = f"None if Python runs the transform: {self._why_python}"
        check_value("cache", argument, self._plans, rule)
        one = self._one_plans()
        ops = () if one is None else one.parts
        self._baked = tuple(takewhile(lambda op: type(op) in (Resize, CenterCrop), ops))
        baked = SplitPlan((Piece(self._baked, ()),), (0, 0, 3), "HWC", "HWC", 0)

        def make(row: int) -> Made:
            pixels, source = self._read(row)
            if self._baked:
                pixels = baked.apply(pixels, 0).numpy()
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
        then = _join(ops[len(self._baked) :])
        if one is None:
            then = {name: _join(each.parts) for name, each in self._plans.items()}
        out = self._out_layout
        arrays = ArrayDataset(
            path, targets, transform=then, layout="HWC", out_layout=out, seed=self._seed
        )
        self._epoch = arrays._epoch
        return arrays

    # ---- reports

    def params(
        self, index: int, epoch: int | None = None, view: int = 0, field: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the random parameters of a sample: one dict for each operation, in order.

        Reads the file, because random parameters depend on the size of the image.

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
        arrays = self._arrays
        if arrays is not None:
            baked: list[dict[str, Any]] = [{"op": type(op).__name__} for op in self._baked]
            return (baked + arrays.params(row, epoch, view, field))[: len(plans.parts)]
        return plans.params(self._read(row)[0], row, epoch, view)

    def explain(self) -> str:
        """Return a text: the decoders, each operation's place of work with the reason, and the
        source of random parameters."""
        lines = [f"{len(self)} files of {len(self.classes)} classes in {self.root!r}"]
        if self.target_transform is not None:
            lines.append("labels: target_transform, in Python, for each sample")
        if self._cached is not None:
            lines.append(f"decoded: {self._cached!r}")
            lines += [f"  {op!r}: done in the cache" for op in self._baked]
            return "\n".join([*lines, self._cached.explain()])
        is_ours = isinstance(self._decode, decoders.AutoDecoder)
        who = self._decode.name if is_ours else decoders.name_of(self._decode)
        lines.append(f"decode: {who}, in the worker that loads the sample, or in dataset[i]")
        if not self._plans:
            numbers = "with a PIL.Image, and random numbers of the process"
            lines.append(f"transform: Python, {numbers}, because {self._why_python}")
        for name, each in self._plans.items():
            lines.append(f"{name}: native, after the decoder, to {self._out_layout}")
            lines += each.explain()
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} files of {len(self.classes)} classes)"
