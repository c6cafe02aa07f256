import signal
from pathlib import Path

import torch

torch.set_num_threads(1)
from workers import Items, resources

from fastloop import DataLoader

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()


def flags():
    text = Path("/proc/self/smaps").read_text()
    parts = text.split("memfd:fastloop")[1:]
    assert parts
    return all(" dd" in part.split("VmFlags:")[1].split("\n")[0] for part in parts)


class Checks(Items):
    def __getitem__(self, i):
        assert flags()
        return super().__getitem__(i)


def main():
    for method in ("fork", "spawn"):
        loader = DataLoader(Checks(8), 4, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            assert flags()


if __name__ == "__main__":
    main()
