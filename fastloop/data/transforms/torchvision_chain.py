"""Chains of torchvision's operations as plans of C that keep torchvision's random numbers.

``dataset_transform.py`` computes random parameters from a key; here torchvision's own numbers are
kept. v1 and v2 draw and compute differently in places, and each operation follows its version.
Nothing is imported: a program that has such an operation has imported torchvision. What is not
known exactly is refused: other classes, replaced methods, hooks, code of another release.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

import torch

from fastloop._core import ImageDraws, Snapshot, TorchRandom
from fastloop.base import torch_parts
from fastloop.base.checks import refuse_if
from fastloop.base.threads import has_interpreter_lock
from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.plan import Geometry, Numbers, Plan, Values, compile_plan

# (kind, op, p, includes_p, scale, log_ratio): the fields of fl_draw_step.
Step = tuple[int, int, float, bool, tuple[float, ...], tuple[float, ...]]
_CROP_V1, _CROP_V2, _FLIP, _ERASE, _APPLY, _RESIZED = range(6)  # enum fl_draw_kind
_NO_RANGE = (0.0, 0.0)
_MODULES = "torchvision.transforms", "torchvision.transforms.v2"
_PACKAGE = __file__.rpartition("data")[0]
_DRAWS = torch.rand, torch.randint, torch.empty, torch.exp  # as they were when this was imported

# The functions that C stands in for, of each version.
_CODE = (
    """
torchvision.transforms.transforms: Compose.__call__ ToTensor.__call__ PILToTensor.__call__
    ConvertImageDtype.forward Normalize.forward Pad.forward CenterCrop.forward RandomCrop.forward
    RandomCrop.get_params RandomHorizontalFlip.forward RandomVerticalFlip.forward
    RandomApply.forward RandomErasing.forward RandomErasing.get_params Resize.forward
    RandomResizedCrop.forward RandomResizedCrop.get_params
torchvision.transforms.functional: to_tensor pil_to_tensor convert_image_dtype normalize pad crop
    center_crop hflip vflip erase get_dimensions resize resized_crop _compute_resized_output_size
torchvision.transforms._functional_pil: pad crop hflip vflip get_dimensions resize
torchvision.transforms._functional_tensor: pad crop hflip vflip erase normalize
    convert_image_dtype get_dimensions
torchvision.datasets.folder: DatasetFolder.__getitem__ DatasetFolder.__len__ default_loader
    pil_loader
torchvision: get_image_backend
""",
    """torchvision.transforms.v2._transform: Transform.forward Transform._call_kernel
    Transform._needs_transform_list _RandomApplyTransform.forward
torchvision.transforms.v2._container: Compose.forward RandomApply.forward
torchvision.transforms.v2._geometry: RandomHorizontalFlip.transform RandomVerticalFlip.transform
    CenterCrop.transform Pad.transform RandomCrop.make_params RandomCrop.transform
    RandomResizedCrop.make_params RandomResizedCrop.transform Resize.transform
torchvision.transforms.v2._augment: RandomErasing.make_params RandomErasing.transform
torchvision.transforms.v2._misc: Normalize.transform ToDtype.transform
    ConvertImageDtype.transform
torchvision.transforms.v2._type_conversion: PILToTensor.transform ToImage.transform
    ToPureTensor.transform
torchvision.transforms.v2._deprecated: ToTensor.transform
torchvision.transforms.v2.functional._misc: to_dtype_image normalize_image
torchvision.transforms.v2.functional._geometry: pad_image _pad_image_pil crop_image
    _crop_image_pil center_crop_image _center_crop_image_pil horizontal_flip_image
    vertical_flip_image resize_image resized_crop_image __resize_image_pil_dispatch
    _resize_image_pil _resized_crop_image_pil_dispatch _resized_crop_image_pil
    _compute_resized_output_size
