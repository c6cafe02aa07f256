"""``python -m fastloop run``: runs a program with torch patched and nothing else changed.

python itself runs the program: `run` sets environment variables and replaces itself by a new
interpreter (``os.execve``), whose sitecustomize (cli/start.py) patches torch once the program has
imported it. So ``__main__``, ``sys.argv``, ``sys.path``, exit status, tracebacks and Ctrl-C are
those of python.
"""

from __future__ import annotations

import os
import sys

from fastloop.cli.start import make_environment
from fastloop.patching import SEAMS

USAGE = """usage: python -m fastloop run [OPTIONS] SCRIPT [ARGS]
       python -m fastloop run [OPTIONS] -m MODULE [ARGS]
       python -m fastloop run [OPTIONS] -c CODE | - [ARGS]

Runs a program as python does (a script, a module, a folder or zip file with a __main__.py, code, or
standard input), with torch patched: its DataLoader gives fastloop's iterators, its GradScaler and
clip_grad_norm_ run in C. FASTLOOP=0 switches it off, FASTLOOP_STRICT=1 makes every call that is
left to torch an error, FASTLOOP_VERBOSE=0 keeps it silent.

  --only NAMES      what to patch, with commas between: dataloader,grad_scaler,clip_grad_norm
  --no-children     leave the interpreters that the program starts alone
  --report[=FILES]  say at the end where the time of the training loop went, and write files, with
                    commas between: .html, .json, .trace.json (default fastloop-report.html);
                    with FASTLOOP=0, of the program without fastloop"""


class UsageError(Exception):
    """The options make no sense; the text says why."""


def main(args: list[str]) -> int:
    """Replace this process by python running the program; return only to say what is wrong."""
    try:
        environment, program = _read_options(args)
        command = [sys.executable, *_read_flags(len(args)), *program]
    except UsageError as error:
        print(f"fastloop run: {error}\n{USAGE}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment})


def _read_options(args: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split `args` into environment variables and the program with its arguments."""
    rest, what, report = list(args), ",".join(SEAMS), None
    environment = {"FASTLOOP_RUN": "1"}
    while rest and rest[0].startswith("-") and rest[0][:2] not in ("-m", "-c", "-"):
        name, has_value, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            print(USAGE)
            raise SystemExit(0)
        if name == "--no-children":
            environment["FASTLOOP_CHILDREN"] = "0"
        elif name == "--report":
            report = check_report(value)
        elif name == "--only" and (has_value or rest):
            what = value if has_value else rest.pop(0)
        elif name == "--only":
            raise UsageError("--only needs names")
        else:
            raise UsageError(f"unknown option {name} (the program's own options go after its name)")
    for name in what.split(","):
        if name not in SEAMS:
            raise UsageError(f"--only must name some of {','.join(SEAMS)}, got {name!r}")
    if not rest or rest in (["-m"], ["-c"]):
        missing = {"-m": "-m needs a module", "-c": "-c needs code"}
        remedy = missing.get("".join(rest), "name a script, or a module after -m")
        raise UsageError(f"there is nothing to run; {remedy}")
    try:
        environment.update(make_environment(what))
    except ValueError as error:
        raise UsageError(error) from None
    if report is not None:
        environment["FASTLOOP_REPORT"] = os.pathsep.join(report)
    return environment, rest


def _read_flags(count: int) -> list[str]:
    """Return the flags that python was given before ``-m fastloop run`` and `count` arguments."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - count - 1]
    name = flags.pop()  # fastloop, -mfastloop, or the path of the console script
    if flags and name == "fastloop":
        last = flags.pop()  # -m, or several letters in one, as in -im
        if last != "-m":
            flags.append(last.removesuffix("m"))
    return flags


def check_report(value: str) -> list[str]:
    """Return the absolute names of the files of ``--report=value``, which can be written."""
    from fastloop.tools.report import files

    names = value.split(",") if value else [files.DEFAULT]
    try:
        return [str(path) for path in files.find_files(names, of_rank=False)]
    except (OSError, ValueError) as error:
        raise UsageError(f"--report: {error}") from None
