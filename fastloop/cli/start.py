"""Arms an interpreter at its start: torch is patched as soon as the program imports torch.

``python -m fastloop run`` and ``compare`` put the folder ``bootstrap`` in front of PYTHONPATH. The
folder's sitecustomize.py calls ``start()`` in every interpreter, so this file imports little and
starts no process. ``%load_ext fastloop`` arms a notebook.

Environment variables:
    FASTLOOP_PATCH     the parts of torch that every interpreter patches: names with commas between
    FASTLOOP_RUN       "1": this interpreter runs the program, and removes RUN, CHILDREN and COMPARE
    FASTLOOP_CHILDREN  "0": the interpreters that the program starts are not patched
    FASTLOOP_IMAGES    where decoded images are kept: a size, a folder or ""
    FASTLOOP_AHEAD     "1": loaders with workers read the next epoch ahead
    FASTLOOP_REPORT    the files of a report on the program, with os.pathsep between. A program that
                       launches programs, as torchrun does, hands the variable on: each program
                       that takes a step writes a report.
    FASTLOOP_WATCH     "on" or seconds: the program shows what its loop does (watch/status_line.py)
    FASTLOOP_METRICS   the file or the port of its metrics (watch/metrics.py)
    FASTLOOP_COUNTS    set here: the file that collects every interpreter's counts (counts.py)
    FASTLOOP_COMPARE   the settings of one run of compare (tools/compare/watcher.py), as JSON
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from types import SimpleNamespace

from fastloop.compat.counts import describe, hand_over, open_counts, take_counts
from fastloop.compat.decoded import decoded
from fastloop.compat.late_import import after_import, cancel
from fastloop.patching import SEAMS

TYPE_CHECKING = False  # importing typing would take as long as this whole module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_ASKED = "FASTLOOP_REPORT", "FASTLOOP_WATCH", "FASTLOOP_METRICS"
_FOLDER = os.path.join(os.path.dirname(__file__), "bootstrap")


def make_environment(what: str) -> dict[str, str]:
    """Return the environment variables that make interpreters patch `what`.

    Args:
        what: parts of torch, with commas between; "" patches nothing.

    Raises:
        ValueError: a name is unknown, or python was started with a flag that hides the variables.
    """
    for name in what.split(",") if what else ():
        if name not in SEAMS:
            raise ValueError(f"--only must name some of {','.join(SEAMS)}, got {name!r}")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ValueError("python must run without -E, -I and -S, which switch patching off")
    before = os.environ.get("PYTHONPATH")
    paths = [_FOLDER, *(before.split(os.pathsep) if before else ())]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "FASTLOOP_PATCH": what}


def say(text: str) -> None:
    """Print a line on stderr. If stderr is closed or a full disk, the line is lost."""
    try:  # noqa: SIM105 - contextlib would be one more import
        print(f"fastloop: {text}", file=sys.stderr)
    except (OSError, ValueError):
        pass


def is_loud() -> bool:
    """Tell whether this process may print: rank 0 may, unless FASTLOOP_VERBOSE is 0."""
    return os.environ.get("RANK", "0") == "0" and os.environ.get("FASTLOOP_VERBOSE", "1") != "0"


def arm(what: str, verbose: bool, then: Callable[[], object] = lambda: None) -> None:
    """Patch torch now if torch is imported, else as soon as the program imports torch.

    Args:
        what: names with commas between; "" patches nothing.
        verbose: whether to print a line on stderr about the patch.
        then: a function to call after patching.
    """
    after_import("torch", lambda: _act(what, verbose, then))


def _act(what: str, verbose: bool, then: Callable[[], object]) -> None:
    """Patch torch and call `then`. If one of both raises, print the error: the program continues
    with torch alone."""
    try:
        if what:
            from fastloop.compat.requirements import require_torch

            require_torch("fastloop.patch()")
            from fastloop.patching.patch import patch

            cache = os.environ.pop("FASTLOOP_IMAGES", None)  # put back if it can be had
            names = [name for name in what.split(",") if name]
            patch(names, verbose=verbose, cache=cache if cache != "" else True)
        then()
    except Exception as error:
        say(f"torch is not patched: {error if isinstance(error, ImportError) else repr(error)}")


def start() -> None:
    """Arm this interpreter as the environment variables ask."""
    what = os.environ.get("FASTLOOP_PATCH", "") if os.environ.get("FASTLOOP") != "0" else ""
    if os.environ.pop("FASTLOOP_RUN", "") == "1":
        _start_program(what)
        return
    # A worker process of multiprocessing ends without atexit, so a report would never close.
    is_worker = any(arg.startswith("from multiprocessing.") for arg in sys.orig_argv)
    asked = [] if is_worker else _read_asked()
    if what or any(asked):
        atexit.register(_say_end, os.getpid(), "rank 0")
        arm(what, False, lambda: any(asked) and _open_report(asked, is_child=True))


def _start_program(what: str) -> None:
    asked, compared = _read_asked(), os.environ.pop("FASTLOOP_COMPARE", "")
    report = asked[0]
    if os.environ.pop("FASTLOOP_CHILDREN", "") == "0":
        for name in ("FASTLOOP_PATCH", *_ASKED):
            os.environ.pop(name, None)
        paths = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
        if others := [path for path in paths if path != _FOLDER]:
            os.environ["PYTHONPATH"] = os.pathsep.join(others)
    began = time.perf_counter()
    watched: list[Any] = []  # the report; if the user named no file, the verdict is printed
    is_watched = bool(what) and not report and is_loud() and getattr(sys.stderr, "isatty", bool)()

    def then() -> None:
        if compared:
            from fastloop.tools.compare.watcher import begin

            begin(compared, began)
        elif any(asked) or is_watched:
            watched.append(_open_report(asked))

    if not compared:
        if what and "FASTLOOP_PATCH" in os.environ:
            open_counts()
        atexit.register(_say_end, os.getpid(), "run", bool(report), watched)
    if what or compared or any(asked):
        arm(what, is_loud(), then)


def _read_asked() -> list[str]:
    return [os.environ.get(name, "") for name in _ASKED]


def _open_report(asked: Sequence[str], is_child: bool = False) -> Any:
    """Open a report on this program as soon as the program has imported torch.

    The report closes when the interpreter ends. If the program raises, the report closes before
    the traceback is printed, so that users see the traceback last.

    Args:
        asked: the values of _ASKED. If the first one is empty, the report prints no table.
        is_child: whether the report stays silent if the program takes no step.
    """
    from fastloop.tools.watch.report import report

    paths, watch, metrics = asked
    names = paths.split(os.pathsep) if paths else ()
    every = watch == "on" or float(watch or 0) or False
    is_verbose = None if paths else False
    opened = report(*names, verbose=is_verbose, watch=every, metrics=metrics or None).__enter__()
    opened.says_if_empty = not is_child
    print_error = sys.excepthook

    def close_first(*error: Any) -> None:
        opened.__exit__(*error)
        print_error(*error)

    sys.excepthook = close_first
    atexit.register(opened.__exit__, None, None, None)
    return opened


def _say_end(
    process: int, of: str, wants_report: bool = False, watched: Sequence[Any] = ()
) -> None:
    """Print what the seams did when the interpreter ends. Forked processes print nothing."""
    if os.getpid() != process:
        return
    patching = sys.modules.get("fastloop.patching.patch")
    seams = patching.patch_status().seams if patching is not None else {}
    if (of != "run" and hand_over(seams)) or not is_loud():
        return
    if wants_report and not watched:
        say("no report was written, because this process has not imported torch")
    is_active = any(seam.native or seam.fallbacks for seam in seams.values())
    if patching is None:  # a launcher patches nothing, so add up the counts of its children
        seams = {
            name: SimpleNamespace(is_on=True, native=0, fallbacks={}, served={}, fallback_ns={})
            for name in SEAMS
        }
        is_active = take_counts(seams)
    if (of == "run" and (patching or is_active)) or ("RANK" in os.environ and is_active):
        verdicts = sys.modules.get("fastloop.compat.verdicts")
        told = [describe(name, seams[name]) for name in SEAMS]
        told += [] if verdicts is None else verdicts.in_force()
        told += decoded.describe()
        say(f"end of {of}: {'; '.join(told)}")
    for verdict in (report.to_dict()["verdict"] for report in watched if not wants_report):
        if verdict["kind"] != "unknown":
            import shlex

            say(verdict["text"])
            say(f"more: python -m fastloop run --report=run.html {shlex.join(sys.orig_argv[1:])}")


# ---- notebooks


def load_extension() -> None:
    """Patch torch for the rest of a notebook, at once if torch is imported already."""
    if os.environ.get("FASTLOOP") == "0":
        print("fastloop: FASTLOOP=0 is set, so torch is not patched", file=sys.stderr)
        return
    arm(",".join(SEAMS), verbose=True)


def unload_extension() -> None:
    """Remove all patches from torch."""
    cancel("torch")
    patching = sys.modules.get("fastloop.patching.patch")
    if patching is not None:
        print(f"fastloop: {patching.patch_status()}", file=sys.stderr)
        patching.unpatch()
