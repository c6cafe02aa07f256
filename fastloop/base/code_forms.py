"""The form of a Python function as a short digest, which tells whether somebody has changed it.

Two forms: the names in its code, which costs microseconds and ignores numbers, operators and their
order; and its syntax, which is read from its source. Neither depends on comments, docstrings,
messages, annotations or the version of CPython.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from hashlib import sha1
from typing import Any

# Fields of syntax nodes that change nothing that runs.
_SILENT = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def code_of(function: Any) -> types.CodeType | None:
    """A function's code. Wrappers count as what they wrap: patch() and reports put some around
    torch's functions."""
    return getattr(inspect.unwrap(function), "__code__", None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def names_in(code: types.CodeType) -> set[str]:
    """All identifiers in a function and the functions inside it."""
    found: set[str] = set()
    for inner in _codes(code):
        found.update(inner.co_names, inner.co_varnames, inner.co_freevars, inner.co_cellvars)
    return {name for name in found if name.isidentifier()}


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters, ``*args`` and ``**kwargs`` included."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def names_digest(function: Any) -> str:
    """The digest of the parameters and of the names in the code; "" without Python code."""
    code = code_of(function)
    if code is None:
        return ""
    return _digest(" ".join(parameters_of(code)) + "|" + " ".join(sorted(names_in(code))))


def _words(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        yield f"[{len(node)}]"
        for item in node:
            yield from _words(item)
    elif isinstance(node, ast.Constant):
        yield "text" if isinstance(node.value, str) else repr(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "text"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = [line for line in value if not _is_docstring(line)]
            if name not in _SILENT:
                yield from _words(value)
    else:
        yield str(node)


def _is_docstring(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def syntax_digest(function: Any) -> str:
    """The digest of a function's syntax; "" without source. Takes about a millisecond."""
    try:
        source = inspect.getsource(inspect.unwrap(function))
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, SyntaxError, TypeError):
        return ""
    return _digest(" ".join(_words(tree.body)))
