"""The table of commands, and the function that runs a command."""

from __future__ import annotations

import sys
from importlib import import_module

# Each command's line of help. The module with the command's name in this folder has a main(), which
# runs the command. The module is imported only then, because commands need different libraries.
COMMANDS = {
    "run": "run an unchanged program with torch patched",
    "compare": "run a program plain and patched, and compare costs and results",
    "doctor": "show what this machine offers, and what slows training down here",
    "bench": "measure torch and fastloop on this machine in about a minute",
}
_USAGE = """usage: python -m fastloop COMMAND [ARGS]

commands (each has --help):
{commands}
  --version  print the version"""


def main(args: list[str] | None = None) -> int:
    """Run a command and return the command's exit status.

    Args:
        args: the command's name and arguments; None: the arguments of this process.
    """
    name, *others = (sys.argv[1:] if args is None else args) or ["--help"]
    try:
        if name in COMMANDS:
            status: int = import_module(f"fastloop.cli.{name}").main(others)
            return status
        if name == "--version":
            from fastloop._core import version

            print(f"fastloop {version}")
            return 0
    except ImportError as error:
        if error.name not in ("torch", "fastloop._core"):
            raise
        print(f"fastloop: {error}", file=sys.stderr)
        return 1
    usage = _USAGE.format(commands="\n".join(f"  {key:<9}{COMMANDS[key]}" for key in COMMANDS))
    if name in ("-h", "--help"):
        print(usage)
        return 0
    from fastloop.base.names import suggest

    print(f"{usage}\nfastloop: unknown command {name!r}{suggest(name, COMMANDS)}", file=sys.stderr)
    return 2
