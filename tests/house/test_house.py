"""The house rules (docs/design.md) as tests: they read the sources, the stub file and the built
module, and say which line breaks which rule."""

import ast
import importlib
import inspect
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600

# Which floors a floor may include; None: everything. A new folder needs a line here.
FLOORS = {
    "base": {"base"},
    "core": {"base", "core"},
    "cpu": {"base", "core", "cpu"},
    "cuda": {"base", "core", "cuda"},
    "python": None,
}
# What the floors below Python may include of the system: C11, POSIX, Linux.
SYSTEM_HEADERS = set(
    "assert.h errno.h fcntl.h fenv.h float.h inttypes.h limits.h math.h poll.h pthread.h sched.h "
    "signal.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h "
    "stdnoreturn.h string.h time.h unistd.h".split()
)
SYSTEM_FOLDERS = ("sys/", "linux/")
FLOOR_HEADERS = {
    "cpu": ("immintrin.h", "emmintrin.h", "arm_neon.h"),
    "cuda": (
        "dlfcn.h",
        "cuda.h",
        "cuda_runtime_api.h",
        "cuda_runtime.h",
        "cuda_fp16.h",
        "cuda_bf16.h",
        "type_traits",
    ),
}
NUMPY_FILE = "fl_py_dlpack.c"

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
    ("fl_safe_read.c", "method"),  # how this kernel copies: the same answer for every thread
    ("", "__cpu_model"),  # libgcc's, behind __builtin_cpu_supports
    ("", "__cpu_features2"),
    ("fl_py_dlpack.c", "PyArray_API"),  # NumPy's own table, filled at import
    ("fl_py_dlpack.c", "PyArray_RUNTIME_VERSION"),
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
FORBIDDEN_FLAGS = re.compile(
    r"-Ofast|-f(?:associative|fast|finite|unsafe)-math\S*|-ffinite-math-only|use_fast_math"
)


class Function(NamedTuple):
    name: str
    line: int  # of the signature's first line
    lines: int
    body: str  # without comments and strings


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
            yield Function(found[1], i + 1, 1, line[line.index("{") :])
        elif line.rstrip() == "{":
            opened = i
        elif line.startswith("}") and opened is not None:
            assert start is not None, f"line {i + 1}: a body without a signature"
            signature = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", " ".join(lines[start:opened]))
            found = name.search(signature)
            label = found[1] if found else "?"
            yield Function(label, start + 1, i - start + 1, "\n".join(lines[opened : i + 1]))
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


def test_floors_include_only_what_is_below_them() -> None:
    home = {p.name: p.relative_to(CSRC).parts[0] for p in c_files()}
    wrong = []
    for path in c_files():
        floor = path.relative_to(CSRC).parts[0]
        assert floor in FLOORS, f"csrc/{floor} is on no floor: add it to FLOORS"
        allowed = FLOORS[floor]
        for line, quote, name in includes(path):
            if "numpy" in name and path.name != NUMPY_FILE:
                wrong.append(say(path, line, f"only {NUMPY_FILE} may include {name}"))
            if allowed is None:
                continue
            if quote == '"':
                is_fine = home.get(name) in allowed
            else:
                is_fine = name in SYSTEM_HEADERS or name.startswith(SYSTEM_FOLDERS)
                is_fine = is_fine or name in FLOOR_HEADERS.get(floor, ())
            if not is_fine:
                wrong.append(say(path, line, f"floor {floor} may not include {name}"))
    assert not wrong, "\n".join(wrong)


def test_each_c_file_opens_by_naming_itself() -> None:
    wrong = [p for p in c_files() if not p.read_text().startswith(f"/* {p.stem}: ")]
    assert not wrong, "\n".join(say(p, 1, f"should begin '/* {p.stem}: '") for p in wrong)


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def test_functions_are_short() -> None:
    wrong = []
    for path in own_files():
        if path.suffix in (".py", ".pyi"):
            sizes = list(python_functions(path))
        else:
            sizes = [(f.name, f.line, f.lines) for f in functions(path.read_text())]
        wrong += [
            say(path, line, f"{name} has {lines} lines, more than {MAX_FUNCTION_LINES}")
            for name, line, lines in sizes
            if lines > MAX_FUNCTION_LINES
        ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in own_files()}
    wrong = [
        say(p, n, f"more than {MAX_FILE_LINES}") for p, n in sizes.items() if n > MAX_FILE_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_file_names_are_unique() -> None:
    count = Counter(p.name for p in own_files() if p.name not in ("__init__.py", "conftest.py"))
    assert [name for name, times in count.items() if times > 1] == []


def test_objects_come_zeroed_from_tp_alloc() -> None:
    """PyObject_New and PyObject_GC_New leave the fields of an object as they find the memory."""
    wrong = []
    for path in c_files(".c", ".h"):
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            if found := re.search(r"\bPyObject_(?:GC_)?New(?:Var)?\b", line):
                wrong.append(say(path, number, f"{found[0]}: tp_alloc zeroes all fields"))
    assert wrong == []


def test_no_flags_that_change_arithmetic() -> None:
    names = ("setup.py", "setup_cuda.py", "pyproject.toml", "Makefile", ".ci/run")
    wrong = [
        say(path, number, found[0])
        for path in [*(ROOT / name for name in names), *c_files()]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := FORBIDDEN_FLAGS.search(line))
    ]
    assert not wrong, "\n".join(wrong)


