"""The server that starts the scripts of these tests."""

from pathlib import Path

import helpers
import pytest
from helpers import run_script


def test_scripts_run_after_their_server_was_killed(tmp_path: Path) -> None:
    assert run_script(tmp_path, "print(1)") == "1\n"
    servers = [server for _, server in helpers._servers.values()]
    for server in servers:
        server.kill()
        server.wait()
    assert run_script(tmp_path, "print(2)") == "2\n"
    assert servers[0] not in [server for _, server in helpers._servers.values()]


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
