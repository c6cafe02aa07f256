"""The form of a function, by which fastloop knows it in another release."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from fastloop.compat.statements import DIGITS, read_form, read_statements

TEXT = '''
def known(value, how="linear"):
    """Does something."""
    if value > 3:
        raise ValueError("too large")
    for each in range(value):  # counts
        if how == "linear":
            value += each
        else:
            value -= 1
    return value
'''
SAME = [
    ("", ""),
    ("Does something", "Does nothing"),
    ("too large", "too small"),
    ("  # counts", ""),
    ("value, how", "value: int, how"),
    ("    return", "\n\n    return"),
]
OTHERS = [
    ("> 3", ">= 3"),
    ('how == "linear"', 'how == "cubic"'),
    ('how="linear"', 'how="cubic"'),
    ("-= 1", "-= 1.0"),
    ("ValueError", "TypeError"),
    ("    return value", "    value += 1\n    return value"),
    ("        else:\n            value", "        value"),
]


def function_of(text: str) -> Any:
    path = f"<{hash(text)}>"
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    names: dict[str, Any] = {}
    exec(compile(text, path, "exec"), names)
    return names["known"]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_comments_messages_and_annotations_change_no_form(before: str, after: str) -> None:
    other = function_of(TEXT.replace(before, after))
    assert read_form(other) == read_form(function_of(TEXT)) != ""


@pytest.mark.parametrize(("before", "after"), OTHERS)
def test_code_and_texts_change_the_form(before: str, after: str) -> None:
    assert before in TEXT
    assert read_form(function_of(TEXT.replace(before, after))) != read_form(function_of(TEXT))


def test_a_statement_under_another_condition_is_another_statement() -> None:
    forms = [read_form(function_of(text)) for text in (TEXT, TEXT.replace("> 3", "> 4"))]
    parts = [[f[i : i + DIGITS] for i in range(0, len(f), DIGITS)] for f in forms]
    differ = [a != b for a, b in zip(*parts, strict=True)]
    assert differ == [False, True, True, *[False] * 5]  # the condition and its ``raise``


def test_the_lines_of_a_statement_are_its_own() -> None:
    lines = [(each.lines[0], each.lines[-1]) for each in read_statements(function_of(TEXT))]
    assert lines == [(2, 2), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (10, 10), (11, 11)]


def test_a_function_without_source_has_no_form() -> None:
    names: dict[str, Any] = {}
    exec("def known():\n    return 3", names)
    assert read_form(names["known"]) == ""
