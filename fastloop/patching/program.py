"""``python -m fastloop run``: a script, run as python runs it, with torch patched.

Torch is patched when the script imports it, and not before. What a plain ``python`` gives a script
(``__main__``, ``sys.argv``, ``sys.path[0]``, exit status, tracebacks, Ctrl-C) it gets here, too.
"""

from __future__ import annotations

import atexit
import os
import sys

from fastloop.patching.names import REPORT, REPORT_FILES, SEAMS

TYPE_CHECKING = False  # as in typing, whose import takes as long as all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

USAGE = """usage: python -m fastloop run [OPTIONS] SCRIPT [ARGS]
       python -m fastloop run [OPTIONS] -m MODULE [ARGS]
       python -m fastloop run [OPTIONS] -c CODE | - [ARGS]

Runs a script, a module, a folder or zip file that has a __main__.py, code, or what comes from
standard input (-), as python does, with torch patched:
torch's own DataLoader then gives fastloop's iterators, its GradScaler and clip_grad_norm_ run in C.
FASTLOOP=0 switches it off, FASTLOOP_STRICT=1 makes what is left to torch an error,
FASTLOOP_VERBOSE=0 keeps it silent.

  --only NAMES      what to patch, with commas between: dataloader,grad_scaler,clip_grad_norm
  --no-children     not in the interpreters that the script starts
  --report[=FILES]  say at the end where the time of its training loop went, and write files, with
                     commas between: .html, .json, .trace.json (fastloop-report.html); with
                     FASTLOOP=0, of the script as it is"""

_WITHOUT_FILE = "-c", "-"  # in a script's place: code, standard input

_BOOTSTRAP = os.path.join(os.path.dirname(__file__), "bootstrap")


class _UsageError(Exception):
    pass


class _Options:
    """What stands before the script's name; what follows it is the script's."""

    def __init__(self) -> None:
        self.what = ",".join(SEAMS)
        self.in_children = True
        self.report: list[str] | None = None  # names of its files
        self.is_module = False


def _take_options(args: list[str]) -> tuple[_Options, list[str]]:
    """The options, and what is left."""
    options, rest = _Options(), list(args)
    while rest and rest[0].startswith("-") and not options.is_module:
        if rest[0] in _WITHOUT_FILE:
            break
        option = rest.pop(0)
        if option[:2] in ("-m", "-c") and option[2:]:  # as in -mpytest
            rest[:0] = [option[:2], option[2:]]
            continue
        name, has_value, value = option.partition("=")
        if option == "-m":
            options.is_module = True
        elif option == "--no-children":
            options.in_children = False
        elif name == "--only":
            if not has_value and not rest:
                raise _UsageError("--only needs names")
            options.what = value if has_value else rest.pop(0)
        elif name == "--report":
            options.report = _check_report(value)
        elif option in ("-h", "--help"):
            print(USAGE)
            raise SystemExit(0)
        else:
            raise _UsageError(f"{option} is no option of run; a script's stand behind its name")
    unknown = [name for name in options.what.split(",") if name not in SEAMS]
    if unknown:
        raise _UsageError(f"--only {unknown[0]!r} is nothing to patch; it takes {','.join(SEAMS)}")
    if rest == ["-c"]:
        raise _UsageError("there is nothing to run; -c needs code")
    if not rest:
        where = "-m needs a module" if options.is_module else "name a script, or a module after -m"
        raise _UsageError(f"there is nothing to run; {where}")
    return options, rest


def _check_report(value: str) -> list[str]:
    """The files that are asked for, which can be written."""
    from importlib import import_module

    files = import_module(REPORT_FILES)
    names = value.split(",") if value else [files.DEFAULT]
    try:
        return [str(path) for path in files.find_files(names, of_rank=False)]
    except (OSError, ValueError) as error:
        raise _UsageError(f"--report: {error}") from None


def main(args: list[str]) -> int:
    """Runs the script; raises what it raises."""
    try:
        options, rest = _take_options(args)
    except _UsageError as error:
        print(f"fastloop run: {error}\n{USAGE}", file=sys.stderr)
        return 2
    is_on = os.environ.get("FASTLOOP") != "0"
    report = None if options.report is None else _LateReport(options.report)
    if is_on:
        atexit.unregister(_say_end)  # of a run that this one is within
        atexit.register(_say_end, os.getpid())
    if is_on or report is not None:
        what = options.what if is_on else ""
        arm(what, is_on and options.in_children, None if report is None else report.open)
    global _on_error
    if report is not None:
        _on_error = report.close
    try:
        run_program(rest, options.is_module)
    finally:
        if report is not None:
            report.close(sys.exc_info()[1])
    return 0


# Called before a traceback is printed, so that this is what users see last.
_on_error: Callable[[BaseException], None] | None = None


