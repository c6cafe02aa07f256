"""Changed functions of other libraries, as a new release would have them."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import linecache
import random
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMPARISONS: dict[Any, Any] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARISONS |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
OPERATORS: dict[Any, Any] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}
OPERATORS |= {ast.Div: ast.Mult, ast.FloorDiv: ast.Div}
DRAWS = "rand", "randint", "randperm", "uniform_"
_numbers = itertools.count()


def code_of(function: Any, tree: ast.Module) -> types.CodeType:
    """The code of a function whose definition is `tree`, from a file beside the function's own."""
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    path = str(Path(function.__code__.co_filename).with_name(f"mutant{next(_numbers)}.py"))
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    made = compile(text, path, "exec")
    return next(c for c in made.co_consts if isinstance(c, types.CodeType))


def function_of(text: str, beside: Any) -> Any:
    """The function that a text defines, from a file beside another function's own."""
    code = code_of(beside, ast.parse(text))
    return types.FunctionType(code, beside.__globals__)


def tree_of(function: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def replaced(function: Any, before: str, after: str) -> types.CodeType:
    """The code of a function with another text in its source."""
    text = textwrap.dedent(inspect.getsource(function))
    assert before in text, text
    return code_of(function, ast.parse(text.replace(before, after)))


def _changes(tree: ast.Module) -> Iterator[Callable[[], object]]:
    """Yield what changes a tree in one place."""
    for node in ast.walk(ast.Module(tree.body[0].body, [])):  # type: ignore[attr-defined]
        as_one: Any = node
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield lambda node=as_one: setattr(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield lambda node=as_one: setattr(node, "value", node.value + 1)
            yield lambda node=as_one: setattr(node, "value", node.value * 1.001 or 0.5)
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield lambda node=as_one: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield lambda node=as_one: setattr(node, "op", OPERATORS[type(node.op)]())
        elif isinstance(node, ast.If):
            yield lambda node=as_one: setattr(node, "test", ast.Constant(False))
            yield lambda node=as_one: setattr(node, "test", ast.Constant(True))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in DRAWS:
            yield lambda node=as_one: _draw_twice(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("int", "float"):
            other = {"int": "round", "float": "int"}[as_one.func.id]
            yield lambda node=as_one, other=other: setattr(node.func, "id", other)
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for at in range(len(block) - 1 if isinstance(block, list) else 0):
                if all(isinstance(each, ast.Assign) for each in block[at : at + 2]):  # type: ignore[index]
                    yield lambda block=block, at=at: block.insert(at, block.pop(at + 1))


def _draw_twice(node: ast.Call) -> None:
    inner = copy.copy(node)
    node.func = ast.parse("lambda first, again: again", mode="eval").body
    node.args = [ast.parse("__import__('torch').rand(1)", mode="eval").body, inner]
    node.keywords = []


def mutant_of(function: Any, any_of: random.Random) -> types.CodeType | None:
    """The code of a function that is changed in one place; None: there is no such place."""
    tree = tree_of(function)
    changes = list(_changes(tree))
    if not changes or "super" in function.__code__.co_names:
        return None
    any_of.choice(changes)()
    code = code_of(function, tree)
    return code if code.co_freevars == function.__code__.co_freevars else None
