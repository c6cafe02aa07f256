"""Chains of torchvision's operations as native plans that keep torchvision's random numbers.

``dataset_transform.py`` computes random parameters from a key; here torchvision's own numbers are
kept. v1 and v2 draw and compute differently in places, and each operation follows its version.
timm's conversions to tensors are torchvision's of v1 under names of their own. Nothing is imported:
a program that has such an operation has imported its library. What is not known exactly is refused:
other classes, replaced methods, hooks, code of an unknown release.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from fastloop._core import IMAGE_ARITHMETICS, INTERPOLATIONS, ImageDraws, Snapshot, torch_draw
from fastloop.adapters import originals, torchvision_policies
from fastloop.adapters.torchvision_battery import find_difference
from fastloop.base.checks import refuse_if
from fastloop.base.threads import has_interpreter_lock
from fastloop.data.transforms import arguments as arg
from fastloop.data.transforms import color
from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.dataset_transform import make_own
from fastloop.data.transforms.plan import Geometry, Numbers, Plan, Values, compile_plan

_MODULES = "torchvision.transforms", "torchvision.transforms.v2"
_TIMM = "timm.data.transforms"
_CONVERSIONS = "MaybePILToTensor", "MaybeToTensor"  # timm's
_GROUPS = "called", "transforms", "transforms.v2"  # of originals.txt
_COLORS = ["ColorJitter", "Grayscale", "RandomGrayscale", "RandomInvert", "RandomPosterize"]
_COLORS += ["RandomSolarize", "RandomEqualize", "RandomAutocontrast", "RandomAdjustSharpness"]
_COLORS += ["RandomPhotometricDistort", "RandomChannelPermutation"]
# Of these a battery is made also for code that fastloop knows: operations with many branches, of
# which three samples would prove little, and sums whose order is torch's on this machine.
_PROVEN = "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "GaussianBlur"
_PIL, _BYTES, _FLOATS = "of PIL", "tensors of bytes", "tensors of floats"  # what images are


def find_obstacle(*groups: str, plans: frozenset[str] | None = None) -> str:
    """Return why torchvision may make something else in this process now than fastloop, or "".

    Args:
        groups: of originals.txt: functions that nobody may have replaced, beside the operations and
            the functions that they call.
        plans: the operations that matter. None: all.
    """
    groups += _GROUPS[: 3 if _MODULES[1] in sys.modules else 2]
    groups += ("transforms.timm",) * (_TIMM in sys.modules)
    replaced = originals.methods_of(*groups, plans=plans).find_replaced()
    return originals.find_obstacle() or (f"{replaced} was replaced" if replaced else "")


class _Unit(Values):
    """Divides bytes by 255, as v1 and both versions of ToTensor do. ToDtype of v2 multiplies."""

    def change(self, numbers: Numbers) -> Numbers:
        values = numbers.values.to(torch.float32).div(255)
        return Numbers(values, torch.float32, (1 / 255, 0.0, 1.0) * len(values))


@cache
def is_fused() -> bool | None:
    """Tell whether this torch rounds uniform numbers once; False: twice; None: in a different
    way."""
    bounds = 0.08, 0.93
    numbers = torch.empty(256).uniform_(*bounds, generator=torch.Generator().manual_seed(1))
    ways = {kind == "f": torch_draw(1, kind, *bounds, 256)[0] for kind in "ft"}
    return next((how for how, found in ways.items() if found == numbers.tolist()), None)


@cache
def draws_choices() -> bool:
    """Tell whether torch draws choices as fastloop does. On a CPU of Intel's it does not."""
    weights, generator = (0.5, 0.2, 0.3), torch.Generator().manual_seed(1)
    shares = torch.tensor(weights)
    drawn = [int(torch.multinomial(shares, 1, generator=generator)) for _ in range(16)]
    state = bytes(generator.get_state().tolist())
    return torch_draw(1, "c", 0, 0, 16, weights) == (drawn, state)


def find_pillow() -> int:
    """Return the fl_interpolation that is bilinear with this Pillow's order of the axes. The next
    number is bicubic."""
    return 6 if int(sys.modules["PIL"].__version__.partition(".")[0]) >= 13 else 4


