"""What fastloop's datasets have for samples of several shapes, added to torch's error of them."""

from __future__ import annotations

from typing import Any

from fastloop.data.epochs import datasets_within

# The second where a worker's collate makes room in shared memory.
_TORCHS = ("stack expects each tensor to be equal size", "storage that is not resizable")


def add_size_remedy(error: RuntimeError, dataset: Any) -> None:
    """The error stays torch's, with its text and one line more. It may come from a worker."""
    if not any(text in str(error) for text in _TORCHS):
        return
    remedies = dict.fromkeys(each._size_remedy() for each in datasets_within(dataset))
    error.args = ("\n".join([str(error).rstrip(), *filter(None, remedies)]),)
