"""The operations that draw operations from a table, with names, arguments and defaults of
torchvision's v2. The core has the tables."""

# No `from __future__ import annotations`: operations read their annotations, and the import would
# turn annotations into text.

import enum
from collections.abc import Sequence
from typing import Any

from fastloop._core import IMAGE_OPS
from fastloop.base import checks
from fastloop.data.transforms import arguments as arg
from fastloop.data.transforms.plan import Parts, operation
from fastloop.data.transforms.warp import Warp

__all__ = ["AugMix", "AutoAugment", "AutoAugmentPolicy", "RandAugment", "TrivialAugmentWide"]

# In the order of fl_policy_op.
NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize"),
    *("AutoContrast", "Equalize", "Invert"),
)
_END = 100  # marks the end of a chain in AugMix


class AutoAugmentPolicy(enum.Enum):
    """The data of AutoAugment's policies, with torchvision's names."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


class Policy(Warp):
    is_color = True
    shown = ("interpolation", "fill")
    counted = ("num_ops", "magnitude", "num_magnitude_bins")

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        drawn = zip(values["order"], values["number"], strict=False)
        return {"transforms": [(NAMES[op], magnitude) for op, magnitude in drawn]}


@operation
class RandAugment(Policy):
    """Apply operations that are drawn from a table with 14 entries, all with the same strength.

    Args:
        num_ops: the number of operations, at most 8.
        magnitude: the strength, an int below ``num_magnitude_bins``.
        num_magnitude_bins: the number of strengths.
        interpolation: ``"nearest"`` or ``"bilinear"``, for operations that move pixels.
        fill: the number outside of the image, or one number for each channel. None: 0.
    """

    kind = IMAGE_OPS["RandAugment"]

    num_ops: arg.Ops = 2
    magnitude: arg.Magnitude = 9
    num_magnitude_bins: arg.Bins = 31
    interpolation: arg.Interpolation = "nearest"
    fill: arg.Fill = None

    def _check(self) -> None:
        super()._check()
        rule = f"below num_magnitude_bins={self.num_magnitude_bins}"
        arg.check(self, "magnitude", self.magnitude < self.num_magnitude_bins, rule)


@operation
class TrivialAugmentWide(Policy):
    """Apply one operation that is drawn from a table with 14 entries, with a random strength.

    Args:
        num_magnitude_bins: as in RandAugment.
        interpolation: as in RandAugment.
        fill: as in RandAugment.
    """

    kind = IMAGE_OPS["TrivialAugmentWide"]
    num_ops, magnitude = 1, 0  # drawn by chance

    num_magnitude_bins: arg.Bins = 31
    interpolation: arg.Interpolation = "nearest"
    fill: arg.Fill = None


@operation
class AutoAugment(Policy):
    """Apply one of 25 pairs of operations that were found for one dataset.

    Args:
        policy: an AutoAugmentPolicy, the dataset.
        interpolation: as in RandAugment.
        fill: as in RandAugment.
    """

    kind = IMAGE_OPS["AutoAugment"]

    policy: Any = AutoAugmentPolicy.IMAGENET
    interpolation: arg.Interpolation = "nearest"
    fill: arg.Fill = None

    def _check(self) -> None:
        super()._check()
        names = tuple(policy.value for policy in AutoAugmentPolicy)
        name = checks.look_up(self.policy, "value", self.policy)
        self.policy = AutoAugmentPolicy(checks.read_choice("AutoAugment: policy", name, names))

    def encode_numbers(self) -> Sequence[float]:
        return [list(AutoAugmentPolicy).index(self.policy)]


@operation
class AugMix(Policy):
    """Mix an image with results of several chains of operations on it, with random weights.

    Args:
        severity: a number n. Strengths are drawn from the n lowest of 10 strengths.
        mixture_width: the number of chains, at most 6.
        chain_depth: the number of operations in each chain; -1: 1 to 3, drawn at random. All chains
            together have at most 9 operations.
        alpha: the parameter of the distributions of weights.
        all_ops: also draw brightness, color, contrast and sharpness.
        interpolation: as in RandAugment.
        fill: as in RandAugment.
    """

    kind = IMAGE_OPS["AugMix"]

    severity: arg.Severity = 3
    mixture_width: arg.Chains = 3
    chain_depth: arg.Depth = -1
    alpha: arg.Positive = 1.0
    all_ops: arg.Flag = True
    interpolation: arg.Interpolation = "bilinear"
    fill: arg.Fill = None

    def encode_numbers(self) -> Sequence[float]:
        depth = max(self.chain_depth, 0)
        return [self.severity, self.mixture_width, depth, self.alpha, self.all_ops]

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        numbers, ops = iter(values["number"]), iter(values["order"])
        weights = [next(numbers) for _ in range(1 + self.mixture_width)]
        chains = [
            [(NAMES[op], next(numbers)) for op in iter(ops.__next__, _END)]
            for _ in range(self.mixture_width)
        ]
        return {"weights": weights, "transforms": chains}
