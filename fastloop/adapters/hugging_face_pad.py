"""``PreTrainedTokenizerBase.pad()`` of transformers for lists of samples. Samples are dicts with
lists of ints. transformers' collators call the function, and collate functions of programs.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from fastloop.adapters.hugging_face_battery import HOLDS, find_difference_of_pad
from fastloop.adapters.originals import Battery, find_obstacle, judge, methods_of
from fastloop.base.checks import look_up
from fastloop.compat.torch_parts import Methods
from fastloop.compat.verdicts import Verdict
from fastloop.compat.verification import runs_original, verification_of
from fastloop.data.collate import fetch, make_collate
from fastloop.data.columns import NotCoveredError, leave_if

_MODULE = "transformers.tokenization_utils_base"
METHODS = "_pad", "_get_padding_truncation_strategies"
_MOST = 2**31
_tensor = Methods((torch, "tensor"))


class How(NamedTuple):
    """How a call pads.

    Attributes:
        main: the column whose lists are padded.
        values: by column, what pads.
        width: of ``padding="max_length"``; 0: of the longest list.
    """

    main: str
    values: dict[str, int]
    pad_left: bool
    multiple: int
    width: int


@functools.cache
def _core() -> Any:
    return make_collate()


def read_values(
    tokenizer: Any, has_mask: bool | None = None, methods: tuple[str, ...] = METHODS
) -> tuple[str, dict[str, int]]:
    """Return the main column of a tokenizer, and by column what pads. Raises NotCoveredError.

    Args:
        has_mask: ``return_attention_mask``.
        methods: must be those of transformers' base class.
    """
    base = sys.modules[_MODULE].PreTrainedTokenizerBase
    others = [n for n in methods if look_up(tokenizer, n) != getattr(base, n).__get__(tokenizer)]
    leave_if(others, f"a {type(tokenizer).__name__} pads in its own way")
    main, *given = tokenizer.model_input_names
    values = {"token_type_ids": tokenizer.pad_token_type_id, "special_tokens_mask": 1}
    if has_mask or (has_mask is None and "attention_mask" in given):
        values["attention_mask"] = 0
    leave_if(main in values, f"the tokenizer pads {main!r}")
    values[main] = tokenizer.pad_token_id
    if set(map(type, values.values())) != {int} or values[main] < 0:
        raise NotCoveredError(f"the tokenizer's ids of padding must be ints, got {values}")
    return main, values


def read_width(tokenizer: Any, padding: Any, max_length: Any, multiple: Any) -> tuple[int, int]:
    """Return the width of a padded batch, 0: of the longest list, and what the width is a multiple
    of. Raises NotCoveredError."""
    multiple = 1 if multiple is None else multiple
    is_odd = type(multiple) is not int or multiple <= 0
    leave_if(is_odd, f"pad_to_multiple_of={multiple!r} is not an int > 0")
    width = 0
    if type(padding) is str and padding == "max_length":
        width = tokenizer.model_max_length if max_length is None else max_length
        is_odd = type(width) is not int or not 0 < width < _MOST
        leave_if(is_odd, f"padding='max_length' with max_length={width!r}")
        multiple *= -(-width // multiple)
    elif (type(padding) is not str or padding != "longest") and (
        padding is not True or max_length is not None
    ):
        raise NotCoveredError(f"padding={padding!r} with max_length={max_length!r}")
    return width, multiple


def _read(
    tokenizer: Any,
    padding: Any = True,
    max_length: Any = None,
    pad_to_multiple_of: Any = None,
    padding_side: Any = None,
    return_attention_mask: Any = None,
    return_tensors: Any = None,
    verbose: Any = True,
) -> How:
    """Read the arguments of ``pad()``. Raises NotCoveredError."""
    is_odd = return_attention_mask not in (None, True, False)
    leave_if(is_odd, f"return_attention_mask={return_attention_mask!r}")
    main, values = read_values(tokenizer, return_attention_mask)
    width, multiple = read_width(tokenizer, padding, max_length, pad_to_multiple_of)
    side = tokenizer.padding_side if padding_side is None else padding_side
    leave_if(side not in ("left", "right"), f"padding_side={side!r}")
    return How(main, values, side == "left", multiple, width)


def _measure(name: str, column: list[Any]) -> list[int]:
    if set(map(type, column)) != {list}:
        raise NotCoveredError(f"{name!r} has other values than lists")
    return list(map(len, column))


def _is_plain(value: Any) -> bool:
    """Tell whether ``torch.tensor()`` alone makes a tensor of values of this kind."""
    return type(value) in (int, float, bool) or (
        type(value) is list and bool(value) and type(value[0]) in (int, float, bool)
    )


def _make(how: How, rows: list[Any]) -> Any:
    """Return the padded batch of `rows`, the samples. Raises NotCoveredError and other errors."""
    leave_if(set(map(type, rows)) != {dict}, "samples are not dicts")
    leave_if(set(map(type, rows[0])) != {str}, "samples have other keys than strings")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    leave_if(how.main not in columns, f"samples have no {how.main!r}")
    lengths, outputs = _measure(how.main, columns[how.main]), {}
    _core().begin()
    is_odd = how.width > 0 and not 0 < max(lengths) <= how.width
    leave_if(is_odd, f"the longest list of {how.main!r} has not 1 to {how.width} ids")
    needs_mask = "attention_mask" in how.values and "attention_mask" not in columns
    for name, column in columns.items():
        if name not in how.values:
            leave_if(not _is_plain(column[0]), f"{name!r} has other values than numbers")
            outputs[name] = torch.tensor(column)
            continue
        leave_if(_measure(name, column) != lengths, f"{name!r} has lists of other lengths")
        element = how.values[name].to_bytes(8, sys.byteorder, signed=True)
        layout = False, how.pad_left, how.multiple, -1, needs_mask and name == how.main
        made = _core().pad(column, lambda _, element=element: element, *layout, False, 32)
        is_odd = made is NotImplemented or made[0].dtype is not torch.int64
        leave_if(is_odd, f"{name!r} has other values than lists of ints")
        outputs[name], mask, _ = made
        if mask is not None:
            attention = mask
    if needs_mask:
        outputs["attention_mask"] = attention
    return sys.modules[_MODULE].BatchEncoding(outputs)


def _make_of_battery(tokenizer: Any, rows: list[Any], **named: Any) -> Any:
    return _make(_read(tokenizer, **named), rows)


@functools.cache
def find_unknown() -> Verdict:
    """Tell whether fastloop knows the code of ``pad()``."""
    find = partial(find_difference_of_pad, _make_of_battery)
    return judge(["pad"], Battery("padding", "pad", find, holds=HOLDS))


prepare = find_unknown


def _find_obstacle() -> str:
    replaced = methods_of("collators", plans=frozenset(["pad"])).find_replaced()
    if replaced := replaced or _tensor.find_replaced():
        return f"{replaced} was replaced"
    return find_unknown().why or find_obstacle()


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    def pad(self: Any, encoded_inputs: Any, *args: Any, **named: Any) -> Any:
        is_ours = type(encoded_inputs) is list and not args and (seam.is_on or fetch.is_served)
        tensors = named.get("return_tensors") if is_ours else None
        if type(tensors) is not str or tensors != "pt" or runs_original() or not encoded_inputs:
            return before(self, encoded_inputs, *args, **named)
        try:
            leave_if(why := _find_obstacle(), why)
            how = _read(self, **named)
            made = _make(how, encoded_inputs)
            key = repr((type(self).__name__, how, list(encoded_inputs[0])))
            arguments = "padded batches", "transformers'", 1, not find_unknown().about
            verification = verification_of(f"pad {key}", *arguments)
            leave_if(verification.falls_back, "a batch has differed")
        except NotCoveredError as error:
            return seam.call_left(str(error), before, self, encoded_inputs, **named)
        except Exception as error:  # transformers raises its own error, if there is one
            return seam.call_left(type(error).__name__, before, self, encoded_inputs, **named)
        if verification.is_due(len(encoded_inputs)):
            original = partial(before, self, encoded_inputs, **named)
            return verification.compare(original, lambda _: made)
        seam.native += 1
        return made

    return pad
