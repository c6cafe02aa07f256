"""What an error of a worker says besides torch's text: which batch it was to make."""

from __future__ import annotations

from typing import Any

from fastloop.base.torch_parts import ExceptionWrapper


def quote_indices(indices: Any) -> str:
    try:
        if isinstance(indices, list) and len(indices) > 20:
            shown = ", ".join(repr(index) for index in indices[:20])
            return f"[{shown}, ... {len(indices)} in all]"
        return repr(indices)
    except Exception as error:  # a sampler may yield anything
        return f"which cannot be shown, {type(error).__name__}"


def add_batch(error: ExceptionWrapper, number: int, indices: Any) -> None:
    where = f"batch {number} (indices {quote_indices(indices)})"
    error.exc_msg = f"{error.exc_msg.rstrip()}\nThis happened in {where}."
