"""``python -m fastloop run`` runs a program with torch patched and nothing else changed.

usage: python -m fastloop run [OPTIONS] SCRIPT [ARGS]
       python -m fastloop run [OPTIONS] -m MODULE [ARGS]
       python -m fastloop run [OPTIONS] -c CODE | - [ARGS]

Runs a program as python does (a script, a module, a folder or zip file with a __main__.py, code, or
standard input), with torch patched: torch's DataLoader gives fastloop's iterators, and torch's
GradScaler and clip_grad_norm_ run fastloop's code. FASTLOOP=0 switches fastloop off,
FASTLOOP_STRICT=1 turns every call that is left to torch into an error, FASTLOOP_VERBOSE=0 keeps
fastloop silent.

  --only NAMES      patch these parts of torch only, with commas between:
                    dataloader,grad_scaler,clip_grad_norm,transforms
  --cache[=SIZE|FOLDER]
                    decode JPEG files that the program opens by Pillow once, and keep them in a file
                    of this size (for example 8G), in this folder (default: half of the memory or of
                    the disk's free space, in ~/.cache/fastloop/images), for later runs, too
  --ahead           workers that fall idle make the first batches of the next epoch, as with
                    epochs_ahead=1 of fastloop.DataLoader
  --no-children     do not patch the interpreters that the program starts
  --report[=FILES]  print at the end what the training loop waited for, and write files, with
                    commas between: .html, .json, .trace.json (default fastloop-report.html);
                    if FASTLOOP is 0, the report is about the program without fastloop
  --watch[=SECONDS] renew a line on stderr while the loop runs, each second or as asked: the rate,
                    the waiting, and the change that would help most; if stderr is not a terminal,
                    print a line each SECONDS
  --metrics=TARGET  write numbers for Prometheus into a file while the loop runs, or serve them on
                    :PORT of this machine or HOST:PORT
"""

from __future__ import annotations

import os
import sys

from fastloop.cli.start import make_environment
from fastloop.patching import SEAMS

_OPTIONS = "--only", "--cache", "--ahead", "--no-children", "--report", "--watch", "--metrics"

# python itself runs the program: `run` sets environment variables and replaces itself by a new
# interpreter, whose sitecustomize (start.py) patches torch after the program's import. So __main__,
# sys.argv, sys.path, exit status, tracebacks and Ctrl-C are the same as with python.


def main(args: list[str]) -> int:
    """Replace this process by python, which runs the program. Return an exit status if the user
    asks for help or an argument is wrong."""
    if args[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        environment, program = _read_options(args)
    except (ImportError, OSError, ValueError) as error:
        print(f"{__doc__}\nfastloop run: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, *_read_flags(len(args)), *program]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment})


def _read_options(args: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split `args` into environment variables and the program with its arguments."""
    rest, what = list(args), ",".join(SEAMS)
    environment = {"FASTLOOP_RUN": "1"}
    while rest and rest[0].startswith("-") and rest[0][:2] not in ("-m", "-c", "-"):
        name, has_value, value = rest.pop(0).partition("=")
        if name == "--no-children":
            environment["FASTLOOP_CHILDREN"] = "0"
        elif name == "--ahead":
            environment["FASTLOOP_AHEAD"] = "1"
        elif name == "--cache":
            environment["FASTLOOP_IMAGES"] = value
        elif name == "--report":
            from fastloop.tools.report import files

            paths = files.find_files(value.split(",") if value else [files.DEFAULT], of_rank=False)
            environment["FASTLOOP_REPORT"] = os.pathsep.join(map(str, paths))
        elif name == "--watch":
            from fastloop.tools.watch.options import read_seconds

            environment["FASTLOOP_WATCH"] = str(read_seconds(value)) if has_value else "on"
        elif name == "--metrics":
            environment["FASTLOOP_METRICS"] = _read_target(value)
        elif name == "--only" and (has_value or rest):
            what = value if has_value else rest.pop(0)
        else:
            from fastloop.base.names import suggest

            hint = suggest(name, _OPTIONS, 0.7)
            hint += "; give the program's own options after the program; --only needs names"
            raise ValueError(f"unknown option {name}{hint}")
    if not rest or rest in (["-m"], ["-c"]):
        raise ValueError("there is nothing to run; name a script, a module after -m or code")
    return {**environment, **make_environment(what)}, rest


def _read_target(text: str) -> str:
    """Check the target of metrics. Return the target with an absolute path."""
    from fastloop.tools.report.files import check_writable
    from fastloop.tools.watch.options import read_target

    target = read_target(text)
    if isinstance(target, tuple):
        return text
    check_writable(target)
    return str(target)


def _read_flags(count: int) -> list[str]:
    """Return the flags that python was given before ``-m fastloop run`` and `count` arguments."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - count - 1]
    name = flags.pop()  # fastloop, -mfastloop, or the path of the console script
    if flags and name == "fastloop":
        last = flags.pop()  # -m, or several flags in one word: for example, -im
        if last != "-m":
            flags.append(last.removesuffix("m"))
    return flags
