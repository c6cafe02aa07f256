"""torchvision's ``Compose``, v1 and v2, as one native plan that draws torchvision's random numbers.

The plan takes a single image, a tensor of bytes or of PIL, in any dataset and any process.
docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastloop._core import Snapshot
from fastloop.adapters import originals
from fastloop.adapters import torchvision_chain as chains
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import Verification, runs_original

is_tracing: Any = vars(torch.jit)["is_tracing"]
_CHECKED = 3  # samples
# A plan takes about a millisecond. After this many plans, for sizes of images or for changes of
# attributes, the transform is left to torchvision.
_MOST_PLANS = 16
_BANDS = {"RGB": 3, "L": 1}
# Classes of Pillow that read files; their loaded images are ordinary images.
_FILES = "JpegImageFile", "PngImageFile", "BmpImageFile", "PpmImageFile", "WebPImageFile"


class _Plan:
    """A transform for images of a kind.

    Args:
        kind: how many channels tensors have, or the mode of PIL images.
        edges: the height and width of all; 0, 0: they differ.
    """

    def __init__(self, chain: chains.Chain, kind: Any, *edges: int) -> None:
        shapes = {"HWC": (*edges, _BANDS.get(kind, kind)), "CHW": (kind, *edges)}
        layout = "HWC" if chain.was_pil else "CHW"
        self._compile = partial(chain.compile, shapes[layout], layout)
        self._plan, self._draws = self._compile("CHW")
        self._shape: Any = self._plan.core.out_shape  # None: results have other strides
        self._cls = sys.modules["torchvision.tv_tensors"].Image if chain.is_tv_tensor else None
        # Of fastloop's operations: the text of the program's may raise.
        self.verification = Verification(f"images with {chain.ops}", "torchvision's", _CHECKED)
        self.methods = chains.methods_of(chain)
        self.snapshot = Snapshot(chain.things)
        chain.things.clear()  # the Compose among them may be forgotten

    def make(self, image: Any, seam: Any, generator: torch.Generator) -> Tensor:
        out = torch.empty(self._shape) if self._shape is not None else self._plan.empty()
        self._draws.apply(image, out, generator)
        seam.native += generator is torch.default_generator  # else it is compared
        return out if self._cls is None else out.as_subclass(self._cls)

    def take_strides(self, first: Tensor) -> Tensor:
        """Make results with the strides of the first one."""
        if (
            self.verification.unchecked == _CHECKED
            and first.stride() != self._plan.empty().stride()
        ):
            self._shape, (self._plan, self._draws) = None, self._compile("channels_last")
        return first


@dataclass(eq=False)
class _Transform:
    """The plans of one Compose.

    Attributes:
        plans: by channels or mode, and by size if that changes the plan; None: left to
            torchvision.
    """

    seam: Any
    plans: dict[Any, _Plan | None] = field(default_factory=dict)
    count: int = 0  # of plans that were made

    def _plan_for(self, compose: Any, image: Any) -> _Plan | None:
        is_tensor = type(image) is Tensor
        kind, *size = image.shape if is_tensor else (image.mode, *image.size[::-1])
        key = kind, *size
        if kind in self.plans or key in self.plans:
            return self.plans.get(kind, self.plans.get(key))
        if chains.find_obstacle():
            return None
        self.count += 1
        many = f"images or attributes have changed more than {_MOST_PLANS} times"
        try:
            refuse_if(self.count > _MOST_PLANS, many)
            chain = chains.read_chain(compose, is_tensor, is_single=True)
        except Exception as error:  # attributes may be anything that torchvision does not look at
            self.seam.leave("a transform", str(error))
            self.plans[kind] = None
            return None
        # One plan serves all sizes, unless results differ as sizes do.
        sizes = {} if chain.has_strides_by_size else {kind: [0, 0]}
        for of, edges in (sizes | {key: size}).items():
            with suppress(Exception):
                self.plans[of] = plan = _Plan(chain, kind, *edges)
                return plan
        self.plans[key] = None
        return None

    def serve(self, compose: Any, image: Any, before: Callable[..., Any]) -> Any:
        """Return what the Compose makes of an image, by the plan or by `before`."""
        plan = self._plan_for(compose, image)
        if plan is None or originals.find_obstacle() or plan.methods.find_replaced():
            return before(compose, image)
        if not plan.snapshot.is_same():
            self.plans.clear()
            return before(compose, image)
        if type(image).__name__ in _FILES:
            try:
                image.load()
            except Exception as error:
                # Pillow raises the error once, and torchvision would meet it after its first draws.
                vars(image)["load"] = partial(_fail, error)
                try:
                    return before(compose, image)
                finally:
                    del vars(image)["load"]
        return plan.verification.run(
            lambda: plan.take_strides(before(compose, image)),
            lambda generator: plan.make(image, self.seam, generator),
        )


def _is_image(value: Any) -> bool:
    """Tell whether a value is a PIL image, or a tensor of the form that plans are made for."""
    if type(value) is not Tensor:
        return issubclass(type(value), getattr(sys.modules.get("PIL.Image"), "Image", ()))
    is_bytes = value.dtype is torch.uint8 and value.ndim == 3 and value.numel() > 0
    return is_bytes and value.device.type == "cpu" and value.is_contiguous()


def _find_fault(image: Any) -> str:
    """Return why fastloop does not take an image, or ""."""
    cls = type(image)
    if cls is Tensor:
        return ""
    is_file = cls.__name__ in _FILES and cls.__module__.startswith("PIL.")
    if cls is not sys.modules["PIL.Image"].Image and not is_file:
        return f"images of the class {cls.__name__}"
    return "" if image.mode in _BANDS else f"images of mode {image.mode}"


def _fail(error: Exception) -> NoReturn:
    raise error


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[int, _Transform] = {}  # by id: a Compose need not be hashable

    def call(*inputs: Any, **named: Any) -> Any:
        is_ours = len(inputs) == 2 and not named and seam.is_on
        if not is_ours or torch.compiler.is_compiling() or runs_original() or is_tracing():
            return before(*inputs, **named)
        self, image = inputs
        if not _is_image(image):
            return before(self, image)
        if why := _find_fault(image):
            seam.leave("a transform", why)
            return before(self, image)
        found = known.get(id(self))
        if found is None:
            found = known[id(self)] = _Transform(seam)
            weakref.finalize(self, known.pop, id(self), None)
        return found.serve(self, image, before)

    return call
