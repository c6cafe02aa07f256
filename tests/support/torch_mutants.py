"""Changes torch in this process as a later release might: the sources of its loaders, scalers and
clipping are edited, and imported anew. Imports no torch itself.

A mutant keeps torch itself consistent: what is renamed is renamed wherever torch's own modules name
it, and a parameter that is added is passed on by torch's own calls.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# In the order of their import.
EDITED = (
    "torch._utils",
    "torch.utils.data._utils",
    "torch.utils.data.dataloader",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch.cpu.amp.grad_scaler",
    "torch.nn.utils.clip_grad",
)
HOLDERS = (
    "torch",
    "torch.utils.data",
    "torch.amp",
    "torch.cuda.amp",
    "torch.cpu.amp",
    "torch.nn.utils",
)
ADDED = "added_later"
NEWER = "2.99.0"  # newer than all releases that fastloop was tested with

Edit = Callable[[str, ast.Module], None]  # of the module of a name


def is_edited(module: str) -> bool:
    return module == "torch.version" or any(
        module == name or module.startswith(name + ".") for name in EDITED
    )


# ---- edits


class _Renamed(ast.NodeTransformer):
    """Args: home: the last part of the name of a function's module; "" for methods and attributes,
    which are renamed in all classes."""

    def __init__(self, name: str, home: str = "") -> None:
        self.name, self.home, self.locals = name, home, [set[str]()]
        self.new = name + "_" + ADDED

    def _visit_function(self, node: Any) -> Any:
        a = node.args
        given = {x.arg for x in (*a.args, *a.posonlyargs, *a.kwonlyargs, a.vararg, a.kwarg) if x}
        if isinstance(node, ast.FunctionDef) and node.name == self.name:
            node.name = self.new
        self.locals.append(self.locals[-1] | given)
        self.generic_visit(node)
        self.locals.pop()
        return node

    visit_FunctionDef = visit_Lambda = _visit_function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        if node.name == self.name:
            node.name = self.new
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id == self.name and self.name not in self.locals[-1]:
            node.id = self.new
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
        is_its = owner == self.home if self.home else owner != "_utils"
        if node.attr == self.name and is_its:
            node.attr = self.new
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        for alias in node.names:
            # `from . import collate` names a module.
            if alias.name == self.name and node.module not in (None, "torch.utils.data._utils"):
                alias.name = self.new
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        if node.value == self.name and not self.home:
            node.value = self.new
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        is_all = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        if is_all and isinstance(node.value, ast.List):
            for item in node.value.elts:
                if isinstance(item, ast.Constant) and item.value == self.name:
                    item.value = self.new
        return self.generic_visit(node)


def rename(name: str, home: str = "") -> Edit:
    return lambda module, tree: _Renamed(name, home).visit(tree) and None


def find(tree: ast.Module, names: str) -> Any:
    node: Any = tree
    for name in names.split("."):
        found = [n for n in node.body if getattr(n, "name", None) == name]
        if not found:
            raise LookupError(f"torch has no {names}")
        node = found[-1]  # the one after its overloads
    return node


def at(path: str, change: Callable[[Any, ast.Module], None]) -> Edit:
    """An edit of one function or class, by `module:qualified.name`."""
    home, _, names = path.partition(":")

    def edit(module: str, tree: ast.Module) -> None:
        if module == home:
            change(find(tree, names), tree)

    return edit


def add_parameter(path: str) -> Edit:
    """A keyword with a default, that torch's own calls pass."""
    name = path.rpartition(".")[2].rpartition(":")[2]
    is_private = name.startswith("_") and not name.startswith("__")

    def defined(node: ast.FunctionDef, tree: ast.Module, module: str) -> list[Any]:
        """The function, and what overrides it."""
        if is_private:
            return [node] if node.name == name else []
        home, _, names = path.partition(":")
        return [find(tree, names)] if module == home else []

    def edit(module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node in defined(node, tree, module):
                node.args.kwonlyargs.append(ast.arg(ADDED))
                node.args.kw_defaults.append(ast.Constant(None))
            if is_private and isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called == name:
                    node.keywords.append(ast.keyword(ADDED, ast.Constant(None)))

    return edit


def insert(path: str, text: str, at_end: bool = False) -> Edit:
    """Statements at the beginning or the end of a function or class."""

    def change(node: Any, tree: ast.Module) -> None:
        statements = ast.parse(text).body
        node.body[:] = [*node.body, *statements] if at_end else [*statements, *node.body]

    return at(path, change)


def replace(path: str, old: str, new: str) -> Edit:
    """An expression of a function."""
    wanted, by = ast.unparse(ast.parse(old, mode="eval")), ast.parse(new, mode="eval").body

    class Replaced(ast.NodeTransformer):
        count = 0

        def visit(self, node: ast.AST) -> Any:
            if isinstance(node, ast.expr) and ast.unparse(node) == wanted:
                self.count += 1
                return by
            return self.generic_visit(node)

    def change(node: Any, tree: ast.Module) -> None:
        replaced = Replaced()
        node.body[:] = [replaced.visit(statement) for statement in node.body]
        if not replaced.count:
            raise LookupError(f"{path} has no {old}")

    return at(path, change)


def set_version(module: str, tree: ast.Module) -> None:
    """torch's, in a process that has not imported it."""
    if module == "torch.version":
        tree.body += ast.parse(f"__version__ = {NEWER!r}").body


def rename_parameter(path: str, old: str, new: str) -> Edit:
    def change(node: Any, tree: ast.Module) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.arg) and inner.arg == old:
                inner.arg = new
            elif isinstance(inner, ast.Name) and inner.id == old:
                inner.id = new

    return at(path, change)


