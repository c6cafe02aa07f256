"""The seam of ``PreTrainedTokenizerBase.pad`` of transformers: batches of texts that are padded
natively. Imports neither transformers nor the rest of what fastloop knows of it.
"""

from __future__ import annotations

import functools
from typing import Any

from fastloop.compat import late_seam
from fastloop.compat.late_seam import LateSeam

_TOKENIZERS = {"transformers.tokenization_utils_base": ("PreTrainedTokenizerBase", "pad")}


def _prepare(names: set[str]) -> None:
    from fastloop.adapters.hugging_face_pad import find_unknown

    find_unknown()


def _make_call(seam: Any, name: str, before: Any) -> Any:
    from fastloop.adapters.hugging_face_pad import make_call

    return make_call(seam, before)


def make_seam(is_strict: bool) -> LateSeam:
    return LateSeam("texts", is_strict, ("hooks", "collate"), _TOKENIZERS, _prepare, _make_call)


serve_fetches = functools.partial(late_seam.serve_fetches, "texts", make_seam)
