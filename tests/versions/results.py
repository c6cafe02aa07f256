"""Makes the tables of docs/results/versions.md and a sentence of README.md from versions.json.
"cells" of that file has one result of `make matrix` a cell; "adapters" has the releases that
each adapter was tested with, and its tests. With --check it only says whether they are up to
date."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/results/versions.json"
BEGIN = "<!-- made by tests/versions/results.py -->"
BEGIN_ADAPTERS = "<!-- adapters, made by tests/versions/results.py -->"
END = "<!-- end of the table -->"


@dataclass(frozen=True)
class Result:
    cell: str  # a word of VERSIONS
    torch: str
    python: str
    machine: str
    start_method: str
    passed: int
    failed: int
    skipped: int
    seconds: int  # of the tests alone
    date: str
    commit: str  # ends in "+" where files differed from it
    why: str  # empty where all tests passed

    @property
    def is_green(self) -> bool:
        return self.passed > 0 and not self.why


def order(result: Result) -> tuple[bool, bool, list[int], str]:
    """Releases of torch first, then interpreters, then start methods."""
    is_other = result.cell == result.start_method
    is_python = result.cell.startswith("py")
    return is_other, is_python, [int(n) for n in re.findall(r"\d+", result.cell)], result.cell


def load() -> dict[str, Result]:
    results = [Result(**fields) for fields in json.loads(FILE.read_text())["cells"]]
    return {result.cell: result for result in results}


def save(results: dict[str, Result]) -> None:
    rows = [asdict(result) for result in sorted(results.values(), key=order)]
    found = {**json.loads(FILE.read_text()), "cells": rows}
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def table(header: str, rows: list[list[str]]) -> str:
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def listed(names: Iterable[str]) -> str:
    *names, last = names
    return f"{', '.join(names)} and {last}" if names else last


def summary(results: list[Result]) -> str:
    """Name the versions on which tests have passed, and those on which they failed, for README."""
    green = [r for r in results if r.is_green]
    forked = [r for r in green if r.start_method == "fork"]
    torches = dict.fromkeys(r.torch for r in forked if not r.cell.startswith("py"))
    pythons = dict.fromkeys(r.cell.removeprefix("py") for r in green if r.cell.startswith("py"))
    methods = dict.fromkeys(r.start_method for r in green)
    text = (
        f"Tested with torch {listed(torches)} on CPython 3.11, and CPython {listed(pythons)}, each "
        f"with its newest torch; with {listed(methods)} workers."
    )
    failed = [f"{r.cell} (torch {r.torch}, CPython {r.python})" for r in results if not r.is_green]
    return text + (f" FAILED: {', '.join(failed)}." if failed else "")


def long_table(results: list[Result]) -> str:
    rows = []
    for r in results:
        versions = [f"`{r.cell}`", r.torch, f"{r.python}, {r.machine}", r.start_method]
        counts = [str(r.passed), str(r.failed), str(r.skipped), f"{r.seconds} s"]
        rows.append([*versions, *counts, f"{r.date}, {r.commit}", r.why.replace("|", "\\|")])
    header = (
        "| cell | torch | CPython | start method | passed | failed | skipped | took | run | why |"
    )
    return table(header, rows)


def adapters_table() -> str:
    rows = []
    for found in json.loads(FILE.read_text())["adapters"]:
        versions = (f"{name} {', '.join(each)}" for name, each in found["versions"].items())
        tests = (f"`{name}`" for name in found["tests"])
        rows.append([f"`{found['adapter']}`", "; ".join(versions), ", ".join(tests)])
    return table("| adapter | releases | tests |", rows)


def with_table(text: str, made: str, begin: str = BEGIN) -> str:
    before, rest = text.split(begin)
    return f"{before}{begin}\n{made}\n{END}{rest.partition(END)[2]}"


def main(is_check: bool) -> int:
    results = sorted(load().values(), key=order)
    pages = {ROOT / "README.md": summary, ROOT / "docs/results/versions.md": long_table}
    stale = []
    for path, make in pages.items():
        text = path.read_text()
        wanted = with_table(text, make(results))
        if BEGIN_ADAPTERS in text:
            wanted = with_table(wanted, adapters_table(), BEGIN_ADAPTERS)
        if text != wanted:
            stale.append(path.name)
        if not is_check:
            path.write_text(wanted)
    if is_check and stale:
        print(f"{' and '.join(stale)}: the table differs from {FILE.name}; run {sys.argv[0]}")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
