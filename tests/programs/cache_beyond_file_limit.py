"""Make a cache that is larger than files may be, and print the error, the images that were decoded
before it, and what the cache's folder then has: `python cache_beyond_file_limit.py folder`."""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from image_folders import by_pillow, write_folder

import fastloop

folder = Path(sys.argv[1])
root = write_folder(folder / "images", 40, 50, 50)
calls = []


def decode(data: bytes) -> Any:
    calls.append(len(data))
    return by_pillow(data)


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    fastloop.ImageFolder(root, decode=decode, cache=f"u8:{folder / 'cache'}")
except OSError as error:
    found = os.listdir(folder / "cache")
    print(type(error).__name__, error.errno, error, len(calls), found)
