"""timm's transforms of ``create_transform`` for images in training: what they draw, and plans.

timm draws from Python's ``random``, from NumPy and from torch. Here Python draws in timm's order,
with the same functions, and native code gets the drawn numbers. What is not known exactly is
refused.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fastloop._core import INTERPOLATIONS
from fastloop.adapters import originals
from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters.torchvision_battery import images_of
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import running_original
from fastloop.data.transforms import ops as image_ops
from fastloop.data.transforms.plan import Plan, compile_plan

_COUNT = {False: 128, True: 256}  # of a battery: of code that fastloop does not know: True
_MOST_STEPS = 16
_FILTERS = {2: INTERPOLATIONS["bilinear"], 3: INTERPOLATIONS["bicubic"]}  # by Pillow's numbers
_LAST = "MaybePILToTensor", "MaybeToTensor", "Normalize"
_FLIPS = "RandomHorizontalFlip", "RandomVerticalFlip"
_SAME = "Invert", "Solarize", "Contrast", "Color", "Brightness", "Sharpness", "Equalize", "Rotate"
# By the name of timm's function: the name of a step, and the numbers of the step for the width and
# height of the image and timm's argument.
_STEPS: dict[str, tuple[str, Callable[..., tuple[float, ...]]]] = {
    **{name.lower(): (name, lambda w, h, *given: given) for name in _SAME},
    "auto_contrast": ("AutoContrast", lambda w, h: ()),
    "solarize_add": ("SolarizeAdd", lambda w, h, x: (x,)),
    "posterize": ("Posterize", lambda w, h, x: (max(x, 0),)),
    "desaturate": ("Color", lambda w, h, x: (min(1.0, max(0.0, 1.0 - x)),)),
    "shear_x": ("Affine", lambda w, h, x: (1, x, 0, 0, 1, 0)),
    "shear_y": ("Affine", lambda w, h, x: (1, 0, 0, x, 1, 0)),
    "translate_x_rel": ("Affine", lambda w, h, x: (1, 0, x * w, 0, 1, 0)),
    "translate_y_rel": ("Affine", lambda w, h, x: (1, 0, 0, 0, 1, x * h)),
    "translate_x_abs": ("Affine", lambda w, h, x: (1, 0, x, 0, 1, 0)),
    "translate_y_abs": ("Affine", lambda w, h, x: (1, 0, 0, 0, 1, x)),
}


@lru_cache(64)
def _without_pixels(size: tuple[int, int]) -> Any:
    """Return an image of PIL that has a size alone."""
    image = sys.modules["PIL.Image"].Image()
    image._size = size
    return image


def get_states() -> tuple[Any, ...]:
    """Return the states of ``random`` and of NumPy's generator, which can be compared."""
    name, words, *rest = np.random.get_state()
    return random.getstate(), (name, np.asarray(words).tobytes(), *rest)


def set_states(states: tuple[Any, ...]) -> None:
    of_random, (name, words, *rest) = states
    random.setstate(of_random)
    np.random.set_state((name, np.frombuffer(words, np.uint32), *rest))


class _Erasing:
    """Takes what timm's RandomErasing writes, in place of an image that is not made yet."""

    def __init__(self, shape: tuple[int, ...], writes: list[Any]) -> None:
        self._shape, self._writes, self.dtype = shape, writes, torch.float32

    def size(self) -> tuple[int, ...]:
        return self._shape

    def __setitem__(self, where: Any, pixels: torch.Tensor) -> None:
        self._writes.append((where, pixels))


def _choose(one: Any) -> Any:
    """Draw one of several, as timm does."""
    return random.choice(one) if isinstance(one, list | tuple) else one


def _colors_of(op: Any) -> tuple[Any, Sequence[Any]]:
    """Return the RandomApply that an operation is, or None, and the operations on colors. Raises
    ValueError."""
    gate = op if chains.is_plain_v1(op, "RandomApply") else None
    parts: Sequence[Any] = chains.listed(op) if gate is not None else (op,)
    for part in parts:
        is_known = chains.is_plain_v1(part, "ColorJitter", "RandomGrayscale")
        is_known = is_known and vars(part).get("hue") is None
        refuse_if(not is_known, f"fastloop does not do {part}")
    return gate, parts


