"""The statements of functions of other libraries, and their digests.

A function's form is the digests of its statements. It does not depend on comments, docstrings,
messages of errors, annotations or the version of CPython. Any thread may ask.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from hashlib import sha1
from typing import Any, NamedTuple

from fastloop.compat.torch_parts import SILENT, forms_of, is_docstring, words_of

DIGITS = 5  # of a statement's digest
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class Statement(NamedTuple):
    """A statement without the statements inside it.

    Attributes:
        digest: of the statement and of all statements around it.
        first, last: its lines.
    """

    digest: str
    first: int
    last: int


def _identify(code: types.CodeType) -> list[Any]:
    found: list[Any] = [code.co_code, code.co_names, code.co_varnames, code.co_freevars]
    for const in code.co_consts:
        is_set = isinstance(const, frozenset)
        is_code = isinstance(const, types.CodeType)
        found.append(_identify(const) if is_code else sorted(map(repr, const)) if is_set else const)
    return found


def identify(function: Any) -> str:
    """Return a text that differs if the function's code or defaults differ. Takes some 10 µs."""
    parts = _identify(function.__code__), function.__defaults__, function.__kwdefaults__
    return sha1(repr(parts).encode(), usedforsecurity=False).hexdigest()


def read_form(function: Any) -> str:
    """Return the form of a function, which is computed once; "" without source. Takes about a
    millisecond."""
    key = identify(function)
    if key not in forms_of:
        forms_of[key] = "".join(each.digest for each in read_statements(function))
    return forms_of[key]


def read_statements(source: Any) -> list[Statement]:
    """Return the statements of a function or of its code, the ``def`` first; none without
    source."""
    try:
        lines, start = inspect.getsourcelines(source)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return []
    ast.increment_lineno(tree, start - 1)
    return list(_walk(tree.body, ""))


def _walk(block: list[Any], above: str) -> Iterator[Statement]:
    for node in block:
        if is_docstring(node):
            continue
        words = [above, type(node).__name__]
        for name, value in ast.iter_fields(node):
            if name not in SILENT and name not in _BLOCKS:
                words += words_of(value, not isinstance(node, ast.Raise))
        digest = sha1(" ".join(words).encode(), usedforsecurity=False).hexdigest()
        inner = {name: part for name in _BLOCKS if (part := getattr(node, name, []))}
        first = getattr(node, "pattern", node).lineno
        last = next(iter(inner.values()))[0] if inner else node
        last = getattr(last, "pattern", last).lineno - 1 if inner else node.end_lineno
        yield Statement(digest[:DIGITS], first, last)
        for name, part in inner.items():
            yield from _walk(part, f"{digest} {name}")
