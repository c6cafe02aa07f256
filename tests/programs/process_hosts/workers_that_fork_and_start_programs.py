import os
import signal
import subprocess
import threading
import time

import torch

torch.set_num_threads(1)
from workers import Items, check_batches, children, is_running

from fastloop import DataLoader


def start(i):
    assert subprocess.run(["true"]).returncode == 0
    assert subprocess.check_output(["echo", str(i)], text=True) == f"{i}\n"
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def leave(i):
    if i == 5:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        left[0] = pid
    if i == 6:
        left[1] = subprocess.Popen(["sleep", "600"], close_fds=False).pid


left = torch.zeros(2, dtype=torch.int32).share_memory_()
for hook, count in ((start, 16), (leave, 64)):
    assert check_batches(DataLoader(Items(count, hook), 4, num_workers=2)) == count // 4
    assert not children()
for pid in left.tolist():
    assert is_running(pid)  # still
    os.kill(pid, signal.SIGKILL)


class Threads(Items):
    def __getitem__(self, i):
        found = []
        thread = threading.Thread(target=lambda: found.append(super(Threads, self).__getitem__(i)))
        thread.start()
        thread.join()
        return found[0]


assert check_batches(DataLoader(Threads(), 4, num_workers=2)) == 16
