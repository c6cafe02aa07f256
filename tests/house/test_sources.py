"""Files and functions are short, names of C files are unique, C files name themselves, and no flag
or call is used that the house forbids."""

import re
from collections import Counter

from sources import ROOT, c_files, functions, own_files, python_functions, say, without_comments

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
FORBIDDEN_FLAGS = re.compile(
    r"-Ofast|-f(?:associative|fast|finite|unsafe)-math\S*|-ffinite-math-only|use_fast_math"
)


def test_each_c_file_opens_by_naming_itself() -> None:
    wrong = [p for p in c_files() if not p.read_text().startswith(f"/* {p.stem}: ")]
    assert not wrong, "\n".join(say(p, 1, f"should begin '/* {p.stem}: '") for p in wrong)


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


def test_names_of_c_files_are_unique() -> None:
    """Includes are by bare name. In Python the folder is half of a name."""
    count = Counter(p.name for p in own_files() if p.suffix != ".py")
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
