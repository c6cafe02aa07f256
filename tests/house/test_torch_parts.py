"""torch's private parts are used through fastloop/compat/torch_parts.py alone, and
docs/internals/torch.md lists them all."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import PACKAGE, ROOT, assert_none, python_modules, say

from fastloop.compat import torch_parts

TABLE = PACKAGE / "compat/torch_parts.py"
# Without an underscore, and private all the same.
PRIVATE = re.compile(
    r"^torch\.utils\.data\.dataloader\b|^torch\.amp\.grad_scaler\b|^torch\.nn\.utils\.clip_grad\b"
)


def is_private(name: str) -> bool:
    parts = name.split(".")
    hidden = [p for p in parts[1:] if p.startswith("_") and not p.startswith("__")]
    return parts[0] == "torch" and (bool(hidden) or PRIVATE.match(name) is not None)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: not what a type checker alone reads."""
    yield node
    is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if is_typing else ast.iter_child_nodes(node):
        yield from walk(child)


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of torch's that a file imports, or reads from the module, wherever it stands but
    under TYPE_CHECKING."""
    for node in walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        yield from ((node.lineno, name) for name in names if is_private(name))


def test_private_names_of_torch_come_from_the_table() -> None:
    paths: list[Path] = [path for path in python_modules().values() if path != TABLE]
    assert_none(
        say(path, line, f"{name}: take it from fastloop.compat.torch_parts")
        for path in paths
        for line, name in private_names(path.read_text())
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import torch", 0),
        ("from torch.utils.data import DataLoader", 0),
        ("from torch.utils.data.dataloader import _DatasetKind", 1),
        ("from torch.utils.data import _utils", 1),
        ("def f():\n    from torch._utils import ExceptionWrapper", 1),
        ("import torch\ntorch._C._len_torch_dispatch_stack()", 2),
        ("import torch.utils.data.dataloader", 1),
        ("from torch.amp.grad_scaler import OptState", 1),
        ("from fastloop._core import x\ntorch.__version__", 0),
        ("if TYPE_CHECKING:\n    from torch._utils import T\nelse:\n    import torch._utils", 1),
    ],
)
def test_private_names_are_seen(text: str, count: int) -> None:
    assert len(list(private_names(text))) == count


# ---- docs/internals/torch.md


def test_the_page_lists_all_parts_and_their_uses() -> None:
    text = (ROOT / "docs/internals/torch.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `(torch[\w.]+)` \| (\w.+) \|$", text, re.MULTILINE)
    parts = [(group, part) for group, of_group in torch_parts._PARTS.items() for part in of_group]
    known = [(group, part.path.replace(":", ".")) for group, part in parts]
    assert [(group, path) for group, path, _ in rows] == known
    for (_, part), (_, path, use) in zip(parts, rows, strict=True):
        reads = f" (and reads {', '.join(f'`{name}`' for name in part.sets)})"
        assert not part.sets or use.endswith(reads), path


def test_the_page_tells_what_paths_need() -> None:
    text = (ROOT / "docs/internals/torch.md").read_text()
    for path, groups in torch_parts._NEEDS.items():
        assert f"| `{path}` | {', '.join(groups)} |" in text
