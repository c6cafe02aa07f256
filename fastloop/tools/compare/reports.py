"""``python -m fastloop compare A.json B.json``: prints two reports side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fastloop.tools.report.render import compare
from fastloop.tools.report.summary import SCHEMA

USAGE = """usage: python -m fastloop compare A.json B.json

Compares two reports of fastloop.report(): steps a second, the phases of a step and the parts of the
run, A first."""


def load_report(path: str) -> dict[str, Any]:
    """Read a report. Raises ValueError if the file holds none, OSError if it cannot be read."""
    try:
        found = json.loads(Path(path).read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} must hold JSON: {error}") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} must be a report of schema {SCHEMA!r}, got {schema!r}; write it with "
            f"fastloop.report({path!r})"
        )
    return dict(found)


def main(args: list[str]) -> int:
    """Print the comparison. Returns 2 if it is impossible."""
    if args in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if len(args) != 2:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        print(compare(*map(load_report, args)))
    except (OSError, ValueError) as error:
        print(f"fastloop compare: {error}", file=sys.stderr)
        return 2
    except (AttributeError, KeyError, TypeError) as error:
        print(f"fastloop compare: a report is damaged: {error!r}", file=sys.stderr)
        return 2
    return 0
