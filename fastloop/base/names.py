"""Names that people mistype: of attributes, commands and options. Imported only for an error or by
commands."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return "; did you mean X?" with the nearest of the names, "" if none is near."""
    nearest = [] if name.startswith("_") else get_close_matches(name, names, 1, likeness)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def read_options(parser: ArgumentParser, args: list[str]) -> Namespace:
    """Return the options of a command. The parser's error for an unknown one names the nearest."""
    options, unknown = parser.parse_known_args(args)
    if unknown:
        hint = suggest(unknown[0].partition("=")[0], re.findall(r"--[a-z]+", parser.format_help()))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options
