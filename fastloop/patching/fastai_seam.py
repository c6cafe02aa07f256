"""fastai's loader is none of torch's: it calls torch's iterators itself, from a pair of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastloop.base.torch_parts import MultiIter, SingleIter
from fastloop.patching.seams import Function, Seam

_TORCHS = MultiIter, SingleIter


def add_fastai(seam: Seam, make_iterator: Callable[[Any, Any], Any]) -> None:
    """Its iterators are made by ``make_iterator``, which is given what fastai calls a fake loader:
    what torch's iterators read of a loader, and no more."""

    def serve(before: Function) -> Function:
        def make(fake_loader: Any) -> Any:
            if not seam.is_on:
                return before(fake_loader)
            seam.count()
            return make_iterator(fake_loader, partial(before, fake_loader))

        return make

    def make_pair(before: Any) -> Any:
        if before != _TORCHS:
            raise LookupError(f"_loaders is {before!r}, not torch's two iterators")
        return tuple(map(serve, before))

    seam.add_late("fastai.data.load", "_loaders", make_pair)
