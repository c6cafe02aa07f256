"""Runs the C test programs of a lane, so many at a time. What each printed comes in one piece, in
the order of the programs; then what the failed ones printed, once more, and how many passed.

    python tests/c/run_programs.py LANE JOBS TIMEOUT_S LAUNCHER PROGRAM...

TIMEOUT_S is of an idle machine, as are the limits in the programs: they grow with the load.
LAUNCHER: words before each program, such as "setarch -R"; may be empty."""

import math
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from time_limits import limit


def run(command: list[str], timeout_s: float) -> tuple[str, str]:
    """(output, how it failed or ""). The output goes to a file: a child that outlives the program
    would keep a pipe open."""
    slowness = limit(1.0)
    timeout_s *= slowness
    environment = {**os.environ, "TEST_SLOWNESS": str(math.ceil(slowness))}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
            fault = f"FAILED with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            fault = f"FAILED: it ran for more than {timeout_s:g} s"
        output.seek(0)
        return output.read().decode(errors="replace"), fault


def main() -> int:
    lane, jobs, timeout_s, launcher, *programs = sys.argv[1:]
    commands = [[*launcher.split(), program] for program in programs]
    failed, reports = [], []
    with ThreadPoolExecutor(int(jobs)) as pool:
        results = pool.map(lambda command: run(command, float(timeout_s)), commands)
        for program, (output, fault) in zip(programs, results, strict=True):
            print(output, end="", flush=True)
            if fault:
                print(f"{program}: {fault}", flush=True)
                failed.append(Path(program).name)
                reports.append(f"{output}{program}: {fault}")
    if failed:
        print(*reports, f"failed in lane {lane}: {' '.join(failed)}", sep="\n")
    print(f"{lane}: {len(programs) - len(failed)} passed, {len(failed)} failed")
    return bool(failed) or not programs


if __name__ == "__main__":
    sys.exit(main())
