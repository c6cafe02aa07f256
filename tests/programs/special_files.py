"""Opens a FIFO, a socket and devices as arrays, and prints the errors."""

import os
import socket

from fastloop import ArrayDataset

os.mkfifo("fifo.npy")
os.symlink("fifo.npy", "link.npy")
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket.npy")
stat, fifos = os.stat, []


def stat_and_replace(path, **kwargs):
    # Another process puts a FIFO there when the file was looked at, but is not open yet.
    found = stat(path, **kwargs)
    if str(path).endswith("late.npy") and not fifos:
        os.unlink(path)
        fifos.append(os.mkfifo(path))
    return found


os.stat = stat_and_replace
open("late.npy", "wb").close()
for path in ("fifo.npy", "link.npy", "socket.npy", "/dev/zero", "/dev/null", "late.npy"):
    try:
        ArrayDataset(x=path)
    except ValueError as error:
        print(error)
