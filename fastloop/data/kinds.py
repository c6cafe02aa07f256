"""Which of the package's datasets or collates something is, without an import of their modules:
whoever has one has imported its module. So those pay for them who use them."""

from __future__ import annotations

import sys
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

_ARRAYS = "fastloop.data.arrays", "ArrayDataset"
_IMAGES = "fastloop.data.image_folder.dataset", "ImageFolder"
_TOKENS = "fastloop.data.tokens.dataset", "TokenDataset"
_PAD = "fastloop.data.sequences.pad"
_COLLATES = (_PAD, "PadCollate"), (_PAD, "PackCollate")


def _find(home: str, name: str) -> type | None:
    """None: nobody has imported it."""
    return getattr(sys.modules.get(home), name, None)


def is_array_dataset(value: object) -> TypeGuard[ArrayDataset]:
    """An ArrayDataset, and none of a subclass; as in those below."""
    return type(value) is _find(*_ARRAYS)


def derives_from_array_dataset(value: object) -> TypeGuard[ArrayDataset]:
    cls = _find(*_ARRAYS)
    return cls is not None and isinstance(value, cls)


def is_image_folder(value: object) -> TypeGuard[ImageFolder]:
    return type(value) is _find(*_IMAGES)


def is_token_dataset(value: object) -> TypeGuard[TokenDataset]:
    return type(value) is _find(*_TOKENS)


def is_sequence_collate(value: object) -> TypeGuard[PadCollate | PackCollate]:
    return any(type(value) is _find(*names) for names in _COLLATES)


def fills_batches(dataset: Any) -> bool:
    """Whether samples may lie in memory that is lent (data/batch_memory.py): nobody but an
    ImageFolder has them before the collate."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return is_image_folder(dataset)


def find_collate(
    collate_fn: Any, open_core: Callable[[], Collate]
) -> tuple[Callable[[Any], Any], Collate] | None:
    """What does the same in memory of a core, and that core; None for functions of the user's."""
    if is_default_collate(collate_fn):
        core = open_core()
        return core, core
    if is_sequence_collate(collate_fn):
        core = open_core()
        return partial(collate_fn.collate, core), core
    return None
