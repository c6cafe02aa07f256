"""Where the classes are now that pickles of fastloop 0.1 name by modules that are gone.

For pickles alone. The import system asks here for a module of fastloop that it has not found, and
gets one that holds the classes users may have pickled, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

# The module a pickle names, the module of today, and the classes.
_MOVED = {
    "fastloop._array": ("fastloop.data.arrays", ("ArrayDataset", "_Field")),
    "fastloop._loader": ("fastloop.loader.dataloader", ("DataLoader",)),
    "fastloop._resume": ("fastloop.loader.epoch", ("Position",)),
    "fastloop._scaler": ("fastloop.step.scaler", ("GradScaler",)),
    "fastloop._stats": ("fastloop.loader.stats", ("LoaderStats", "WorkerStats")),
}


class PickleFinder:
    """An entry of ``sys.meta_path``; it finds and loads the modules above."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, PickleFinder) if name in _MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """The import system's own module will do."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        home, names = _MOVED[module.__name__]
        for name in names:
            setattr(module, name, getattr(import_module(home), name))
