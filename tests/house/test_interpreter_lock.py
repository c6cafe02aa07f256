"""Where two threads can meet is marked `SHARED(name)` in the C code, and docs/internals/threads.md
says what protects it; the module does without the interpreter lock."""

import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter

import pytest
from sources import CSRC, ROOT, assert_none, c_files

BINDING = CSRC / "python"
PAGE = "docs/internals/threads.md"
TEXT = (ROOT / PAGE).read_text()
MARK = re.compile(r"SHARED\((\w+)\)")


def marks_of(text: str) -> list[str]:
    """The names in the comments of a C file."""
    comments = re.findall(r"/\*.*?\*/", text, re.DOTALL)
    return [name for comment in comments for name in MARK.findall(comment)]


def rows_under(page: str, heading: str) -> list[list[str]]:
    """The words in backticks in the first cell of each row of the table whose first column has this
    heading."""
    _, _, table = page.partition(f"\n| {heading} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]


def test_marks_and_rows_are_read() -> None:
    assert marks_of("/* SHARED(a): b.\n * SHARED(c) */ int SHARED(d);") == ["a", "c"]
    page = "\n| mark | x |\n|---|---|\n| `f` `a` | `b` |\n| `g` `c` | |\n\n| `h` `i` |\n"
    assert rows_under(page, "mark") == [["f", "a"], ["g", "c"]]


def test_every_mark_is_in_the_table_once_and_every_row_is_marked() -> None:
    marks = Counter((path.stem, name) for path in c_files() for name in marks_of(path.read_text()))
    rows = Counter((file, name) for file, name in rows_under(TEXT, "mark"))
    assert marks
    assert_none(f"{file}: SHARED({name}) is not in {PAGE}" for file, name in marks - rows)
    assert_none(f"{PAGE}: no SHARED({name}) in {file}" for file, name in rows - marks)
    assert_none(f"{file}: SHARED({name}) twice" for (file, name), n in marks.items() if n > 1)


def test_every_type_is_marked_or_said_to_need_no_mark() -> None:
    """A type that is new has been thought of."""
    types = {p.stem for p in BINDING.rglob("fl_py_*.[ch]") if "PyObject_HEAD\n" in p.read_text()}
    marked = {path.stem for path in c_files() if marks_of(path.read_text())}
    unmarked = {file for row in rows_under(TEXT, "type in") for file in row}
    assert_none(f"{file}: neither marked nor in {PAGE}" for file in types - marked - unmarked)
    assert_none(f"{file}: marked, and said to need no mark" for file in marked & unmarked)
    assert_none(f"{PAGE}: {file} has no type" for file in unmarked - types)


def test_no_mark_lies_below_the_binding() -> None:
    below = (p for p in c_files() if BINDING not in p.parents and marks_of(p.read_text()))
    assert_none(path.name for path in below)


def test_the_module_says_that_it_needs_no_interpreter_lock() -> None:
    source = (BINDING / "fl_py_module.c").read_text()
    assert "{Py_mod_gil, Py_MOD_GIL_NOT_USED}" in source
    assert not [p.name for p in c_files() if "Py_MOD_GIL_USED" in p.read_text()]


def test_critical_sections_are_entered_in_one_way() -> None:
    """With the lock nothing is left of them, and no thread returns from the middle of one."""
    users = [p.name for p in c_files() if "Py_BEGIN_CRITICAL_SECTION" in p.read_text()]
    assert users == ["fl_py_section.h"]


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter always has the lock"
)
def test_importing_the_package_leaves_the_interpreter_lock_off() -> None:
    code = "import sys, fastloop._core, fastloop.loader; print(sys._is_gil_enabled())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", code]
    assert subprocess.check_output(command, env=environment, text=True) == "False\n"
