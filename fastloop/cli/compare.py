"""``python -m fastloop compare`` compares a program plain and patched, or two reports.

usage: python -m fastloop compare [OPTIONS] SCRIPT [ARGS]
       python -m fastloop compare [OPTIONS] -m MODULE [ARGS]
       python -m fastloop compare A.json B.json

Runs the first steps of a program plain and with torch patched, in turns. Prints what both cost, and
whether losses and parameters are equal to the last bit. Two reports of fastloop.report() are
printed side by side.

Exit status: 0 equal, 1 different, 2 the program or its arguments fail, 3 no verdict, for example
because two plain runs differ.
"""

# This module does not import torch, because each program runs in a process of its own.

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from subprocess import DEVNULL, STDOUT, call
from typing import Any

from fastloop.base.names import read_options
from fastloop.cli.start import make_environment
from fastloop.patching import SEAMS
from fastloop.tools import text
from fastloop.tools.compare import runs
from fastloop.tools.report import files

SCHEMA = "fastloop.compare/1"
_STATUS = {runs.EQUAL: 0, runs.DIFFERENT: 1, runs.UNKNOWN: 3}
_FAILED = 2
_NO_RECORD = "NOT JUDGED: the program must import torch and must not end by os._exit()"
_TAIL = 60  # lines of output that are shown if a program fails


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "fastloop compare",
        description=__doc__,
        usage=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps of each run (50)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (3)")
    parser.add_argument(
        "--seed", type=int, metavar="N",
        help="seed Python, NumPy and torch at the import of torch, for programs without a seed",
    )  # fmt: skip
    parser.add_argument(
        "--only",
        default=",".join(SEAMS),
        metavar="NAMES",
        help="parts of torch to patch, as with run",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("-m", action="store_true", dest="is_module", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = read_options(parser, args)
    # A recorder keeps 16 384 steps, so all of 10 000 steps are kept.
    for name, least, most in (("steps", 2, 10_000), ("rounds", 2, 100), ("seed", 0, 2**32 - 1)):
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name} must be {least} to {most:,}, got {value}")
    try:
        make_environment(given.only)
    except ValueError as error:
        parser.error(str(error))
    if given.json is not None and not given.json.absolute().parent.is_dir():
        missing = given.json.absolute().parent
        parser.error(f"--json {given.json}: there is no folder {str(missing)!r}; make it first")
    if not given.program:
        parser.error("there is nothing to run; name a script, or a module after -m")
    if os.environ.get("FASTLOOP") == "0":
        parser.error("FASTLOOP must not be 0, because 0 switches patching off; unset FASTLOOP")
    if os.environ.get("WORLD_SIZE", "1") != "1" or "TORCHELASTIC_RUN_ID" in os.environ:
        parser.error("the program must run as one process, got ranks; start without torchrun")
    return given


def _make_environment(settings: dict[str, Any], what: str) -> dict[str, str]:
    """Return the user's environment and the variables of one run. In plain runs FASTLOOP=0 keeps a
    program that calls ``fastloop.patch()`` from patching torch."""
    env = {**os.environ, **make_environment(what), "FASTLOOP_RUN": "1", "FASTLOOP_VERBOSE": "0"}
    env["FASTLOOP_COMPARE"] = json.dumps(settings)
    if not what:
        env["FASTLOOP"] = "0"
    if settings["seed"] is not None:
        env["PYTHONHASHSEED"] = str(settings["seed"])
    return env


def _run(given: argparse.Namespace, what: str) -> tuple[Any, str]:
    """Run the program once, with `what` patched.

    Returns:
        The record, or None if the program left no record. The end of the program's output if the
        program failed before its last step, else "".
    """
    with tempfile.TemporaryDirectory(prefix="fastloop-compare-") as folder:
        record, printed = Path(folder, "record.json"), Path(folder, "printed")
        settings = {"record": str(record), "steps": given.steps, "seed": given.seed}
        command = [sys.executable, *["-m"] * given.is_module, *given.program]
        env = _make_environment(settings, what)
        with printed.open("w") as output:
            status = call(command, env=env, stdin=DEVNULL, stdout=output, stderr=STDOUT)
        found = json.loads(record.read_text()) if record.exists() else None
        if status == 0 or (found is not None and found["is_stopped"]):
            return found, ""
        lines = printed.read_text(errors="replace").splitlines()[-_TAIL:]
    return found, "\n".join([*lines, f"the program ended with status {status}"])


def _compare(given: argparse.Namespace, args: list[str]) -> int:
    seen: dict[str, list[dict[str, Any]]] = {"plain": [], "patched": []}
    with text.progress("compare", 2 * given.rounds, files.say) as show:
        for number, kind in product(range(given.rounds), seen):
            show(f"round {number + 1} of {given.rounds}, {kind}")
            run, failure = _run(given, given.only if kind == "patched" else "")
            if failure:
                is_ours = kind == "patched" and number == 0
                where = f"{kind} program fails" + is_ours * ", but the plain program does not"
                print(f"{failure}\nfastloop compare: the {where}", file=sys.stderr)
                return _STATUS[runs.DIFFERENT] if is_ours else _FAILED
            if run is None:
                print(_NO_RECORD)
                return _STATUS[runs.UNKNOWN]
            seen[kind].append(run)
    print(f"{' '.join(given.program)}: {given.rounds} rounds of {given.steps} steps, in turns")
    print(runs.make_table(**seen, limit=given.steps))
    if given.json is not None:
        found = {"schema": SCHEMA, "arguments": args, **runs.to_dict(**seen)}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return _STATUS[runs.find_verdict(**seen).kind]


def _compare_reports(paths: list[str]) -> int:
    """Print two reports side by side. The functions that print reports import torch."""
    from fastloop.tools.report import render, summary

    try:
        a, b = (json.loads(Path(path).read_text()) for path in paths)
        if {a["schema"], b["schema"]} != {summary.SCHEMA}:
            raise ValueError(f"schemas {a['schema']!r} and {b['schema']!r}")
        print(render.compare(a, b))
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        needed = f"{', '.join(paths)} must be two whole reports of schema {summary.SCHEMA!r}"
        print(f"fastloop compare: {needed}, got {error!r}", file=sys.stderr)
        return _FAILED
    return 0


def main(args: list[str]) -> int:
    """Run the command and return its exit status."""
    if args and args[0].endswith(".json"):
        return _compare_reports(args)
    given = _parse(args)
    try:
        return _compare(given, args)
    except KeyboardInterrupt:
        return 130
