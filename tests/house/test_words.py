"""Comments, docstrings, messages and pages are plain English, as far as that can be measured."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
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
        for _, first, string in tokens_of(path):
            yield from enumerate(string.splitlines(), first)
    elif path.suffix == ".md":
        yield from enumerate(re.sub(r"```.*?```", blank, text, flags=re.DOTALL).splitlines(), 1)
    else:
        for found in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL):
            first = text.count("\n", 0, found.start()) + 1
            yield from enumerate(found[0].splitlines(), first)


@cache
def tokens_of(path: Path) -> list[tuple[int, int, str]]:
    """Return (type, line, text) of the comments and strings of a Python file."""
    return [
        (token.type, token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
    ]


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


# ---- constructions that hide a noun, counted

# By name: the pattern, and how many are allowed in 10 000 words.
COUNTED = {
    "those of, that of": (r"\b(?:those|that) of\b", 4),
    "of which, of them, of all": (r"\bof (?:which|whom|these|them|all|others|it)\b", 12),
    "others, another": (r"\b(?:others|another)\b", 12),
    "where": (r"\bwhere\b", 16),
    "it": (r"\bit\b", 80),
    "behind": (r"\bbehind\b", 3),
    ", too": (r", too\b", 2),
    # A programming language that acts.
    "C as a person": (
        r"\b(?:by|which|that|what|as|if|when|because|and|but) C\b(?![-+./(]|\d| (?:code|API))"
        r"|(?<![\w+-])C (?:does|has|is|can|cannot|could|may|will|would|must|"
        r"(?!tests\b|types\b|files\b|sources\b|headers\b|strings\b|functions\b|modules\b|objects\b|values\b)[a-z]{3,}s)\b",
        1,
    ),
}
KINDS = ("Python", "C", "pages")
RELATIVE = re.compile(r"(?:What|Whether|How|Where|Which|Whose|Who|As|Of|Those|That)\b")


def pages() -> list[Path]:
    return [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@cache
def prose_of(path: Path) -> list[str]:
    """Return the comments and docstrings of a file, or the paragraphs of a page, without code."""
    text = path.read_text()
    if path.suffix == ".py":
        found = [
            string.lstrip("# ") for kind, _, string in tokens_of(path) if kind == tokenize.COMMENT
        ]
        found += docstrings_of(text)
    elif path.suffix == ".md":
        text = re.sub(r"```.*?```|<[^>]*>", blank, text, flags=re.DOTALL)
        found = re.split(r"\n\s*\n|\n(?=[|#*-])", text)
    else:
        found = [
            re.sub(r"^\s*(?:/\*+|\*/?|//)", "", line[0], flags=re.MULTILINE).removesuffix("*/")
            for line in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL)
        ]
    return [re.sub(r"`[^`]*`", "code", text).strip() for text in found]


def docstrings_of(text: str) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
    return [doc for node in nodes if (doc := ast.get_docstring(node))]


def files_of(kind: str) -> list[Path]:
    return {"Python": python_files, "C": c_files, "pages": pages}[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_constructions_that_hide_a_noun_are_rare(kind: str) -> None:
    text = "\n".join(paragraph for path in files_of(kind) for paragraph in prose_of(path))
    words = len(re.findall(r"[A-Za-z']+", text))
    faults = []
    for name, (pattern, most) in COUNTED.items():
        found = len(re.findall(pattern, text, 0 if "C" in name else re.IGNORECASE)) * 1e4 / words
        if found > most:
            faults.append(f"{name}: {found:.1f}")
    assert not faults, f"in 10 000 words of {kind}: " + "; ".join(faults)


@pytest.mark.parametrize("kind", ["Python", "C"])
def test_few_comments_begin_with_a_relative_word(kind: str) -> None:
    comments = [comment for path in files_of(kind) for comment in prose_of(path)]
    found = sum(bool(RELATIVE.match(comment)) for comment in comments)
    assert found <= 0.04 * len(comments), f"{found} of {len(comments)}"


def test_sentences_of_pages_are_short() -> None:
    paragraphs = [text for path in pages() for text in prose_of(path)]
    sentences = [part for text in paragraphs for part in re.split(r"[.!?|](?:\s|$)", text)]
    lengths = sorted(len(sentence.split()) for sentence in sentences if sentence.strip())
    assert lengths[len(lengths) * 9 // 10] <= 25


# ---- the texts of errors, which public_errors.py prints

# Three texts are torch's or torchvision's, and the last one names no value.
WITHOUT_VALUE = re.compile(
    r"'class_to_index' must have|num_classes must be passed|prefetch_factor must be greater"
    r"|fastloop must be compiled"
)
# If a sentence describes a state, its remedy stands after ";".
REMEDY = re.compile(r" \((?:add|call|give|leave|make|pass|put|run|save|take|use|write)\b.*\)$")


def faults_of_error(text: str) -> list[str]:
    is_rule = re.search(r"\bmust\b", text)
    is_of_value = re.search(r" must (?:be|come|end|have|hold|lie) ", text)
    hides_noun = any(
        re.search(COUNTED[name][0], text)
        for name in ("those of, that of", "of which, of them, of all", "behind", ", too")
    )
    return [
        fault
        for fault, applies in {
            "names no value": is_of_value and " got " not in text and not WITHOUT_VALUE.match(text),
            "has a remedy in parentheses": not is_rule and REMEDY.search(text),
            "is not plain English": PHRASES.search(text) or hides_noun,
        }.items()
        if applies
    ]


def test_errors_have_one_form() -> None:
    script = [sys.executable, ROOT / "tests/house/public_errors.py"]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    errors = re.findall(r"^(\S+:\d+): [^:]*: (.*)", printed, re.MULTILINE)
    assert len(errors) > 300
    faults = [f"{at}: {f}: {text}" for at, text in errors for f in faults_of_error(text)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("seed must be an int, got 'x' (pass seed=0)", []),
        ("the loader was closed; call iter() on it again", []),
        ("seed must be an int (pass seed=0)", ["names no value"]),
        ("the loader was closed (call iter() again)", ["has a remedy in parentheses"]),
        ("the seed differs, too", ["is not plain English"]),
    ],
)
def test_faults_of_errors(text: str, faults: list[str]) -> None:
    assert faults_of_error(text) == faults
