import subprocess

from time_limits import limit
from workers import PROGRAM, children, is_running, wait_until

for method in ("spawn", "forkserver"):
    for moment in ("running", "starting"):
        inner = subprocess.Popen(
            [*PROGRAM, "inner.py", method, moment],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        pids = [int(pid) for pid in inner.stdout.readline().split()]
        assert len(pids) >= 2 and inner.wait(limit(60)) == -9
        pids += [child for pid in pids for child in (children(pid) if is_running(pid) else [])]
        took = wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
        print(f"{method} {moment}: {took:.2f} s")
