"""The server that starts the scripts of these tests."""

import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import helpers
import pytest
from helpers import run_script


def kill_servers() -> list[Any]:
    servers = [server for _, server in helpers._servers.values()]
    for server in servers:
        server.kill()
        server.wait()
    return servers


@pytest.mark.slowest
def test_scripts_run_after_their_server_was_killed(tmp_path: Path) -> None:
    assert run_script(tmp_path, "print(1)") == "1\n"
    servers = kill_servers()
    assert run_script(tmp_path, "print(2)") == "2\n"
    (living,) = (server for _, server in helpers._servers.values() if server.poll() is None)
    assert living not in servers


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200, reason="too few files")
def test_scripts_run_though_many_files_are_open(tmp_path: Path) -> None:
    """As by a test before, that holds tensors which torch shares."""
    kill_servers()
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open(os.devnull))
        assert run_script(tmp_path, "print(1)") == "1\n"
    kill_servers()


FORKS = """
import os, threading
event = threading.Event()
thread = threading.Thread(target=event.wait)
thread.start()
if os.fork() == 0:
    os._exit(0)
os.wait()
event.set()
"""


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_script_of_several_threads_may_fork(tmp_path: Path, is_fresh: bool) -> None:
    """Of which Python warns from 3.12 on; scripts must write nothing to stderr."""
    assert run_script(tmp_path, FORKS, is_fresh=is_fresh) == ""
