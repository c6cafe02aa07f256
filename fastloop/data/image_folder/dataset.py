"""ImageFolder: images in files, a folder for each class, as a map-style dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from fastloop.data.arrays import ArrayDataset, read_item
from fastloop.data.batch_memory import find_places
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import Array
from fastloop.data.image_folder.cache import ImageCache
from fastloop.data.image_folder.decode import AutoDecoder, Decode, check_image, name_of, read_image
from fastloop.data.image_folder.files import find_classes, find_samples, read_extensions, read_root
from fastloop.data.samplers import check_int
from fastloop.data.tokens.arguments import check_choice
from fastloop.data.transforms.dataset_transform import SizedPlans, compile_transform
from fastloop.data.transforms.ops import CenterCrop, Compose, Resize, ToDtype
from fastloop.data.transforms.plan import OUT_LAYOUTS, Geometry, Values

_MOST_SKIPPED = 32  # files in a row; more are no accident


class _Skipped:
    """Which files were skipped, in all processes that have the dataset: a byte for each, which all
    that write to it set to 1."""

    def __init__(self, flags: torch.Tensor) -> None:
        if not flags.is_shared():  # type: ignore[no-untyped-call]
            flags.share_memory_()  # type: ignore[no-untyped-call]
        self.flags = flags
        self._appended: set[int] = set()  # in this process, of files that ``samples`` has got since

    def add(self, row: int, error: Exception) -> None:
        if not self.rows():
            warnings.warn(
                f"ImageFolder skips {error}; the file after it takes its place. skipped_files "
                "lists this and any that follow",
                stacklevel=2,
            )
        if row < len(self.flags):
            self.flags[row] = 1
        else:
            self._appended.add(row)

    def rows(self) -> list[int]:
        return [*self.flags.nonzero().flatten().tolist(), *sorted(self._appended)]

    def __reduce__(self) -> tuple[type[_Skipped], tuple[torch.Tensor]]:
        return _Skipped, (self.flags,)


def _read_decode(decode: Any) -> Decode:
    if isinstance(decode, str) and decode == "auto":
        return AutoDecoder()
    if callable(decode) and not isinstance(decode, type):
        return decode  # type: ignore[no-any-return]
    raise TypeError(
        f"decode={decode!r} is neither 'auto' nor a function; pass one from the bytes of a file to "
        "a numpy.ndarray of uint8 and shape [height, width, 3]"
    )


def _read_on_error(on_error: Any) -> Any:
    if callable(on_error) and not isinstance(on_error, type):
        return on_error
    if isinstance(on_error, str) and on_error in ("raise", "skip"):
        return on_error
    raise TypeError(
        f"on_error={on_error!r} is none of 'raise', 'skip' and a function; pass a function from "
        "(path, error) to an image of uint8 and shape [height, width, 3]"
    )


def _check_transform(transform: Any) -> None:
    if isinstance(transform, type) or not callable(transform):
        raise TypeError(
            f"transform={transform!r} cannot be called; pass an operation of fastloop.transforms, "
            "Compose([...]) of several, or what torchvision's ImageFolder takes"
        )


class ImageFolder(EpochDataset):
    """Images in files: ``root/class/.../name.jpg``. Classes and samples are torchvision's.

    Args:
        root: the folder with a folder for each class.
        transform: an operation or a ``Compose`` of ``fastloop.transforms``, or of torchvision's
            ``v2``, which is translated: C does it, and its random parameters are a function of
            (seed, epoch, index, view). Any other callable gets what torchvision's ImageFolder
            gives it, a ``PIL.Image`` in RGB, in Python. None: images as they are.
        decode: ``"auto"``: simplejpeg where installed, else torchcodec or torchvision for JPEG,
            and Pillow, chosen by what is in the file;
            or a function from the bytes of a file to a ``numpy.ndarray`` of uint8 and shape
            [height, width, 3], RGB. It should release the interpreter lock. What it returns is
            read before its next call in the same thread, so it may use memory again.
        extensions: of files that are images, ``[".jpg", ...]``; None: torchvision's.
        on_error: of a file that cannot be read or decoded. ``"raise"``; ``"skip"``: the image and
            the class of the next file in ``samples`` that can be take its place, so batches keep
            their size, and ``skipped_files`` lists it; or a function that is given (path, error)
            and returns an image to take its place, as of ``decode``.
        cache: ``"u8:<folder>"``: all images, decoded and through the ``Resize`` and ``CenterCrop``
            that ``transform`` begins with, are written to a file in that folder before this
            returns, unless they are there; from then on loaders read them as arrays.
        out_layout: of results, ``"CHW"``, ``"HWC"`` or ``"channels_last"``.
        seed: of the transforms' random parameters.

    Attributes:
        classes, class_to_idx: the names of the classes, and the number of each.
        samples, imgs: a list of (path, number of the class).
        targets: a list of the numbers of the classes.

    Sample ``i`` is (image, number of its class): a tensor, uint8 of shape [3, height, width] where
    no transform makes it something else, and an int. Sample ``(i, view)``, view 0 to 255, is
    another random result for image ``i``. Works in ``torch.utils.data.DataLoader``, too, with the
    same bits; call ``set_epoch()`` before each epoch there.

    Raises:
        FileNotFoundError: no root, no class in it, or no image in a class.
        TypeError, ValueError: arguments that cannot be, with the remedy; with a cache, images of
            different sizes, or a folder that has the cache of other options.
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
        self.root = read_root(root)
        self.extensions = read_extensions(extensions)
        self._seed = check_int("seed", seed, 0, 2**64)
        check_choice("out_layout", out_layout, OUT_LAYOUTS)
        self._out_layout = out_layout
        self._decode = _read_decode(decode)
        self._on_error = _read_on_error(on_error)
        self._transform = transform
        self._plans, self._untranslated = self._compile(transform)
        store = ImageCache(cache) if cache is not None else None
        if store is not None:
            store.check_outside(self.root)
        self.classes, self.class_to_idx = find_classes(self.root)
        self.samples = find_samples(self.root, self.class_to_idx, self.extensions)
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        self._skipped: _Skipped | None = None
        if self._on_error == "skip":
            flags = torch.zeros(len(self.samples), dtype=torch.uint8, device="cpu")
            self._skipped = _Skipped(flags)
        self._epoch = (
            Epoch() if self._plans and any(op.is_random for op in self._plans.ops) else None
        )
        self._cached: ArrayDataset | None = None
        self._baked: tuple[Geometry | Values, ...] = ()
        if store is not None:
            self._cached = self._open_cache(store)

    def _compile(self, transform: Any) -> tuple[SizedPlans | None, str]:
        """The plans, or None and why there are none."""
        if transform is None:
            return SizedPlans((), self._out_layout, self._seed), ""
        _check_transform(transform)
        plans, reason = compile_transform(
            transform, lambda chain: SizedPlans(chain, self._out_layout, self._seed)
        )
        if plans is not None:
            return plans, ""
        if self._out_layout != "CHW":
            raise ValueError(
                f"out_layout={self._out_layout!r} is for transforms that C does, and {reason}; "
                "leave out_layout out"
            )
        try:
            import_module("PIL.Image")
        except ImportError as error:
            raise ImportError(
                f"transform is called with a PIL.Image, because {reason}; pip install pillow"
            ) from error
        return None, reason

    @property
    def transform(self) -> Any:
        """As it was given. It was compiled then, so another is for another dataset."""
        return self._transform

    @transform.setter
    def transform(self, transform: Any) -> None:
        raise AttributeError(
            "the transform of an ImageFolder is compiled when it is made; make another ImageFolder "
            "with this one, and take the same Subset of it"
        )

    def _size_remedy(self) -> str:
        return (
            "Images of a folder may have several sizes: begin the transform with "
            "Resize((height, width)), or with Resize(size) and CenterCrop(size)."
        )

    # ---- samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        row, view = read_item(index, len(self))
        return self._sample(row, view, None)

    def __getitems__(self, indices: Sequence[Any]) -> list[tuple[Any, int]]:
        plan = self._plans.whole if self._plans is not None and self._cached is None else None
        if self._out_layout == "channels_last":  # which torch's collate stacks in another layout
            plan = None
        like = plan.empty() if plan is not None else None
        with find_places(like, len(indices)) as places:
            # One by one: a thread that is to end stops between two samples (workers/threads.py).
            return [
                self._sample(*read_item(index, len(self)), place)
                for index, place in zip(indices, places, strict=True)
            ]

    def _sample(self, row: int, view: int, place: torch.Tensor | None) -> tuple[Any, int]:
        arrays = self._arrays
        if arrays is not None:
            image, target = arrays[row, view]
            return image, int(target)
        pixels, found = self._read(row)
        target = self.samples[found][1]
        if self._plans is None:
            assert self._transform is not None
            return self._transform(import_module("PIL.Image").fromarray(pixels)), target
        epoch = self._epoch_now()
        return self._plans.plan_for(pixels.shape).apply(pixels, row, epoch, view, place), target

    def _read(self, row: int) -> tuple[Array, int]:
        """The image of a row, and the row of the file that it comes from."""
        path = self.samples[row][0]
        try:
            return read_image(self._decode, path), row
        except OSError as error:
            if self._on_error == "raise":
                raise
            if self._skipped is not None:
                return self._read_next(row, error, self._skipped)
            try:
                image = self._on_error(path, error)
            except StopIteration as end:  # which a loop over batches would take for its own
                who = f"on_error={name_of(self._on_error)}"
                raise RuntimeError(f"{who} raised StopIteration for {path!r}") from end
            return check_image(image, f"on_error={name_of(self._on_error)}", path), row

    def _read_next(self, row: int, first: OSError, skipped: _Skipped) -> tuple[Array, int]:
        """The image of the next file that can be read."""
        skipped.add(row, first)
        tries = min(_MOST_SKIPPED, len(self))
        for step in range(1, tries):
            found = (row + step) % len(self)
            try:
                return read_image(self._decode, self.samples[found][0]), found
            except OSError as error:
                skipped.add(found, error)
        raise OSError(f"{first}; nor can the {tries - 1} files after it be read") from first

    @property
    def skipped_files(self) -> list[str]:
        """The files that ``on_error="skip"`` has skipped so far, in worker processes, too; of those
        that were appended to ``samples`` those of this process."""
        if self._skipped is None:
            return []
        return [self.samples[row][0] for row in self._skipped.rows() if row < len(self)]

    # ---- the cache

    @property
    def _arrays(self) -> ArrayDataset | None:
        """The cached images and their classes, if there is a cache."""
        arrays = self._cached
        if arrays is not None and len(arrays) != len(self.samples):
            raise RuntimeError(
                f"samples has {len(self.samples)} files, and the cache {len(arrays)} images; take "
                "a torch.utils.data.Subset of the dataset rather than change its samples"
            )
        return arrays

    def _open_cache(self, store: ImageCache) -> ArrayDataset:
        if self._plans is None:
            raise ValueError(
                f"cache={store.argument!r} is for transforms that C does, and "
                f"{self._untranslated}; leave cache out"
            )
        ops = self._plans.ops
        kept = next((i for i, op in enumerate(ops) if type(op) not in (Resize, CenterCrop)), None)
        kept = len(ops) if kept is None else kept
        self._baked, rest = ops[:kept], ops[kept:]
        baked = SizedPlans(self._baked, "HWC", 0)

        def make(row: int) -> tuple[Array, int]:
            pixels, found = self._read(row)
            if self._baked:
                pixels = baked.plan_for(pixels.shape).apply(pixels, 0).numpy()
            return pixels, found

        on_error = self._on_error
        path, replaced = store.open(
            self.root,
            [path for path, _ in self.samples],
            {
                "decode": name_of(self._decode),
                "transform": [repr(op) for op in self._baked],
                "on_error": on_error if isinstance(on_error, str) else name_of(on_error),
            },
            make,
        )
        targets = torch.tensor(self.targets, dtype=torch.int64, device="cpu")
        for row, found in replaced.items():
            targets[row] = self.targets[found]
        if self._skipped is not None:
            self._skipped.flags[list(replaced)] = 1
        arrays = ArrayDataset(
            path,
            targets,
            transform=Compose(rest) if rest else ToDtype(torch.uint8),
            layout="HWC",
            out_layout=self._out_layout,
            seed=self._seed,
        )
        self._epoch = arrays._epoch
        return arrays

    # ---- reports

    def params(self, index: int, epoch: int | None = None, view: int = 0) -> list[dict[str, Any]]:
        """The random parameters of a sample: one dict for each operation, in order. Reads the file,
        because they depend on the size of the image.

        Args:
            index: of the sample.
            epoch: None: the one that ``dataset[index]`` has now.
            view: of the sample.
        """
        if self._plans is None or self._transform is None:
            why = self._untranslated or "there is none"
            raise TypeError(f"params() is for transforms that C does; {why}")
        row, view = read_item((index, view), len(self))
        if epoch is None:
            epoch = self._epoch_now()
        epoch = check_epoch(epoch)
        arrays = self._arrays
        if arrays is not None:
            baked = [{"op": type(op).__name__} for op in self._baked]
            is_whole = len(self._baked) == len(self._plans.ops)
            return baked if is_whole else baked + arrays.params(row, epoch, view)
        pixels, _ = self._read(row)
        return self._plans.plan_for(pixels.shape).params(row, epoch, view, pixels.shape[:2])

    def explain(self) -> str:
        """Who decodes, where each operation runs, and why; and whose the random parameters are."""
        decoder = self._decode
        who = decoder.name if isinstance(decoder, AutoDecoder) else name_of(decoder)
        lines = [
            f"{len(self)} files of {len(self.classes)} classes in {self.root!r}",
            f"decode: {who}, in the worker that loads the sample, or where dataset[i] is asked for",
        ]
        if self._plans is None:
            lines.append(
                "transform: Python, with a PIL.Image, and random numbers of the process, because "
                f"{self._untranslated}"
            )
            return "\n".join(lines)
        if self._cached is not None:
            lines[1] = f"decoded: {self._cached!r}"
            lines += [f"  {op!r}: done in the cache" for op in self._baked]
            return "\n".join([*lines, self._cached.explain()])
        lines.append(f"transform: by C, behind the decoder, to {self._out_layout}")
        lines += [f"  {op!r}: {op.work}" for op in self._plans.ops]
        if self._epoch is not None:
            lines.append(f"random parameters: seed {self._seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} files of {len(self.classes)} classes)"
