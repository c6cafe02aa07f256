"""Calls a function as soon as a module is imported: torch, or a framework that is patched.

Imports only sys: interpreters load it at their start.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would take as long as all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Loader:
    """Loads a module as its own loader does, then calls the finder back. All other attributes
    come from the module's own loader, because programs may look for torch without an import."""

    def __init__(self, inner: Any, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle must not find the other loader's methods
            raise AttributeError(name)
        return getattr(self._inner, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._finder.end()


class _Finder:
    """The first entry of ``sys.meta_path`` until a module is imported. A mere search for the module
    does not end it: frameworks look for torch and import it later."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec and find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def end(self) -> None:
        if self in sys.meta_path:  # an import may be tried again after it failed
            sys.meta_path.remove(self)
            self._then()


def _waits_for(finder: object, name: str) -> bool:
    return type(finder) is _Finder and finder.name == name


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call `then`, which does not raise, now if that module is there, else once it is. If several
    wait for a module, the first one is called."""
    if name in sys.modules:
        then()
    elif not any(_waits_for(finder, name) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


def cancel(name: str) -> None:
    """Call nothing when that module is imported."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _waits_for(finder, name)]
