"""Image operations that the loader does in C: names, arguments and defaults of torchvision's v2.

Pass them as ``ArrayDataset(images, labels, transform=Compose([...]))``. docs/transforms.md says
what they are equal to, and where their random numbers come from.
"""

from __future__ import annotations

from fastloop.data.image_ops import (
    CenterCrop,
    Compose,
    Normalize,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)

__all__ = [
    "CenterCrop",
    "Compose",
    "Normalize",
    "Pad",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
]
