"""Why a worker may have ended before it began: a spawned process imports the main module anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# With any other, a child has what its parent has imported.
_IMPORTS_MAIN = ("spawn", "forkserver")
_GUARD = re.compile(r"^if\b.*\b__name__\b", re.MULTILINE)


def explain_early_end(method: str) -> str:
    """What an error says of a worker that has exited before its first task; may be empty.

    Args:
        method: the start method of its process.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if method not in _IMPORTS_MAIN or path is None:
        return ""
    text = f"It ended at its start: with start method {method!r} it imports {path} anew"
    if _has_guard(Path(path)):
        return f"{text} and reads the dataset; what it met there is on stderr. "
    return f"{text}, which starts this loop again: put that below if __name__ == '__main__'. "


def _has_guard(path: Path) -> bool:
    """Or cannot be read."""
    try:
        return _GUARD.search(path.read_text(errors="replace")) is not None
    except OSError:
        return True