torchvision.transforms.v2.functional._augment: erase_image
torchvision.transforms.v2.functional._type_conversion: to_image
""",
)
# The digests of their syntax in the releases that are known: torchvision 0.28.
_KNOWN = ("012c9fbe",), ("4ff854d0",)


def functions_in(text: str) -> Iterator[Any]:
    """Yield the functions that a text names, module by module."""
    for line in text.replace("\n    ", " ").split("\n"):
        module, _, names = line.partition(":")
        yield from (torch_parts.resolve(f"{module}:{name}") for name in names.split())


def _own(function: Any) -> Any:
    """Return the function that patch() has wrapped, and any other unchanged."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return function.__wrapped__ if file.startswith(_PACKAGE) else function


@functools.cache
def _first_seen(text: str) -> tuple[tuple[Any, ...], str]:
    """Return the functions that a text names, and one digest of their syntax."""
    functions = tuple(map(_own, functions_in(text)))
    digests = [torch_parts.syntax_digest(f) for f in functions if not hasattr(f, "__wrapped__")]
    return functions, sha1(" ".join(digests).encode(), usedforsecurity=False).hexdigest()[:8]


def is_code_known(text: str, known: tuple[str, ...]) -> bool:
    """Tell whether the functions that a text names have one of these digests, and nobody has put
    others in their places since they were first seen."""
    try:
        functions, digest = _first_seen(text)
        now = map(_own, functions_in(text))
        return digest in known and all(a is b for a, b in zip(functions, now, strict=True))
    except (AttributeError, ImportError):
        return False


def is_known_release() -> bool:
    """Tell whether the operations are those that C knows. Takes some 50 ms the first time."""
    versions = (1, 2) if _MODULES[1] in sys.modules else (1,)
    return all(is_code_known(_CODE[v - 1], _KNOWN[v - 1]) for v in versions)


class _Unit(Values):
    """Divides bytes by 255, as v1 does and ToTensor of both; ToDtype multiplies."""

    def change(self, numbers: Numbers) -> Numbers:
        return Numbers(numbers.values.to(torch.float32).div(255), torch.float32)


@functools.cache
def is_fused() -> bool | None:
    """Tell whether this torch computes uniform numbers in one rounding; None: in another way."""
    bounds = 0.08, 0.93
    numbers = torch.empty(256).uniform_(*bounds, generator=torch.Generator().manual_seed(1))
    for found in (True, False):
        if TorchRandom(1).uniform(*bounds, 256, found) == numbers.tolist():
            return found
    return None


@functools.cache
def find_pillow() -> int:
    """Return the number of the bilinear fl_interpolation with this Pillow's order of the axes; the
    bicubic one is that number + 1. 0: none resizes as this Pillow does."""
    pixels = torch.arange(1200).square().remainder(251).to(torch.uint8).view(1, 40, 30)
    image = sys.modules["PIL.Image"].frombytes("L", (30, 40), pixels.numpy().tobytes())

    def is_same(found: int, height: int, width: int) -> bool:
        resize = image_ops.Resize((height, width))
        resize.interpolation = found
        bits = compile_plan((resize,), (1, 40, 30)).apply(pixels, 0).numpy().tobytes()
        return bool(bits == image.resize((width, height), 2).tobytes())

    sizes = (19, 20), (20, 20), (7, 60), (60, 9)
    return next((how for how in (6, 4) if all(is_same(how, *size) for size in sizes)), 0)


def torch_exp(x: float) -> float:
    """Return torch's exponential of a float32."""
    return torch.exp(torch.tensor([x], dtype=torch.float32)).item()


def why_not_now() -> str:
    """Return why C cannot stand in for torchvision in this process now, or ""."""
    if torch.get_default_dtype() is not torch.float32:
        return "the default dtype is not float32"
    if torch_parts.count_function_modes() or torch_parts.count_dispatch_modes():
        return "a mode watches torch's functions"
    if (torch.rand, torch.randint, torch.empty, torch.exp) != _DRAWS:
        return "a function of torch was replaced"
    if torch_parts.has_global_hooks():
        return "a hook watches all modules"
    if not has_interpreter_lock():
        return "threads run without the interpreter lock"
    helpers = sys.modules.get("torchvision.tv_tensors._torch_function_helpers")
    if getattr(helpers, "_TORCHFUNCTION_SUBCLASS", False):
        return "tv_tensors.set_return_type() is in force"
    return ""


