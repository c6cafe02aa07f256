"""ImageFolder: images in files, with a folder for each class, as a map-style dataset."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from fastloop._core import JpegImage
from fastloop.base.checks import check_value, make_message
from fastloop.data.columns import Columns, NotCoveredError, Request
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.encoded import EncodedImages
from fastloop.data.transforms.ops import CenterCrop, Compose, Resize, ToDtype
from fastloop.data.transforms.split import Piece, SplitPlan

if TYPE_CHECKING:  # most folders have no cache
    from fastloop.data.arrays import ArrayDataset
    from fastloop.data.image_folder.cache import Made
    from fastloop.data.image_folder.planes import ImagePlanes

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


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


class ImageFolder(EncodedImages):
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
        decode: ``"auto"``: Pillow's libjpeg for the part of a JPEG that the transform reads,
            simplejpeg for other JPEG if simplejpeg is installed, and Pillow; or a function from a
            file's bytes to a ``numpy.ndarray`` of uint8 with shape [height, width, 3], RGB. The
            function should release the interpreter lock. Its result is read before its next call
            in the same thread, so the function may reuse the memory.
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
            ``"planes"``, ``"planes:8G"``, ``"planes:<folder>"``: JPEG files are decoded once, when
            they are first read, and kept in a file of at most 8 GiB (default: half of the memory
            or of the disk's free space) that processes and runs share (default:
            ~/.cache/fastloop/images), until the machine is restarted. A changed file is decoded
            again.
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
        self._prepare(transform, decode, on_error, out_layout, seed)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        chosen: Any = {"extensions": self.extensions, "is_valid_file": is_valid_file}
        self.samples = self.make_dataset(
            self.root, self.class_to_idx, allow_empty=allow_empty, **chosen
        )
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        # Does the plan decode JPEG files? Several views together read most of an image.
        plans, decode = self._one_plans(), self._decode
        whole = None if plans is None else plans.whole
        least = math.inf if whole is None else whole.least_for_part
        is_ours = least < math.inf and isinstance(decode, decoders.AutoDecoder)
        self._least = least if is_ours and decode.finds_jpeg() else math.inf
        self._refused: set[str] = set()  # JPEG files that libjpeg has not decoded in parts
        self._baked: tuple[Any, ...] = ()  # the operations that the cache has done
        name, _, where = cache.partition(":") if isinstance(cache, str) else ("", "", "")
        has_planes = name == "planes"
        self._planes = self._open_planes(where) if has_planes else None
        self._cached = None if cache is None or has_planes else self._read_images(cache)

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
            folders = ((os.path.join(top, ""), files) for top, _, files in walked)
            paths = (top + file for top, files in folders for file in sorted(files))
            found = [(path, class_to_idx[name]) for path in paths if is_valid(path)]
            samples += found
            empty += [] if found else [name]
        if empty and not allow_empty:
            remedy = f"Supported extensions are: {', '.join(extensions)}" if extensions else ""
            text = f"Found no valid file for the classes {', '.join(empty)}. {remedy}"
            raise FileNotFoundError(text)
        return samples

    @property
    def _cache_remedy(self) -> str:  # type: ignore[override]
        has_cache = self._cached is not None or self._planes is not None
        return "" if has_cache else "cache='u8:FOLDER' for the ImageFolder"

    def _size_remedy(self) -> str:
        from fastloop.data.image_folder.cache import ONE_SIZE

        return f"Images of a folder may have several sizes: {ONE_SIZE}."

    # ---- samples

    def __len__(self) -> int:
        return len(self.samples)

    def _name(self, row: int) -> str:
        return self.samples[row][0]

    def _load(self, row: int, least: float = math.inf) -> Any:
        path = self.samples[row][0]
        planes = self._planes
        if planes is not None and (image := planes.read(path)) is not None:
            from fastloop.data.image_folder.planes import to_array

            return image if self._takes_planes else to_array(image)
        least = math.inf if path in self._refused else least
        return self._decode_image(path, lambda: decoders.read_file(path), least)

    def _pixels(self, row: int) -> Any:
        return self._read(row)[0]

    def _like(self) -> torch.Tensor | None:
        return super()._like() if self._cached is None else None

    def _sample(self, row: int, view: int, slot: torch.Tensor | None = None) -> Any:
        arrays = self._arrays
        images: list[Any]
        target: Any
        if arrays is not None:
            *images, target = arrays[row, view]
            target = int(target)
        else:
            pixels, source = self._read(row, partial(self._load, least=self._least))
            path, target = self.samples[source]
            try:
                images = self._apply(pixels, row, view, slot)
            except ValueError:
                if type(pixels) is not JpegImage:
                    raise
                self._refused.add(path)
                return self._sample(row, view, slot)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return (*images, target)

    def _is_keyed(self) -> bool:
        """Tell whether a sample is a function of index and epoch alone, in whichever process it is
        made, and all images are of one size."""
        is_ours = isinstance(self._decode, decoders.AutoDecoder) and self._on_error == "raise"
        is_plain = is_ours and "__getitems__" not in vars(self) and self.target_transform is None
        return is_plain and self._like() is not None

    # ---- the cache

    def _open_planes(self, argument: str) -> ImagePlanes:
        from fastloop.data.image_folder.planes import ImagePlanes

        is_ours = isinstance(self._decode, decoders.AutoDecoder)
        check_value("cache", f"planes:{argument}", is_ours, "None if decode is a function")
        # Functions take arrays. A chain may begin with one.
        pieces = [plan.ops[0] for plan in self._plans.values()]
        self._takes_planes = bool(pieces) and all(piece.ops for piece in pieces)
        return ImagePlanes(argument)

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
        from fastloop.data.arrays import ArrayDataset
        from fastloop.data.image_folder.cache import open_cache

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

    def _params(
        self, plans: SplitPlan, row: int, epoch: int, view: int, field: str | None
    ) -> list[dict[str, Any]]:
        arrays = self._arrays
        if arrays is None:
            return super()._params(plans, row, epoch, view, field)
        baked: list[dict[str, Any]] = [{"op": type(op).__name__} for op in self._baked]
        return (baked + arrays.params(row, epoch, view, field))[: len(plans.parts)]

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
        lines += [] if self._planes is None else [self._planes.explain()]
        lines += self._explain_images()
        if self._least < math.inf:
            lines.append("JPEG: Pillow's libjpeg decodes the part that the transform reads")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, {len(self)} files of {len(self.classes)} classes)"
