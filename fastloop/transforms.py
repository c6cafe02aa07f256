"""Image operations that the loader does in C: names, arguments and defaults of torchvision's v2.

Pass them as ``ArrayDataset(images, labels, transform=Compose([...]))``. docs/transforms.md says
what they are equal to, and where their random numbers come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from fastloop.data.transforms.arguments import InterpolationMode
from fastloop.data.transforms.batches import CutMix, MixUp
from fastloop.data.transforms.color import (
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from fastloop.data.transforms.dataset_transform import remedy_for
from fastloop.data.transforms.ops import (
    CenterCrop,
    Compose,
    Identity,
    Normalize,
    Pad,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomOrder,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToImage,
    ToPureTensor,
)
from fastloop.data.transforms.policy import (
    AugMix,
    AutoAugment,
    AutoAugmentPolicy,
    RandAugment,
    TrivialAugmentWide,
)
from fastloop.data.transforms.warp import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AugMix",
    "AutoAugment",
    "AutoAugmentPolicy",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Identity",
    "InterpolationMode",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "TrivialAugmentWide",
]


if not TYPE_CHECKING:  # type checkers must not take every name for defined

    def __getattr__(name: str) -> NoReturn:
        text = f"module {__name__!r} has no attribute {name!r}"
        if not name.startswith("_"):
            text += f", because C has no such operation; {remedy_for(name)}"
        raise AttributeError(text)
