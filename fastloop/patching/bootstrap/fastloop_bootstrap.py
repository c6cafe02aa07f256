"""Patches torch as soon as a program has imported it.

This file is imported by its own name, from a folder on ``sys.path``: the interpreters that a
patched program starts run it at their start. So it imports nothing then, and starts no process.
"""

import os
import sys

from fastloop_import_hook import after_import, forget


def act(what, is_loud, then):
    """Never raises: the program is torch's user, and goes on without us."""
    try:
        if what:
            from fastloop.base.requirements import require_torch

            require_torch("fastloop.patch()")
            from fastloop.patching import patch as patching

            patching.patch([name for name in what.split(",") if name], verbose=is_loud)
            if not is_loud:
                import atexit

                from fastloop.patching.program import say_end_of_rank

                atexit.register(say_end_of_rank, os.getpid())
        if then is not None:
            then()
    except Exception as error:
        why = str(error) if isinstance(error, ImportError) else repr(error)
        try:  # noqa: SIM105 - contextlib is an import
            print(f"fastloop: torch stays as it is: {why}", file=sys.stderr)
        except (OSError, ValueError):
            pass  # a closed stderr, or a full disk below it


def arm(what, is_loud, then=None):
    """Patches now if torch is there, else once it is. Once in a process.

    Args:
        what: names with commas between; "" patches nothing.
        is_loud: whether a line on stderr says so.
        then: called after it.
    """
    after_import("torch", lambda: act(what, is_loud, then))


def disarm():
    """Torch stays as it is when it is imported."""
    forget("torch")