def _draw_color(op: Any) -> list[Any]:
    """Draw for an operation on colors as its ``forward``. Return the steps."""
    if type(op).__name__ == "RandomGrayscale":
        return [("Color", 0, 0.0)] if torch.rand(1) < op.p else []
    order, *factors = op.get_params(op.brightness, op.contrast, op.saturation, op.hue)
    names = "Brightness", "Contrast", "Color", ""  # a factor of the hue is None
    return [(names[i], 0, factors[i]) for i in order.tolist() if factors[i] is not None]


def _each(one: Any) -> Sequence[Any]:
    return one if isinstance(one, list | tuple) else (one,)


class Draws:
    """The transforms of timm that make a sample.

    Args:
        holder: of the list of transforms, which must not change.

    Raises:
        ValueError: fastloop does not do a transform; the text says why.
    """

    def __init__(self, transforms: Sequence[Any], holder: Any) -> None:
        kinds = sys.modules["timm.data.transforms"]
        names = [type(op).__name__ for op in transforms]
        end = next((i for i, name in enumerate(names) if name in _LAST), 0)
        is_known = end > 0 and type(transforms[0]) is kinds.RandomResizedCropAndInterpolation
        self._crop, self._border, self._ops = transforms[0], (0, 0, 0), list[Any]()
        self._flips = [op for op in transforms[1:3] if chains.is_plain_v1(op, *_FLIPS)]
        rest = transforms[1 + len(self._flips) : end]
        refuse_if(not is_known, f"fastloop does not do {', '.join(names)}")
        self._read_tail(transforms[end:])
        how = {getattr(each, "value", None) for each in _each(self._crop.interpolation)}
        is_known = bool(how) and how <= {"bilinear", "bicubic"}
        refuse_if(not is_known, "the crop has another filter, or a list of none")
        refuse_if("get_params" in vars(self._crop), "get_params was replaced")
        has_policy = bool(rest) and type(rest[0]).__module__ == "timm.data.auto_augment"
        self._policy: Any = rest[0] if has_policy else None
        self._colors = [_colors_of(op) for op in rest[has_policy:]]
        colors = [part for _, parts in self._colors for part in parts]
        if has_policy:
            self._read_policy(_MOST_STEPS - 3 * len(colors))
        self.transforms, self._plans = list(transforms), dict[Any, Plan]()
        lists = [SimpleNamespace(part=part) for part in getattr(self._policy, "policy", ())]
        self._tail.things += [holder, *transforms, *self._ops, *lists, *colors]
        self.has_same = self._tail.note()

    def _read_tail(self, transforms: Sequence[Any]) -> None:
        """Read the conversion to a tensor, and what follows."""
        is_erased = type(transforms[-1]) is sys.modules["timm.data.random_erasing"].RandomErasing
        self._erase = transforms[-1] if is_erased else None
        self._tail = chains.new_chain(is_tensor=False, is_single=True)
        for op in transforms[: -1 if is_erased else None]:
            refuse_if(type(op).__name__ not in _LAST, f"fastloop does not do {op} here")
            self._tail.read(op)
        is_known = self._tail.makes_floats and getattr(self._erase, "device", "cpu") == "cpu"
        refuse_if(is_erased and not is_known, "RandomErasing erases no floats on the CPU")

    @property
    def layout(self) -> str:
        """The layout of samples that the program may see: they have timm's strides."""
        return "CHW" if self._tail.makes_floats else "channels_last"

    def _read_policy(self, most: int) -> None:
        module, kind = sys.modules["timm.data.auto_augment"], type(self._policy)
        is_rand = kind is module.RandAugment
        refuse_if(not is_rand and kind is not module.AutoAugment, f"fastloop does not do {kind}")
        parts = [self._policy.ops] if is_rand else self._policy.policy
        layers = self._policy.num_layers if is_rand else max(map(len, parts))
        refuse_if(not 0 <= layers <= most, f"more than {most} operations of a policy")
        self._ops = list({id(op): op for part in parts for op in part}.values())
        self._border = self._ops[0].kwargs["fillcolor"]
        for op in self._ops:
            refuse_if(type(op) is not module.AugmentOp, "an operation of another class")
            given = op.aug_fn, getattr(op.level_fn, "func", op.level_fn)
            theirs = [each is None or vars(module).get(each.__name__) is each for each in given]
            refuse_if(not all(theirs), f"the functions of {op.name} were replaced")
            refuse_if(op.aug_fn.__name__ not in _STEPS, f"fastloop does not do {op.name}")
            how = {*map(int, _each(op.kwargs["resample"]))}
            refuse_if(not how or not how <= {*_FILTERS}, f"{op.name} has another filter")
            border = op.kwargs["fillcolor"]
            is_plain = type(border) is tuple and [*map(type, border)] == [int] * 3
            is_plain = is_plain and border == self._border and {*border} <= {*range(256)}
            refuse_if(not is_plain, f"{op.name} has another fill")

    def takes(self, width: int, height: int) -> bool:
        """Tell whether no crop of such an image can have an edge of 0 pixels."""
        low, high = min(self._crop.ratio), max(self._crop.ratio)
        least: float = self._crop.scale[0] * width * height * min(low, 1 / high)
        return least >= 1 and min(width, height) >= 8 and low >= 1 / 8 and high <= 8

    def plan(self, out_layout: str, how: str = "bilinear") -> Plan:
        """Return the plan for results in this layout, with this filter of the crop."""
        key = out_layout, how
        if key not in self._plans:
            crop: Any = image_ops.get_operation("RandomResizedCrop")
            crop = crop(self._crop.size, scale=self._crop.scale, ratio=self._crop.ratio)
            crop.interpolation = chains.find_pillow() + (how == "bicubic")
            flips: list[Any] = [image_ops.get_operation(type(op).__name__) for op in self._flips]
            ops = crop, *(flip(0.5) for flip in flips), *self._tail.ops
            self._plans[key] = compile_plan(ops, (0, 0, 3), "HWC", out_layout, may_differ=True)
        return self._plans[key]

    def draw(self, width: int, height: int) -> tuple[str, Any, Any, Any]:
        """Draw for an image, in the order of timm's own calls. Return the filter of the crop, the
        numbers of the plan's operations, the steps that follow these operations, and what is
        written to the result."""
        op, policy = self._crop, self._policy
        image, steps, writes = _without_pixels((width, height)), list[Any](), list[Any]()
        drawn: list[Any] = [tuple(op.get_params(image, op.scale, op.ratio))]
        how = _choose(op.interpolation).value
        for flip in self._flips:  # 0.5 is the same in all dtypes; a tensor takes thrice as long
            rand = torch.rand(1)
            drawn.append(rand.item() < 0.5 if flip.p == 0.5 else bool(rand < flip.p))
        chosen: Any = ()
        if type(policy).__name__ == "AutoAugment":
            chosen = random.choice(policy.policy)
        elif policy is not None:
            p, most, count = policy.choice_weights, len(policy.ops), policy.num_layers
            if p is None:  # choice() then draws the same numbers in three times the time
                at = [np.random.randint(0, most) for _ in range(count)]
            else:
                at = np.random.choice(most, count, replace=False, p=p).tolist()
            chosen = [policy.ops[each] for each in at]
        for each in chosen:
            self._add(each, steps)
        for gate, parts in self._colors:
            if gate is None or not gate.p < torch.rand(1):
                steps += [step for part in parts for step in _draw_color(part)]
        if self._erase is not None:
            self._erase(_Erasing((3, *self._crop.size), writes))
        return how, tuple(drawn), tuple(steps), writes

    def _add(self, op: Any, steps: list[Any]) -> None:
        """Draw for an operation of a policy as its ``__call__``, and add the step if there is
        one."""
        if op.prob < 1.0 and random.random() > op.prob:
            return
        magnitude = op.magnitude
        if op.magnitude_std == float("inf"):
            magnitude = random.uniform(0, magnitude)
        elif op.magnitude_std > 0:
            magnitude = random.gauss(magnitude, op.magnitude_std)
        most = op.magnitude_max or sys.modules["timm.data.auto_augment"]._LEVEL_DENOM
        magnitude = max(0.0, min(magnitude, most))
        given: Any = () if op.level_fn is None else op.level_fn(magnitude, op.hparams)
        name, find_numbers = _STEPS[op.aug_fn.__name__]
        is_warp = name in ("Rotate", "Affine")
        how = _FILTERS[_choose(op.kwargs["resample"])] if is_warp else 0
        if name == "Posterize" and given[0] < 1:  # an error with Pillow 13
            op.aug_fn(sys.modules["PIL.Image"].new("RGB", (1, 1)), *given)
        if name != "Posterize" or given[0] < 8:
            steps.append((name, how, *find_numbers(*self._crop.size[::-1], *given)))

    def apply(self, image: Any, out: torch.Tensor, out_layout: str, given: Any) -> None:
        """Write what an image becomes with the drawn numbers. Any thread."""
        how, drawn, steps, writes = given
        image = np.asarray(image) if hasattr(image, "tobytes") else image  # of Pillow
        self.plan(out_layout, how).core.apply_drawn(image, out, drawn, steps, self._border)
        for where, pixels in writes:  # torch would start threads of its own in a thread
            out.numpy()[where] = pixels.numpy()

    def judge(self) -> Any:
        """Find out whether fastloop draws and makes what this timm does."""
        plans = ["TimmCrop", "v1.RandomResizedCrop"]
        plans += chains.plans_of(self.transforms)
        plans += ["TimmPolicy"] * (self._policy is not None)
        plans += ["TimmErasing"] * (self._erase is not None)
        shown = [vars(op) for op in (self._crop, *self._flips)], type(self._policy).__name__
        held = [(op.name, op.prob, op.magnitude, op.hparams, op.kwargs) for op in self._ops]
        key = f"{shown} {held} {getattr(self._policy, 'num_layers', 0)} {self._tail.ops}"
        key += f" {self._erase and vars(self._erase)}"
        key += f" {[(gate and gate.p, [*map(vars, parts)]) for gate, parts in self._colors]}"
        battery = originals.Battery("timm", key, self._find_difference, is_for_all=True)
        return originals.judge(plans, battery)

    def _find_difference(self, is_unknown: bool) -> str:
        """Make small images both ways. Return what differs, or ""."""
        crop, compared = copy(self._crop), 0
        crop.size = 40, 33
        small = Draws([crop, *self.transforms[1:]], crop)
        makers: list[Any] = [partial(_call, small.transforms), small._make]
        before = get_states()
        try:
            with running_original(), torch.random.fork_rng(devices=()):
                for seed, pixels in zip(range(_COUNT[is_unknown]), images_of(None), strict=False):
                    image = pixels.repeat(3 // pixels.shape[2], 2)
                    if not small.takes(*image.shape[1::-1]):
                        continue
                    theirs, ours = (_made(make, image, seed) for make in makers)
                    compared += 1
                    if theirs != ours:
                        return f"image {seed} differs"
        finally:
            set_states(before)
        return "" if compared > 9 else "no image can be compared"

    def _make(self, image: Any) -> torch.Tensor:
        out = self.plan(self.layout).empty()
        given = self.draw(image.shape[1], image.shape[0])
        self.apply(image, out, self.layout, given)
        return out


def _call(transforms: Sequence[Any], image: Any) -> Any:
    image = sys.modules["PIL.Image"].fromarray(image)
    for op in transforms:
        image = op(image)
    return image


def _made(make: Callable[[Any], Any], image: Any, seed: int) -> Any:
    """Return the image that `make` returns or the error that it raises, and the states of the
    generators afterwards."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        made = make(image)
        found: Any = made.dtype, made.shape, made.stride(), made.numpy().tobytes()
    except Exception as error:
        found = type(error), str(error)
    return found, get_states(), torch.get_rng_state().tolist()
