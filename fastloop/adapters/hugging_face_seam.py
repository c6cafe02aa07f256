"""The seam of texts: ``PreTrainedTokenizerBase.pad`` of transformers, and the rows of a
``datasets.Dataset`` that a loader fetches for the function that pads. Imports neither package, nor
the rest of what fastloop knows of them.
"""

from __future__ import annotations

import functools
from typing import Any

from fastloop.compat import late_seam
from fastloop.compat.late_seam import LateSeam

_OWNERS = {
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase", "pad"),
    "datasets.arrow_dataset": ("Dataset", "__getitems__"),
}


def _prepare(names: set[str]) -> None:
    if "pad" in names:
        from fastloop.adapters import hugging_face_pad

        hugging_face_pad.find_unknown()
    if "__getitems__" in names:
        from fastloop.adapters import hugging_face_rows

        hugging_face_rows.find_unknown()


def _make_call(seam: Any, name: str, before: Any) -> Any:
    if name == "pad":
        from fastloop.adapters.hugging_face_pad import make_call as make
    else:
        from fastloop.adapters.hugging_face_rows import make_fetch as make
    return make(seam, before)


def make_seam(is_strict: bool) -> LateSeam:
    return LateSeam("texts", is_strict, ("hooks", "collate"), _OWNERS, _prepare, _make_call)


serve_fetches = functools.partial(late_seam.serve_fetches, "texts", make_seam)
