"""C gathers batches of a ``datasets.Dataset`` of Hugging Face from Arrow's memory: of formatted
rows as torch's default collate makes them, and of lists as transformers' collators do.

A collator is known by its exact class and a digest of its code. Each of its outputs becomes a
column, in its order.
docs/zero-change.md tells the rules. Nothing is imported: a program that has such objects has
imported their packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop._core import SequenceColumn
from fastloop.base import torch_parts
from fastloop.base.originals import is_code_known, trial_of
from fastloop.data.field import Array, MappedFile
from fastloop.data.samplers import Vector
from fastloop.data.sequences.ragged import check_lists, read_chunk
from fastloop.loader.arrays.columns import Column, Columns, NotCoveredError, Segment, leave_if
from fastloop.loader.arrays.compared import Original

# The dtype that both formats make of Arrow's; None: the same. Others are not covered.
_CASTS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int64"),
    "double": "float32",
    **dict.fromkeys(("int64", "float", "bool"), None),
}


def _selected_rows(dataset: Any) -> tuple[Vector, ...]:
    """Return the rows that shuffle() and select() have left; (): all."""
    if dataset._indices is None:
        return ()
    chunks = [chunk.to_numpy().view(np.int64) for chunk in dataset._indices.table.column(0).chunks]
    return (chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int64), *chunks]),)


def _flatten(chunk: Any) -> tuple[Any, list[int]]:
    """Return the values of lists within each other, and how many are in each."""
    pa: Any = sys.modules["pyarrow"]
    widths: list[int] = []
    while True:
        leave_if(chunk.null_count, "null values")
        if isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        elif isinstance(chunk, pa.FixedSizeListArray | pa.ListArray | pa.LargeListArray):
            lengths = chunk.value_lengths().unique().to_pylist()
            leave_if(len(lengths) != 1, "lists of different length")
            widths += lengths
            chunk = chunk.flatten()
        else:
            return chunk, widths


def _file_of(dataset: Any) -> MappedFile | None:
    files = dataset.cache_files
    return (files[0]["filename"], 0, None) if files else None


def _chunks_of(dataset: Any, name: str) -> list[Any]:
    chunks = [chunk for chunk in dataset._data.table.column(name).chunks if len(chunk) > 0]
    leave_if(not chunks, "the dataset has no rows")
    return chunks


def _column_of(dataset: Any, name: str, output: str) -> Column:
    """Return an output that is a column of numbers, or of lists of one length. It lies in Arrow's
    memory; bits are copied."""
    segments: list[Segment] = []
    for chunk in _chunks_of(dataset, name):
        try:
            values, widths = _flatten(chunk)
            leave_if((kind := str(values.type)) not in _CASTS, f"values of {kind}")
        except NotCoveredError as reason:
            raise NotCoveredError(f"column {name!r} has {reason}") from None
        array = values.to_numpy(zero_copy_only=kind != "bool")
        segments.append(Segment(array.reshape(len(chunk), *widths), len(chunk), _file_of(dataset)))
    return Column(output, tuple(segments), cast=_CASTS[kind])


def _names_in(dataset: Any) -> list[str]:
    """Return the columns of samples."""
    leave_if(dataset._format_kwargs, "with_format() of the datasets.Dataset was given arguments")
    every, picked = dataset._data.column_names, dataset._format_columns
    names = [name for name in every if picked is None or name in picked]
    has_more = dataset._output_all_columns and len(names) < len(every)
    leave_if(has_more, "output_all_columns=True adds columns without the format")
    return names


def _join(dataset: Any, outputs: dict[str, Column], wrap: Any = None) -> Columns:
    parts, rows = tuple(outputs.values()), _selected_rows(dataset)
    return Columns(dict.fromkeys(outputs), parts, "Arrow columns", rows, wrap=wrap)


def take_formatted(dataset: Any) -> Columns:
    """Return the columns of a ``datasets.Dataset`` that its format makes tensors or arrays of.
    Raises NotCoveredError."""
    kind, known = dataset._format_type, "those of with_format('torch') and ('numpy')"
    reason = f"the format of the datasets.Dataset is {kind}; C takes {known}"
    leave_if(kind not in ("torch", "numpy"), reason)
    names = _names_in(dataset)
    return _join(dataset, {name: _column_of(dataset, name, f"column {name!r}") for name in names})


# ---- collators of transformers

_COLLATORS, _TOKENIZERS = "transformers.data.data_collator", "transformers.tokenization_utils_base"
_PAD = ("pad", "_pad", "_get_padding_truncation_strategies")
# With other values of these attributes, collators draw numbers or make what C does not.
_NEEDED = {"return_tensors": "pt", "mlm": False, "seed": None, "return_seq_idx": False}
_NEEDED["position_ids_start"] = 0
_LARGE = 10**20  # a longer model_max_length is none


class _Span:
    """One array over the memory from the first of several arrays to the end of the last. It keeps
    them."""

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays, dtype = arrays, arrays[0].dtype
        self.begin = min(array.ctypes.data for array in arrays)
        count = (max(a.ctypes.data + a.nbytes for a in arrays) - self.begin) // dtype.itemsize
        memory = {"version": 3, "data": (self.begin, True), "typestr": dtype.str}
        self.__array_interface__ = {**memory, "shape": (count,)}


class _Lists(NamedTuple):
    """A column of lists of integers.

    Attributes:
        ends: int64 ``[rows, 2]``: where each list begins and ends among all values.
    """

    values: Array
    ends: Array

    @property
    def lengths(self) -> Array:
        return self.ends[:, 1] - self.ends[:, 0]


@dataclass
class _Samples:
    """The samples that a collator gets, and the outputs that C makes of them.

    Attributes:
        names: of the columns.
        kind: the class of the batch; None: a dict.
        how: every other setting that batches depend on.
    """

    dataset: Any
    names: list[str]
    outputs: dict[str, Column] = field(default_factory=dict)
    kind: Callable[[Any], Any] | None = None
    how: Any = None

    def lists(self, name: str, main: _Lists | None = None) -> _Lists:
        """Return a column of lists, each as long as that of the same row in the main column."""
        leave_if(name not in self.names, f"the dataset has no column {name!r}")
        chunks = _chunks_of(self.dataset, name)
        check_lists(chunks[0])
        parts = list(map(read_chunk, chunks))
        full = [values for values, _ in parts if len(values) > 0]
        leave_if(not full, f"column {name!r} has empty lists alone")
        dtype = full[0].dtype
        is_plain = dtype.kind in "iu" and all(values.flags.aligned for values in full)
        is_plain = is_plain and dtype.name in _CASTS
        leave_if(not is_plain, f"column {name!r} has lists of {dtype}, or at unaligned addresses")
        span, places, counts = _Span(full), [], []
        for values, offsets in parts:
            leave_if(offsets[-1] > len(values), f"column {name!r} has lists beyond its values")
            at: Any = values.ctypes.data if len(values) else span.begin
            places.append(offsets[:-1] + np.int64((at - span.begin) // dtype.itemsize))
            counts.append(offsets[1:] - offsets[:-1])
        begins, lengths = np.concatenate(places), np.concatenate(counts, dtype=np.int64)
        leave_if(lengths.min() < 0, f"column {name!r} has offsets that fall")
        found = _Lists(np.asarray(span), np.stack((begins, begins + lengths), 1))
        differs = main is not None and not np.array_equal(found.lengths, main.lengths)
        leave_if(differs, f"lists of column {name!r} are not as long as those beside them")
        return found

    def add(self, output: str, lists: _Lists, kind: str, *padding: Any, **options: Any) -> None:
        """Add an output that C makes of lists."""
        if padding:
            options["is_int64"] = lists.values.dtype != np.int64
            options["padding"] = np.int64(padding[0]).tobytes()
        column = SequenceColumn(torch.Tensor, kind, lists.ends, lists.values, **options)
        self.outputs[output] = Column(output, column, _file_of(self.dataset))

    def add_rows(self, output: str, name: str, ndims: tuple[int, ...] = ()) -> None:
        """Add an output that is a column.

        Args:
            ndims: of labels: the numbers of dimensions that they may have; bools are then refused.
        """
        column = self.outputs[output] = _column_of(self.dataset, name, output)
        array: Any = column.segments()[0].array
        is_other = ndims and (array.ndim not in ndims or array.dtype == np.bool_)
        leave_if(is_other or 0 in array.shape[1:], f"column {name!r} has values of another kind")


def _pad(samples: _Samples, collator: Any, padding: Any = True, max_length: Any = None) -> Any:
    """Add the outputs of ``tokenizer.pad()``, and return the name of the main column and options of
    its output."""
    tokenizer, multiple = collator.tokenizer, collator.pad_to_multiple_of
    module, cls = sys.modules[_TOKENIZERS], type(tokenizer)
    base, samples.kind = module.PreTrainedTokenizerBase, module.BatchEncoding
    others = [n for n in _PAD if getattr(tokenizer, n, None) != getattr(base, n).__get__(tokenizer)]
    leave_if(others, f"a {cls.__name__} pads in its own way")
    main, *given = tokenizer.model_input_names
    values = {"token_type_ids": tokenizer.pad_token_type_id, "special_tokens_mask": 1}
    values |= {"attention_mask": 0} if "attention_mask" in given else {}
    values[main] = tokenizer.pad_token_id
    numbers = *values.values(), 1 if multiple is None else multiple
    are_ints = set(map(type, numbers)) == {int} and min(numbers[-2:]) >= 0 and numbers[-1] > 0
    leave_if(not are_ints, "the tokenizer's ids of padding and pad_to_multiple_of must be ints")
    first, multiple = samples.lists(main), numbers[-1]
    if padding == "max_length":
        width = tokenizer.model_max_length if max_length is None else max_length
        shortest, longest = first.lengths.min(), first.lengths.max()
        fits = shortest > 0 and longest <= width < _LARGE
        text = f"padding='max_length' takes lists of 1 to {width} ids, got {shortest} to {longest}"
        leave_if(not fits, text)
        multiple *= -(-width // multiple)
    else:
        is_longest = padding == "longest" or (padding is True and max_length is None)
        leave_if(not is_longest, f"padding={padding!r} with max_length={max_length!r}")
    is_left = bool(("right", "left").index(tokenizer.padding_side))
    samples.how, options = (numbers, multiple, is_left), {"is_left": is_left, "multiple": multiple}
    for name in samples.names:
        if name in values:
            lists = first if name == main else samples.lists(name, first)
            samples.add(name, lists, "padded", values[name], **options)
        else:
            samples.add_rows(name, name)
    if "attention_mask" in values and "attention_mask" not in samples.names:
        samples.add("attention_mask", first, "mask", **options)
    return main, first, options


def _with_padding(samples: _Samples, collator: Any) -> None:
    _pad(samples, collator, collator.padding, collator.max_length)
    for name in ("label", "label_ids"):
        if name in samples.outputs:
            samples.outputs["labels"] = samples.outputs.pop(name)


def _default(samples: _Samples, collator: Any) -> None:
    labels = [name for name in ("label", "label_ids") if name in samples.names]
    if labels:
        samples.add_rows("labels", labels[0], (1,) if labels[0] == "label" else (2,))
    types, schema = sys.modules["pyarrow"].types, samples.dataset._data.schema
    for name in samples.names:
        kind = schema.field(name).type
        if name not in ("label", "label_ids") and not types.is_string(kind):
            samples.add_rows(name, name)


def _for_language(samples: _Samples, collator: Any) -> None:
    main, lists, options = _pad(samples, collator)
    leave_if(main != "input_ids", f"the tokenizer pads {main!r}, not 'input_ids'")
    for name in ("special_tokens_mask", "offset_mapping"):
        samples.outputs.pop(name, None)
    ignored = collator.tokenizer.pad_token_id
    samples.add("labels", lists, "padded", -100, ignored=ignored, **options)


def _flatten_batch(samples: _Samples, collator: Any) -> None:
    ids, separator = samples.lists("input_ids"), collator.separator_id
    leave_if(ids.lengths.min() == 0, "column 'input_ids' has empty lists")
    labels = samples.lists("labels", ids) if "labels" in samples.names else ids
    samples.how = separator, collator.return_position_ids, collator.return_flash_attn_kwargs

    def add(name: str, lists: _Lists, kind: str, *padding: Any, **options: Any) -> None:
        options |= {"main": ids.ends, "leader": len(samples.outputs), "name": name}
        samples.add(name, lists, kind, *padding, **options)

    add("input_ids", ids, "packed", 0)
    add("labels", labels, "packed", separator, is_label=True)
    if collator.return_position_ids:
        add("position_ids", ids, "positions")
    if collator.return_flash_attn_kwargs:
        for name, kind in (("cu_seq_lens", "bounds"), ("max_length", "longest")):
            add(f"{name}_q", ids, kind)
            add(f"{name}_k", ids, kind)


_MAKERS: dict[str, Callable[[_Samples, Any], None]] = {
    "default_data_collator": _default,
    "DefaultDataCollator": _default,
    "DataCollatorWithPadding": _with_padding,
    "DataCollatorForLanguageModeling": _for_language,
    "DataCollatorWithFlattening": _flatten_batch,
}


def take_collated(dataset: Any, collate_fn: Any) -> Columns:
    """Return the columns of the batches that a collator makes. Raises NotCoveredError."""
    form, collator = dataset._format_type, collate_fn
    leave_if(form not in (None, "torch"), f"the format of the datasets.Dataset is {form}")
    names = _names_in(dataset)
    trainer, known = sys.modules.get("transformers.trainer_utils"), sys.modules[_COLLATORS]
    if type(collator) is getattr(trainer, "RemoveColumnsCollator", None):
        names = [name for name in names if name in collator.signature_columns]
        collator = collator.data_collator
    name = getattr(collator, "__name__", type(collator).__name__)
    is_known = getattr(known, name, None) in (collator, type(collator)) and name in _MAKERS
    leave_if(not is_known, f"C does not make the batches of {name}")
    for attribute, value in _NEEDED.items():
        got = getattr(collator, attribute, value)
        leave_if(got != value, f"{name} has {attribute}={got!r}")
    each_own = ((type(each), vars(each)) for each in (collate_fn, collator))
    own = [a for cls, attributes in each_own for a in attributes if callable(getattr(cls, a, None))]
    leave_if(own, f"{name} has a method of its own")
    modes = torch_parts.count_function_modes() or torch_parts.count_dispatch_modes()
    is_plain = torch.get_default_dtype() is torch.float32 and not modes
    leave_if(not is_plain, "the default dtype is not float32, or a mode watches torch's functions")
    leave_if(not is_code_known("collators"), "fastloop does not know this transformers")
    samples = _Samples(dataset, names)
    _MAKERS[name](samples, collator)
    columns = _join(dataset, samples.outputs, samples.kind)
    key = repr((name, form, dataset.features, samples.how, list(samples.outputs)))
    trial = trial_of(key, "batches", f"those of {name}", 1)
    columns.original = Original(trial, collate_fn)
    return columns
