import os
import signal
from pathlib import Path

from head import loader_of

tasks = set(os.listdir("/proc/self/task"))
iterator = iter(loader_of(2, 40))
ours = set(os.listdir("/proc/self/task")) - tasks
assert len(ours) == 2, ours
for task in ours:
    status = Path(f"/proc/self/task/{task}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        assert blocked >> (number - 1) & 1, (number, hex(blocked))
