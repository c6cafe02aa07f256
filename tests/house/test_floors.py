"""Arrows point down: which folder may include or import which, in C and in Python, and no circle
between modules."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sources import (
    CSRC,
    PACKAGE,
    ROOT,
    Function,
    assert_none,
    bound_names,
    c_files,
    circular_edges,
    declared_functions,
    functions,
    imported_modules,
    imported_names,
    includes,
    python_modules,
    say,
)

# ---- C

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
    "setjmp.h signal.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h "
    "stdlib.h stdnoreturn.h string.h time.h unistd.h".split()
)
SYSTEM_FOLDERS = ("sys/", "linux/")
FLOOR_HEADERS = {
    "base": ("malloc.h",),
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
NUMPY_FILE = "fl_py_numpy.c"


def test_floors_include_only_what_is_below_them() -> None:
    home = {p.name: p.relative_to(CSRC).parts[0] for p in c_files()}
    wrong = []
    for path in c_files():
        floor = path.relative_to(CSRC).parts[0]
        assert floor in FLOORS, f"csrc/{floor} is on no floor: add it to FLOORS"
        allowed = FLOORS[floor]
        for line, quote, name in includes(path):
            if name.startswith("numpy/") and path.name != NUMPY_FILE:
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


# Which folders of csrc/core a folder there may include beside itself.
CORE = {
    "batch": set[str](),
    "grad": set[str](),
    "image": {"batch"},
    "random": {"image"},
    "sequence": {"batch"},
    "shard": set[str](),
    "token": {"image", "sequence"},
    "worker": {"batch"},
    "table": {"batch", "image", "random", "sequence", "token"},
}


def test_folders_of_core_include_only_what_is_below_them() -> None:
    home = {p.name: p.parent.name for p in c_files() if p.parent.parent.name == "core"}
    assert {*home.values()} == CORE.keys()
    assert_none(
        f"{path.name} -> {name}"
        for path in c_files()
        if path.name in home
        for _, _, name in includes(path)
        if name in home and home[name] not in {home[path.name], *CORE[home[path.name]]}
    )


def test_c_modules_include_each_other_in_no_circle() -> None:
    """A module is a stem: x.c and x.h are one."""
    stems = {p.name: p.stem for p in c_files()}
    edges = {
        (p.stem, stems[name]) for p in c_files() for _, _, name in includes(p) if name in stems
    }
    circles = circular_edges((a, b) for a, b in edges if a != b)
    assert_none((f"{a} -> {b}" for a, b in circles))


# The stub defines what several headers declare; Python finds the module's init function by itself.
STUBS = ("fl_cuda_stub.c",)
ENTRY = "PyInit__core"


def is_header_of(header: Path, source: Path) -> bool:
    """In csrc/python each file has a header of its own name; below, a header may be that of several
    files whose names begin with its own."""
    if "python" in source.parts:
        return header.stem == source.stem
    return f"{source.stem}_".startswith(f"{header.stem}_")


def declaration_faults() -> Iterator[str]:
    headers = c_files(".h", ".cuh")
    declared = {name: p for p in headers for name in declared_functions(p.read_text())}
    sources = [p for p in c_files(".c", ".cu") if p.name not in STUBS]
    defined = {f.name: p for p in sources for f in functions(p.read_text()) if is_for_others(f)}
    for name in declared.keys() - defined.keys():
        yield f"{name} of {declared[name].name} is defined nowhere"
    for name, path in defined.items():
        if name not in declared:
            yield f"{name} of {path.name} is declared nowhere"
        elif not is_header_of(declared[name], path):
            yield f"{declared[name].name} for {path.name}"


def is_for_others(function: Function) -> bool:
    is_kernel = "__global__" in function.signature
    return not function.is_static and not is_kernel and function.name != ENTRY


def test_a_header_declares_what_the_file_of_its_name_defines() -> None:
    assert_none(declaration_faults())


# ---- Python

# Which rooms of the package a room may import beside itself; what lies on top may import all. The
# compiled core is below every room. A new folder needs a line here.
BELOW_LOADER = {"base", "compat", "data", "device"}
ROOMS = {
    "base": set[str](),
    "compat": {"base"},
    "data": {"base", "compat"},
    "device": {"base", "compat"},
    "loader": BELOW_LOADER,
    "step": {"base", "compat", "device"},
    "adapters": {*BELOW_LOADER, "loader"},
    "patching": {*BELOW_LOADER, "loader", "step", "adapters"},
    "tools": {*BELOW_LOADER, "loader", "step", "patching"},
    "cli": {*BELOW_LOADER, "loader", "step", "patching", "tools"},
}


# The one arrow that goes up: for a class of another package the data ask its adapter.
UPWARD = "fastloop.data.columns -> fastloop.adapters"


def room_of(module: str) -> str:
    """The folder of a dotted name, or "" on top."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (PACKAGE / parts[-1]).is_dir() else ""