DECODERS = "fastloop-images"  # how names of threads begin that decode images and do not draw


def is_alone() -> bool:
    """Tell whether no thread but this one may draw random numbers."""
    return sum(not thread.name.startswith(DECODERS) for thread in threading.enumerate()) == 1


_left = threading.local()


@contextmanager
def leaving_torchvision() -> Iterator[None]:
    """Run torchvision's own code in the body, in this thread, even where it is patched: results are
    compared."""
    before = getattr(_left, "is_set", False)
    _left.is_set = True
    try:
        yield
    finally:
        _left.is_set = before


def is_left_alone() -> bool:
    """Tell whether leaving_torchvision() is in force."""
    return getattr(_left, "is_set", False)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors have the same class, dtype, shape, strides and bits."""
    if type(a) is not type(b) or a.dtype is not b.dtype or a.shape != b.shape:
        return False
    a_bits, b_bits = (tensor.reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.stride() == b.stride() and torch.equal(a_bits, b_bits)


def warn_of_other(what: str, transform: Any, stacklevel: int) -> None:
    """Warn that samples by C differ from torchvision's."""
    text = f"C's {what} with {transform} differ from torchvision's, so torchvision makes them from"
    text += " now on. Please report this with the output of `python -m fastloop doctor`"
    warnings.warn(text, RuntimeWarning, stacklevel)


def _check_unaltered(op: Any) -> None:
    """Refuse an object with hooks, or with functions in place of its class's."""
    for name, value in vars(op).items():
        is_held = name == "_modules" or (name == "_fill" and list(value.values()) == [op.fill])
        if isinstance(value, dict) and value and not is_held:
            raise ValueError(f"{type(op).__name__} has a {name.strip('_')} of its own")
        if callable(value) or callable(getattr(type(op), name, None)):
            raise ValueError(f"{type(op).__name__}.{name} was replaced")
        if isinstance(value, torch.Tensor) and name != "_log_ratio":
            raise ValueError(f"{type(op).__name__}.{name} is a tensor")