class _LateReport:
    """A report that is opened when torch is imported."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._process = os.getpid()
        self._opened: Any = None

    def open(self) -> None:
        from importlib import import_module

        self._opened = import_module(REPORT).report(*self._paths).__enter__()

    def close(self, error: BaseException | None) -> None:
        """Does nothing the second time."""
        if self._opened is not None:
            self._opened.__exit__(None, error, None)
        elif os.getpid() == self._process:
            self._process = 0
            try:  # noqa: SIM105 - contextlib is an import
                print("fastloop: no report, the program has not imported torch", file=sys.stderr)
            except (OSError, ValueError):
                pass  # a closed stderr, or a full disk below it


def import_bootstrap() -> Any:
    """By its own name, as the interpreters that a program starts import it: one in a process."""
    sys.path.insert(0, _BOOTSTRAP)
    try:
        import fastloop_bootstrap
    finally:
        sys.path.remove(_BOOTSTRAP)
    return fastloop_bootstrap


def arm(what: str, in_children: bool, then: Callable[[], None] | None) -> None:
    """Patches torch when it is imported.

    Args:
        what: names with commas between; "" patches nothing.
        in_children: also in the interpreters that this one starts.
        then: called after it.
    """
    if in_children:
        before = os.environ.get("PYTHONPATH")
        paths = [_BOOTSTRAP, *(before.split(os.pathsep) if before else ())]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        os.environ["FASTLOOP_PATCH"] = what
    import_bootstrap().arm(what, _is_loud(), then)


def _is_loud() -> bool:
    """Of several ranks the first one speaks."""
    return os.environ.get("RANK", "0") == "0" and os.environ.get("FASTLOOP_VERBOSE", "1") != "0"


def _say_end(process: int) -> None:
    patch = sys.modules.get("fastloop.patching.patch")
    if patch is not None and os.getpid() == process and _is_loud():
        status = patch.patch_status()
        is_idle = not any(seam.native for seam in status.seams.values())
        where = " (this process alone is counted)" if is_idle else ""  # ranks may have done it
        print(f"fastloop: end of run: {status}{where}", file=sys.stderr)


def say_end_of_rank(process: int) -> None:
    """In a process that a launcher has started: it is its first rank that speaks."""
    patch = sys.modules["fastloop.patching.patch"]
    status = patch.patch_status()
    is_used = any(seam.native or seam.left for seam in status.seams.values())
    if os.getpid() == process and "RANK" in os.environ and _is_loud() and is_used:
        print(f"fastloop: end of rank 0: {status}", file=sys.stderr)


def _new_main() -> ModuleType:
    module = type(sys)("__main__")
    vars(module).update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = module
    return module


def _set_first_path(folder: str) -> None:
    """In place of the current folder, which ``python -m fastloop`` has put there."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def run_program(rest: list[str], is_module: bool) -> None:
    """Runs it as python does, and raises what it raises.

    Args:
        rest: its name and its arguments.
    """
    if is_module:
        _run_module(rest)
    elif rest[0] in _WITHOUT_FILE:
        _run_without_file(rest)
    else:
        _run_path(rest)


def _run_module(rest: list[str]) -> None:
    sys.argv[:] = ["-m", *rest[1:]]
    _run_as_main(rest[0], True)


def _run_as_main(name: str, alters_argv: bool) -> None:
    import runpy

    _new_main()
    # What `python -m` and `python FOLDER` call.
    _guard(lambda: runpy._run_module_as_main(name, alters_argv))  # type: ignore[attr-defined]


def _run_path(rest: list[str]) -> None:
    script = rest[0]
    sys.argv[:] = rest
    if os.path.isdir(script) or _is_archive(script):
        _set_first_path(os.path.join(os.getcwd(), script))  # python leaves "." in it
        _run_as_main("__main__", False)
        return
    path = os.path.join(os.getcwd(), script)  # and ".."
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    from importlib.machinery import SourceFileLoader, SourcelessFileLoader

    _set_first_path(os.path.dirname(os.path.realpath(script)))
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        _run_code(
            lambda: compiled.get_code("__main__"),
            __file__=path, __cached__=None, __loader__=compiled,
        )  # fmt: skip
        return
    loader = SourceFileLoader("__main__", path)
    _run_source(source, path, __file__=path, __cached__=None, __loader__=loader)


def _run_without_file(rest: list[str]) -> None:
    from importlib.machinery import BuiltinImporter

    _set_first_path("")
    if rest[0] == "-c":
        sys.argv[:] = ["-c", *rest[2:]]
        _run_source(rest[1], "<string>", __loader__=BuiltinImporter)
        return
    sys.argv[:] = rest
    source = sys.stdin.buffer.read()
    _run_source(source, "<stdin>", __file__="<stdin>", __cached__=None, __loader__=BuiltinImporter)


def _run_source(source: str | bytes, name: str, **names: object) -> None:
    _run_code(lambda: compile(source, name, "exec", dont_inherit=True), **names)


def _run_code(load: Callable[[], Any], **names: object) -> None:
    """Runs it in a new ``__main__`` that has those names, too."""
    module = _new_main()
    vars(module).update(names)
    _guard(lambda: exec(load(), vars(module)))


def _is_archive(script: str) -> bool:
    """Python runs a zip file that has a __main__.py."""
    if script.endswith(".py"):
        return False
    import zipfile

    return zipfile.is_zipfile(script)


def _guard(run: Callable[[], object]) -> None:
    """Runs it. What it raises is printed without our frames, and ends the process as in python."""
    try:
        run()
        return
    except SystemExit:
        raise
    except BaseException as found:
        error = found
    error.__traceback__ = traceback = _cut(error.__traceback__)
    if _on_error is not None:
        _on_error(error)
    hook = sys.excepthook
    _print(error)

    def say_nothing(*_: object) -> None:  # python would print it again
        sys.last_traceback = error.__traceback__ = traceback
        sys.excepthook = hook

    sys.excepthook = say_nothing
    raise error


def _print(error: BaseException) -> None:
    """By the program's own hook. It is outside an except block, as where python calls it."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    except SystemExit:
        raise
    except BaseException as found:
        of_hook = found
    of_hook.__traceback__ = _cut(of_hook.__traceback__)
    sys.stderr.write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(of_hook), of_hook, of_hook.__traceback__)
    sys.stderr.write("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def _cut(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames of this file, which are the outermost ones."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