def _of_float(function: Any, x: float) -> float:
    """Return what a function of torch makes of a float32."""
    found: float = function(torch.tensor([x])).item()
    return found


def _to_fill(fill: Any) -> Any:
    """Return a fill as v2 keeps it: a sequence becomes a list of floats."""
    return fill if fill is None or isinstance(fill, int | float) else list(map(float, fill))


def _check_unaltered(op: Any) -> None:
    """Refuse an object with hooks or with a function of its own. v2 computes some attributes from
    arguments: refuse an object whose argument has changed since then."""
    for name, value in vars(op).items():
        if name == "_modules" and type(op) is nn.Sequential:
            is_altered = False
        elif name == "_fill":
            is_altered = list(map(_to_fill, value.values())) != [_to_fill(op.fill)]
        elif name == "_log_ratio":
            is_altered = not value.equal(torch.log(torch.tensor(op.ratio)))
        else:
            is_number = name in ("mean", "std") and type(op).__name__ == "Normalize"
            is_altered = callable(value) or (isinstance(value, torch.Tensor) and not is_number)
            is_altered |= isinstance(value, dict) and bool(value)
        refuse_if(is_altered, f"{type(op).__name__}.{name} was replaced or added")


def _is_of(op: Any, name: str) -> bool:
    """Tell whether an operation has exactly the class of this name, of v1, of v2 or of timm."""
    modules = (_TIMM,) if name in _CONVERSIONS else _MODULES
    return type(op) in [getattr(sys.modules.get(module), name, type(None)) for module in modules]


def _version_of(op: Any) -> int:
    return 2 if type(op).__module__.startswith(_MODULES[1]) else 1


def _plan_of(op: Any) -> str:
    """Return the name that an operation of torchvision has in originals.txt."""
    return f"v{_version_of(op)}.{type(op).__name__}"


def plans_of(ops: Iterable[Any]) -> Iterator[str]:
    """Yield the names that operations of torchvision, and the operations inside them, have in
    originals.txt."""
    for op in ops:
        if type(op).__module__.startswith((_MODULES[0], _TIMM)):
            yield _plan_of(op)
            inside = vars(op).get("transforms")
            yield from plans_of(inside if type(inside) in (list, tuple) else ())


def _draw_and(change: Callable[[Any], Any], image: Any) -> Any:
    torch.rand(1)
    return change(image)


def _compare_holder(cls: Any, is_unknown: bool) -> str:
    """Return in which case a Compose or RandomApply differs from fastloop's, or "". It holds two
    functions whose order matters."""
    pil: Any = sys.modules["PIL.ImageOps"]
    given = cls([partial(_draw_and, f) for f in (pil.invert, partial(pil.posterize, bits=3))])
    parts = color.RandomInvert(1.0), color.RandomPosterize(3, 1.0)
    held: Any = image_ops.get_operation(cls.__name__)
    alone = Chain(_PIL, list(held(parts)._operations()), version=_version_of(given))
    return find_difference(given, alone, "PIL", is_unknown)


def _check_known(op: Any) -> None:
    """Refuse a Compose or RandomApply that is altered, or of whose code fastloop does not know that
    it does the same."""
    _check_unaltered(op)
    find = partial(_compare_holder, type(op))
    why = originals.judge([_plan_of(op)], originals.Battery("transforms", "holder", find)).why
    refuse_if(why, why)


def listed(op: Any) -> Any:
    """Return the operations inside a Compose or a RandomApply of torchvision. Raises ValueError."""
    name, kind = type(op).__name__, type(op.transforms)
    text = f"{name}.transforms must be a list or tuple, got {kind.__name__}"
    refuse_if(kind not in (list, tuple), text)
    return op.transforms


def parts_of(op: Any) -> Any:
    """Return the operations that an object runs one after the other, and nothing besides; None: the
    object is an operation itself. Raises ValueError."""
    if type(op) in (nn.Sequential, nn.Identity):
        _check_unaltered(op)
        return list(op._modules.values())
    if not _is_of(op, "Compose"):
        return None
    _check_known(op)
    return listed(op)


def is_gate(op: Any) -> bool:
    """Tell whether an operation is an unaltered RandomApply of torchvision, which draws a number
    and then runs its operations or none. Raises ValueError."""
    if not _is_of(op, "RandomApply"):
        return False
    _check_known(op)
    return type(op.p) in (float, int) and listed(op) is not None


