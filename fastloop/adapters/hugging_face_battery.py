"""A battery of batches: a collator of transformers and fastloop make each batch, and the results
are compared. The collator is of a release that fastloop does not know. All objects are the
library's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from itertools import product
from operator import methodcaller
from typing import Any

import numpy as np
import torch

from fastloop._core import Table
from fastloop.compat.torch_parts import MapFetcher
from fastloop.compat.verification import running_original, same_bits
from fastloop.data.columns import Columns, NotCoveredError
from fastloop.loader.arrays.iterator import make_batch

# Conditions in transformers' code: the collators that fastloop takes have these attributes.
HOLDS = {
    "self.mlm": False,
    "self.seed is not None": False,
    "self.return_seq_idx": False,
    "return_tensors == 'pt'": True,
    "tensor_type == TensorType.PYTORCH": True,
}
TRL_HOLDS = {"padding_side == 'left'": False}
_IDS, _ROWS = 60, 12
_BATCHES = [0], [1, 2, 3, 4], [5, 6, 7], list(range(_ROWS))
# The kinds of columns for collators with a tokenizer and options of padding.
_PADDING = {
    "DataCollatorWithPadding": "ial iat if ialx iam is",
    "DataCollatorForTokenClassification": "ia iaL iatK ixL",
    "DataCollatorForSeq2Seq": "iaL iatK iaO ixO",
}
_MODEL = "input_ids", "token_type_ids", "attention_mask"


def tokenizers(**others: str) -> Iterator[Any]:
    """Yield tokenizers that pad to either side, with other special tokens."""
    from tokenizers import Tokenizer, models

    words = models.WordLevel({str(id): id for id in range(_IDS)}, "0")
    cls = sys.modules["transformers"].PreTrainedTokenizerFast
    for side, names in product(("right", "left"), (_MODEL, _MODEL[:1])):
        given = {"pad_token": "7", "padding_side": side, "model_input_names": list(names)}
        yield cls(tokenizer_object=Tokenizer(words), **given, **others)


def _collators(name: str, found: Any) -> Iterator[tuple[Any, str]]:
    """Yield collators, and kinds of columns for each: the first letters of their names."""
    multiples: list[dict[str, Any]] = [{}, {"pad_to_multiple_of": 8}]
    if name in _PADDING:
        most = {"padding": "max_length", "max_length": 20}
        options = [*multiples, most, {**most, **multiples[1]}]
        for tokenizer, given in product(tokenizers(), options):
            yield found(tokenizer, **given), _PADDING[name]
    elif name == "DataCollatorForLanguageModeling":
        for tokenizer, given in product(tokenizers(), multiples):
            yield found(tokenizer, mlm=False, **given), "ia i ias iax"
    elif name == "DataCollatorWithFlattening":
        named = "return_position_ids", "return_flash_attn_kwargs"
        for chosen in product((True, False), repeat=2):
            for given in ({}, {"separator_id": -7}):
                yield found(**given, **dict(zip(named, chosen, strict=True))), "i ia iL"
    elif name == "trl":
        for given, has_positions in product(multiples, (False, True)):
            yield found(7, return_position_ids=has_positions, **given), "i iLx"
        yield found(7, padding_free=True), "i iLx iP iLP"
    else:
        yield (found() if isinstance(found, type) else found), "l f m x xl"


def _columns(kinds: str, shortest: int) -> dict[str, list[Any]]:
    """Return columns whose first row is the shortest."""
    numbers = np.random.default_rng(3)
    lengths = [shortest, *numbers.choice((1, 5, 9, 12), _ROWS - 2).tolist(), shortest]

    def ids(most: int) -> list[list[int]]:
        return [numbers.integers(0, most, length).tolist() for length in lengths]

    columns: dict[str, Callable[[], list[Any]]] = {
        "input_ids": lambda: ids(_IDS),
        "attention_mask": lambda: ids(2),
        "token_type_ids": lambda: ids(2),
        "special_tokens_mask": lambda: ids(2),
        "label": lambda: numbers.integers(0, 9, _ROWS).tolist(),
        "fraction": lambda: numbers.random(_ROWS).tolist(),
        "many": lambda: numbers.integers(0, 9, (_ROWS, 3)).tolist(),
        "x": lambda: numbers.random((_ROWS, 2)).tolist(),
        "Labels": lambda: ids(_IDS),
        "K labels": lambda: ids(_IDS),
        "Other labels": lambda: ids(_IDS)[::-1],
        "Pieces": lambda: [[n - n // 2, n // 2][: max(n, 1)] for n in lengths],
    }
    names = {"fraction": "label", "many": "label_ids", "K labels": "label"}
    names |= {"Labels": "labels", "Other labels": "labels", "Pieces": "seq_lengths"}
    return {names.get(n, n): make() for n, make in columns.items() if n[0] in kinds}


@functools.cache
def _dataset(kinds: str, shortest: int, form: str | None) -> tuple[Any, list[Any]]:
    """Return a dataset of the columns that `kinds` names, and the samples of each batch."""
    module, made = sys.modules["datasets"], _columns(kinds, shortest)
    table = module.table.InMemoryTable.from_pydict(made)
    dataset = module.Dataset(table, fingerprint="battery")  # else Dataset computes one
    dataset = dataset if form is None else dataset.with_format(form)
    fetcher = MapFetcher(dataset, True, list, False)
    return dataset, list(map(fetcher.fetch, _BATCHES))


def find_difference(
    name: str, found: Any, make: Callable[[Any, Any], Columns], form: str | None, is_unknown: bool
) -> str:
    """Return in which case batches of a collator of this name differ from fastloop's, or "".

    Args:
        found: the collator's class or function.
        make: returns the columns of a collator and a dataset.
        form: the format of datasets.
    """
    count = 0
    with running_original(), torch.random.fork_rng(devices=()):
        before = torch.get_rng_state()
        for collator, kinds in _collators(name, found):
            for kind, shortest in product(kinds.split(), (0, 1)):
                dataset, batches = _dataset(kind, shortest, form)
                try:
                    columns = make(collator, dataset)
                except NotCoveredError:
                    continue
                fields = map(methodcaller("for_table", False), columns.all)
                columns.table = Table(torch.Tensor, tuple(fields))
                for rows, samples in zip(_BATCHES, batches, strict=True):
                    expected = collator(list(map(dict, samples)))
                    is_same = same_bits(expected, make_batch(columns, rows))
                    if not is_same or not torch.equal(before, torch.get_rng_state()):
                        return f"a batch of {name} differs"
                    count += 1
    return "" if count else f"no batch of {name} can be compared"


def find_difference_of_rows(make: Callable[[Any], Any], is_unknown: bool) -> str:
    """Return that rows of a dataset differ from fastloop's, or ""."""
    with running_original():
        for kinds, shortest in product(("i", "ialm", "ifL", "lm"), (0, 1)):
            dataset, batches = _dataset(kinds, shortest, None)
            rows = make(dataset)
            if rows.why or not same_bits(batches, list(map(rows.fetch, _BATCHES))):
                return "rows differ"
    return ""


