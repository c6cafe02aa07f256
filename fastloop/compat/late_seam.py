"""A seam of another package's functions, which waits until the package is imported.

Imports neither the package nor what fastloop knows of it: a program that is patched may have none.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from time import perf_counter_ns
from typing import Any

from fastloop.compat import seams
from fastloop.compat.late_import import after_import, cancel
from fastloop.compat.seams import Function, Seam
from fastloop.compat.torch_parts import before_workers, difference, is_of

Places = Mapping[str, list[tuple[str, str, str]]]
_IN_FETCHES = "it serves fetches of fastloop.DataLoader only, because patch() was not called for it"


class LateSeam(Seam):
    """A seam that also serves fetches of fastloop's own loaders while it is off. The check of each
    plan stands for the seam's own.

    Args:
        places: by module, for each function a class or "", the name of its function, and an
            adapter.
        find_adapter: imports an adapter. Its ``make_call(seam, before)`` returns the function that
            is put in, and its ``prepare()`` finds out, before a fork, what each worker would find
            out anew.
    """

    def __init__(
        self,
        name: str,
        is_strict: bool,
        places: Places,
        find_adapter: Callable[[str], Any],
    ) -> None:
        super().__init__(name, is_strict, lambda is_alone: [], ("hooks", "collate"))
        self._places, self._find_adapter = places, find_adapter
        # Workers live for an epoch, and each would find out anew.
        os.register_at_fork(before=self._prepare)
        before_workers.append(self._prepare)

    def _prepare(self) -> None:
        if self._patches and (self.is_on or self.serves_some):
            names = {patch.name for patch in self._patches}
            places = chain.from_iterable(self._places.values())
            found = {adapter for _, name, adapter in places if name in names}
            with suppress(Exception):  # the call that needs to know meets the same error
                for adapter in sorted(found):
                    self._find_adapter(adapter).prepare()

    def note_left(self, reason: str, begin_ns: int) -> None:
        """Count what Python has done since then. FASTLOOP_STRICT is about torch."""
        self.fallbacks[reason] += 1
        self.fallback_ns[reason] += perf_counter_ns() - begin_ns

    def call_left(self, reason: str, function: Function, *inputs: Any, **named: Any) -> Any:
        """Call the package's function, and count the call."""
        begin_ns = perf_counter_ns()
        try:
            return function(*inputs, **named)
        finally:
            self.note_left(reason, begin_ns)

    def _put_in(self) -> None:
        self.is_on = True
        self.reset()
        for module in self._places:
            after_import(module, functools.partial(self._arrive, module))

    def serve_fetches(self) -> bool:
        """Serve threads that fetch for fastloop's loaders from now on; see ``Fetch``. Return
        whether there is something to serve."""
        self.serves_some = True
        for module in filter(sys.modules.__contains__, self._places):
            self._why = _IN_FETCHES
            self._put_around(module)
        return bool(self._patches)

    def _arrive(self, module: str) -> None:
        if self.is_on:
            self._put_around(module)

    def _put_around(self, module: str) -> None:
        for cls, name, adapter in self._places[module]:
            owner = getattr(sys.modules[module], cls) if cls else sys.modules[module]
            place = owner, name
            found = next((one for one in self._patches if (one.owner, one.name) == place), None)
            if found is None:
                make = self._find_adapter(adapter).make_call
                found = self.add(owner, name, functools.partial(make, self))
                found.is_shared = not cls
            # A function of a tool or of the program stays on top: it may do anything, and may call
            # fastloop's.
            if is_of(module.partition(".")[0], vars(owner)[name]):
                found.put_in()

    def take_out(self, why: str = "it was taken out") -> None:
        for module in self._places:
            cancel(module)
        super().take_out(why)
        if self.serves_some:
            self.serve_fetches()


def serve_fetches(name: str, make: Callable[[bool], LateSeam]) -> bool:
    """Serve threads that fetch for fastloop's loaders; see ``LateSeam.serve_fetches``. With
    ``FASTLOOP=0``, or a torch that fastloop does not know, no thread is served.

    Args:
        name: of the seam.
        make: makes the seam; its argument is `is_strict`.
    """
    if os.environ.get("FASTLOOP") == "0":
        return False
    with seams.lock:
        seam: Any = seams.opened.get(name)
        if seam is None:
            seam = seams.opened[name] = make(False)
        return not any(map(difference, seam.groups)) and seam.serve_fetches()
