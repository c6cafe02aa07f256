"""A transform of torchvision as parts: native plans, and operations that Python calls.

An operation that fastloop does not know is called in its place, once for each image, with what
torchvision would call it with. The operations before it and behind it are native plans. A plan is
opened for the kind of image that arrives in front of it, because only a call can tell what an
operation returns. Each plan takes the state of torch's generator and puts it back, so a called
operation finds the generator as torchvision would leave it. docs/internals/zero-change.md tells the
rules.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fastloop._core import JpegImage, Snapshot, YccImage
from fastloop.adapters import torchvision_chain as chains
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import Verification
from fastloop.data.image_folder.planes import to_array
from fastloop.data.transforms import color, policy, warp
from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.plan import flatten

_CHECKED = 3  # samples of a plan
# A plan takes about a millisecond. After this many plans at a place, for sizes of images or for
# changes of attributes, Python runs the operations.
_MOST_PLANS = 16
_MANY = f"images or attributes have changed more than {_MOST_PLANS} times"
_ARRAYS = np.ndarray, YccImage, JpegImage  # pixels that are not an image of Pillow
_BANDS = {"RGB": 3, "L": 1}
# Classes of Pillow that read files; their loaded images are ordinary images.
_FILES = "JpegImageFile", "PngImageFile", "BmpImageFile", "PpmImageFile", "WebPImageFile"
# torchvision does one of these operations to a small image in 3 to 15 us. A plan with its checks
# takes as long. So a plan pays only if it has other operations, too.
_CHEAP = {"RandomCrop", "Pad", "CenterCrop", "RandomHorizontalFlip", "RandomVerticalFlip"}
_CHEAP |= {*"PILToTensor ToImage ToPureTensor Compose RandomApply Identity Sequential".split()}
_CHEAP |= {"MaybePILToTensor"}
# Operations of PIL images that always make a new image; the rest may return the image that they
# get.
_NEW = {"RandomResizedCrop", "CenterCrop", "Pad", "RandomRotation", "RandomAffine", "Grayscale"}
_NEW |= {"GaussianBlur", "AugMix"}
# Operations that drop the `info` of a PIL image (crops and Pad: if they pad), and operations that
# keep `info`. Of all others it is not known.
_DROP_INFO: tuple[Any, ...] = image_ops.CenterCrop, image_ops.Pad, image_ops.RandomCrop
_DROP_INFO += color.GaussianBlur, policy.AugMix
_KEEP_INFO: tuple[Any, ...] = image_ops._RandomFlip, image_ops._Resampled, image_ops._Gate
_KEEP_INFO += image_ops._Branch, color._Applied
_KEEP_INFO += warp.RandomRotation, warp.RandomAffine, warp.RandomPerspective

# The seam of transforms, once there is one.
counter: Any = SimpleNamespace(native=0, note_left=lambda reason, begin_ns: None)


class Entry(NamedTuple):
    """An operation in its place.

    Attributes:
        op: the operation.
        after: the place behind it; for a RandomApply behind its operations, which follow it.
        is_gate: the operation may be drawn alone.
        reason: what the user reads if Python calls the operation.
    """

    op: Any
    after: int
    is_gate: bool
    reason: str


def _list_entries(op: Any, entries: list[Any], things: list[Any]) -> None:
    """Add an operation to `entries`, and the objects that hold operations to `things`."""
    place, parts, is_gate = len(entries), None, False
    with suppress(Exception):  # attributes may be anything that torchvision does not look at
        parts = chains.parts_of(op)
        if parts is None and chains.is_gate(op):
            parts, is_gate = chains.listed(op), True
    is_entry = parts is None or is_gate
    entries += [None] * is_entry
    things += [op] * (parts is not None)
    for part in parts or ():
        _list_entries(part, entries, things)
    if is_entry:
        reason = f"{type(op).__name__}, operation {place + 1}, runs in Python"
        entries[place] = Entry(op, len(entries), is_gate, reason)


def size_of(image: Any) -> tuple[int, int]:
    """Return the width and height of an array of pixels or of an image of PIL."""
    width, height = image.shape[1::-1] if type(image) in _ARRAYS else image.size
    return width, height


class Pixels:
    """The pixels of a PIL image: an array, planes, or an image that a decoder of Pillow has made.
    The next plan reads the pixels, so no PIL image is made for it."""

    def __init__(self, pixels: Any, mode: str, info: dict[Any, Any]) -> None:
        self.pixels, self.mode, self.info = pixels, mode, info
        self.size = size_of(pixels)

    def to_pil(self) -> Any:
        if type(self.pixels) in _ARRAYS:
            is_array = type(self.pixels) is np.ndarray
            pixels = self.pixels if is_array else to_array(self.pixels)
            image = sys.modules["PIL.Image"].frombytes(self.mode, self.size, pixels)
        else:
            image = self.pixels.copy()  # has the class of an image that is in no file
        image.info = dict(self.info)
        return image


def finished(value: Any) -> Any:
    """Return an image that a user may see."""
    return value.to_pil() if type(value) is Pixels else value


def find_kind(image: Any) -> tuple[Any, tuple[int, ...], str]:
    """Return for an image that a plan may take: its channels as a tensor, or its mode as a PIL
    image; its height and width; "". For other objects None, and a reason if it is an image of
    PIL."""
    cls = type(image)
    if cls is Tensor:
        is_bytes = image.dtype is torch.uint8 and image.ndim == 3 and image.numel() > 0
        if not is_bytes or image.device.type != "cpu":
            return None, (), ""
        channels, height, width = image.shape
        # torchvision's result has the strides of its image, even along an edge of one pixel.
        if image.stride() != (height * width, width, 1):
            return None, (), ""
        return channels, (height, width), ""
    pil = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if cls is not Pixels and cls is not pil:
        if pil is None or not issubclass(cls, pil):
            return None, (), ""
        if cls.__name__ not in _FILES or not cls.__module__.startswith("PIL."):
            return None, (), f"images of the class {cls.__name__}"
    limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
    if limit is not None and image.size[0] * image.size[1] > limit:
        return None, (), "images of so many pixels that Pillow warns of their crops"
    if image.mode not in _BANDS:
        return None, (), f"images of mode {image.mode}"
    return image.mode, image.size[::-1], ""


def _makes_new(op: Any, version: int) -> bool:
    """Tell whether an operation returns a new image of PIL in any case."""
    if type(op).__name__ == "RandomCrop":
        return version == 1 or any(op.padding or ())  # v2 leaves out what changes nothing
    if type(op).__name__ == "ColorJitter":
        return bool(op.brightness or op.contrast or op.saturation)  # a grey image has no hue
    return type(op).__name__ in _NEW


def _drops_info(op: Any, mode: str) -> bool | None:
    """Tell whether an operation drops the info of a PIL image if it is applied; crops and Pad: if
    they pad. None: it is not known.

    Args:
        mode: of images; "": not the same before each operation.
    """
    is_rgb = mode == "RGB" if mode else None
    if isinstance(op, color.ColorJitter):
        return True if op.brightness or op.contrast else bool(op.hue) and is_rgb
    if isinstance(op, color.RandomGrayscale):
        return is_rgb
    if isinstance(op, color.Grayscale):
        return op.num_output_channels == 3
    if isinstance(op, _DROP_INFO):
        return True
    return False if isinstance(op, _KEEP_INFO) else None


def _fail(error: Exception) -> NoReturn:
    raise error


class Part:
    """Operations that follow each other, as a plan for images of a kind.

    Args:
        ops: the operations of torchvision.
        after: the place behind them.
        kind: how many channels tensors have, or the mode of PIL images.
        edges: the height and width of all; 0, 0: they differ.
    """

    def __init__(
        self, chain: chains.Chain, ops: Sequence[Any], after: int, kind: Any, *edges: int
    ) -> None:
        shapes = {"HWC": (*edges, _BANDS.get(kind, kind)), "CHW": (kind, *edges)}
        layout = "HWC" if chain.was_pil else "CHW"
        self._ops, self.after = ops, after
        self._compile = partial(chain.compile, shapes[layout], layout)
        self.makes_pil = chain.makes_pil
        self._plan, self._draws = self._compile("HWC" if self.makes_pil else "CHW")
        self._shape: Any = self._plan.core.out_shape  # None: results have other strides
        self._cls = sys.modules["torchvision.tv_tensors"].Image if chain.is_tv_tensor else None
        # Of fastloop's operations: the text of the program's may raise.
        what = f"images with {chain.ops}"
        self.verification = Verification(what, "torchvision's", _CHECKED, chain.is_known)
        self._has_same = chain.note()
        chain.things.clear()  # objects among them may be forgotten
        self.made = 0  # samples
        if self.makes_pil:
            self._describe_pil(chain, kind)

    def _describe_pil(self, chain: chains.Chain, kind: str) -> None:
        self._mode = {count: mode for mode, count in _BANDS.items()}[self._shape[2]]
        is_new = any(_makes_new(op, chain.version) for op in chain.ops)
        # Of images of this size the result might be the image itself.
        self._size = None if is_new else tuple(self._shape[1::-1])
        mode = self._mode if self._mode == kind else ""
        drops = [_drops_info(op, mode) for op in flatten(chain.ops)]
        self._drops = sum(1 << i for i, drop in enumerate(drops) if drop)
        self._is_info_known = chain.is_info_known and None not in drops

    def is_same(self) -> bool:
        """Tell whether the operations are what they were when the plan was made."""
        return self._has_same()

    def takes(self, image: Any) -> bool:
        if not self.makes_pil:
            return True
        return image.size != self._size and (self._is_info_known or not image.info)

    def _run_original(self, image: Any) -> Any:
        image = finished(image)
        for op in self._ops:
            image = op(image)
        is_first = self.verification.unchecked == _CHECKED and not self.makes_pil
        if is_first and image.stride() != self._plan.empty().stride():
            # Results have the strides of the first one.
            self._shape, (self._plan, self._draws) = None, self._compile("channels_last")
        return image

    def _make(self, image: Any, generator: torch.Generator) -> Any:
        if self.makes_pil or self._shape is None:
            out = self._plan.empty()
        else:
            out = torch.empty(self._shape, dtype=self._plan.dtype)
        source = image.pixels if type(image) is Pixels else image
        applied = self._draws.apply(source, out, generator)
        is_compared = generator is not torch.default_generator
        self.made += not is_compared
        if not self.makes_pil:
            return out if self._cls is None else out.as_subclass(self._cls)
        result = Pixels(out.numpy(), self._mode, {} if applied & self._drops else image.info)
        return result.to_pil() if is_compared else result

    def run(self, image: Any) -> Any:
        """Return what the operations make of an image, by the plan or by torchvision."""
        if type(image).__name__ in _FILES:
            try:
                image.load()
            except Exception as error:
                # Pillow raises the error once, and torchvision would meet it after its first draws.
                vars(image)["load"] = partial(_fail, error)
                try:
                    return self._run_original(image)
                finally:
                    del vars(image)["load"]
        return self.verification.run(partial(self._run_original, image), partial(self._make, image))


def _read_part(
    entries: Sequence[Entry], place: int, is_tensor: bool, is_grey: bool = False
) -> tuple[Any, list[Any], int]:
    """Return the longest chain that begins at a place and makes images in new memory, its
    operations, and the place behind the operations. Raises ValueError if no such chain pays."""
    chain = chains.new_chain(is_tensor, is_single=True)
    chain.is_grey = is_grey
    found, why = None, "a plan would not be faster, or results may share memory with other tensors"
    ops: list[Any] = []
    while place < len(entries):
        entry, before = entries[place], chain
        chain = copy(before)
        chain.ops, chain.things = [*before.ops], [*before.things]
        try:
            chain.read(entry.op)
        except Exception as error:  # attributes may be anything that torchvision ignores
            why = str(error)
            break
        place, ops = entry.after, [*ops, entry.op]
        if not chain.is_view and any(type(op).__name__ not in _CHEAP for op in chain.things):
            found = chain, ops, place
    if found is None:
        raise ValueError(why)
    return found


@dataclass(eq=False)
class Parts:
    """The parts of a transform.

    Attributes:
        seam: counts the images, and the operations that Python has called.
        parts: by place and by channels or mode, and by size if that changes the plan; None: Python
            calls the operation that stands there.
        why: a plan was not made.
        left: kinds of images for which torchvision does all, and why.
        plans: the operations of torchvision, as originals.txt names them; None: not read yet.
    """

    seam: Any
    entries: list[Entry] = field(default_factory=list)
    parts: dict[Any, Part | None] = field(default_factory=dict)
    why: str = ""
    left: dict[Any, str] = field(default_factory=dict)
    plans: frozenset[str] | None = None
    # Plans that were made at a place; at -1: how often the transform was read.
    _count: Counter[int] = field(default_factory=Counter)
    _snapshot: Any = None

    def read(self, transform: Any) -> bool:
        """Read a transform if it is new or has changed. Return False if it had changed.

        Raises:
            ValueError: it is no Compose of torchvision, or has changed too often.
        """
        if self._snapshot is not None and self._snapshot.is_same():
            return True
        self._count[-1] += 1
        refuse_if(self._count[-1] > _MOST_PLANS, _MANY)
        is_new, self.entries = self._snapshot is None, []
        things: list[Any] = []
        refuse_if(chains.parts_of(transform) is None, "it is not Compose itself")
        _list_entries(transform, self.entries, things)
        self.parts.clear()
        self._snapshot = Snapshot(things)
        ops = [*things, *(entry.op for entry in self.entries)]
        self.plans = frozenset(chains.plans_of(ops))
        return is_new

    def find_obstacle(self) -> str:
        """Return why no plan can be made for images of PIL, wherever they arrive, or ""."""
        places = range(len(self.entries))
        reasons = [*takewhile(bool, map(self._find_obstacle, places))]
        return f"the transform: {reasons[0]}" if places and len(reasons) == len(places) else ""

    def _find_obstacle(self, place: int) -> str:
        try:
            _read_part(self.entries, place, is_tensor=False)
        except Exception as error:
            return str(error)
        return ""

    def _find_part(self, place: int, image: Any) -> Part | None:
        kind, size, _ = find_kind(image)
        if kind is None:
            return None
        of_all, of_size = (place, kind), (place, kind, *size)
        if of_all not in self.parts and of_size not in self.parts:
            self._open_part(of_all, size)
        part = self.parts.get(of_all) or self.parts.get(of_size)
        return part if part is not None and part.takes(image) else None

    def _open_part(self, key: tuple[int, Any], size: tuple[int, ...]) -> None:
        place, kind = key
        self.parts[key] = None
        self._count[place] += 1
        if self._count[place] > _MOST_PLANS:
            self.why = _MANY
            self.seam.note_left(_MANY, perf_counter_ns())
            return
        try:
            read = _read_part(self.entries, place, isinstance(kind, int), kind == "L")
        except Exception as error:
            self.why = self.why or str(error)
            return
        if not read[0].has_strides_by_size:  # one plan for all sizes
            with suppress(Exception):
                self.parts[key] = Part(*read, kind, 0, 0)
                return
        self.parts.pop(key, None)
        self.parts[(*key, *size)] = None
        with suppress(Exception):
            self.parts[(*key, *size)] = Part(*read, kind, *size)

    def _call(self, place: int, image: Any, called: list[tuple[str, int]]) -> tuple[Any, int]:
        """Call an operation, or draw whether a RandomApply does its operations. Return the result
        and the place of the next operation."""
        op, after, is_gate, reason = self.entries[place]
        if not is_gate:
            image, begin_ns = finished(image), perf_counter_ns()
            try:
                return op(image), after
            finally:
                called.append((reason, perf_counter_ns() - begin_ns))
        # As torchvision draws and compares, in each of its versions.
        is_v1 = type(op).__module__ == "torchvision.transforms.transforms"
        is_shut = op.p < torch.rand(1) if is_v1 else torch.rand(1) >= op.p
        return image, after if is_shut else place + 1

    def run(self, image: Any, before: Callable[[], Any]) -> tuple[Any, int]:
        """Return what the transform makes of an image, and how many plans there were for it.

        Args:
            before: returns what torchvision makes of it.
        """
        place = plans = made = 0
        can_plan = True
        called: list[tuple[str, int]] = []  # operations, and how long they took
        try:
            while place < len(self.entries):
                part = self._find_part(place, image) if can_plan else None
                if part is None:
                    image, place = self._call(place, image, called)
                    continue
                plans += 1
                if can_plan := part.is_same():
                    made -= part.made
                    image, place = part.run(image), part.after
                    made += part.made
                else:
                    self._snapshot = None
                    if place == 0:
                        return before(), plans
        finally:
            self.seam.native += made > 0
            for reason, ns in called if plans > 0 else ():
                self.seam.note_left(reason, perf_counter_ns() - ns)
        return finished(image), plans
