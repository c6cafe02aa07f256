"""``python -m fastloop COMMAND``: finds the command and runs it."""

from __future__ import annotations

import sys
from importlib import import_module

# Modules with a main(), which is given what follows the command's name and returns the exit status.
_COMMANDS = {
    "bench": "fastloop.tools.bench",
    "compare": "fastloop.tools.compare.command",
    "doctor": "fastloop.tools.doctor.doctor",
    "run": "fastloop.patching.program",
}


def main(args: list[str]) -> int:
    if not args or args[0] not in _COMMANDS:
        print(f"usage: python -m fastloop {' | '.join(_COMMANDS)} ...", file=sys.stderr)
        return 2
    status: int = import_module(_COMMANDS[args[0]]).main(args[1:])
    return status


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    if _status:  # else ``python -i`` goes on without a word, as after any program
        sys.exit(_status)
