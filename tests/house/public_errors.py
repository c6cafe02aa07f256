"""Prints the text of every error that the package raises, with file and line:

    python tests/house/public_errors.py [FOLDER ...]

The texts are read from the sources. If a text is put together from local names, the last
assignments before the error are read as well; any other expression is printed as {expression}. Read
the list to give the same mistake the same words:

- A wrong value: "NAME must be RULE, got VALUE (remedy)".
- A wrong state, with a full sentence: "…; remedy".
- An error that torch or torchvision raises as well has torch's words.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from sources import PACKAGE, say

CHECKS = {"check_type": "TypeError", "check_value": "ValueError"}  # of base/checks.py
REFUSALS = {"refuse_if": "ValueError", "leave_if": "NotCoveredError"}


class Assignment(NamedTuple):
    name: str
    line: int
    value: ast.expr
    is_added: bool  # name += value


class Texts:
    """Turns the expressions of one error into text as users read it."""

    def __init__(self, assigned: list[Assignment], line: int) -> None:
        self.before = [each for each in assigned if each.line < line]

    def read(self, node: ast.expr) -> str:
        match node:
            case ast.Constant():
                return str(node.value)
            case ast.JoinedStr(values=parts):
                return "".join(map(self.read, parts))
            case ast.FormattedValue(value=value):
                return self.read(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.read(left) + self.read(right)
            case ast.IfExp(body=body, orelse=other):
                return f"<{self.read(body)} | {self.read(other)}>"
            case ast.Name(id=name):
                return self.read_name(name)
            case ast.Call(func=ast.Name(id="make_message") | ast.Attribute(attr="make_message")):
                return make_message(*map(self.read, node.args))
        return f"{{{ast.unparse(node)}}}"

    def read_name(self, name: str) -> str:
        text, kept = "", self.before
        for each in [each for each in kept if each.name == name and is_text(each.value)]:
            self.before = [other for other in kept if other.line < each.line]
            text = (text if each.is_added else "") + self.read(each.value)
        self.before = kept
        return text or f"{{{name}}}"


def make_message(name: str, rule: str, value: str, remedy: str = "") -> str:
    return f"{name} must be {rule}, got {value}" + (f" ({remedy})" if remedy else "")


def assignments_of(function: ast.AST) -> Iterator[Assignment]:
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield Assignment(node.target.id, node.lineno, node.value, True)
        for target in node.targets if isinstance(node, ast.Assign) else []:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for left, right in pairs:
                if isinstance(left, ast.Name):
                    yield Assignment(left.id, node.lineno, right, False)


def is_text(node: ast.expr) -> bool:
    match node:
        case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
            return is_text(left) or is_text(right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def error_in(node: ast.AST, texts: Texts) -> str:
    """Return "Error: text" for a raise, or for a check that raises; "" for anything else."""
    match node:
        case ast.Raise(exc=ast.Call(func=kind, args=args)):
            said = [text for text in map(texts.read, args) if " " in text]
            return f"{ast.unparse(kind)}: {' '.join(said)}" if said else ""
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, text]):
            return f"{REFUSALS[name]}: {texts.read(text)}" if name in REFUSALS else ""
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[*args]):
            if name in CHECKS and len(args) > 3:
                what, value, _, rule, *remedy = map(texts.read, args)
                return f"{CHECKS[name]}: {make_message(what, rule, value, *remedy)}"
    return ""


def errors_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, "Error: text") for each error in a file."""
    tree, found = ast.parse(path.read_text()), {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for outer in [tree, *functions]:  # inner functions come later, and know their names best
        assigned = list(assignments_of(outer))
        for node in ast.walk(outer):
            is_error = isinstance(node, ast.Raise | ast.Call)
            if is_error and (text := error_in(node, Texts(assigned, node.lineno))):
                found[node.lineno] = text
    yield from sorted(found.items())


def main(folders: list[str]) -> None:
    for root in [Path(each).resolve() for each in folders] or [PACKAGE]:
        for path in sorted(root.rglob("*.py")):
            for line, text in errors_of(path):
                print(say(path, line, text))


if __name__ == "__main__":
    main(sys.argv[1:])
