"""torch, changed as a later release might: with fastloop everything goes on as with torch alone,
and what fastloop cannot know is left to torch, with a warning.

One process imports torch, and forks for each change. See torch_mutant_cases.
"""

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch_mutant_cases
from time_limits import limit
from torch_mutant_cases import CASES, KEYWORD, MORE, STATEMENTS
from torch_mutant_fresh import FRESH
from torch_mutant_program import SIGN, WITHOUT_LOOPS
from torch_mutants import (
    ADDED,
    NEWER,
    Edit,
    add_parameter,
    insert,
    order_parameters,
    rename,
    rename_parameter,
)

from fastloop.compat import torch_parts
from fastloop.compat.requirements import NEWEST_TESTED, read_release

SUPPORT = Path(torch_mutant_cases.__file__).parent
PROGRAM = SUPPORT.parent / "programs/torch_mutant_loops.py"


class Mutants:
    """The process that forks for each change. Ends what hangs, with all that it has started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def report_of(self, name: str) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        print(name, file=process.stdin, flush=True)
        report: dict[str, Any] = json.loads(process.stdout.readline())
        assert report["case"] == name
        return report

    def _start(self) -> subprocess.Popen[str]:
        program = SUPPORT / "torch_mutant_program.py"
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=limit(30))


@pytest.fixture(scope="module")
def mutants() -> Iterator[Mutants]:
    found = Mutants()
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slowest
def test_what_torch_alone_runs_goes_on(mutants: Mutants, name: str) -> None:
    case, report = CASES[name], mutants.report_of(name)
    assert "broken" not in report, report["broken"]
    assert report["torch"] == [], "torch alone does not work so"
    assert report["faults"] == []
    assert report["others"] == []
    if not case.group:
        assert case.why
        assert (report["warnings"], report["differences"]) == ([], {})
        return
    if name == STATEMENTS:
        assert report["unnoticed"] == []
    if case.group == KEYWORD:
        assert any("the argument added_later" in why for why in report["whys"])
        assert (report["warnings"], report["differences"]) == ([], {})
        return
    assert case.group in report["differences"]
    assert report["warnings"] or case.group in SILENT
    for text in report["warnings"]:
        assert SIGN in text and f"torch {NEWER if case.is_newer else torch.__version__}" in text
    told = [report["status"], *report["whys"]]
    reasons = report["differences"].values()
    is_told = any(reason in text for reason in reasons for text in told)
    assert is_told or case.group in UNTOLD, told


# Groups without a why: no call is left to torch for them.
UNTOLD = ("modes", "hooks", "functorch", "sparse", "profiler", "queue", "single", "multi")


# Asked by workers alone, whose warnings are on stderr; with a public way to the same values.
SILENT = ("functorch", "sparse")


def test_every_part_of_the_table_has_its_changes() -> None:
    """Renamed or removed, unless users have its name; doing more, with another parameter; with
    other names of the attributes that fastloop reads."""
    assert torch_parts._PARTS.keys() - torch_mutant_cases.LOOPS.keys() == WITHOUT_LOOPS
    for group in torch_parts._PARTS.keys() & torch_mutant_cases.LOOPS.keys():
        for part in torch_parts._PARTS[group]:
            of_part = dict(torch_mutant_cases.cases_of_part(part, group))
            assert of_part and of_part.keys() <= CASES.keys(), part.path
            assert {f"{name} has another name" for name in part.sets} <= CASES.keys()
            if part.forms:
                assert any("does more" in name for name in of_part), part.path
            assert bool(part.syntax) >= bool(part.forms), part.path
            assert bool(part.forms or part.sets) >= bool(part.syntax), part.path


def form_of(tree: ast.Module) -> tuple[str, set[str]]:
    """The digest of a module's one function, and the names in it."""
    consts = [c for c in compile(tree, "torch", "exec").co_consts if isinstance(c, CodeType)]
    code = consts[-1]  # before it, from CPython 3.14 on, its annotations
    return torch_parts.names_digest(SimpleNamespace(__code__=code)), torch_parts.names_in(code)


def changes_of(function: ast.FunctionDef, names: set[str]) -> dict[str, Edit]:
    """A parameter renamed or added, two in another order, an attribute renamed, a statement more:
    each in turn."""
    path, given = f"torch:{function.name}", [a.arg for a in function.args.args]
    attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) != "_utils"}
    return {
        ADDED: add_parameter(path),
        MORE: insert(path, MORE),
        **{name: rename_parameter(path, name, name + ADDED) for name in given},
        **{f"{n} and {n + 1}": order_parameters(path, n, n + 1) for n in range(len(given) - 1)},
        **{f".{name}": rename(name) for name in used & names},  # others are in annotations
    }


def test_annotations_of_inner_functions_have_no_names_of_their_own() -> None:
    """CPython 3.14 compiles them as a function `__annotate__(format)`."""
    lines = "def outer(x):\n def __annotate__(format): return List\n def inner(y): return y"
    _, names = form_of(ast.parse(lines))
    assert names == {"outer", "x", "__annotate__", "List", "inner", "y"} - {"outer"}


def test_how_an_import_is_done_is_no_part_of_the_syntax() -> None:
    """CPython 3.15 has a further field in its syntax trees of imports."""
    node = ast.Import([ast.alias("math")])
    words = [*torch_parts.words_of(node)]
    node._fields, node.is_lazy = ("names", "is_lazy"), 0  # type: ignore[attr-defined, misc]
    assert [*torch_parts.words_of(node)] == words


def test_other_parameters_or_attributes_are_another_form() -> None:
    every = [part for parts in torch_parts._PARTS.values() for part in parts if part.forms]
    for path in dict.fromkeys(part.path for part in every):
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(torch_parts.resolve(path))))
        function: Any = ast.parse(source).body[0]
        function.decorator_list = []
        source = ast.unparse(function)
        form, names = form_of(ast.parse(source))
        same = []
        for title, edit in changes_of(function, names).items():
            tree = ast.parse(source)
            edit("torch", tree)
            same += [title] if form_of(ast.fix_missing_locations(tree))[0] == form else []
        assert same == [], path


@pytest.mark.skipif(
    read_release(torch.__version__) != NEWEST_TESTED, reason="has not the newest release's sources"
)
def test_the_table_has_the_syntax_of_the_newest_release() -> None:
    every = [part for parts in torch_parts._PARTS.values() for part in parts]
    for part in every:
        if part.syntax:
            found = torch_parts.syntax_digest(torch_parts.resolve(part.path))
            assert found == part.syntax, part.path


# ---- fresh processes


def run_fresh(place: Path, name: str, command: list[str]) -> tuple[Any, str]:
    """Return the output of the program, as JSON says it, and its stderr."""
    environment = os.environ | {"PYTHONPATH": f"{place}:{SUPPORT}", "TORCH_MUTANT": name}
    with subprocess.Popen(
        [sys.executable, *command, str(PROGRAM)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=limit(120))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return json.loads(out), errors


@pytest.mark.slow
@pytest.mark.parametrize("name", FRESH)
@pytest.mark.slowest
def test_run_prints_what_python_does(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch_mutant_fresh")
    alone, _ = run_fresh(tmp_path, name, [])
    ours, errors = run_fresh(tmp_path, name, ["-m", "fastloop", "run"])
    assert ours == alone
    version, edits, _ = alone
    assert version == NEWER and "torch.version" in edits
    edited, is_noticed = FRESH[name]
    assert len(edits) > bool(edited)
    if is_noticed or read_release(torch.__version__) == NEWEST_TESTED:
        assert (SIGN in errors) == is_noticed, errors