def order_parameters(path: str, first: int, second: int) -> Edit:
    def change(node: Any, tree: ast.Module) -> None:
        a = node.args.args
        a[first], a[second] = a[second], a[first]

    return at(path, change)


def edit_process_arguments(path: str, change: Callable[[list[Any]], None]) -> Edit:
    """Of the call that has `target=`, in a function."""

    def edit(node: Any, tree: ast.Module) -> None:
        for call in ast.walk(node):
            given = {k.arg: k.value for k in getattr(call, "keywords", ())}
            if "target" in given and isinstance(given.get("args"), ast.Tuple):
                change(given["args"].elts)

    return at(path, edit)


# ---- importing what is edited


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, edits: list[Edit]) -> None:
        self._loader, self._edits = loader, edits

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(edited_code(self._loader, module.__name__, self._edits), vars(module))


def edited_code(loader: Any, name: str, edits: list[Edit]) -> Any:
    source = loader.get_source(name)
    tree = ast.parse(source)
    for edit in edits:
        edit(name, tree)
    if ast.dump(tree) == dumped(source):
        return loader.get_code(name)
    edits_made.append(name)
    # What is compiled is what inspect.getsource() finds.
    source, filename = ast.unparse(ast.fix_missing_locations(tree)), loader.get_filename(name)
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return compile(source, filename, "exec")


@functools.cache
def dumped(source: str) -> str:
    return ast.dump(ast.parse(source))


def prepare() -> None:
    """In a process whose children apply edits: what all of them need."""
    for name in _loaded(EDITED):
        loader: Any = sys.modules[name].__spec__.loader  # type: ignore[union-attr]
        dumped(loader.get_source(name))


edits_made: list[str] = []


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, edits: list[Edit]) -> None:
        self._edits = edits

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not is_edited(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._edits)
        return spec


def install(edits: list[Edit]) -> None:
    """torch's modules are edited when they are imported."""
    sys.meta_path.insert(0, _Finder(edits))


def _loaded(prefixes: tuple[str, ...]) -> Iterator[str]:
    for name in list(sys.modules):
        if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes):
            yield name


def apply(edits: list[Edit]) -> None:
    """torch's modules, and fastloop's, are imported anew."""
    import torch

    held = {
        (holder, name): value.__module__
        for holder in HOLDERS
        for name, value in vars(importlib.import_module(holder)).items()
        if is_edited(getattr(value, "__module__", None) or "")
    }
    for name in [*_loaded(("fastloop",)), *_loaded(EDITED[1:])]:
        if name != "fastloop._core":
            module = sys.modules.pop(name)
            parent, _, last = name.rpartition(".")
            if vars(sys.modules.get(parent, torch)).get(last) is module:
                delattr(sys.modules[parent], last)
    utils = sys.modules["torch._utils"]  # C knows this one
    spec: Any = utils.__spec__
    kept = {name: vars(utils).pop(name) for name in list(vars(utils)) if name[:2] != "__"}
    exec(edited_code(spec.loader, "torch._utils", edits), vars(utils))
    if "torch._utils" not in edits_made:
        vars(utils).update(kept)
    install(edits)
    for name in EDITED[1:]:
        importlib.import_module(name)
    for (holder, name), home in held.items():
        found = vars(sys.modules[home]).get(name)
        if found is not None:
            setattr(sys.modules[holder], name, found)
    if not edits_made and edits:
        raise LookupError("nothing was edited")


def remove_module(name: str) -> None:
    """It is elsewhere now; what torch has bound from it works."""
    parent, _, last = name.rpartition(".")
    delattr(sys.modules[parent], last)
    del sys.modules[name]
    finder = sys.meta_path[0]
    assert isinstance(finder, _Finder)
    find_spec = finder.find_spec

    def refuse(wanted: str, path: Any, target: Any = None) -> Any:
        if wanted == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find_spec(wanted, path, target)

    finder.find_spec = refuse  # type: ignore[method-assign]
