"""The forms in which objects show themselves: a line in a console, an element in a notebook."""

from __future__ import annotations

from typing import Any


def repr_of(shown: object, *parts: object) -> str:
    """Return "Class(part, part)", without parts that are empty."""
    return f"{type(shown).__name__}({', '.join(str(part) for part in parts if part)})"


def repr_html(shown: object) -> str:
    """Return an element with the text that ``print()`` shows: the ``_repr_html_`` of results."""
    from html import escape  # notebooks alone need it: 1 ms of every start

    style = "white-space: pre-wrap; word-break: normal"
    return f'<pre style="{style}">{escape(str(shown))}</pre>'


def quote_indices(indices: Any, most: int = 20) -> str:
    """Return the indices of a batch as text: all, or the first `most` and their number."""
    try:
        if isinstance(indices, list) and len(indices) > most:
            shown = ", ".join(repr(index) for index in indices[:most])
            return f"[{shown}, ... {len(indices)} in all]"
        return repr(indices)
    except Exception as error:  # a sampler may yield anything
        return f"which cannot be shown, {type(error).__name__}"
