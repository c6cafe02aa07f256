"""A trial: a program's first steps, plain or patched, in a process of its own.

``compare`` starts the program by python, with Settings in the environment; sitecustomize
(patching/bootstrap) calls ``begin()`` once the program has imported torch.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.tools.compare.watcher import TrialObserver


@dataclass(frozen=True)
class Settings:
    """The arguments of a trial.

    Attributes:
        record: the file that the trial writes: ``TrialObserver.to_dict()``. A program that does not
            import torch writes none.
        steps: after how many optimizer steps the program ends.
        seed: for the random numbers of Python, NumPy and torch; None leaves them to the program.
    """

    record: str
    steps: int
    seed: int | None

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def begin(settings: str, began: float) -> None:
    """Watch this program from now on, and write what was seen when the interpreter ends."""
    from fastloop.tools.compare.watcher import TrialObserver

    read = Settings(**json.loads(settings))
    if read.seed is not None:
        _seed_all(read.seed)
    observer = TrialObserver(read.steps, began)
    observer.open()
    atexit.register(_end, observer, read.record, os.getpid())


def _end(observer: TrialObserver, record: str, process: int) -> None:
    if os.getpid() != process:
        return  # a fork has come to the end of the program
    observer.finish()
    with open(record, "w") as file:
        json.dump(observer.to_dict(), file)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