def test_rooms_import_only_what_is_below_them() -> None:
    modules = python_modules()
    found = set()
    for name, path in modules.items():
        room = room_of(name)
        if not room:
            continue
        assert room in ROOMS, f"fastloop/{room} is no known room: add it to ROOMS"
        for _, imported in imported_modules(path, modules):
            if imported != "fastloop._core" and room_of(imported) not in {room, *ROOMS[room]}:
                found.add(f"{name} -> {imported}")
    assert_none(found - {UPWARD})


def test_python_modules_import_each_other_in_no_circle() -> None:
    modules = python_modules()
    edges = {(name, m) for name, p in modules.items() for _, m in imported_modules(p, modules)}
    circles = circular_edges(edges)
    assert_none((f"{a} -> {b}" for a, b in circles))


def test_no_module_imports_more_than_ten_others() -> None:
    """A module that needs more has several responsibilities. A package's __init__ may list all."""
    modules = python_modules()
    for name, path in modules.items():
        imported = {module for _, module in imported_modules(path, modules)} - {"fastloop._core"}
        assert path.name == "__init__.py" or len(imported) <= 10, f"{name}: {sorted(imported)}"


# The mission: loader, device, step, and what they stand on.
MISSION = {"base", "compat", "device", "loader", "step"}
MISSION_DATA = {"columns", "collate", "epochs", "field", "samplers", "stateful"}


def is_mission(module: str) -> bool:
    _, room, *names = [*module.split("."), ""]
    return room in MISSION or (room == "data" and (names[0] in MISSION_DATA or not names[0]))


def test_the_mission_imports_no_other_ring() -> None:
    modules = python_modules()
    edges = {
        (name, imported)
        for name, path in modules.items()
        for _, imported in imported_modules(path, modules)
        if is_mission(name) and not is_mission(imported) and imported != "fastloop._core"
    }
    assert_none({f"{a} -> {b}" for a, b in edges} - {UPWARD})


# What a spawned worker imports of the loader. Every worker pays for each import at its start.
IN_WORKERS = {f"fastloop.loader.workers.{name}" for name in ("child", "batch_pickle", "lifecycle")}


def test_worker_processes_import_nothing_else_of_the_loader() -> None:
    modules = python_modules()
    assert_none(
        f"{name} -> {imported}"
        for name in IN_WORKERS
        for _, imported in imported_modules(modules[name], modules)
        if room_of(imported) == "loader" and imported not in IN_WORKERS
    )


MOST_IMPORTS = 10


def test_no_module_of_the_loader_imports_many_others() -> None:
    modules = python_modules()
    for name, path in modules.items():
        if room_of(name) == "loader":
            found = {m for _, m in imported_modules(path, modules) if m != "fastloop._core"}
            assert len(found) <= MOST_IMPORTS, f"{name} imports {len(found)}: {sorted(found)}"


# A class is known by itself, not by its name: another class may have that name.
NAMED_CLASS = re.compile(r"""__(?:qual)?name__ *(?:[!=]=|in|not in) *[("']""")


def test_no_class_is_known_by_its_name() -> None:
    paths = [path for name, path in python_modules().items() if is_mission(name)]
    paths += [path for path in (PACKAGE / "data").rglob("*.py") if path not in paths]
    assert_none(
        say(path, number, line.strip())
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NAMED_CLASS.search(line)
    )


# ---- tests

TESTS = ROOT / "tests"


@cache
def imported_files(path: Path) -> set[str]:
    """First words of the modules that a file imports: tests import each other by bare names."""
    return {name.split(".")[0] for _, name in imported_names(path)}


def test_tests_import_no_test() -> None:
    tests = {path.stem for path in TESTS.rglob("test_*.py")}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in sorted(imported_files(path) & tests)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted((TESTS / "support").glob("*.py")), ids=lambda p: p.stem)
def test_support_modules_are_used_and_say_what_they_are_for(path: Path) -> None:
    """A module is imported, or run as a script by its name."""
    named = re.compile(rf'["\'/]{path.stem}(\.py)?["\']')
    users = [p for p in TESTS.rglob("*.py") if p != path]
    assert any(path.stem in imported_files(p) or named.search(p.read_text()) for p in users)
    assert path.read_text().startswith('"""')


def test_what_is_imported_of_support_modules_is_there() -> None:
    """In scripts, too, which are texts in tests: nothing reads those before they run."""
    names = {path.stem: bound_names(path) for path in (TESTS / "support").glob("*.py")}
    statement = re.compile(r"^from (\w+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        for module, *listed in statement.findall(path.read_text()):
            wanted = re.findall(r"(\w+)(?: as \w+)?", "".join(listed))
            missing = set(wanted) - names.get(module, set(wanted))
            wrong += [f"{path.relative_to(ROOT)}: {module} has no {name}" for name in missing]
    assert not wrong, "\n".join(wrong)
