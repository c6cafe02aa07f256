"""Which of the package's datasets and collates an object is, and what C does for it.

Classes are compared by name: importing them here would load their modules for every loader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from torch.utils.data import Subset

from fastloop.data.collate import is_default_collate

if TYPE_CHECKING:
    from fastloop._core import Collate
    from fastloop.data.arrays import ArrayDataset
    from fastloop.data.image_folder.dataset import ImageFolder
    from fastloop.data.sequences.pad import PackCollate, PadCollate
    from fastloop.data.tokens.dataset import TokenDataset


def _is_class(cls: type, home: str, *names: str) -> bool:
    return cls.__name__ in names and cls.__module__ == f"fastloop.data.{home}"


def is_array_dataset(value: object) -> TypeGuard[ArrayDataset]:
    """Tell an ArrayDataset; a subclass does not count, here and below: its methods may differ."""
    return _is_class(type(value), "arrays", "ArrayDataset")


def derives_from_array_dataset(value: object) -> TypeGuard[ArrayDataset]:
    """Tell an ArrayDataset or an object of a subclass."""
    return any(_is_class(cls, "arrays", "ArrayDataset") for cls in type(value).__mro__)


def is_image_folder(value: object) -> TypeGuard[ImageFolder]:
    """Tell an ImageFolder."""
    return _is_class(type(value), "image_folder.dataset", "ImageFolder")


def is_token_dataset(value: object) -> TypeGuard[TokenDataset]:
    """Tell a TokenDataset."""
    return _is_class(type(value), "tokens.dataset", "TokenDataset")


def is_sequence_collate(value: Any) -> TypeGuard[PadCollate | PackCollate]:
    """Tell a PadCollate or a PackCollate."""
    return _is_class(type(value), "sequences.pad", "PadCollate", "PackCollate")


def may_borrow(dataset: Any) -> bool:
    """Tell whether only the collate sees the dataset's samples: those of an ImageFolder."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return is_image_folder(dataset)


def open_collate(
    collate_fn: Any, open_core: Callable[[], Collate]
) -> tuple[Callable[[Any], Any], Collate] | None:
    """Return a function that does the work of ``collate_fn`` in C, and the core in whose memory it
    does; None if ``collate_fn`` is unknown here and must be called."""
    is_default = is_default_collate(collate_fn)
    if not (is_default or is_sequence_collate(collate_fn)):
        return None
    core = open_core()
    return core if is_default else partial(collate_fn.collate, core), core
