"""Batches of a ``datasets.Dataset`` of Hugging Face, gathered from Arrow's memory: formatted rows
as torch's default collate makes them, and lists as transformers' collators do.

A collator is known by its exact class and a digest of its code. Each of its outputs becomes a
column, in its order.
docs/internals/zero-change.md tells the rules. Nothing is imported: a program that has such objects
has imported their packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from fastloop._core import SequenceColumn, arrow_lists, arrow_rows
from fastloop.adapters.hugging_face_battery import HOLDS, TRL_HOLDS, find_difference
from fastloop.adapters.hugging_face_pad import METHODS, read_values, read_width
from fastloop.adapters.originals import Battery, find_obstacle, judge
from fastloop.base.checks import look_up
from fastloop.compat.verification import verification_of
from fastloop.data.columns import (
    LEFT_COLLATE,
    Column,
    Columns,
    NotCoveredError,
    Request,
    Segment,
    leave_if,
)
from fastloop.data.field import Array, MappedFile
from fastloop.data.sequences.column import SequenceOutput
from fastloop.loader.arrays.compared import Original

# The dtype that both formats make of Arrow's, by its kind.
_CASTS = {"i": "int64", "u": "int64", "f": "float32", "b": "bool"}
_DATASETS = "datasets.arrow_dataset"
_COLLATORS, _TOKENIZERS = "transformers.data.data_collator", "transformers.tokenization_utils_base"
_TRL = "trl.trainer.sft_trainer"
# With any other value, a collator draws numbers or makes what fastloop does not make.
_NEEDED = {"return_tensors": "pt", "mlm": False, "seed": None, "return_seq_idx": False}
_NEEDED["position_ids_start"] = 0


class Samples:
    """The samples of a ``datasets.Dataset``, and the outputs that are made of them.

    Attributes:
        names: of the columns.
        lengths: of the lists that were read first: one for each row.
        kind: the class of the batch; None: a dict.
        how: every other setting that batches depend on.
        workers: of the loader.
    """

    lengths: Any = None
    workers = 0
    kind: Callable[[Any], Any] | None = None
    how: Any = None

    def __init__(self, dataset: Any) -> None:
        leave_if(dataset._format_kwargs, "with_format() of the dataset was given arguments")
        every, picked = dataset._data.column_names, dataset._format_columns
        self.names = [name for name in every if picked is None or name in picked]
        has_more = dataset._output_all_columns and len(self.names) < len(every)
        leave_if(has_more, "output_all_columns=True adds columns without the format")
        self.dataset, files = dataset, dataset.cache_files
        self.file: MappedFile | None = (files[0]["filename"], 0, None) if files else None
        self.outputs: dict[str, Column] = {}

    def read(self, name: str, reader: Callable[[list[Any]], Any]) -> Any:
        """Return what `_core` reads of the chunks of a column."""
        leave_if(name not in self.names, f"the dataset has no column {name!r}")
        chunks = [c for c in self.dataset._data.table.column(name).chunks if len(c) > 0]
        if not chunks:
            raise NotCoveredError("the dataset has no rows")
        try:
            return reader(chunks)
        except ValueError as error:
            raise NotCoveredError(f"column {name!r} has {error}") from None

    def read_rows(self, name: str) -> list[Array]:
        """Return an array of each chunk of a column."""
        arrays: list[Array] = self.read(name, lambda chunks: list(map(arrow_rows, chunks)))
        return arrays

    def chosen(self) -> Array | None:
        return chosen_rows(self.dataset)

    def lists(self, name: str, are_alike: bool = True) -> tuple[Array, Array]:
        """Return a column of lists of integers: all values, and ``[rows, 2]``: where each list
        begins and ends among them.

        Args:
            are_alike: the lists must have the lengths of those that were read first.
        """
        values, ends = self.read(name, arrow_lists)
        ends = ends.reshape(-1, 2)
        if not are_alike:
            return values, ends
        lengths = np.diff(ends)
        self.lengths = lengths if self.lengths is None else self.lengths
        if not np.array_equal(lengths, self.lengths):
            raise NotCoveredError(f"lists of column {name!r} are longer or shorter than the others")
        return values, ends

    def add(self, output: str, lists: tuple[Array, Array], kind: str, **options: Any) -> None:
        """Add an output that is made of lists."""
        values, ends = lists
        column = SequenceColumn(torch.Tensor, ends, values, SequenceOutput(kind, **options))
        self.outputs[output] = Column(output, column, self.file)

    def add_rows(self, output: str, name: str, ndims: tuple[int, ...] = ()) -> None:
        """Add an output that is a column of numbers, or of lists of one length.

        Args:
            ndims: of labels: the numbers of dimensions that they may have; bools are then refused.
        """
        arrays = self.read_rows(name)
        dtype, cast = arrays[0].dtype, _CASTS[arrays[0].dtype.kind]
        is_label = not ndims or (arrays[0].ndim in ndims and dtype != np.bool_)
        if not is_label or 0 in arrays[0].shape[1:]:
            raise NotCoveredError(f"column {name!r} has values that fastloop does not collate")
        segments = tuple(Segment(array, len(array), self.file) for array in arrays)
        self.outputs[output] = Column(output, segments, cast=None if dtype == cast else cast)

    def columns(self) -> Columns:
        parts, chosen = tuple(self.outputs.values()), self.chosen()
        columns = Columns(dict.fromkeys(self.outputs), parts, "Arrow columns", wrap=self.kind)
        if chosen is not None:
            columns.maps = (chosen,)
        return columns


def chosen_rows(dataset: Any) -> Array | None:
    """Return the rows that shuffle() and select() have left; None: all."""
    indices = dataset._indices
    return None if indices is None else indices.table.column(0).to_numpy().view(np.int64)


def _is_plain(dataset: Any) -> bool:
    """Tell whether the class is datasets' own: a subclass may override anything."""
    return type(dataset) is getattr(sys.modules.get(_DATASETS), "Dataset", None)


