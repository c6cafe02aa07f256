"""A terminal that a test reads: what is written becomes lines as on a screen."""

from __future__ import annotations

import io
import re


def screen_of(text: str) -> list[str]:
    """The lines that a terminal of endless width shows after this text."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif part == "\x1b[A":
            row = max(row - 1, 0)
        elif part == "\x1b[K":
            lines[row] = lines[row][:column]
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        return screen_of(self.getvalue())
