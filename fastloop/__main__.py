"""Runs a command: ``python -m fastloop COMMAND``, or the console script ``fastloop``."""

from __future__ import annotations

import sys

from fastloop.cli.commands import main

if __name__ == "__main__":
    _status = main()
    if _status:  # sys.exit(0) would end ``python -i``
        sys.exit(_status)
