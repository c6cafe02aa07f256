"""Datasets of torchvision whose batches fastloop makes: CIFAR, MNIST and the like, with transforms
at torchvision's random numbers. docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from fastloop.adapters import torchvision_chain as chains
from fastloop.adapters.originals import find_unknown
from fastloop.adapters.torchvision_folder import CalledSamples, CutSamples, FolderSamples
from fastloop.adapters.torchvision_parts import Pixels
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import verification_of
from fastloop.data.columns import (
    Columns,
    NotCoveredError,
    Request,
    below_subsets,
    leave_if,
)
from fastloop.data.samplers import as_vector
from fastloop.loader.arrays.compared import Original

# By class: the attributes with images and labels, and how images lie in memory.
_KINDS = {
    **dict.fromkeys(("CIFAR10", "CIFAR100"), ("data", "targets", "HWC")),
    **dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "EMNIST"), ("data", "targets", "HW")),
    **dict.fromkeys(("SVHN", "STL10"), ("data", "labels", "CHW")),
}


def _images_of(dataset: Any, name: str, layout: str) -> tuple[Any, str]:
    """Return the images [count, H, W, C] or [count, C, H, W], and the layout of one."""
    images = getattr(dataset, name)
    cls, dtype = (torch.Tensor, torch.uint8) if layout == "HW" else (np.ndarray, np.uint8)
    is_bytes = type(images) is cls and images.dtype == dtype
    has_images = is_bytes and images.ndim == 1 + len(layout) and len(images) > 0
    if has_images and layout == "HW":
        images, layout = images.unsqueeze(-1), "HWC"
    if not has_images or images.shape[1 + layout.index("C")] not in (1, 3):
        raise ValueError(f"{name} of the {type(dataset).__name__} was replaced")
    return images, layout


def _find_obstacle() -> str:
    return chains.find_obstacle("arrays", "called.arrays")


def _arrays_of(dataset: Any) -> tuple[Any, str, Any]:
    """Return the images, the layout of one, and the labels. Raises ValueError."""
    name = type(dataset).__name__
    known = getattr(sys.modules["torchvision.datasets"], name, None)
    if type(dataset) is not known or name not in _KINDS:
        raise ValueError(f"fastloop does not accelerate a {name}")
    refuse_if(dataset.transform is None, f"the {name} has no transform")
    refuse_if(why := find_unknown(name) or _find_obstacle(), why)
    data, targets, layout = _KINDS[name]
    images, layout = _images_of(dataset, data, layout)
    labels: Any = as_vector(getattr(dataset, targets))
    if labels is None or len(labels) != len(images):
        raise ValueError(f"{targets} of the {name} are not plain integers")
    return images, layout, labels


def columns_of(dataset: Any, request: Request) -> Columns:
    """Return the columns of a dataset of torchvision. Raises NotCoveredError."""
    if not request.is_batched:
        raise NotCoveredError("single samples are left to torchvision")
    images, layout, labels = _arrays_of(dataset)
    cls = type(dataset)
    data, targets, _ = _KINDS[name := cls.__name__]
    if not request.in_blocks():
        raise NotCoveredError("fastloop does not know the sampler")
    leave_if(request.has_init, "worker_init_fn runs in worker processes, and may draw there")
    leave_if(request.workers > 0 and not request.in_order, "in_order=False")
    leave_if(dataset.target_transform is not None, "target_transform is called for each sample")
    opened = chains.open_plan(dataset.transform, images.shape[1:], layout)
    plan, draws, has_same, key, is_known = opened
    held = [(n, getattr(dataset, n)) for n in (data, targets, "transform", "target_transform")]

    def is_same(_batch: Any, _columns: Columns) -> bool:
        is_held = type(dataset) is cls and "__getitems__" not in vars(dataset)
        is_held = is_held and all(getattr(dataset, name) is value for name, value in held)
        return is_held and not _find_obstacle() and has_same()

    columns = Columns((None, None), kind="torchvision's images with their transform")
    columns.add(data, images, None, draws).add(targets, torch.from_numpy(labels))
    what = f"samples of {name} with {list(plan.ops)}"
    verification = verification_of(f"{name} {key}", what, "torchvision's", 1, is_known)
    columns.original = Original(verification, request.collate_fn, draws, is_same)
    return columns


class LabelledSamples(FolderSamples):
    """Samples of a dataset of ``_KINDS`` with a ``target_transform``, or of Subsets of one."""

    _is_stand_in = _borrows_slots = True
    _reads_ahead = False
    _find_obstacle = staticmethod(_find_obstacle)

    def __init__(self, dataset: Any) -> None:
        images, layout, _ = _arrays_of(below_subsets(dataset)[0])
        vars(self)["_form"] = images.shape[1:], layout
        super().__init__(dataset)

    def _read(self, row: Any, decode: Any) -> tuple[Any, Any] | None:
        """Return an image, when it is asked for: the function may change the dataset."""
        inner = self._inner
        data, targets, layout = _KINDS[type(inner).__name__]
        try:
            image, label = getattr(inner, data)[row], getattr(inner, targets)[row]
            # CIFAR's classes hand out what their list has.
            label = label if layout == "HWC" else int(label)
            return image.unsqueeze(-1) if layout == "HW" else image, label
        except Exception:  # torchvision raises the error
            return None


class OwnSamples(LabelledSamples, CutSamples):
    """Samples of CIFAR10, CIFAR100, SVHN or STL10, or of Subsets of one, for the user's collate.
    The transform gets the dataset's pixels, without an image of PIL in between."""

    _is_stand_in = True

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        shape, layout = self._form
        # Pillow's grey images are read-only.
        refuse_if(shape[layout.index("C")] != 3, "images are not RGB")
        vars(self)["_kind"] = np.dtype(np.uint8), tuple(shape)

    def _read(self, row: Any, decode: Any) -> tuple[Any, Any] | None:
        image, target = super()._read(row, decode) or (None, None)
        if type(image) is not np.ndarray or (image.dtype, image.shape) != self._kind:
            return None
        image = image if self._form[1] == "HWC" else image.transpose(1, 2, 0)
        return Pixels(np.ascontiguousarray(image), "RGB", {}), target

    def _decoded(self, pixels: Any, row: Any) -> Any:
        return pixels


def _try_samples(kind: Any, *arguments: Any) -> tuple[FolderSamples | None, str]:
    """Return samples of this class, or None and the reason why there are none."""
    try:
        return kind(*arguments), ""
    except ValueError as error:
        return None, str(error)


def samples_of(dataset: Any, is_collated: bool, workers: int) -> FolderSamples | None:
    """Return the samples of an ImageFolder or of a dataset with a ``target_transform``, or of
    Subsets of one; None for all other datasets. Raises ValueError, which says why torchvision makes
    them.

    Args:
        is_collated: torch's default collate makes the batches.
        workers: of the loader.
    """
    inner, module = below_subsets(dataset)[0], sys.modules["torchvision.datasets"]
    if type(inner) in (module.ImageFolder, module.DatasetFolder):
        kinds = [*[FolderSamples] * is_collated, CutSamples, *[CalledSamples] * (workers == 0)]
        reason = ""
        for kind in kinds:
            found, why = _try_samples(kind, dataset, reason)
            if found is not None:
                return found
            reason = reason or why
        refuse_if(is_collated, reason)
        return None
    if type(inner).__name__ not in _KINDS:
        return None
    if not is_collated:
        return _try_samples(OwnSamples, dataset)[0]
    return None if inner.target_transform is None else LabelledSamples(dataset)
