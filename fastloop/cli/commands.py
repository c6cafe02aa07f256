"""All commands in one table, and the function that runs the command that is named."""

from __future__ import annotations

import sys
from importlib import import_module

# The commands, each with its line of help. The function main() of the module of that name in this
# folder runs the command. The module is imported only then: commands need different libraries.
COMMANDS = {
    "run": "run a program with torch patched, nothing in it changed",
    "compare": "run it plain and patched: what both cost, and whether their numbers are equal",
    "doctor": "what this machine offers, and what slows loops down here",
    "bench": "a quick benchmark of this machine, torch beside fastloop",
}
_USAGE = """usage: python -m fastloop COMMAND [ARGS]

commands (each has --help):
{commands}
  --version  print the version"""


def main(args: list[str] | None = None) -> int:
    """Run the command that `args` name and return its exit status; None: this process's."""
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
