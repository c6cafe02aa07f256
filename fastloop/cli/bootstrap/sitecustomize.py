"""Run by the ``site`` module of every interpreter that a patched program starts. The user's own
sitecustomize, which this one hides, runs after it."""

import os
import sys


def _start() -> None:
    try:
        from fastloop.cli.start import start
    except ImportError:
        return  # an interpreter of another environment
    start()


def _run_users() -> None:
    """Import the user's sitecustomize, if any: this folder has left ``sys.path``."""
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


try:
    _start()
finally:
    _folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != _folder]
    _run_users()
