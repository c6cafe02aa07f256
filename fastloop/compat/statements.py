"""The statements of functions of other libraries: their digests, and which of them have run.

A function's form is the digests of its statements. It does not depend on comments, docstrings,
messages of errors, annotations or the version of CPython. Any thread may ask.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

from fastloop.compat.torch_parts import SILENT, forms_of, is_docstring, words_of

Forms = Mapping[types.CodeType, Iterable[str] | None]
DIGITS = 5  # of a statement's digest
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
# Statements that no line of bytecode stands for, or that end the sample.
_NEED_NOT_RUN = ast.Raise, ast.Pass, ast.Global, ast.Nonlocal, ast.Try


class Statement(NamedTuple):
    """A statement without the statements inside it.

    Attributes:
        digest: of the statement and of all statements around it.
        lines: its lines.
        is_sure: it need not run to be trusted.
    """

    digest: str
    lines: range
    is_sure: bool


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


@functools.lru_cache(maxsize=1024)  # code does not change
def _identify(code: types.CodeType) -> str:
    found: list[Any] = [code.co_code, code.co_names, code.co_varnames, code.co_freevars]
    for const in code.co_consts:
        is_set = isinstance(const, frozenset)
        is_code = isinstance(const, types.CodeType)
        found.append(_identify(const) if is_code else sorted(map(repr, const)) if is_set else const)
    return _digest(repr(found))


def identify(function: Any) -> str:
    """Return a text that differs if the function's code or defaults differ. Takes some 10 µs when
    the code is first seen, then 2 µs."""
    parts = _identify(function.__code__), function.__defaults__, function.__kwdefaults__
    return _digest(repr(parts))


def read_form(function: Any) -> str:
    """Return the form of a function, which is computed once; "" without source. Takes about a
    millisecond."""
    key = identify(function)
    if key not in forms_of:
        forms_of[key] = "".join(each.digest for each in read_statements(function))
    return forms_of[key]


def read_statements(source: Any, holds: Mapping[str, bool] | None = None) -> list[Statement]:
    """Return the statements of a function or of its code, the ``def`` first; none without source.

    Args:
        holds: conditions of ``if`` that are always true, or always false: the other branch never
            runs.
    """
    code = getattr(source, "__code__", source)
    start = code.co_firstlineno - 1
    lines = linecache.getlines(code.co_filename)[start:]
    try:
        if sys.version_info < (3, 11):
            lines = inspect.getblock(lines)
        else:  # takes half the time; behind the last code are statements without code
            codes = (at for each in _codes_in(code) for at in each.co_positions())
            lines = lines[: max(end or line or 0 for line, end, _, _ in codes) - start]
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (IndexError, SyntaxError, TypeError):
        return []
    ast.increment_lineno(tree, start)
    return list(_walk(tree.body, "", False, holds or {}))


def _walk(
    block: list[Any], above: str, is_sure: bool, holds: Mapping[str, bool]
) -> Iterator[Statement]:
    for node in block:
        if is_docstring(node):
            continue
        words = [above, type(node).__name__]
        for name, value in ast.iter_fields(node):
            if name not in SILENT and name not in _BLOCKS:
                words += words_of(value, not isinstance(node, ast.Raise))
        digest = _digest(" ".join(words))
        inner = {name: part for name in _BLOCKS if (part := getattr(node, name, []))}
        first = getattr(node, "pattern", node).lineno
        last = next(iter(inner.values()))[0] if inner else node
        last = getattr(last, "pattern", last).lineno - 1 if inner else node.end_lineno
        can_rest = isinstance(node, _NEED_NOT_RUN) or not above
        yield Statement(digest[:DIGITS], range(first, last + 1), is_sure or can_rest)
        is_true = holds.get(ast.unparse(node.test)) if isinstance(node, ast.If) else None
        never = {None: "", True: "orelse", False: "body"}[is_true]
        for name, part in inner.items():
            yield from _walk(part, f"{digest} {name}", is_sure or name == never, holds)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes_in(const)


class _Watched(NamedTuple):
    """A function whose statements must run: those that fastloop does not know."""

    name: str
    is_shorter: bool
    new: list[Statement]


class Coverage:
    """Notes which statements of functions run in this thread, between ``with`` and its end.

    A function of the same library that a new statement calls is watched as well.

    Args:
        forms: of functions, by code: what each was in releases that fastloop knows; None: the
            function is one of these.
        holds: as read_statements() takes them.
        folders: of the library.
    """

    def __init__(self, forms: Forms, holds: Mapping[str, bool], folders: tuple[str, ...]) -> None:
        self._holds, self._folders = holds, folders
        self._watched: dict[types.CodeType, _Watched | None] = dict.fromkeys(forms)
        self._seen: set[tuple[str, int]] = set()  # files and lines
        for code, texts in forms.items():
            if texts is not None:
                self._watch(code, texts)

    def _watch(self, code: types.CodeType, forms: Iterable[str]) -> None:
        known = {form[at : at + DIGITS] for form in forms for at in range(0, len(form), DIGITS)}
        statements = read_statements(code, self._holds)
        least = min((len(form) // DIGITS for form in forms), default=1)
        name = f"{Path(code.co_filename).stem}.{getattr(code, 'co_qualname', code.co_name)}"
        new = [each for each in statements if each.digest not in known]
        found = _Watched(name, len(statements) < max(least, 1), new)
        self._watched.update(dict.fromkeys(_codes_in(code), found))

    def _on_call(self, frame: Any, event: str, arg: Any) -> Any:
        code, caller = frame.f_code, frame.f_back
        if code not in self._watched:
            by = self._watched.get(caller.f_code) if caller is not None else None
            is_new = by is not None and any(caller.f_lineno in each.lines for each in by.new)
            if not is_new or not code.co_filename.startswith(self._folders):
                return None
            self._watch(code, ())
        return self._note if self._watched[code] is not None else None

    def _note(self, frame: Any, event: str, arg: Any) -> Any:
        self._seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._note

    def __enter__(self) -> Coverage:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def find_missing(self) -> str:
        """Return the first statement that has not run and that fastloop does not know, or ""."""
        for code, watched in self._watched.items():
            if watched is None:
                continue
            if watched.is_shorter:
                return f"{watched.name} has fewer statements"
            for each in watched.new:
                has_run = any((code.co_filename, line) in self._seen for line in each.lines)
                if not each.is_sure and not has_run:
                    return f"line {each.lines.start} of {watched.name} has not run"
        return ""
