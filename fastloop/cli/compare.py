"""``python -m fastloop compare`` compares a program plain and patched, or two reports.

usage: python -m fastloop compare [OPTIONS] SCRIPT [ARGS]
       python -m fastloop compare [OPTIONS] -m MODULE [ARGS]
       python -m fastloop compare --baseline FILE [--max-slower 3%] [OPTIONS] SCRIPT [ARGS]
       python -m fastloop compare A.json B.json

Runs the first steps of a program plain and with torch patched, in turns. Prints what both cost, and
whether losses and parameters are equal to the last bit. Two reports of fastloop.report() are
printed side by side. With --baseline the patched program is compared with its own speed of an
earlier day; a file that is not there yet is written.

Exit status: 0 equal, 1 different, 2 the program or its arguments fail, 3 no verdict, for example
because two plain runs differ. With --baseline: 0 not slower, 1 slower, 2 the program fails, or the
noise is too large to tell.
"""

# This module does not import torch, because each program runs in a process of its own.

from __future__ import annotations

import argparse
import json
import os
import re
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
from fastloop.tools.compare import gate, runs
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
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of each kind (3; baseline 7)")
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
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="the speed to compare with")
    parser.add_argument(
        "--max-slower", default="3%", metavar="PERCENT", help="how much slower a step may be (3%%)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("-m", action="store_true", dest="is_module", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = read_options(parser, args)
    is_gate = given.baseline is not None
    given.rounds = given.rounds if given.rounds is not None else 7 if is_gate else 3
    rounds = gate.LEAST_ROUNDS if is_gate else 2
    # A recorder keeps 16 384 steps, so all of 10 000 steps are kept.
    for name, least, most in (
        ("steps", 2, 10_000),
        ("rounds", rounds, 100),
        ("seed", 0, 2**32 - 1),
    ):
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name} must be {least} to {most:,}, got {value}")
    try:
        make_environment(given.only)
    except ValueError as error:
        parser.error(str(error))
    for name, path in (("json", given.json), ("baseline", given.baseline)):
        if path is not None and not path.absolute().parent.is_dir():
            missing = str(path.absolute().parent)
            parser.error(f"--{name} {path}: there is no folder {missing!r}; make it first")
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", given.max_slower)
    if share is None:
        parser.error(f"--max-slower must be a percentage such as 3%, got {given.max_slower!r}")
    given.max_slower = float(share[1]) / 100
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


class _NoRunError(Exception):
    """A run failed or left no record. The first argument is the exit status."""


def _try(given: argparse.Namespace, kind: str, number: int) -> dict[str, Any]:
    """Run the program once, and return the record."""
    run, failure = _run(given, given.only if kind == "patched" else "")
    if failure:
        is_ours = kind == "patched" and number == 0 and given.baseline is None
        where = f"{kind} program fails" + is_ours * ", but the plain program does not"
        print(f"{failure}\nfastloop compare: the {where}", file=sys.stderr)
        raise _NoRunError(_STATUS[runs.DIFFERENT] if is_ours else _FAILED)
    if run is None:
        print(_NO_RECORD)
        raise _NoRunError(_FAILED if given.baseline else _STATUS[runs.UNKNOWN])
    found: dict[str, Any] = run
    return found


def _gate(given: argparse.Namespace) -> int:
    """Measure the patched program, and write or compare its baseline."""
    try:
        stored = gate.read(given.baseline) if given.baseline.exists() else None
    except (OSError, ValueError) as error:
        remedy = "name another file, or remove this one to measure anew"
        print(f"fastloop compare: --baseline {given.baseline}: {error}; {remedy}", file=sys.stderr)
        return _FAILED
    rounds: list[gate.Round] = []
    with text.progress("compare", given.rounds, files.say) as show:
        for number in range(given.rounds):
            show(f"round {number + 1} of {given.rounds}")
            before = gate.measure_yardstick()
            run = _try(given, "patched", number)
            if run["steps_per_second"] is None:
                print("CANNOT TELL: the program has too few steps", file=sys.stderr)
                return _FAILED
            yardstick = (before + gate.measure_yardstick()) / 2
            rounds.append((1 / run["steps_per_second"], yardstick))
    today = gate.describe(given.program, run, rounds)
    if given.json is not None:
        given.json.write_text(json.dumps(today, indent=1) + "\n")
    if stored is None:
        given.baseline.write_text(json.dumps(today, indent=1) + "\n")
        print(f"there was no baseline; {given.baseline} is the baseline from now on")
        return 0
    status, said = gate.judge(stored, today, given.max_slower)
    print(f"{' '.join(given.program)}: {given.rounds} rounds of {run['steps']} steps")
    print(said)
    return status


def _compare(given: argparse.Namespace, args: list[str]) -> int:
    seen: dict[str, list[dict[str, Any]]] = {"plain": [], "patched": []}
    with text.progress("compare", 2 * given.rounds, files.say) as show:
        for number, kind in product(range(given.rounds), seen):
            show(f"round {number + 1} of {given.rounds}, {kind}")
            seen[kind].append(_try(given, kind, number))
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
    if args and args[0].endswith(".json") and not args[0].startswith("-"):
        return _compare_reports(args)
    given = _parse(args)
    try:
        return _gate(given) if given.baseline is not None else _compare(given, args)
    except _NoRunError as error:
        status: int = error.args[0]
        return status
    except KeyboardInterrupt:
        return 130
