"""cpylint: what a C compiler does not see. Mutexes and the interpreter lock are released where they
were taken, on every way out of a function."""

import re
from collections.abc import Iterator

import pytest
from sources import Function, c_files, functions, say

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

SECTION_TOKENS = re.compile(rf"FL_PY_BEGIN_SECTION|FL_PY_END_SECTION|{LEAVES}|\bgoto\b")


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


def section_faults(function: Function) -> Iterator[tuple[int, str]]:
    is_inside, line = False, 0
    for token in SECTION_TOKENS.finditer(function.body):
        word, line = token[0], function.body.count("\n", 0, token.start())
        if word.endswith("_SECTION"):
            begins = word == "FL_PY_BEGIN_SECTION"
            if begins == is_inside:
                yield line, f"{word} without its partner"
            is_inside = begins
        elif is_inside:
            yield line, f"{word} in a section"
    if is_inside:
        yield line, "ends in a section"


def cpylint(text: str) -> Iterator[tuple[int, str]]:
    for function in functions(text):
        opening = function.line + function.lines - 1 - function.body.count("\n")
        faults = (lock_faults, gil_faults, section_faults)
        for line, what in (fault for find in faults for fault in find(function)):
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
        ("FL_PY_BEGIN_SECTION(o); x = work(); FL_PY_END_SECTION(); return x;", None),
        ("FL_PY_BEGIN_SECTION(o); if (x) return 0; FL_PY_END_SECTION();", "return in a section"),
        ("FL_PY_BEGIN_SECTION(o); FL_TRY(f()); FL_PY_END_SECTION();", "FL_TRY in a section"),
        ("FL_PY_BEGIN_SECTION(o); work();", "ends in a section"),
        ("work(); FL_PY_END_SECTION();", "without its partner"),
    ],
)
def test_cpylint_sees(body: str, fault: str | None) -> None:
    body = body.replace(";", ";\n   ")
    found = [what for _, what in cpylint(f"int f(void)\n{{\n    {body}\n}}\n")]
    assert found == [] if fault is None else len(found) == 1 and fault in found[0], found