def is_plain_v1(op: Any, *names: str) -> bool:
    """Tell whether an operation has one of these classes of torchvision's v1. Raises ValueError if
    the operation was altered."""
    is_known = any(_is_of(op, name) for name in names)
    if is_known:
        _check_unaltered(op)
    return is_known and _version_of(op) == 1


@dataclass
class Chain:
    """The operations of a transform of torchvision.

    Attributes:
        form: what images are after the operations read so far; at first _PIL or _BYTES.
        ops: as compile_plan() takes them.
        things: the objects that were read.
        tensors: those among their attributes, each with its numbers.

    Raises:
        ValueError: fastloop does not do an operation; the text says why.
    """

    form: str
    ops: list[Geometry | Values] = field(default_factory=list)
    things: list[Any] = field(default_factory=list)
    tensors: tuple[tuple[torch.Tensor, Any], ...] = ()
    was_pil: bool = False  # at first
    is_single: bool = False  # results keep their class and strides, and memory of their own
    version: int = 0  # of the operations read so far; 0: none
    is_tv_tensor: bool = False  # an Image of tv_tensors
    has_strides_by_size: bool = False  # of results: a tensor that was PIL is padded if too small
    is_view: bool = False  # a tensor may be the image, or part of a larger tensor
    is_expanded: bool = False  # channels of a tensor may share memory: what follows has its strides
    is_known: bool = True  # the code of all operations is
    is_grey: bool = False  # images are known to have one channel
    is_info_known: bool = True  # versions differ in what a padding of 0 does to a PIL image's info

    def read(self, op: Any) -> None:
        """Add an operation."""
        name = type(op).__name__
        if (parts := parts_of(op)) is not None:
            self.things.append(op)
            self.is_known &= not originals.find_unknown(_plan_of(op))
            for part in parts:
                self.read(part)
            return
        is_done = name in _READERS and _is_of(op, name)
        refuse_if(not is_done, f"fastloop does not do {name}, operation {len(self.things)}")
        _check_unaltered(op)
        self.things.append(op)
        is_mixed, self.version = self.version not in (0, _version_of(op)), _version_of(op)
        refuse_if(is_mixed, f"{name} is of another version than the operations before it")
        reader, *forms = _READERS[name]
        is_late = bool(forms) and self.form not in forms
        refuse_if(is_late, f"{name} stands where images are not {' or '.join(forms)}")
        keeps = reader in (Chain._read_gate, Chain._convert, Chain._to_float)
        self._check_strides(name, self.form == _BYTES and not keeps)
        before, form = len(self.ops), self.form
        reader(self, op)
        self._judge(op, self.ops[before:], form)

    def _judge(self, op: Any, ops: list[Any], form: str) -> None:
        """Refuse an operation whose code fastloop does not know, unless a battery finds no
        difference.

        Args:
            ops: what the operation was read as; `form`: what images are before.
        """
        name, unit = type(op).__name__, [_Unit()] if form == _FLOATS else []
        alone = Chain(self.form, [*unit, *ops], version=self.version)
        key = f"{form} {[(type(each).__name__, vars(each)) for each in alone.ops]}"
        find = partial(find_difference, op, alone, form.rpartition(" ")[2])
        battery = originals.Battery("transforms", key, find, name in _PROVEN)
        verdict = originals.judge([f"v{self.version}.{name}"], battery)
        refuse_if(verdict.why, verdict.why)
        self.is_known &= not verdict.about

    def compile(
        self, shape: tuple[int, ...], layout: str, out_layout: str = "CHW"
    ) -> tuple[Plan, ImageDraws]:
        """Return a plan for images of this shape, 0 for edges that differ, and its draws."""
        plan = compile_plan(tuple(self.ops), shape, layout, out_layout, may_differ=True)
        asked: Any = [partial(_of_float, function) for function in (torch.exp, torch.log)]
        asked.append(torchvision_policies.find_coefficients)
        asked.append(partial(torchvision_policies.find_weights, self.version == 1))
        return plan, ImageDraws(plan.core, self.version == 1, bool(is_fused()), *asked)

    def note(self) -> Callable[[], bool]:
        """Return a function that tells whether the objects are still what was read."""
        is_same, tensors = Snapshot(self.things).is_same, self.tensors
        if not tensors:
            return is_same
        return lambda: (
            is_same()
            and all(
                each.tolist() == numbers and not each.requires_grad for each, numbers in tensors
            )
        )

    @property
    def makes_pil(self) -> bool:
        return self.form == _PIL

    @property
    def makes_floats(self) -> bool:
        return self.form == _FLOATS

    def _add(self, op: Any, **others: Any) -> Any:
        """Add fastloop's operation of this name, and return the operation; `others`: arguments in
        place of attributes."""
        own = make_own(image_ops.get_operation(type(op).__name__), op, **others)
        self.ops += own._operations()
        if isinstance(own, color.Color):
            whose = "PIL" if self.makes_pil else f"v{self.version}"
            own.arithmetic = IMAGE_ARITHMETICS[whose]
        return own

    # ---- one function for each sort of operation

    def _check_strides(self, name: str, changes: bool) -> None:
        text = f"{name} stands after a grey tensor, and strides depend on chance"
        refuse_if(self.is_single and self.is_expanded and changes, text)

    def _read_held(self, parts: Any) -> list[Any]:
        """Return fastloop's operations for operations inside another one."""
        before, self.ops = self.ops, []
        for part in parts:
            self.read(part)
        held, self.ops = self.ops, before
        return held

    def _read_gate(self, op: Any) -> None:
        name, form, parts = type(op).__name__, self.form, listed(op)
        if name == "RandomApply":
            own: Any = image_ops.RandomApply(self._read_held(parts), op.p)
        else:
            refuse_if(self.version == 1, f"{name} of v1 draws from Python's random")
            held = (self._read_held([part]) for part in parts)
            branches = [image_ops.Compose(h) if h else image_ops.Identity() for h in held]
            own = getattr(image_ops, name)(branches)
            self._check_strides(name, len(branches) > 1)
        for branch, p in zip(own.parts, op.p if name == "RandomChoice" else (), strict=False):
            refuse_if(not draws_choices(), "fastloop does not know how torch chooses here")
            branch.p = arg.read_probability(f"{name}: p", p)
        self.ops.append(own)
        refuse_if(self.form != form, f"{name} holds a conversion")

    def _color(self, op: Any) -> None:
        """Read an operation on colours: PIL images have Pillow's arithmetic, tensors have v1's or
        v2's."""
        name, is_pil, is_v1 = type(op).__name__, self.form == _PIL, self.version == 1
        late = "a tensor that was a PIL image changes colours; change colours before ToImage"
        refuse_if(self.is_single and self.was_pil and not is_pil, late)
        refuse_if(not is_pil and not is_fused(), "torch rounds colours twice without AVX2")
        is_black = is_pil and name == "RandomPosterize" and op.bits == 0
        refuse_if(is_black, "Pillow 13 cannot posterize to 0 bits")
        is_wrapped = not is_pil and name == "RandomSolarize" and op.threshold < 0
        refuse_if(is_wrapped, "torch compares bytes with the threshold as a byte")
        is_grey = name == "Grayscale" and op.num_output_channels == 3
        refuse_if(is_grey and is_v1 and not is_pil, "v1 keeps one channel of grey tensors")
        is_turned = name == "ColorJitter" and op.hue is not None
        turned = "v1 changes the strides of tensors with their hue"
        refuse_if(is_turned and is_v1 and not is_pil and self.is_single, turned)
        self.is_expanded |= not is_pil and (is_grey or name == "RandomGrayscale")
        # Pillow's image is read-only, or not, after channels have been permuted.
        self.is_view |= name in ("RandomChannelPermutation", "RandomPhotometricDistort")
        self.is_grey |= name == "Grayscale" and op.num_output_channels == 1
        self._add(op)

    def _crop(self, op: Any) -> None:
        name, may_pad = type(op).__name__, getattr(op, "pad_if_needed", False)
        if name != "CenterCrop":
            is_filled = op.padding_mode == "constant" or (self.form == _PIL and not may_pad)
            if type(op.fill) is not int or not is_filled:
                raise ValueError(f"fastloop does not do the fill or the padding_mode of {name}")
        self._add(op)
        padding = getattr(op, "padding", None)
        self.is_info_known &= padding is None or padding not in (0, [0], [0] * 2, [0] * 4)
        self.is_view |= self.form != _PIL and name != "Pad"
        may_pad |= name == "CenterCrop"
        self.has_strides_by_size |= may_pad and self.form != _PIL and self.was_pil

    def _resize(self, op: Any) -> None:
        """Take resizes with the weights of Pillow, or of torch; v1 resizes tensors as floats."""
        is_pil = self.form == _PIL
        if self.version == 1 and self.form != _PIL:
            raise ValueError("fastloop does not resize tensors as v1 does")
        # For PIL images torchvision takes None as True, and warns of False.
        resize = self._add(op, antialias=True if is_pil and op.antialias is None else op.antialias)
        self.is_view |= not is_pil  # of the size that is asked for
        late = "a tensor that was a PIL image is resized; resize before ToImage"
        refuse_if(self.is_single and self.was_pil and not is_pil, late)
        if is_pil:
            nearest = "fastloop does not resize PIL images by nearest pixels"
            refuse_if("nearest" in resize.interpolation, nearest)
            resize.interpolation = find_pillow() + (resize.interpolation == "bicubic")

    def _warp(self, op: Any) -> Any:
        """Take operations that sample PIL images at computed positions, and policies."""
        name = type(op).__name__
        how = arg.read_interpolation(f"{name}: interpolation", op.interpolation)
        refuse_if(how == "nearest-exact", f"fastloop does not do {name} with {how!r}")
        own = self._add(op, interpolation="nearest")
        own.interpolation, own.is_v1 = INTERPOLATIONS[how], self.version == 1
        if name.endswith(("Augment", "AugmentWide", "Mix")):
            torchvision_policies.check_strengths(op, own)
        return own

    def _mix(self, op: Any) -> None:
        """Take AugMix, which makes tensors of PIL images and has the arithmetic of tensors."""
        is_late = self.is_single and self.was_pil and self.form != _PIL
        refuse_if(is_late, "AugMix mixes a tensor that was a PIL image; mix before ToImage")
        refuse_if(self.version == 1 and op.fill is not None, "AugMix of v1 has a fill")
        alpha = op.alpha
        refuse_if(type(alpha) is not float, f"AugMix: alpha must be a float, got {alpha!r}")
        self._warp(op).arithmetic = IMAGE_ARITHMETICS[f"v{self.version}"]
        is_known = is_fused() and torchvision_policies.rounds_positions()
        refuse_if(not is_known, "fastloop does not know how torch rounds AugMix here")
        self.is_view = False

    def _blur(self, op: Any) -> None:
        is_short = self.is_grey and min(op.kernel_size) <= 3
        refuse_if(is_short, "torch blurs grey images with 3 taps in an order of its own")
        has_order: Any = torch.backends.mkldnn.enabled
        refuse_if(not has_order, "torch sums blurs in a different way")
        self._add(op)

    def _convert(self, op: Any) -> None:
        self.form = _BYTES if self.form == _PIL else self.form
        self.is_tv_tensor = type(op).__name__ == "ToImage"

    def _to_float(self, op: Any) -> None:
        """Read an operation that makes floats of bytes. ToTensor has no attribute ``dtype``, and
        only ToDtype has an attribute ``scale``."""
        name, dtype = type(op).__name__, getattr(op, "dtype", torch.float32)
        refuse_if(dtype is not torch.float32, f"{name} makes {dtype}, not torch.float32")
        divides = self.version == 1 or name == "ToTensor"
        by_v2 = image_ops.ToDtype(dtype, getattr(op, "scale", True))
        self.ops.append(_Unit() if divides else by_v2)
        self.form, self.is_view = _FLOATS, False

    def _normalize(self, op: Any) -> None:
        numbers = dict[str, Any]()
        for name, value in (("mean", op.mean), ("std", op.std)):
            if isinstance(value, torch.Tensor):
                is_plain = type(value) is torch.Tensor and value.device.type == "cpu"
                is_plain = is_plain and value.ndim == 1 and not value.requires_grad
                refuse_if(not is_plain, f"Normalize.{name} is not a plain tensor of numbers")
                numbers[name] = value.tolist()
                self.tensors += ((value, value.tolist()),)
        self._add(op, **numbers)
        self.is_view &= bool(op.inplace)


