"""MixUp and CutMix: operations on whole batches with torchvision v2's arguments and arithmetic.

If you call an operation, it draws from torch's generator, as torchvision's do. As
``batch_transform=`` of a loader, its parameters are a function of seed, epoch and number of the
batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastloop.base import checks
from fastloop.base.nested import list_leaves, map_leaves
from fastloop.base.threads import thread_pool

__all__ = ["CutMix", "MixUp"]

Params = dict[str, Any]


class _Draws(NamedTuple):
    beta: Callable[[float], float]  # draws from Beta(alpha, alpha)
    below: Callable[[int], int]
    choose: Callable[[Sequence[float]], int]  # draws an index, given probabilities


def _draw_of_torch(alpha: float) -> float:
    both = torch.tensor([alpha])
    return float(torch.distributions.Beta(both, both).sample(()))


_TORCHS = _Draws(
    _draw_of_torch,
    lambda count: int(torch.randint(count, (1,))),
    lambda p: int(torch.multinomial(torch.tensor(p), 1)),
)


def _keyed(seed: int, epoch: int, batch: int) -> _Draws:
    """Return draws from Python's generator, seeded with the key as a text."""
    numbers = random.Random(f"{seed} {epoch} {batch}")
    return _Draws(
        lambda alpha: numbers.betavariate(alpha, alpha),
        numbers.randrange,
        lambda p: numbers.choices(range(len(p)), p)[0],
    )


def _find_labels(batch: Any) -> Any:
    """Return the labels of a batch, found as torchvision finds labels."""
    second = batch[1] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(second, Mapping):
        return second
    keys = [key for key in second if "label" in str(key).lower()]
    exact = [key for key in keys if key.lower() == "labels"]
    rule = "a batch (images, labels), or a dict with a key like 'labels'"
    checks.check_value("labels", list(second), keys, rule, "pass labels_getter=")
    return second[(exact or keys)[0]]


class BatchOp:
    """Base of the operations on batches."""

    seed = 0

    def draw(self, draws: _Draws, size: tuple[int, int]) -> Params:
        """Return the parameters for a batch of images with this (height, width)."""
        raise NotImplementedError

    def apply(self, batch: Any, params: Params, in_place: bool) -> Any:
        """Return the mixed batch. If in_place, the images are overwritten."""

    def draw_and_apply(self, batch: Any, draws: _Draws, in_place: bool) -> Any:
        """Draw parameters, and return the mixed batch."""

    def params(self, batch: int, epoch: int, size: tuple[int, int]) -> Params:
        """Return the parameters that a loader gives a batch.

        Args:
            batch: the batch's number in the epoch, from 0.
            epoch: the loader's epoch, from 0, or the epoch of a sampler's ``set_epoch()`` if that
                is larger.
            size: (height, width) of the images.
        """
        return self.draw(_keyed(self.seed, epoch, batch), size)

    def __call__(self, *inputs: Any) -> Any:
        batch = inputs if len(inputs) > 1 else inputs[0]
        return self.draw_and_apply(batch, _TORCHS, in_place=False)

    def apply_keyed(self, batch: Any, epoch: int, number: int, in_place: bool) -> Any:
        return self.draw_and_apply(batch, _keyed(self.seed, epoch, number), in_place)


class _Mix(BatchOp):
    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        labels_getter: Any = "default",
        seed: int = 0,
    ) -> None:
        self.alpha = checks.read_number("alpha", alpha, 0)
        checks.check_value("alpha", alpha, 0 < self.alpha < math.inf, "a finite number > 0")
        self.num_classes = checks.read_optional_int("num_classes", num_classes, 1)
        if not callable(labels_getter):
            checks.read_choice("labels_getter", labels_getter, ("default",))
        self.labels_getter = labels_getter
        self.seed = checks.read_int("seed", seed, 0, 2**64 - 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, num_classes={self.num_classes})"

    def _find(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        getter = _find_labels if self.labels_getter == "default" else self.labels_getter
        name, labels = type(self).__name__, getter(batch)
        text = f"The labels must be a tensor, but got {type(labels)} instead."
        checks.refuse_if(not isinstance(labels, Tensor), text)
        leaves = (leaf for _, leaf in list_leaves(batch) if isinstance(leaf, Tensor))
        images = next((leaf for leaf in leaves if leaf is not labels), labels)
        rule = "indices [N], or probabilities [N, num_classes]"
        widths = labels.shape[1:]  # one number if the labels are probabilities
        fits = labels.ndim == 1 or (labels.ndim == 2 and self.num_classes in (None, *widths))
        checks.check_value(f"{name}: labels", tuple(labels.shape), fits, rule)
        if labels.ndim == 1 and self.num_classes is None:
            raise ValueError("num_classes must be passed if the labels are index-based (1D)")
        fits = images.ndim == 4 and len(images) == len(labels)
        rule = f"[{len(labels)}, C, H, W] for as many labels"
        checks.check_value(f"{name}: images", tuple(images.shape), fits, rule)
        return images, labels

    def draw_and_apply(self, batch: Any, draws: _Draws, in_place: bool) -> Any:
        _, _, height, width = self._find(batch)[0].shape
        return self.apply(batch, self.draw(draws, (height, width)), in_place)

    def apply(self, batch: Any, params: Params, in_place: bool) -> Any:
        images, labels = self._find(batch)
        found = one_hot(labels, self.num_classes or -1) if labels.ndim == 1 else labels
        found = found if found.dtype.is_floating_point else found.float()
        mixed = _mix(found, params["lam_adjusted" if "lam_adjusted" in params else "lam"])
        there = {id(labels): mixed, id(images): self._change(images, params, in_place)}
        return map_leaves(batch, lambda _, leaf: there.get(id(leaf), leaf))

    def _change(self, images: Tensor, params: Params, in_place: bool) -> Tensor:
        raise NotImplementedError


def _mix(values: Tensor, share: float) -> Tensor:
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))


