"""Calls a function as soon as a module is imported: torch, and what else is patched.

As the rest of this folder it imports nothing, because interpreters run it at their start.
"""

import sys


class _Loader:
    """Loads a module as its own loader does, and then says so. Else it is that loader: whoever only
    looks for the module may ask it anything."""

    def __init__(self, inner, finder):
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name):
        if name.startswith("__"):  # those of copy and pickle are not asked of the other
            raise AttributeError(name)
        return getattr(self._inner, name)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._finder.end()


class _Finder:
    """The first entry of ``sys.meta_path``, until a module is imported. To be asked for it is not
    enough: frameworks look whether torch is there and import it later."""

    def __init__(self, name, then):
        self.name = name
        self._then = then

    def find_spec(self, name, path=None, target=None):
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

    def end(self):
        """The module is imported, for the first time or once more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


def after_import(name, then):
    """Calls `then`, which does not raise, now if that module is there, else once it is. Of several
    that wait for a module the first one is called."""
    if name in sys.modules:
        then()
    elif not any(type(finder) is _Finder and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


def forget(name):
    """Nothing waits for that module any more."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not (type(finder) is _Finder and finder.name == name)
    ]