def arrow_of(dataset: Any) -> tuple[Any, Array | None] | None:
    """Return the ``pyarrow.Table`` of a ``datasets.Dataset``, and the rows that are chosen of it;
    None: an object of a different class."""
    return (dataset._data.table, chosen_rows(dataset)) if _is_plain(dataset) else None


def _check_class(dataset: Any) -> None:
    if not _is_plain(dataset):
        raise NotCoveredError(f"the dataset is a {type(dataset).__name__}, not plain array data")


def columns_of(dataset: Any, request: Request) -> Columns:
    """Return the columns of a ``datasets.Dataset`` that its format makes tensors or arrays of.
    Raises NotCoveredError."""
    _check_class(dataset)
    kind = dataset._format_type
    if not request.is_batched or (request.is_one_by_one and kind == "numpy"):
        raise NotCoveredError("a single sample of a datasets.Dataset has other types than a batch")
    if kind not in ("torch", "numpy"):
        rule = "fastloop takes with_format('torch') and with_format('numpy')"
        raise NotCoveredError(f"the format of the datasets.Dataset is {kind}; {rule}")
    samples = Samples(dataset)
    for name in samples.names:
        samples.add_rows(name, name)
    return samples.columns()


# ---- collators of transformers


def _pad(
    samples: Samples, collator: Any, padding: Any = True, max_length: Any = None, label: str = ""
) -> Any:
    """Add the outputs of ``tokenizer.pad()`` for all columns but `label`. Return the name of the
    main column, its lists and options of its output."""
    tokenizer = collator.tokenizer
    samples.kind = sys.modules[_TOKENIZERS].BatchEncoding
    main, values = read_values(tokenizer, methods=("pad", *METHODS))
    first = samples.lists(main)
    width, multiple = read_width(tokenizer, padding, max_length, collator.pad_to_multiple_of)
    shortest, longest = samples.lengths.min(), samples.lengths.max()
    if width > 0 and not 0 < shortest <= longest <= width:
        text = f"lists of 1 to {width} ids, got {shortest} to {longest}"
        raise NotCoveredError(f"padding='max_length' takes {text}")
    options = {"pad_left": tokenizer.padding_side == "left", "multiple": multiple}
    samples.how = values, multiple, tokenizer.padding_side
    for name in filter(label.__ne__, samples.names):
        if name in values:
            lists = first if name == main else samples.lists(name)
            samples.add(name, lists, "padded", padding=values[name], **options)
        else:
            samples.add_rows(name, name)
    if "attention_mask" in values and "attention_mask" not in samples.names:
        samples.add("attention_mask", first, "mask", **options)
    return main, first, options


