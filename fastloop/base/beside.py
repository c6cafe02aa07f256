"""What an object of torch's needs of ours, beside it and not in it: frameworks copy and pickle what
is in it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from fastloop.base.next_lock import NextLock

T = TypeVar("T")


class Beside(Generic[T]):
    """One thing for each object, made when it is first asked for. By the object's address, because
    it need not be hashable; forgotten when the object dies. An object that cannot be referred to
    weakly gets a new one each time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._found: dict[int, tuple[weakref.ref[Any], T]] = {}
        self._lock = NextLock()  # two threads ask at once, or one while an object dies

    def find(self, owner: Any) -> T | None:
        """What an object has, if it was asked for."""
        found = self._found.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def __call__(self, owner: Any) -> T:
        found = self.find(owner)
        if found is not None:
            return found
        made, key = self._make(), id(owner)
        with self._lock.of_process(), suppress(TypeError):
            found = self.find(owner)
            if found is not None:
                return found
            self._found[key] = weakref.ref(owner, partial(self._forget, key)), made
        return made

    _is_ending = staticmethod(sys.is_finalizing)  # bound here: later the names of modules are gone

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        if self._is_ending():
            return
        with self._lock.of_process():
            if key in self._found and self._found[key][0] is reference:
                del self._found[key]
