"""The ``site`` module runs this file in every interpreter that a patched program starts. This file
hides the user's own sitecustomize, and therefore runs the user's file at the end."""

import os
import sys


def _start() -> None:
    try:
        from fastloop.cli.start import start
    except ImportError:
        return  # this interpreter belongs to an environment without fastloop
    start()


class _UntilTorch:
    """The first entry of ``sys.meta_path``. When the program imports torch, this finder arms the
    interpreter. Until then fastloop is not imported."""

    has_started = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch" or self.has_started:
            return None
        self.has_started = True
        _start()
        first = sys.meta_path[0]
        return None if first is self else first.find_spec(name, path, target)


def _run_users() -> None:
    """Import the user's sitecustomize, if there is one: this folder is not in ``sys.path``
    anymore."""
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


try:
    if os.environ.get("FASTLOOP_RUN") == "1":
        _start()
    else:
        sys.meta_path.insert(0, _UntilTorch())
finally:
    _folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != _folder]
    _run_users()
