import subprocess

from time_limits import limit
from workers import PROGRAM, is_running, wait_until

inner = subprocess.Popen([*PROGRAM, "inner.py"], stdout=subprocess.PIPE, text=True)
pids = [int(pid) for pid in inner.stdout.readline().split()]
assert inner.wait(limit(60)) == -9 and len(pids) == 2
wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
