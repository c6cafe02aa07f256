"""Comments, docstrings, messages and pages are plain English, as far as that can be measured."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import PACKAGE, ROOT, c_files, say

# Each needs a second reading, or hides a noun.
PHRASES = re.compile(
    r"\b(?:of|by|with|from|as|to|than|over|beside|behind|under) "
    r"(?:ours|torch's|the user's|theirs)(?=[\s,.;:)]|$)(?! [a-z`])"
    r"|(?<![Tt]here )\b(?:is|are|was) no(?! longer\b| more than\b)(?= [a-z])"
    r"|\bas (?:it is|they are)\b(?! (?:not|passed|given|used))"
    r"|\bwhoever\b|\bhimself\b|\b(?:is|are) to be\b|\bin vain\b|\bthereof\b"
    r"|\bthose of ours\b|\bnothing of\b|\bof whom\b|\bso that who\b"
)
# A first line needs a subject or a verb: these words begin the middle of another sentence.
OPENINGS = re.compile(
    r"(?:Of|What|Whether|Those|That|Which|Who|Whose|Where|With|Without|By|Also|Not|Below|Above|"
    r"Behind|Its|Their|As|For|From|In|On|To|And|Or|But|Only|Such|At|After|Before|Between|Beside|"
    r"Until|While|Like)\b"
)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text): comments and strings of Python, comments of C, lines of a page."""
    text = path.read_text()
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, line
    elif path.suffix == ".md":
        yield from enumerate(re.sub(r"```.*?```", blank, text, flags=re.DOTALL).splitlines(), 1)
    else:
        for found in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL):
            first = text.count("\n", 0, found.start()) + 1
            yield from enumerate(found[0].splitlines(), first)


def blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, first line) of the docstring of each function and class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if text := ast.get_docstring(node):
            yield node.lineno, text.splitlines()[0]


def phrase_faults(paths: list[Path]) -> list[str]:
    return [
        say(path, line, found[0])
        for path in paths
        for line, text in texts_of(path)
        for found in PHRASES.finditer(text)
    ]


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_no_phrase_needs_a_second_reading() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    faults = phrase_faults([*python_files(), *c_files(), *pages])
    assert not faults, "\n".join(faults)


def test_the_first_line_of_a_docstring_stands_alone() -> None:
    faults = [
        say(path, line, text)
        for path in python_files()
        for line, text in first_lines(path)
        if OPENINGS.match(text) or not re.match(r'[A-Z`"0-9]', text)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        ("a loader of ours", True),
        ("the iterators of torch's, say", True),
        ("an iterator of torch's own", False),
        ("x is no integer", True),
        ("it is no longer used", False),
        ("runs as it is", True),
        ("whoever reads it", True),
        ("the thread wakes itself", False),
    ],
)
def test_phrases(text: str, is_fault: bool) -> None:
    assert bool(PHRASES.search(text)) == is_fault
