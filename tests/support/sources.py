"""Reads the sources for the house tests: files, functions and includes of the C code; modules,
imports, functions and classes of the Python code. Nothing here runs what it reads."""

import ast
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "fastloop"
T = TypeVar("T", bound=Hashable)


class Function(NamedTuple):
    """A C function; both texts are without comments and strings."""

    name: str
    line: int  # of the signature's first line
    lines: int
    signature: str
    body: str

    @property
    def is_static(self) -> bool:
        return re.search(r"\bstatic\b", self.signature) is not None


def c_files(*endings: str) -> list[Path]:
    """Our own C and CUDA files."""
    endings = endings or (".c", ".h", ".cu", ".cuh")
    found = sorted(p for p in CSRC.rglob("*") if p.suffix in endings)
    return [p for p in found if "vendor" not in p.parts]


def own_files() -> list[Path]:
    """What people read and write: C, tests, Python."""
    folders = ("fastloop", "tests", "benchmarks", "examples")
    found = [p for name in folders for p in (ROOT / name).rglob("*")]
    sources = [p for p in found if p.suffix in (".py", ".pyi", ".c", ".h", ".cu", ".cuh")]
    return sorted([*c_files(), *sources, *ROOT.glob("setup*.py")])


def say(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def without_comments(text: str) -> str:
    """Comments and string contents become blanks; lines stay where they are."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def functions(text: str) -> Iterator[Function]:
    """The functions of a file in the house's style: braces alone in column 0, or all on a line."""
    lines = without_comments(text).splitlines()
    name = re.compile(r"([A-Za-z_]\w*)\s*\(")
    start = opened = None
    for i, line in enumerate(lines):
        if re.match(r"[A-Za-z_].*\)\s*\{.*\}\s*$", line) and (found := name.search(line)):
            at = line.index("{")
            yield Function(found[1], i + 1, 1, line[:at], line[at:])
        elif line.rstrip() == "{":
            opened = i
        elif line.startswith("}") and opened is not None:
            assert start is not None, f"line {i + 1}: a body without a signature"
            signature = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", " ".join(lines[start:opened]))
            found = name.search(signature)
            label = found[1] if found else "?"
            body = "\n".join(lines[opened : i + 1])
            yield Function(label, start + 1, i - start + 1, signature, body)
            start = opened = None
        elif opened is None:
            is_signature = re.match(r"[A-Za-z_]", line) and not line.rstrip().endswith(";")
            if is_signature and (start is None or lines[i - 1].strip() == ""):
                start = i
            elif not line.strip() or line.rstrip().endswith(";"):
                start = None


def includes(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line):
            yield number, found[1], found[2]


def declared_functions(text: str) -> set[str]:
    """The functions that a header in the house's style declares, from column 0 on: by a signature,
    or by a function type."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", without_comments(text), flags=re.MULTILINE)
    by_signature = r"^(?!typedef\b|static\b)\w[\w\s*]*?\b(\w+)\s*\([^;{}]*\)[^;{}()]*;"
    by_type = r"^\w+ (\w+);"
    return {name for way in (by_signature, by_type) for name in re.findall(way, text, re.MULTILINE)}


# ---- Python


@cache
def python_modules() -> dict[str, Path]:
    """The package's modules by dotted name, without folders' __init__.py that hold a docstring."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            if len(parts) > 1 and len(ast.parse(path.read_text()).body) <= 1:
                continue
        found[".".join(parts)] = path
    return found


@cache
def imported_names(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of what a file imports of the package, wherever the import stands: under
    TYPE_CHECKING, in a function, or as text given to import_module. "fastloop.a.b" where
    `from fastloop.a import b` is written, be b a module or not."""
    found: list[tuple[int, str]] = []
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                found.append((node.lineno, str(node.args[0].value)))
    return found


def imported_modules(path: Path, modules: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """(line, module) of the package's modules that a file imports."""
    for line, name in imported_names(path):
        while name and name not in modules and name != "fastloop._core":
            name = name.rpartition(".")[0]
        if name:
            yield line, name


def qualified_names(path: Path) -> set[str]:
    """ "function", "Class" and "Class.method" of what a Python file defines."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], scope: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(scope + node.name)
                visit(node.body, f"{scope}{node.name}.")

    visit(ast.parse(path.read_text()).body, "")
    return found


def bound_names(path: Path) -> set[str]:
    """What a Python file binds at its top level, imports included, and in tuples too."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            found |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
    return found


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


# ---- graphs and lists of known faults


def circular_edges(edges: Iterable[tuple[T, T]]) -> set[tuple[T, T]]:
    """The edges that lie in a circle."""
    after: dict[T, set[T]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)

    def reached(start: T) -> set[T]:
        seen, todo = set(), [start]
        while todo:
            new = after.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reach = {a: reached(a) for a in after}
    return {(a, b) for a, following in after.items() for b in following if a in reach.get(b, ())}


def assert_none(faults: Iterable[str]) -> None:
    assert not (found := sorted(set(faults))), ", ".join(found)
