"""The server that starts the scripts of these tests."""

from pathlib import Path

import helpers
from helpers import run_script


def test_scripts_run_after_their_server_was_killed(tmp_path: Path) -> None:
    assert run_script(tmp_path, "print(1)") == "1\n"
    servers = [server for _, server in helpers._servers.values()]
    for server in servers:
        server.kill()
        server.wait()
    assert run_script(tmp_path, "print(2)") == "2\n"
    assert servers[0] not in [server for _, server in helpers._servers.values()]
