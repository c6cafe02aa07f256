"""``python -m fastloop COMMAND``: finds the command and runs it."""

from __future__ import annotations

import sys
from importlib import import_module

_COMMANDS = {"doctor": "fastloop.see.doctor"}  # modules with a main()


def main(args: list[str]) -> int:
    if len(args) != 1 or args[0] not in _COMMANDS:
        print("usage: python -m fastloop doctor", file=sys.stderr)
        return 2
    import_module(_COMMANDS[args[0]]).main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
