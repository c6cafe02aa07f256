"""What a check of the doctor has found, and where checks look: the system, or a fake of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from time import perf_counter

from fastloop.base.cgroup import read_text


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    NOTE = 1  # good to know
    WARN = 2  # it costs time or memory
    FAIL = 3  # something does not work


@dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
        id: the check's name.
        level: how much it matters.
        fact: what was seen.
        cost: what that costs; empty where nothing does.
        fix: what to do about it.
    """

    id: str
    level: Level
    fact: str
    cost: str = ""
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        level = self.level.name.lower()
        return {"id": self.id, "level": level, **{n: getattr(self, n) for n in _TEXTS}}


_TEXTS = ("fact", "cost", "fix")


def _space(path: Path) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout


@dataclass(frozen=True)
class System:
    """The machine as checks see it.

    Attributes:
        root: whose /proc, /sys and /dev are read.
        environ: the environment.
        space: gives (total, free) bytes of the file system at a path.
        run: gives what a command prints; raises OSError or subprocess.SubprocessError.
        clock: seconds.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    space: Callable[[Path], tuple[int, int]] = _space
    run: Callable[[Sequence[str]], str] = _run
    clock: Callable[[], float] = perf_counter

    def read(self, path: str) -> str:
        """The text of a file below the root; empty if it cannot be read."""
        return read_text(self.root / path)

    def field(self, path: str, name: str) -> str:
        """What stands behind `name` on the first line that begins with it; empty if none does."""
        lines = [line for line in self.read(path).splitlines() if line.startswith(name)]
        return lines[0][len(name) :].strip() if lines else ""
