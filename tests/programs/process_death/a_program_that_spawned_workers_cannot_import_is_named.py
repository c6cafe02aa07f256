import signal
from pathlib import Path

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Kill, error_text, resources

from fastloop import DataLoader

NAME = Path(__file__).name
ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()

    class Here(torch.utils.data.Dataset):
        __len__ = lambda self: 8
        __getitem__ = lambda self, i: i

    loader = DataLoader(Here(), 4, num_workers=1, multiprocessing_context="spawn")
    text = error_text(lambda: list(loader))
    assert f"{NAME} anew, " in text and "stderr says which error it met" in text, text
    loader = DataLoader(
        Items(hook=CallAt(2, Kill(0))), 4, num_workers=1, multiprocessing_context="spawn"
    )
    assert NAME not in error_text(lambda: list(loader))
