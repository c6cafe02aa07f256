"""The built module: what it exports, what mutable state it has, and that the stub file describes
it."""

import ast
import importlib
import inspect
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import c_files

# Mutable state the C code may have: (file, variable), or ("", variable) where it is not static.
# Everything else lives in a struct.
STATICS = {
    # Forks are the process's: what is known of them is one for all pools.
    ("fl_fork.c", "generation"),
    ("fl_fork.c", "forks"),
    ("fl_fork.c", "forks_of_program"),
    ("fl_fork.c", "ends"),
    ("fl_fork.c", "mutex"),
    ("fl_fork.c", "workers"),
    ("fl_fork.c", "next_id"),
    ("fl_fork.c", "expected"),
    ("fl_fork.c", "own_word"),
    ("fl_fork.c", "once"),  # the fork handlers are installed once
    ("fl_cpus.c", "quota"),  # of the process's control groups, read once
    ("fl_safe_read.c", "method"),  # how this kernel copies: the same answer for every thread
    ("", "__cpu_model"),  # libgcc's, behind __builtin_cpu_supports
    ("", "__cpu_features2"),
    ("fl_py_numpy.c", "PyArray_API"),  # NumPy's own table, filled at import
    ("fl_py_numpy.c", "PyArray_RUNTIME_VERSION"),
}
# The CUDA runtime's own, and what nvcc writes for each kernel and each file of them.
OF_CUDA = re.compile(r"^libcudart_static_|__device_stub__|__cudaFatCubinHandle$")
# Tables the interpreter takes by pointer to non-const; nothing of ours writes them.
PYTHON_TABLES = re.compile(
    r"^\s*(?:static\s+)?(?:struct\s+)?(?:PyMethodDef|PyGetSetDef|PyMemberDef|PyModuleDef|PyType_Slot|"
    r"PyModuleDef_Slot|PyType_Spec|PyStructSequence_Field|PyStructSequence_Desc|"
    r"char\s*\*(?=keywords))\s*(\w+)(?:\[\w*\])?\s*=",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def core_path() -> Path:
    path = importlib.import_module("fastloop._core").__file__
    assert path is not None
    return Path(path)


def tool(*command: str | Path) -> list[list[str]]:
    env = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return [line.split() for line in done.stdout.splitlines()]


def test_the_module_exports_its_init_function_alone(core_path: Path) -> None:
    linker = {"_init", "_fini", "_edata", "_end", "__bss_start"}
    names = {words[-1] for words in tool("nm", "-D", "--defined-only", core_path)} - linker
    assert names == {"PyInit__core"}


def variables(path: Path) -> Iterator[tuple[str, str, str]]:
    """(source file, name, section) of each variable in the module's symbol table."""
    sections = {}
    for words in tool("readelf", "-SW", path):
        if found := re.match(r"\[\s*(\d+)\]\s+(\S+)", " ".join(words)):
            sections[found[1]] = found[2]
    source, is_symtab = "", False
    for words in tool("readelf", "-sW", path):
        if words[:2] == ["Symbol", "table"]:
            is_symtab = words[2] == "'.symtab'"
        if not is_symtab or len(words) < 7:
            continue
        kind, section = words[3], sections.get(words[6], words[6])
        name = words[7] if len(words) > 7 else ""
        if kind == "FILE":
            source = name
        elif kind in ("OBJECT", "TLS", "COMMON"):
            yield source, re.sub(r"\.\d+$", "", name), section


def test_no_mutable_statics(core_path: Path) -> None:
    found = set(variables(core_path))
    assert found, f"{core_path} has no symbol table: build it without -s"
    tables = {
        (source, name)
        for p in c_files(".c")
        if "python" in p.parts
        for name in PYTHON_TABLES.findall(p.read_text())
        for source in (p.name, "")
    }
    is_written = re.compile(r"\.(data|bss|tdata|tbss)(?!\.rel\.ro)|COM")
    linker = {"__dso_handle", "__TMC_END__", "_DYNAMIC", "_GLOBAL_OFFSET_TABLE_"}
    wrong = {
        (source, name)
        for source, name, section in found
        if is_written.match(section) and source != "crtstuff.c" and name not in linker
    }
    wrong = {(source, name) for source, name in wrong if not OF_CUDA.search(name)}
    assert sorted(wrong - STATICS - tables) == []


# ---- the stub file


def parameters(node: ast.FunctionDef) -> list[str]:
    a = node.args
    every = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs]
    every += [a.kwarg] if a.kwarg else []
    names = [argument.arg.strip("_") for argument in every]
    return [name for name in names if name not in ("self", "cls")]


def signature_fault(name: str, node: ast.FunctionDef, thing: object) -> str | None:
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None  # written in C without a text signature
    actual = [p.strip("_") for p in signature.parameters if p not in ("self", "cls", "type")]
    stated = parameters(node)
    return None if actual == stated else f"{name}: the stub says {stated}, the module {actual}"


def stub_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


# What every class or module has, or what the interpreter adds by itself.
GIVEN = set(dir(object)) | {"__module__", "__match_args__", "__spec__", "__loader__", "__name__"}
GIVEN |= {"__package__", "__file__", "__weakref__", "__dict__", "__vectorcalloffset__"}
GIVEN |= {"n_fields", "n_sequence_fields", "n_unnamed_fields", "__replace__"}


def stub_faults(scope: str, body: list[ast.stmt], thing: object) -> Iterator[str]:
    stated, actual = stub_names(body), vars(thing)
    missing = [n for n in stated if n not in actual and not (n in GIVEN and hasattr(thing, n))]
    yield from (f"{scope}{name} is in the stub only" for name in missing)
    yield from (f"{scope}{n} is in the module only" for n in actual if n not in {*stated, *GIVEN})
    for name, node in stated.items():
        member = actual.get(name)
        if isinstance(node, ast.ClassDef) and member is not None:
            yield from stub_faults(f"{scope}{name}.", node.body, member)
        elif isinstance(node, ast.FunctionDef) and callable(member):
            is_maker = name in ("__new__", "__init__")  # the class carries their signature
            fault = signature_fault(scope + name, node, thing if is_maker else member)
            yield from [fault] if fault else []


def test_the_stub_file_matches_the_module(core_path: Path) -> None:
    module = importlib.import_module("fastloop._core")
    stub = ast.parse((core_path.parent / "_core.pyi").read_text())
    faults = list(stub_faults("", stub.body, module))
    assert not faults, "\n".join(faults)
