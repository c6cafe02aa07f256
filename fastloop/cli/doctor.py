"""``python -m fastloop doctor`` shows what this machine offers, and what slows programs down."""

from __future__ import annotations

import argparse
import json

from fastloop.base.names import read_options
from fastloop.tools.doctor import diagnose


def main(args: list[str]) -> int:
    """Run the command. Return 1 if something does not work, else 0."""
    about = "Shows what this machine offers, and what slows programs down."
    parser = argparse.ArgumentParser("python -m fastloop doctor", description=about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--probe", action="store_true", help="run a kernel on the GPU and check the result"
    )
    options = read_options(parser, args)
    found = diagnose(probe=options.probe)
    print(json.dumps(found.to_dict(), indent=1) if options.json else found)
    return found.status
