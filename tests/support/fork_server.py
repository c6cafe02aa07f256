"""Scripts in processes of their own, without the seconds that `import torch` takes in each.

One interpreter, the server, imports torch and waits. `python fork_server.py SCRIPT ARGUMENTS...`,
in any process of the tests, has it fork: the child gets the caller's directory, environment and
standard files, runs the script as `__main__`, and ends like any interpreter. The caller stands for
it: it ends as the script does, by the same code or signal, and if it is killed, so is the script.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing.context
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from types import CodeType
from typing import Any

ADDRESS = "FASTLOOP_TESTS_SERVER"  # the variable that holds the name of the server's socket
FLAGS = ("-X", "faulthandler")


# ---- the tests' side


def start_server(env: dict[str, str], imports: str) -> tuple[str, subprocess.Popen[bytes]]:
    """The address of a server that has these modules, and the server, which ends when its standard
    input is closed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # to a name that Linux makes
        name = listener.getsockname()[1:].decode()
        listener.listen(64)
        command = f"import fork_server; exec(fork_server.serve({listener.fileno()}, {imports!r}))"
        server = subprocess.Popen(
            [sys.executable, *FLAGS, "-c", command],
            pass_fds=[listener.fileno()],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    return name, server


def stand_for_script() -> None:
    request = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{os.environ[ADDRESS]}")
        socket.send_fds(connection, [b" "], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        code = int(connection.makefile().readline())
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


# ---- the server


def serve(fileno: int, imports: str) -> CodeType:
    """Returns in a script's process alone, with what it is to run."""
    # torch imports dill where it is installed, and dill keeps __main__ until modules are cleared.
    sys.modules["dill"] = None  # type: ignore[assignment]
    # Scripts that name no start method fork, also from CPython 3.14 on: they are not written to be
    # imported by their workers.
    default: Any = multiprocessing.context._default_context  # type: ignore[attr-defined]
    default._default_context = multiprocessing.get_context("fork")
    for name in imports.split():
        importlib.import_module(name)
    del sys.modules["dill"]
    gc.collect()
    # Collections of a script look at what it makes, not at torch; so does the last one, which would
    # be most of what a short script takes.
    gc.freeze()
    importlib.import_module("huge_pages").collapse_memory()  # callers of the server need it not
    listener = socket.socket(fileno=fileno)
    while True:
        if 0 in _await_any(fileno, 0):
            os._exit(0)
        connection, _ = listener.accept()
        try:
            pid = os.fork()
        except OSError:  # no memory or no processes left: one script fails, and not all that follow
            traceback.print_exc()
            pid = -1
        if pid == 0:
            listener.close()
            return _fork_script(connection)
        connection.close()
        while _has_reaped():
            pass


def _await_any(*files: int) -> list[int]:
    """Those that are ready. Tests have more files open than select.select() can take."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll()]


def _has_reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _fork_script(connection: socket.socket) -> CodeType:
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        request = json.loads(lines.readline())
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        _watch(connection, pid)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return _become(request["argv"], request["cwd"], request["env"])


def _watch(connection: socket.socket, pid: int) -> None:
    """Kills the script when nobody waits for it any more; tells how it has ended."""
    end = os.pidfd_open(pid)
    if end not in _await_any(connection.fileno(), end):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    finally:
        os._exit(0)


def _become(argv: list[str], folder: str, env: dict[str, str]) -> CodeType:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    script = os.path.abspath(argv[0])
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(script)
    sys.modules["__main__"].__dict__.update(__file__=script)
    del sys.modules["__main__"].__dict__["fork_server"]
    with open(script, encoding="utf-8") as text:
        return compile(text.read(), script, "exec")


if __name__ == "__main__":
    stand_for_script()
