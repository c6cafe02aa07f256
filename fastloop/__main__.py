"""Finds and runs a command: ``python -m fastloop COMMAND``, or the console script ``fastloop``."""

from __future__ import annotations

import sys

_COMMANDS = {
    "run": "run a program with torch patched, nothing in it changed",
    "compare": "run it plain and patched: what both cost, and whether their numbers are equal",
    "doctor": "what this machine offers, and what slows loops down here",
    "bench": "a quick benchmark of this machine, torch beside fastloop",
}
_USAGE = """usage: python -m fastloop COMMAND [ARGS]

commands (each has --help):
{commands}
  --version  print the version"""


def _run_command(name: str, args: list[str]) -> int:
    """Import the module of a command, which imports no more than it needs, and run it."""
    if name == "run":
        from fastloop.cli.run import main
    elif name == "compare":
        from fastloop.cli.compare import main
    elif name == "doctor":
        from fastloop.tools.doctor import main
    else:
        from fastloop.compat.requirements import require_torch

        require_torch("fastloop bench")
        from fastloop.tools.bench import main
    return main(args)


def main(args: list[str] | None = None) -> int:
    """Run the command that `args` name and return its exit status; None: this process's."""
    name, *others = (sys.argv[1:] if args is None else args) or ["--help"]
    try:
        if name in _COMMANDS:
            return _run_command(name, others)
        if name == "--version":
            from fastloop._core import version

            print(f"fastloop {version}")
            return 0
    except ImportError as error:
        if error.name not in ("torch", "fastloop._core"):
            raise
        print(f"fastloop: {error}", file=sys.stderr)
        return 1
    usage = _USAGE.format(commands="\n".join(f"  {key:<9}{_COMMANDS[key]}" for key in _COMMANDS))
    if name in ("-h", "--help"):
        print(usage)
        return 0
    from fastloop.base.names import suggest

    print(f"{usage}\nfastloop: unknown command {name!r}{suggest(name, _COMMANDS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    _status = main()
    if _status:  # sys.exit(0) would end ``python -i``
        sys.exit(_status)