# ---- cpylint: what a C compiler does not see

# A function whose name ends in _locked begins and ends with its caller's mutex held.
LEAVES = r"\breturn\b|\bFL_TRY\b|\bFL_CUDA_TRY\b"
LOCK_TOKENS = re.compile(
    rf"pthread_mutex_lock|pthread_mutex_unlock|{LEAVES}|\bPy_X?DECREF\b|\bPy_CLEAR\b|\bPy_X?SETREF\b|"
    r"[{}]"
)
GIL_TOKENS = re.compile(
    rf"Py_BEGIN_ALLOW_THREADS|Py_END_ALLOW_THREADS|{LEAVES}|\bgoto\b|"
    r"\b(?!PyThread_|PyMem_Raw)_?Py[A-Z_]\w*(?=\s*\()|"
    r"\bfl_py_\w+(?=\s*\()"
)


def ends_by_leaving(body: str, at: int) -> bool:
    """Whether the block that closes at `at` ends in a statement that leaves it."""
    last = re.split(r"[;{}]", body[:at].rstrip().rstrip(";"))[-1]
    return re.match(r"\s*(return|goto|break|continue)\b", last) is not None


def lock_faults(function: Function) -> Iterator[tuple[int, str]]:
    at_start = 1 if function.name.endswith("_locked") else 0
    held, outside, line = at_start, [], 0
    for token in LOCK_TOKENS.finditer(function.body):
        word, line = token[0], function.body.count("\n", 0, token.start())
        if word == "{":
            outside.append(held)
        elif word == "}":
            before = outside.pop()
            held = before if outside and ends_by_leaving(function.body, token.start()) else held
        elif word == "pthread_mutex_lock":
            held += 1
        elif word == "pthread_mutex_unlock":
            held -= 1
            if held < 0:
                yield line, f"{word} without its mutex held"
        elif word.startswith("Py_") and held > 0:
            yield line, f"{word} with a mutex held"
        elif not word.startswith("Py_") and held != at_start:
            yield line, f"{word} {'with a' if held > at_start else 'without its'} mutex held"
    if held != at_start:
        yield line, f"ends {'with a' if held > at_start else 'without its'} mutex held"


def gil_faults(function: Function) -> Iterator[tuple[int, str]]:
    is_released, line = False, 0
    for token in GIL_TOKENS.finditer(function.body):
        word, line = token[0], function.body.count("\n", 0, token.start())
        if word == "Py_BEGIN_ALLOW_THREADS" or word == "Py_END_ALLOW_THREADS":
            begins = word == "Py_BEGIN_ALLOW_THREADS"
            if begins == is_released:
                yield line, f"{word} without its partner"
            is_released = begins
        elif is_released:
            yield line, f"{word} without the interpreter lock"
    if is_released:
        yield line, "ends without the interpreter lock"


def cpylint(text: str) -> Iterator[tuple[int, str]]:
    for function in functions(text):
        opening = function.line + function.lines - 1 - function.body.count("\n")
        for line, what in (*lock_faults(function), *gil_faults(function)):
            yield opening + line, f"{function.name}: {what}"


def test_locks_and_the_interpreter_lock_are_paired() -> None:
    wrong = [say(p, line, what) for p in c_files() for line, what in cpylint(p.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("pthread_mutex_lock(m); work(); pthread_mutex_unlock(m); return 0;", None),
        ("pthread_mutex_lock(m); if (x) { pthread_mutex_unlock(m); return 1; }", "ends with"),
        ("pthread_mutex_lock(m); if (x) return 1; pthread_mutex_unlock(m);", "return with"),
        ("pthread_mutex_lock(m); FL_TRY(f()); pthread_mutex_unlock(m);", "FL_TRY with"),
        ("pthread_mutex_unlock(m); work(); pthread_mutex_lock(m);", "without its"),
        ("pthread_mutex_lock(m); Py_DECREF(o); pthread_mutex_unlock(m);", "Py_DECREF with"),
        ("Py_BEGIN_ALLOW_THREADS work(); Py_END_ALLOW_THREADS return 0;", None),
        ("Py_BEGIN_ALLOW_THREADS work();", "ends without"),
        ("work(); Py_END_ALLOW_THREADS", "without its partner"),
        ("Py_BEGIN_ALLOW_THREADS if (x) return 0; Py_END_ALLOW_THREADS", "return without"),
        ("Py_BEGIN_ALLOW_THREADS PyErr_Clear(); Py_END_ALLOW_THREADS", "PyErr_Clear without"),
    ],
)
def test_cpylint_sees(body: str, fault: str | None) -> None:
    body = body.replace(";", ";\n   ")
    found = [what for _, what in cpylint(f"int f(void)\n{{\n    {body}\n}}\n")]
    assert found == [] if fault is None else len(found) == 1 and fault in found[0], found


# ---- the built module


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
GIVEN |= {"__package__", "__file__", "__weakref__", "__dict__"}
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