def _with_padding(samples: Samples, collator: Any) -> None:
    _pad(samples, collator, collator.padding, collator.max_length)
    for name in ("label", "label_ids"):
        if name in samples.outputs:
            samples.outputs["labels"] = samples.outputs.pop(name)


def _label_of(samples: Samples) -> str:
    return "label" if "label" in samples.names else "labels"


def _add_labels(samples: Samples, collator: Any, output: str, lists: Any, **options: Any) -> None:
    padding = collator.label_pad_token_id
    leave_if(type(padding) is not int, f"label_pad_token_id={padding!r} is not an int")
    samples.how = samples.how, padding
    samples.add(output, lists, "padded", padding=padding, **options)


def _for_tokens(samples: Samples, collator: Any) -> None:
    label = _label_of(samples)
    main, _, options = _pad(samples, collator, collator.padding, collator.max_length, label)
    leave_if(main != "input_ids", f"the tokenizer pads {main!r}, not 'input_ids'")
    if label in samples.names:
        _add_labels(samples, collator, label, samples.lists(label), **options)


def _for_seq2seq(samples: Samples, collator: Any) -> None:
    label, width, multiple = _label_of(samples), collator.max_length, collator.pad_to_multiple_of
    _, _, options = _pad(samples, collator, collator.padding, width, label)
    lists = samples.lists(label, are_alike=False)
    multiple = 1 if multiple is None else multiple
    if collator.padding == "max_length" and width is not None:
        lengths = np.diff(lists[1])
        text = f"padding='max_length' takes lists of 1 to {width} labels"
        leave_if(not 0 < lengths.min() <= lengths.max() <= width, text)
        multiple *= -(-width // multiple)
    _add_labels(samples, collator, "labels", lists, **options | {"multiple": multiple})
    model: Any = collator.model
    kind: Any = samples.kind
    prepare = look_up(model, "prepare_decoder_input_ids_from_labels")
    if model is None or prepare is None:
        return
    function = look_up(type(model), "prepare_decoder_input_ids_from_labels")
    is_theirs = str(look_up(function, "__module__")).startswith("transformers.")
    is_own = not is_theirs or prepare != function.__get__(model)
    leave_if(is_own, f"a {type(model).__name__} prepares decoder_input_ids in its own way")
    leave_if(samples.workers, "the model prepares decoder_input_ids in workers")

    def with_decoder_ids(outputs: Any) -> Any:
        batch, labels = kind(outputs), outputs["labels"]
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        return batch

    samples.kind = with_decoder_ids


def _default(samples: Samples, collator: Any) -> None:
    ndims = {"label": (1,), "label_ids": (2,)}
    labels = [name for name in ndims if name in samples.names]
    for name in labels[:1]:
        samples.add_rows("labels", name, ndims[name])
    for column in samples.dataset._data.schema:
        if column.name in samples.names and column.name not in ndims and column.type != "string":
            samples.add_rows(column.name, column.name)


def _for_language(samples: Samples, collator: Any) -> None:
    main, lists, options = _pad(samples, collator)
    leave_if(main != "input_ids", f"the tokenizer pads {main!r}, not 'input_ids'")
    for name in ("special_tokens_mask", "offset_mapping"):
        samples.outputs.pop(name, None)
    ignored = collator.tokenizer.pad_token_id
    samples.add("labels", lists, "padded", padding=-100, ignored=ignored, **options)


def _flatten(samples: Samples, collator: Any) -> None:
    ids, separator = samples.lists("input_ids"), collator.separator_id
    leave_if(samples.lengths.min() == 0, "column 'input_ids' has empty lists")
    labels = samples.lists("labels") if "labels" in samples.names else ids
    samples.how = separator, collator.return_position_ids, collator.return_flash_attn_kwargs

    def add(name: str, lists: Any, kind: str, **options: Any) -> None:
        leader = len(samples.outputs)
        samples.add(name, lists, kind, main=ids[1], leader=leader, name=name, **options)

    add("input_ids", ids, "packed", padding=0)
    add("labels", labels, "packed", padding=separator, is_label=True)
    if collator.return_position_ids:
        add("position_ids", ids, "positions")
    if collator.return_flash_attn_kwargs:
        for name, kind in (("cu_seq_lens", "bounds"), ("max_length", "longest")):
            add(f"{name}_q", ids, kind)
            add(f"{name}_k", ids, kind)


def _for_sft(samples: Samples, collator: Any) -> None:
    is_plain = samples.dataset._format_type is None
    leave_if(not is_plain, "TRL warns of samples with the format 'torch'")
    ids = samples.lists("input_ids")
    leave_if(samples.lengths.min() == 0, "column 'input_ids' has empty lists")
    labels = samples.lists("labels") if "labels" in samples.names else ids
    padding, multiple = collator.pad_token_id, collator.pad_to_multiple_of
    has_positions, is_packed = collator.return_position_ids, "seq_lengths" in samples.names
    is_odd = type(padding) is not int or type(multiple) not in (int, type(None)) or multiple == 0
    leave_if(is_odd, f"pad_token_id={padding!r} with pad_to_multiple_of={multiple!r}")
    samples.how = padding, multiple, has_positions, is_packed
    if collator.padding_free:
        leave_if(multiple is not None, "padding_free=True with pad_to_multiple_of")
        samples.kind = _with_segments
        for name, lists in (("input_ids", ids), ("labels", labels)):
            leader = len(samples.outputs)
            samples.add(name, lists, "packed", padding=0, main=ids[1], leader=leader, name=name)
        if not is_packed:
            samples.add("position_ids", ids, "lengths")
            return
        values, ends = samples.lists("seq_lengths", are_alike=False)
        sums = np.append(0, np.cumsum(values, dtype=np.int64))[ends]
        is_whole = values.min() > 0 and np.array_equal(np.diff(sums), samples.lengths)
        leave_if(not is_whole, "column 'seq_lengths' has other sums than 'input_ids' has ids")
        samples.add("position_ids", (values, ends), "packed", padding=0, main=ends)
        return
    multiple = 1 if multiple is None else multiple
    samples.add("input_ids", ids, "padded", padding=padding, multiple=multiple)
    samples.add("labels", labels, "padded", padding=-100, multiple=multiple)
    if has_positions:
        leave_if(is_packed, "return_position_ids=True with a column 'seq_lengths'")
        ends = np.concatenate((np.zeros_like(samples.lengths), samples.lengths), 1)
        positions = np.arange(samples.lengths.max()), ends
        samples.add("position_ids", positions, "padded", padding=0, multiple=multiple)
    samples.add("attention_mask", ids, "mask", multiple=multiple)


def _with_segments(batch: Any) -> Any:
    """Return a batch without padding: the lengths of segments stand where positions belong. NumPy
    computes: torch would wake threads, which cost more than the work."""
    device, lengths = batch["labels"].device, batch["position_ids"].cpu().numpy().reshape(-1)
    ends = np.cumsum(lengths)
    starts, numbers = ends - lengths, np.arange(len(lengths), dtype=np.int32)

    def move(array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    batch["labels"][0, torch.from_numpy(starts)] = -100
    batch["position_ids"] = move(np.arange(ends[-1]) - np.repeat(starts, lengths))[None]
    bounds = move(np.append(0, ends).astype(np.int32))
    batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = bounds
    batch["max_length_q"] = batch["max_length_k"] = int(lengths.max())
    batch["seq_idx"] = move(np.repeat(numbers, lengths))[None]
    return batch


# By module and name: the maker, and the plans that originals.txt names. The first one is the
# battery's name.
_MAKERS: dict[str, tuple[Callable[[Samples, Any], None], str]] = {
    f"{_COLLATORS}:default_data_collator": (_default, "default_data_collator"),
    f"{_COLLATORS}:DefaultDataCollator": (_default, "DefaultDataCollator"),
    f"{_COLLATORS}:DataCollatorWithPadding": (_with_padding, "DataCollatorWithPadding padding pad"),
    f"{_COLLATORS}:DataCollatorForLanguageModeling": (
        _for_language,
        "DataCollatorForLanguageModeling padding pad mixin",
    ),
    f"{_COLLATORS}:DataCollatorForTokenClassification": (
        _for_tokens,
        "DataCollatorForTokenClassification padding pad mixin",
    ),
    f"{_COLLATORS}:DataCollatorForSeq2Seq": (_for_seq2seq, "DataCollatorForSeq2Seq padding pad"),
    f"{_COLLATORS}:DataCollatorWithFlattening": (_flatten, "DataCollatorWithFlattening"),
    f"{_TRL}:DataCollatorForLanguageModeling": (_for_sft, "trl mixin"),
}


def columns_of_collate(collate_fn: Any, dataset: Any, request: Request) -> Columns:
    """Return the columns of the batches that a collator makes. Raises NotCoveredError."""
    _check_class(dataset)
    form, collator = dataset._format_type, collate_fn
    leave_if(form not in (None, "torch"), f"the format of the datasets.Dataset is {form}")
    samples = Samples(dataset)
    samples.workers = request.workers
    plans = [f"format.{form or 'python'}", "collator"]
    # transformers imports its modules when they are first asked for.
    trainer = sys.modules.get("transformers.trainer_utils")
    if type(collator) is getattr(trainer, "RemoveColumnsCollator", None):
        samples.names = [name for name in samples.names if name in collator.signature_columns]
        collator = collator.data_collator
        plans.append("RemoveColumnsCollator")
    name = look_up(collator, "__name__", type(collator).__name__)
    module = str(look_up(collator, "__module__"))
    known = look_up(sys.modules.get(module), name)
    if known not in (collator, type(collator)) or f"{module}:{name}" not in _MAKERS:
        raise NotCoveredError(f"{LEFT_COLLATE}{name}")
    maker, others = _MAKERS[f"{module}:{name}"]
    plans += others.split()
    for attribute, value in _NEEDED.items():
        got = look_up(collator, attribute, value)
        leave_if(got != value, f"{name} has {attribute}={got!r}")
    for each in (collate_fn, collator):
        is_own = any(callable(getattr(type(each), attribute, None)) for attribute in vars(each))
        leave_if(is_own, f"{name} has a method of its own")
    leave_if(reason := find_obstacle(), reason)

    def make(other: Any, given: Any) -> Columns:
        of_battery = Samples(given)
        maker(of_battery, other)
        return of_battery.columns()

    plan = others.split()[0]
    find = partial(find_difference, plan, known, make, form)
    holds = HOLDS | TRL_HOLDS if plan == "trl" else HOLDS
    verdict = judge(plans, Battery("collators", f"{plan} {form}", find, holds=holds))
    leave_if(verdict.why, f"{LEFT_COLLATE}{name}: {verdict.why}")
    maker(samples, collator)
    columns = samples.columns()
    key = repr((plan, form, dataset.features, samples.how, list(samples.outputs)))
    whose = f"the batches of {name}"
    verification = verification_of(key, "batches", whose, 1, not verdict.about)
    columns.original = Original(verification, collate_fn)
    return columns
