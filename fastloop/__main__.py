"""Finds and runs a command: ``python -m fastloop COMMAND``, or the console script ``fastloop``."""

from __future__ import annotations

import sys
from importlib import import_module

# The module of each command, which imports no more than it needs, and its purpose.
_COMMANDS = {
    "run": ("fastloop.cli.run", "run a program with torch patched, nothing in it changed"),
    "compare": ("fastloop.cli.compare", "run it plain and patched: cost, and equal numbers or not"),
    "doctor": ("fastloop.tools.doctor.doctor", "what this machine offers, and what slows loops"),
    "bench": ("fastloop.tools.bench", "a quick benchmark of this machine, torch beside fastloop"),
}


def main(args: list[str] | None = None) -> int:
    """Run the command that `args` name and return its exit status; None: this process's."""
    name, *others = (sys.argv[1:] if args is None else args) or ["--help"]
    if name in _COMMANDS:
        status: int = import_module(_COMMANDS[name][0]).main(others)
        return status
    if name == "--version":
        from fastloop._core import version

        print(f"fastloop {version}")
        return 0
    listed = [f"  {command:<11}{purpose}" for command, (_, purpose) in _COMMANDS.items()]
    listed += ["  --version  print the version"]
    usage = ["usage: python -m fastloop COMMAND [ARGS]", "", "commands (each has --help):", *listed]
    if name in ("-h", "--help"):
        print("\n".join(usage))
        return 0
    from difflib import get_close_matches

    nearest = get_close_matches(name, _COMMANDS, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    print("\n".join([*usage, f"fastloop: unknown command {name!r}{hint}"]), file=sys.stderr)
    return 2


if __name__ == "__main__":
    _status = main()
    if _status:  # sys.exit(0) would end ``python -i``
        sys.exit(_status)