class MixUp(_Mix):
    """Mix each image of a batch with the one before it.

    Args:
        alpha: the parameter of the Beta distribution of each image's share.
        num_classes: the number of classes if labels are indices; None if they are probabilities.
        labels_getter: a function from the batch to its labels. "default": the second item, or a
            dict's entry with a name like "labels".
        seed: the seed of parameters in a loader.
    """

    def draw(self, draws: _Draws, size: tuple[int, int]) -> Params:
        return {"lam": draws.beta(self.alpha)}

    def _change(self, images: Tensor, params: Params, in_place: bool) -> Tensor:
        share = params["lam"]
        dtype, remedy = images.dtype, "put ToDtype(torch.float32, scale=True) into the transform"
        is_float = dtype.is_floating_point
        checks.check_type("MixUp: images", dtype, is_float, "of a float dtype", remedy)
        rows = images if images.is_contiguous() else images.movedim(1, -1)
        if not in_place or type(images) is not Tensor or dtype is not torch.float32:
            return _mix(images, share)
        if not rows.is_contiguous() or rows.device.type != "cpu":
            return _mix(images, share)
        thread_pool().mix_rows(rows.flatten(1).numpy(), share, 1.0 - share)
        return images


class CutMix(_Mix):
    """Put a rectangle of the image before into each image of a batch.

    Args:
        alpha: the parameter of the Beta distribution of the area that stays.
        num_classes, labels_getter, seed: as in MixUp.
    """

    def draw(self, draws: _Draws, size: tuple[int, int]) -> Params:
        lam, (height, width) = draws.beta(self.alpha), size
        x, y = draws.below(width), draws.below(height)
        half = 0.5 * math.sqrt(1.0 - lam)
        x_half, y_half = int(half * width), int(half * height)
        x1, y1 = max(x - x_half, 0), max(y - y_half, 0)
        x2, y2 = min(x + x_half, width), min(y + y_half, height)
        lam = float(1.0 - (x2 - x1) * (y2 - y1) / (width * height))
        return {"box": (x1, y1, x2, y2), "lam_adjusted": lam}

    def _change(self, images: Tensor, params: Params, in_place: bool) -> Tensor:
        x1, y1, x2, y2 = params["box"]
        images = images if in_place else images.clone()
        box = images[..., y1:y2, x1:x2]
        box.copy_(box.roll(1, 0))
        return images


class BatchChoice(BatchOp):
    """Apply one of several operations on batches; ``RandomChoice`` of them makes it."""

    def __init__(self, transforms: Sequence[BatchOp], p: Sequence[float]) -> None:
        self.transforms, self.p = list(transforms), list(p)
        self.seed = transforms[0].seed

    def __repr__(self) -> str:
        return f"RandomChoice({self.transforms}, p={self.p})"

    def draw(self, draws: _Draws, size: tuple[int, int]) -> Params:
        chosen = draws.choose(self.p)
        return {"chosen": chosen, **self.transforms[chosen].draw(draws, size)}

    def draw_and_apply(self, batch: Any, draws: _Draws, in_place: bool) -> Any:
        return self.transforms[draws.choose(self.p)].draw_and_apply(batch, draws, in_place)

    def apply(self, batch: Any, params: Params, in_place: bool) -> Any:
        return self.transforms[params["chosen"]].apply(batch, params, in_place)