@dataclass
class Chain:
    """The operations of a transform of torchvision.

    Attributes:
        is_tensor: whether images are tensors of bytes from the beginning; else of PIL.
        ops: as compile_plan() takes them.
        steps: what is drawn, in order.
        things: the objects that were read.

    Raises:
        ValueError: C cannot do it; the text says why.
    """

    is_tensor: bool = False
    ops: list[Geometry | Values] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    things: list[Any] = field(default_factory=list)
    version: int = 0  # of the operations read so far; 0: none
    is_float: bool = False
    is_tv_tensor: bool = False  # an Image of tv_tensors
    has_other_strides: bool = False  # resized as a tensor that was PIL: they depend on the crop
    has_strides_by_size: bool = False  # padded, if smaller, as a tensor that was PIL
    is_view: bool = False  # the result may be part of a larger tensor
    was_tensor: bool = field(init=False)

    def __post_init__(self) -> None:
        self.was_tensor = self.is_tensor

    def read(self, op: Any) -> None:
        """Add an operation."""
        name, found = type(op).__name__, 0
        for version, module in enumerate(_MODULES, 1):
            if getattr(sys.modules.get(module), name, None) is type(op):
                found = version
        if not found or name not in _READERS:
            raise ValueError(f"{name} at place {len(self.things)} is not done by C")
        _check_unaltered(op)
        self.things.append(op)
        if name != "Compose":
            if self.version not in (0, found):
                raise ValueError(f"{name} is of another version than the operations before it")
            self.version = found
        _READERS[name](self, op)

    def _add(self, op: Geometry, kind: int = -1, p: float = 0.0, *ranges: Any) -> None:
        if kind >= 0:
            place = sum(isinstance(each, Geometry) for each in self.ops)
            scale, log_ratio = ranges or (_NO_RANGE, _NO_RANGE)
            self.steps.append((kind, place, float(p), False, scale, log_ratio))
        self.ops.append(op)

    def _need(self, is_met: bool, op: Any, what: str) -> None:
        refuse_if(not is_met, f"{type(op).__name__} stands where images are not {what}")

    def _fill_of(self, op: Any) -> dict[str, Any]:
        """Return the arguments of an operation that pads."""
        if type(op.fill) is not int or (self.is_tensor and op.padding_mode != "constant"):
            raise ValueError(f"{type(op).__name__} has a fill or a padding_mode that C does not do")
        return {"fill": op.fill, "padding_mode": op.padding_mode}

    # ---- one function for each operation

    def _compose(self, op: Any) -> None:
        refuse_if(type(op.transforms) not in (list, tuple), "Compose.transforms must be a list")
        for part in op.transforms:
            self.read(part)

    def _apply(self, op: Any) -> None:
        held = op.transforms
        if type(held) is torch.nn.ModuleList:
            _check_unaltered(held)
            self.things.append(held)
            held = list(held)
        place, parts = len(self.steps), len(held)
        self.steps.append((_APPLY, parts, float(op.p), self.version == 1, _NO_RANGE, _NO_RANGE))
        for part in held:
            self.read(part)
        if [step[0] for step in self.steps[place + 1 :]] != [_FLIP] * parts:
            raise ValueError("RandomApply has more than flips in it")

    def _flip(self, op: Any) -> None:
        self._add(getattr(image_ops, type(op).__name__)(op.p), _FLIP, op.p)

    def _crop(self, op: Any) -> None:
        padding = op.padding
        if self.version == 2 and padding is not None:
            left, right, top, bottom = padding
            padding = [left, top, right, bottom]
        if op.pad_if_needed and op.padding_mode != "constant":
            raise ValueError("RandomCrop pads if needed with a padding_mode that C does not do")
        crop = image_ops.RandomCrop(op.size, padding, op.pad_if_needed, **self._fill_of(op))
        self._add(crop, _CROP_V1 if self.version == 1 else _CROP_V2)
        self._cut(op.pad_if_needed)

    def _pad(self, op: Any) -> None:
        self._add(image_ops.Pad(op.padding, **self._fill_of(op)))

    def _center(self, op: Any) -> None:
        self._add(image_ops.CenterCrop(op.size))
        self._cut(may_pad=True)

    def _cut(self, may_pad: bool) -> None:
        self.is_view |= self.is_float
        self.has_strides_by_size |= may_pad and self.is_tensor and not self.was_tensor

    def _erase(self, op: Any) -> None:
        self._need(self.is_float, op, "tensors of floats")
        value = "random" if op.value is None else op.value
        erase = image_ops.RandomErasing(op.p, op.scale, op.ratio, value)
        self._add(erase, _ERASE, op.p, *self._ranges_of(op))

    def _resize(self, op: Any) -> None:
        """Take resizes with the weights of Pillow, or of torch; v1 resizes tensors as floats."""
        is_covered = not self.is_tensor or (self.version == 2 and not self.is_float)
        self._need(is_covered, op, "of PIL, or tensors of bytes for v2")
        antialias = op.antialias
        if antialias is None and not self.is_tensor:
            antialias = True  # with images of PIL; False warns
        self.has_other_strides |= self.is_tensor and not self.was_tensor
        how = {"interpolation": op.interpolation, "antialias": antialias}
        steps: tuple[Any, ...] = ()
        resize: Any
        if type(op).__name__ == "Resize":
            resize = image_ops.Resize(op.size, max_size=op.max_size, **how)
        else:
            resize = image_ops.RandomResizedCrop(op.size, op.scale, op.ratio, **how)
            steps = _RESIZED, 0.0, *self._ranges_of(op)
        if not self.is_tensor:
            refuse_if("nearest" in resize.interpolation, "C does not pick nearest pixels of PIL")
            refuse_if(find_pillow() == 0, "this Pillow resizes in a way that C does not know")
            resize.interpolation = find_pillow() + (resize.interpolation == "bicubic")
        self._add(resize, *steps)

    def _ranges_of(self, op: Any) -> tuple[tuple[float, ...], ...]:
        """Return bounds of the area and of the logarithm of the ratio, as torch computes it."""
        log_ratio = torch.log(torch.tensor(op.ratio)) if self.version == 1 else op._log_ratio
        return tuple(map(float, op.scale)), tuple(log_ratio.tolist())

    def _convert(self, op: Any) -> None:
        self._need(not self.is_tensor, op, "of PIL")
        self.is_tensor = True

    def _to_image(self, op: Any) -> None:
        self._need(not self.is_float and not self.is_tv_tensor, op, "plain and of bytes")
        self.is_tensor = self.is_tv_tensor = True

    def _to_pure(self, op: Any) -> None:
        self.is_tv_tensor = False

    def _to_tensor(self, op: Any) -> None:
        self._convert(op)
        self._to_unit(_Unit())

    def _to_unit(self, value: Values) -> None:
        self.ops.append(value)
        self.is_float = True

    def _to_dtype(self, op: Any) -> None:
        self._need(self.is_tensor and not self.is_float, op, "tensors of bytes")
        if op.dtype is not torch.float32:
            raise ValueError(f"{type(op).__name__} makes {op.dtype}, not torch.float32")
        scale = getattr(op, "scale", True)  # ConvertImageDtype, the one of v1 here, always does
        self._to_unit(_Unit() if self.version == 1 else image_ops.ToDtype(op.dtype, scale))

    def _normalize(self, op: Any) -> None:
        self._need(self.is_float, op, "tensors of floats")
        self.ops.append(image_ops.Normalize(op.mean, op.std))
        self.is_view &= bool(op.inplace)


