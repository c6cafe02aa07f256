"""``python -m fastloop bench`` measures torch and fastloop at the same work."""

from __future__ import annotations

import argparse

from fastloop.base.names import read_options
from fastloop.compat.requirements import require_torch


def main(args: list[str]) -> int:
    """Run the command. Return 1 if the results of a case differ, else 0."""
    require_torch("fastloop bench")
    from fastloop.tools import bench

    about = "Measures torch and fastloop at the same work."
    parser = argparse.ArgumentParser("python -m fastloop bench", description=about)
    text = "measure this case only; name several cases by several --case"
    parser.add_argument("--case", action="append", choices=bench.CASES, help=text)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = read_options(parser, args)
    rounds, seconds = (3, 0.05) if options.quick else (9, 0.5)
    cases = dict.fromkeys(options.case or bench.CASES)
    are_equal = [bench.run_case(name, rounds, seconds) for name in cases]
    return int(not all(are_equal))
