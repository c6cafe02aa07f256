"""Opens a FIFO, a socket and devices as arrays, and prints the errors."""

import os
import socket

from fastloop import ArrayDataset

os.mkfifo("fifo.npy")
os.symlink("fifo.npy", "link.npy")
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket.npy")
for path in ("fifo.npy", "link.npy", "socket.npy", "/dev/zero", "/dev/null"):
    try:
        ArrayDataset(x=path)
    except ValueError as error:
        print(error)