_READERS: dict[str, Callable[[Chain, Any], None]] = {
    "Compose": Chain._compose,
    "RandomApply": Chain._apply,
    **dict.fromkeys(("RandomHorizontalFlip", "RandomVerticalFlip"), Chain._flip),
    "RandomCrop": Chain._crop,
    "Pad": Chain._pad,
    "CenterCrop": Chain._center,
    "RandomErasing": Chain._erase,
    "ToTensor": Chain._to_tensor,
    "PILToTensor": Chain._convert,
    "ToImage": Chain._to_image,
    "ToPureTensor": Chain._to_pure,
    **dict.fromkeys(("Resize", "RandomResizedCrop"), Chain._resize),
    "Identity": lambda chain, op: None,
    **dict.fromkeys(("ToDtype", "ConvertImageDtype"), Chain._to_dtype),
    "Normalize": Chain._normalize,
}


def open_plan(
    transform: Any, shape: tuple[int, ...], layout: str
) -> tuple[Plan, ImageDraws, Snapshot, str]:
    """Return the plan of a transform of PIL images, what is drawn for it, what it was made of, and
    a text that tells it from others. Raises ValueError.

    Args:
        shape, layout: of images; 0 for edges that differ.
    """
    refuse_if(not is_known_release(), "this version of fastloop does not know this torchvision")
    try:
        chain = read_chain(transform)
        plan = compile_plan(tuple(chain.ops), shape, layout, may_differ=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the transform: {error}") from None
    steps = tuple(chain.steps)
    draws = ImageDraws(plan.core, steps, bool(is_fused()), torch_exp)
    return plan, draws, Snapshot(chain.things), f"{shape} {steps} {chain.ops}"


def read_chain(transform: Any, is_tensor: bool = False) -> Chain:
    """Return what a transform does with a tensor of bytes [C, H, W], or with a PIL image. Raises
    ValueError."""
    why = why_not_now()
    refuse_if(why, why)
    refuse_if(is_fused() is None, "torch computes uniform numbers in a way that C does not know")
    chain = Chain(is_tensor)
    chain.read(transform)
    refuse_if(not chain.is_tensor, "the transform makes no tensor")
    return chain
