"""What an object of torch's needs of ours, beside it and not in it: frameworks copy and pickle what
is in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """One thing for each object, made when it is first asked for. By the object's address, because
    it need not be hashable; forgotten when the object dies. An object that cannot be referred to
    weakly gets a new one each time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._found: dict[int, tuple[weakref.ref[Any], T]] = {}

    def find(self, owner: Any) -> T | None:
        """What an object has, if it was asked for."""
        found = self._found.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def __call__(self, owner: Any) -> T:
        made = self.find(owner)
        if made is None:
            made, key = self._make(), id(owner)
            with suppress(TypeError):
                self._found[key] = weakref.ref(owner, partial(self._forget, key)), made
        return made

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        if key in self._found and self._found[key][0] is reference:
            del self._found[key]
