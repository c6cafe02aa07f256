"""The doctor's answer: a finding of each check, and how all of them are printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import partial
from typing import Any


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    NOTE = 1  # good to know
    WARN = 2  # it costs time or memory
    FAIL = 3  # something does not work


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: how much it matters.
        fact: what was seen.
        cost: what that costs; empty if nothing.
        fix: what to do about it.
        id: the check's name.
    """

    level: Level
    fact: str
    cost: str = ""
    fix: str = ""
    id: str = ""

    def __str__(self) -> str:
        text = f"{self.level.name.lower():<4}  {self.id}: {self.fact}"
        text += f"\n      costs: {self.cost}" if self.cost else ""
        return text + (f"\n      do:    {self.fix}" if self.fix else "")


ok, note = partial(Finding, Level.OK), partial(Finding, Level.NOTE)
warn, fail = partial(Finding, Level.WARN), partial(Finding, Level.FAIL)


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's facts and findings. ``print(diagnosis)`` shows them.

    Attributes:
        facts: what was built and what runs where, by name.
        findings: one for each check.
    """

    facts: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        """The command's exit status: 1 if something does not work."""
        return int(any(finding.level is Level.FAIL for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``schema`` changes when a name here does."""
        checks = [{**asdict(f), "level": f.level.name.lower()} for f in self.findings]
        return {"schema": 1, "facts": self.facts, "checks": checks}

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, "", *map(str, self.findings), "", self.summary])

    @property
    def summary(self) -> str:
        """One line that counts failures and warnings and names them."""
        parts = []
        for level, name in ((Level.FAIL, "failure"), (Level.WARN, "warning")):
            if ids := [finding.id for finding in self.findings if finding.level is level]:
                parts.append(f"{len(ids)} {name}{'s' * (len(ids) > 1)} ({', '.join(ids)})")
        notes = [finding.level for finding in self.findings].count(Level.NOTE)
        return f"doctor: {', '.join(parts) or 'nothing to do'}; {notes} to know"
