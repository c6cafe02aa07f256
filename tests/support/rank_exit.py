"""How the programs end that tests start as ranks."""

import os
import sys


def leave_ranks() -> None:
    """End this process at once, with code 0.

    After a collective gloo's threads still hold its tensors for a moment, and take the interpreter
    lock to drop them. Where the interpreter is ending, CPython ends such a thread, and C++ aborts
    the process for that: torch's, with or without fastloop."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