def find_difference_of_pad(make: Callable[..., Any], is_unknown: bool) -> str:
    """Return in which case batches of ``pad()`` differ from fastloop's, or ""."""
    widths: list[dict[str, Any]] = [{}, {"padding": "longest", "max_length": 3}]
    widths += [{"padding": "max_length", "max_length": 20}]
    others: list[dict[str, Any]] = [{}, {"pad_to_multiple_of": 8}]
    others += [{"return_attention_mask": False}, {"padding_side": "left"}]
    kinds = "i", "ial", "iat", "isf", "iaxb"
    count = 0
    with running_original():
        for tokenizer, width, other in product(tokenizers(), widths, others):
            given = {"return_tensors": "pt", **width, **other}
            for columns in map(_columns, kinds * 2, (0,) * 5 + (1,) * 5):
                rows = [{name: column[i] for name, column in columns.items()} for i in range(_ROWS)]
                for batch in _BATCHES:
                    samples = [rows[i] for i in batch]
                    try:
                        made = make(tokenizer, samples, **given)
                    except (NotCoveredError, ValueError):  # lists of several lengths
                        continue
                    if not same_bits(tokenizer.pad(samples, **given), made):
                        return "a padded batch differs"
                    count += 1
    return "" if count else "no padded batch can be compared"
