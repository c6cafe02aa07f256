"""A trial: a program's first steps, as it is or patched, in a process of its own.

``compare`` starts ``python -m fastloop.tools.compare.trial SETTINGS SCRIPT [ARGS]``. It imports
neither torch nor NumPy before the program does.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from fastloop.patching.program import arm, run_program

if TYPE_CHECKING:
    from fastloop.tools.compare.watcher import TrialObserver


@dataclass(frozen=True)
class Settings:
    """Of a trial.

    Attributes:
        record: the file that is written: what ``TrialObserver.to_dict()`` gives, or null where the
            program has not imported torch.
        steps: after how many optimizer steps the program ends.
        what: what is patched, names with commas between; "" is nothing.
        seed: for the random numbers of Python, NumPy and torch; None leaves them to the program.
        is_module: the program is named as a module.
    """

    record: str
    steps: int
    what: str
    seed: int | None
    is_module: bool

    def command(self, program: list[str]) -> list[str]:
        """That runs it."""
        text = json.dumps(asdict(self))
        return [sys.executable, "-m", "fastloop.tools.compare.trial", text, *program]


class _Trial:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._began = perf_counter()
        self._observer: TrialObserver | None = None

    def begin(self) -> None:
        """Torch has been imported."""
        from fastloop.tools.compare.watcher import TrialObserver

        if self._settings.seed is not None:
            _seed_all(self._settings.seed)
        self._observer = TrialObserver(self._settings.steps, self._began)
        self._observer.open()

    def end(self) -> None:
        if os.getpid() != self._process:
            return  # a fork has come to the end of the program
        found = None
        if self._observer is not None:
            self._observer.finish()
            found = self._observer.to_dict()
        with open(self._settings.record, "w") as file:
            json.dump(found, file)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def main(args: list[str]) -> None:
    settings, program = Settings(**json.loads(args[0])), args[1:]
    trial = _Trial(settings)
    arm(settings.what, bool(settings.what), trial.begin)
    try:
        run_program(program, settings.is_module)
    finally:
        trial.end()


if __name__ == "__main__":
    main(sys.argv[1:])