# By name: the function that reads the operation, and the forms that images may have before it.
_READERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("RandomApply", "RandomChoice", "RandomOrder"), (Chain._read_gate,)),
    **dict.fromkeys(_COLORS, (Chain._color, _PIL, _BYTES)),
    **dict.fromkeys(("RandomHorizontalFlip", "RandomVerticalFlip", "Identity"), (Chain._add,)),
    **dict.fromkeys(("RandomCrop", "Pad", "CenterCrop"), (Chain._crop,)),
    "GaussianBlur": (Chain._blur, _PIL),
    "RandomErasing": (Chain._add, _FLOATS),
    **dict.fromkeys(("Resize", "RandomResizedCrop"), (Chain._resize, _PIL, _BYTES)),
    **dict.fromkeys(("RandomRotation", "RandomAffine", "RandomPerspective"), (Chain._warp, _PIL)),
    **dict.fromkeys(("RandAugment", "TrivialAugmentWide", "AutoAugment"), (Chain._warp, _PIL)),
    "AugMix": (Chain._mix, _PIL, _BYTES),
    **dict.fromkeys(("ToTensor", "MaybeToTensor"), (Chain._to_float, _PIL)),
    **dict.fromkeys(("PILToTensor", "MaybePILToTensor"), (Chain._convert, _PIL)),
    "ToImage": (Chain._convert, _PIL, _BYTES),
    "ToPureTensor": (Chain._convert, _BYTES, _FLOATS),
    **dict.fromkeys(("ToDtype", "ConvertImageDtype"), (Chain._to_float, _BYTES)),
    "Normalize": (Chain._normalize, _FLOATS),
}


def open_plan(
    transform: Any, shape: tuple[int, ...], layout: str
) -> tuple[Plan, ImageDraws, Callable[[], bool], str, bool]:
    """Return the plan of a transform of PIL images, its draws, a function that tells whether the
    objects that the plan was made of are the same, a key: a text that differs from plan to plan,
    and whether fastloop knows torchvision's code. Raises ValueError.

    Args:
        shape, layout: of images; 0 for edges that differ.
    """
    try:
        chain = read_chain(transform)
        plan, draws = chain.compile(shape, layout)
        shown = [(op, getattr(op, "p", None)) for op in chain.ops]
    except Exception as error:  # attributes may be anything that torchvision does not look at
        raise ValueError(f"the transform: {error}") from None
    key = f"{shape} {chain.version} {shown}"
    return plan, draws, chain.note(), key, chain.is_known


def prepare() -> None:
    """Compare torchvision's code before the first transform: a process that this one forks, or
    sends its forms to, then knows the result."""
    _compare(_MODULES[1] in sys.modules, _TIMM in sys.modules)
    find_obstacle()  # notes the functions that nobody may replace


@cache  # each fork asks, and to find the functions takes milliseconds
def _compare(has_v2: bool, has_timm: bool) -> None:
    versions = ("v1", "v2")[: 1 + has_v2]
    names = {"Compose", *_READERS}.difference(() if has_timm else _CONVERSIONS)
    if not originals.find_unknown(*(f"{each}.{name}" for each in versions for name in names)):
        is_fused()


def new_chain(is_tensor: bool, is_single: bool) -> Chain:
    """Return a chain without operations, for tensors of bytes [C, H, W] or for PIL images. Raises
    ValueError.

    Args:
        is_single: the result is handed out without a copy, so more chains are refused.
    """
    refuse_if(why := find_obstacle(), why)
    if not has_interpreter_lock():
        raise ValueError("threads run without the interpreter lock")
    if is_fused() is None:
        raise ValueError("fastloop does not know how torch rounds uniform numbers here")
    form = _BYTES if is_tensor else _PIL
    return Chain(form, was_pil=not is_tensor, is_single=is_single, is_view=is_tensor)


def read_chain(transform: Any) -> Chain:
    """Return what a transform does with PIL images. Raises ValueError."""
    chain = new_chain(is_tensor=False, is_single=False)
    chain.read(transform)
    refuse_if(chain.form == _PIL, "the transform makes no tensor")
    return chain
