"""transformers' collators over a datasets.Dataset: C's batches, and the generator's state after
them, as transformers and torch make them."""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

import fastloop

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
import pyarrow as pa
from datasets.formatting.torch_formatter import TorchFormatter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    DefaultDataCollator,
    PreTrainedTokenizerFast,
    default_data_collator,
)
from transformers.models.t5 import modeling_t5
from transformers.trainer_utils import RemoveColumnsCollator

from fastloop.adapters import hugging_face
from fastloop.base.checks import look_up
from fastloop.compat import verification
from fastloop.data import columns

LOADERS = int(os.environ.get("FASTLOOP_FUZZ", "40"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
WORDS, WIDTH = 20, 9
MODEL = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing is written where the user keeps data sets; nothing is known from another test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    verification.verification_of.cache_clear()
    datasets.disable_progress_bars()


def tokenizer_of(cls: Any = PreTrainedTokenizerFast, **given: Any) -> Any:
    words = {"[PAD]": 3, "[MASK]": 1, **{f"w{i}": i for i in range(4, WORDS)}}
    core = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    return cls(tokenizer_object=core, pad_token="[PAD]", mask_token="[MASK]", **given)


def texts(any_of: random.Random, rows: int, shortest: int = 1) -> dict[str, list[Any]]:
    lengths = [any_of.randint(shortest, WIDTH) for _ in range(rows)]
    return {
        "input_ids": [[any_of.randrange(WORDS) for _ in range(n)] for n in lengths],
        "attention_mask": [[any_of.randrange(2) for _ in range(n)] for n in lengths],
        "token_type_ids": [[any_of.randrange(2) for _ in range(n)] for n in lengths],
        "special_tokens_mask": [[any_of.randrange(2) for _ in range(n)] for n in lengths],
    }


def labels(any_of: random.Random, rows: int) -> dict[str, list[Any]]:
    numbers: dict[str, list[Any]] = {
        "label": [any_of.choice((0, 1, 2)) for _ in range(rows)],
        "label_ids": [[any_of.random(), -1.5] for _ in range(rows)],
        "score": [any_of.random() for _ in range(rows)],
        "flag": [any_of.random() < 0.5 for _ in range(rows)],
        "grid": [[[i, 1], [2, 3]] for i in range(rows)],
    }
    keys = any_of.sample(sorted(numbers), any_of.randint(0, len(numbers)))
    return {key: numbers[key] for key in keys}


def stored(any_of: random.Random, columns: dict[str, list[Any]], folder: Any) -> Any:
    """A dataset in memory or in a file, in one piece or in several, whole or with chosen rows."""
    narrow = datasets.List(datasets.Value(any_of.choice(("int8", "int32", "uint16", "int64"))))
    made = datasets.Dataset.from_dict(columns)
    if any_of.random() < 0.5:
        made = made.cast_column("input_ids", narrow) if "input_ids" in columns else made
    if any_of.random() < 0.4:
        made.save_to_disk(folder)
        made = datasets.load_from_disk(folder)
    if any_of.random() < 0.4:
        made = datasets.concatenate_datasets(
            [made.select(range(7)), made.select(range(7, len(made)))]
        )
    if any_of.random() < 0.4:
        made = made.shuffle(seed=any_of.randrange(9))
    made = made.with_format(any_of.choice((None, "torch")))
    return Subset(made, [3, 10, *range(9)]) if any_of.random() < 0.2 else made


class Decoder:
    """A model whose decoder reads labels, by transformers' own function."""

    _T5: Any = modeling_t5.T5ForConditionalGeneration
    prepare_decoder_input_ids_from_labels = _T5.prepare_decoder_input_ids_from_labels
    _shift_right = _T5._shift_right
    config = SimpleNamespace(decoder_start_token_id=2, pad_token_id=3)


def ids_and(any_of: random.Random, rows: int, *others: str, shortest: int = 0) -> Any:
    columns = texts(any_of, rows, shortest)
    kept = {"input_ids", *(name for name in others if any_of.random() < 0.6)}
    return {name: column for name, column in columns.items() if name in kept}


def padding(any_of: random.Random, rows: int) -> Any:
    columns = ids_and(any_of, rows, "attention_mask", "token_type_ids", "special_tokens_mask")
    columns |= labels(any_of, rows)
    collator = DataCollatorWithPadding(
        tokenizer_of(
            padding_side=any_of.choice(("left", "right")),
            model_input_names=MODEL[: any_of.choice((1, 2, 3))] if len(columns) == 1 else MODEL,
        ),
        pad_to_multiple_of=any_of.choice((None, 1, 4)),
    )
    return columns, collator


def to_the_longest_text(any_of: random.Random, rows: int) -> Any:
    columns = ids_and(any_of, rows, "attention_mask", shortest=1) | labels(any_of, rows)
    given = {"max_length": WIDTH} if any_of.random() < 0.5 else {}
    tokenizer = tokenizer_of(model_max_length=WIDTH + 2)
    multiple = any_of.choice((None, 4))
    collator = DataCollatorWithPadding(
        tokenizer, "max_length", pad_to_multiple_of=multiple, **given
    )
    return columns, collator


def labelled(any_of: random.Random, rows: int) -> Any:
    """Lists of labels, for each id or of lengths of their own."""
    is_wide = any_of.random() < 0.4  # padding to one width
    model = any_of.choice((None, Decoder()))
    shortest = 1 if is_wide or model is not None else 0
    columns = ids_and(any_of, rows, "attention_mask", "token_type_ids", shortest=shortest)
    given: dict[str, Any] = {"pad_to_multiple_of": any_of.choice((None, 4))}
    if is_wide:
        given |= {"padding": "max_length", "max_length": any_of.choice((None, WIDTH))}
    cls = any_of.choice((DataCollatorForTokenClassification, DataCollatorForSeq2Seq))
    others = [ids[::-1] for ids in columns["input_ids"]]
    if cls is DataCollatorForSeq2Seq:
        any_of.shuffle(others)
        given["model"] = model
    if any_of.random() < 0.9 or cls is DataCollatorForSeq2Seq:
        columns[any_of.choice(("label", "labels"))] = others
    tokenizer = tokenizer_of(
        padding_side=any_of.choice(("left", "right")), model_max_length=WIDTH + 2
    )
    return columns, cls(tokenizer, label_pad_token_id=any_of.choice((-100, 0)), **given)


def language(any_of: random.Random, rows: int) -> Any:
    columns = ids_and(any_of, rows, "attention_mask", "special_tokens_mask") | labels(any_of, rows)
    tokenizer = tokenizer_of(padding_side=any_of.choice(("left", "right")))
    multiple = any_of.choice((None, 8))
    return columns, DataCollatorForLanguageModeling(
        tokenizer, mlm=False, pad_to_multiple_of=multiple
    )


def flattening(any_of: random.Random, rows: int) -> Any:
    columns = ids_and(any_of, rows, "attention_mask", shortest=1) | labels(any_of, rows)
    if any_of.random() < 0.5:
        columns["labels"] = [ids[::-1] for ids in columns["input_ids"]]
    collator = DataCollatorWithFlattening(
        return_position_ids=any_of.random() < 0.5,
        return_flash_attn_kwargs=any_of.random() < 0.5,
        separator_id=any_of.choice((-100, 2)),
    )
    return columns, collator


def default(any_of: random.Random, rows: int) -> Any:
    columns = {"pixels": [[i, i + 1.5, -i] for i in range(rows)], **labels(any_of, rows)}
    columns["text"] = [f"row {i}" for i in range(rows)]
    return columns, any_of.choice((default_data_collator, DefaultDataCollator()))


def removing(any_of: random.Random, rows: int) -> Any:
    columns, collator = padding(any_of, rows)
    columns["text"] = ["words"] * rows
    return columns, RemoveColumnsCollator(collator, [*MODEL, "label"])


RECIPES: tuple[Callable[..., Any], ...] = (
    labelled,
    labelled,
    padding,
    to_the_longest_text,
    language,
    flattening,
    default,
    removing,
)


def play(cls: Any, dataset: Any, **options: Any) -> Any:
    torch.manual_seed(5)
    loader = cls(dataset, **options)
    found = [list(loader), torch.get_rng_state(), list(loader), torch.get_rng_state()]
    if cls is fastloop.DataLoader:
        assert loader.stats().path == "array", loader.stats().why
        assert loader.stats().batches == len(found[0]) + len(found[2])
    return found


def test_random_datasets_collators_and_loaders(tmp_path: Any) -> None:
    """FASTLOOP_FUZZ is how many, FASTLOOP_FUZZ_SEED the seed, which is that of the day."""
    any_of = random.Random(SEED)
    for number in range(LOADERS):
        recipe, rows = any_of.choice(RECIPES), any_of.choice((11, 30))
        columns, collator = recipe(any_of, rows)
        dataset = stored(any_of, columns, tmp_path / str(number))
        options: dict[str, Any] = {"collate_fn": collator, "drop_last": any_of.random() < 0.2}
        options |= {"batch_size": any_of.choice((1, 4, 7)), "shuffle": any_of.random() < 0.6}
        if any_of.random() < 0.2:
            inner = BatchSampler(RandomSampler(range(9)), 4, False)
            options = {"collate_fn": collator, "batch_sampler": inner}
        workers = 0 if look_up(collator, "model") else any_of.choice((0, 0, 2))
        case = f"seed {SEED}, case {number}: {recipe.__name__}, {dataset}, {collator}, {options}"
        try:
            theirs = play(DataLoader, dataset, **options)
            ours = play(fastloop.DataLoader, dataset, num_workers=workers, **options)
            assert_identical(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"{case}, {workers} workers: {error}") from None


# ---- what is left to transformers


class OwnPadding(DataCollatorWithPadding):
    pass


class OwnDecoder(Decoder):
    def prepare_decoder_input_ids_from_labels(self, labels: Any) -> Any:
        return labels + 1


class OwnTokenizer(PreTrainedTokenizerFast):
    def pad(self, *args: Any, **kwargs: Any) -> Any:
        return super().pad(*args, **kwargs)


def chunk_at(place: int) -> Any:
    """A list whose values begin so many bytes into a buffer."""
    memory = pa.py_buffer(bytes(place) + np.arange(4, 8).tobytes())
    values = pa.Array.from_buffers(pa.int64(), 4, [None, memory.slice(place)])
    return pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), values)


def beside_elements() -> Any:
    """Its last list lies where no element of the others does, after those that are checked."""
    chunks = [chunk_at(place) for place in (*[0] * 8, 3)]
    return datasets.Dataset(pa.table({"input_ids": pa.chunked_array(chunks)}))


def base(**columns: Any) -> Any:
    return datasets.Dataset.from_dict({"input_ids": [[4, 5], [6], [7, 8, 9]], **columns})


def with_pad(collator: Any, pad: Any) -> Any:
    collator.tokenizer.pad = pad
    return collator


def with_method(collator: Any, name: str, method: Any) -> Any:
    setattr(collator, name, method)
    return collator


def removing_all() -> Any:
    collator = RemoveColumnsCollator(DataCollatorWithPadding(tokenizer_of()), MODEL)
    return with_method(
        collator, "_remove_columns", lambda row: {"input_ids": [row["input_ids"][0]]}
    )


LEFT: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "a subclass": (base, lambda: OwnPadding(tokenizer_of()), "not torch's default"),
    "another collator": (
        lambda: datasets.Dataset.from_dict({"input_ids": [[[4, 5], [6]]] * 3, "label": [1, 0, 1]}),
        lambda: DataCollatorForMultipleChoice(tokenizer_of()),
        "batches of DataCollatorForMultipleChoice",
    ),
    "shorter labels": (
        lambda: base(labels=[[1, 2], [3], [4]]),
        lambda: DataCollatorForTokenClassification(tokenizer_of()),
        "are longer or shorter than the others",
    ),
    "no labels": (
        base,
        lambda: DataCollatorForSeq2Seq(tokenizer_of()),
        "no column 'labels'",
    ),
    "labels beyond max_length": (
        lambda: base(labels=[[1] * 5, [3], [4]]),
        lambda: DataCollatorForSeq2Seq(tokenizer_of(), padding="max_length", max_length=4),
        "takes lists of 1 to 4 labels",
    ),
    "a decoder of the program": (
        lambda: base(labels=[[1, 2], [3], [4]]),
        lambda: DataCollatorForSeq2Seq(tokenizer_of(), OwnDecoder()),
        "a OwnDecoder prepares decoder_input_ids in its own way",
    ),
    "a tokenizer's own pad": (
        base,
        lambda: DataCollatorWithPadding(tokenizer_of(OwnTokenizer)),
        "OwnTokenizer pads in its own way",
    ),
    "a function in its place": (
        base,
        lambda: with_pad(DataCollatorWithPadding(tokenizer_of()), lambda *args, **kwargs: {}),
        "pads in its own way",
    ),
    "a collator's own method": (
        base,
        lambda: with_method(
            DataCollatorForLanguageModeling(tokenizer_of(), mlm=False), "torch_call", list
        ),
        "DataCollatorForLanguageModeling has a method of its own",
    ),
    "a method around it": (base, removing_all, "has a method of its own"),
    "a seed": (
        base,
        lambda: DataCollatorForLanguageModeling(tokenizer_of(), mlm=False, seed=1),
        "seed=1",
    ),
    "masks": (base, lambda: DataCollatorForLanguageModeling(tokenizer_of()), "mlm=True"),
    "arrays": (
        base,
        lambda: DataCollatorWithPadding(tokenizer_of(), return_tensors="np"),
        "return_tensors='np'",
    ),
    "a warning": (
        base,
        lambda: DataCollatorWithPadding(tokenizer_of(), max_length=8),
        "padding=True with max_length=8",
    ),
    "a transform": (
        lambda: base().with_transform(lambda batch: batch),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "format of the datasets.Dataset is custom",
    ),
    "strings": (
        lambda: base(text=["a", "b", "c"]),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "column 'text' has values of string",
    ),
    "nulls": (
        lambda: base(label=[1, None, 2]),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "column 'label' has null values",
    ),
    "nulls in lists": (
        lambda: datasets.Dataset.from_dict({"input_ids": [[1, None], [2], [3]]}),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "null values",
    ),
    "another length": (
        lambda: base(attention_mask=[[1], [1], [1]]),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "are longer or shorter than the others",
    ),
    "values between elements": (
        beside_elements,
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "unaligned addresses",
    ),
    "no ids": (
        lambda: base().rename_column("input_ids", "ids"),
        lambda: DataCollatorWithPadding(tokenizer_of()),
        "no column 'input_ids'",
    ),
    "positions from 2": (
        base,
        lambda: DataCollatorWithFlattening(position_ids_start=2),
        "position_ids_start=2",
    ),
    "empty lists": (
        lambda: datasets.Dataset.from_dict({"input_ids": [[1], [], [2]]}),
        DataCollatorWithFlattening,
        "empty lists",
    ),
}


def outcome(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:`max_length` is ignored")
@pytest.mark.parametrize("case", LEFT)
def test_left_to_transformers(case: str) -> None:
    dataset, collator, text = LEFT[case]
    options = {"batch_size": 2, "collate_fn": collator()}
    loader = fastloop.DataLoader(dataset(), **options)
    assert (loader.stats().path, text in loader.stats().why) == ("sync", True), loader.stats().why
    torch.manual_seed(1)
    theirs = outcome(lambda: list(DataLoader(dataset(), **options)))
    torch.manual_seed(1)
    assert_identical(outcome(lambda: list(loader)), theirs)


def test_another_function_of_transformers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers imports the module of its collators when one is first asked for."""
    monkeypatch.delitem(sys.modules, "transformers.data.data_collator")
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": tokenizer_of().pad}
    loader = fastloop.DataLoader(base(), **options)
    assert loader.stats().why == f"{columns.LEFT_COLLATE}pad"
    assert_identical(list(loader), list(DataLoader(base(), **options)))


@pytest.mark.parametrize(("last", "text"), [((3, 2, 4), "fall"), ((1, 2, 9), "beyond")])
def test_offsets_that_cannot_be_are_left(last: tuple[int, ...], text: str) -> None:
    """Of a damaged file; datasets checks none."""
    whole = chunk_at(0).buffers()
    memory = np.array([0, 1, 2, 4], np.int32)
    values = pa.Array.from_buffers(pa.int64(), 4, [None, whole[3]])
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 3, [None, pa.py_buffer(memory)], children=[values]
    )
    dataset = datasets.Dataset(pa.table({"input_ids": lists}))
    memory[1:] = last
    loader = fastloop.DataLoader(dataset, collate_fn=DataCollatorWithPadding(tokenizer_of()))
    assert (loader.stats().path, text in loader.stats().why) == ("sync", True), loader.stats().why


def test_doubles_are_left() -> None:
    loader = fastloop.DataLoader(base(), collate_fn=DataCollatorWithPadding(tokenizer_of()))
    torch.set_default_dtype(torch.float64)
    try:
        assert "default dtype" in loader.stats().why
    finally:
        torch.set_default_dtype(torch.float32)
    assert loader.stats().path == "array"


@pytest.mark.parametrize(
    ("owner", "name"),
    [(transformers.PreTrainedTokenizerBase, "_pad"), (TorchFormatter, "_tensorize")],
)
def test_code_that_is_not_known_is_left(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    options: dict[str, Any] = {"collate_fn": DataCollatorWithPadding(tokenizer_of())}
    loader = fastloop.DataLoader(base().with_format("torch"), **options)
    assert loader.stats().path == "array"
    before = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **k: before(*a, **k))
    versions = [sys.modules[name].__version__ for name in ("transformers", "datasets")]
    of = f"transformers {versions[0]} with datasets {versions[1]}"
    left = "fastloop does not accelerate batches of DataCollatorWithPadding"
    assert loader.stats().why == f"{left}: fastloop does not know {of}"
    with fastloop.patched("dataloader"):
        loaders = DataLoader(base().with_format("torch"), **options)
        assert [type(iter(loaders)).__name__ for _ in "ab"] == ["SyncIter", "PlainIter"]
        (how,) = fastloop.patch_status().seams["dataloader"].served
    assert how.endswith(f" ({loader.stats().why})")


def test_other_batches_are_left_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """C pads with another number than the tokenizer."""
    add = hugging_face.Samples.add

    def add_other(self: Any, output: str, lists: Any, kind: str, **options: Any) -> None:
        if "padding" in options:
            options["padding"] += 1
        add(self, output, lists, kind, **options)

    monkeypatch.setattr(hugging_face.Samples, "add", add_other)
    options: dict[str, Any] = {
        "batch_size": 3,
        "collate_fn": DataCollatorWithPadding(tokenizer_of()),
    }
    with pytest.warns(RuntimeWarning, match="batches differ from the batches of DataCollatorWith"):
        found = list(fastloop.DataLoader(base(), **options))
    assert_identical(found, list(DataLoader(base(), **options)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fastloop.DataLoader(base(), **options).stats().path == "sync"


def test_an_index_out_of_range_raises_what_datasets_raises() -> None:
    collate_fn = DataCollatorWithPadding(tokenizer_of())
    options = {"batch_sampler": [[0], [1, 3]], "collate_fn": collate_fn}
    theirs, ours = iter(DataLoader(base(), **options)), iter(fastloop.DataLoader(base(), **options))
    assert_identical(next(ours), next(theirs))
    with pytest.raises(IndexError):
        next(theirs)
    with pytest.raises(IndexError):
        next(ours)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_one_sample_of_so_many_is_compared(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Within an epoch C reads no setting again, and is seen to differ."""
    monkeypatch.setenv("FASTLOOP_CHECK", str(every))
    rows = Subset(
        datasets.Dataset.from_dict(texts(random.Random(1), 30)).shuffle(seed=2), range(23)
    )
    compared: list[int] = []
    true_compare = verification.Verification.compare

    def compare(self: Any, *ways: Any) -> Any:
        compared.append(1)
        return true_compare(self, *ways)

    monkeypatch.setattr(verification.Verification, "compare", compare)

    def run(cls: Any, is_changed: bool) -> list[Any]:
        torch.manual_seed(3)
        collator = DataCollatorWithPadding(tokenizer_of())
        batches = iter(cls(rows, batch_size=2, shuffle=True, collate_fn=collator))
        found = [next(batches)]
        collator.pad_to_multiple_of = 16 if is_changed else None
        return [*found, *batches, torch.get_rng_state()]

    assert_identical(run(fastloop.DataLoader, False), run(DataLoader, False))
    assert len(compared) == 1 + (23 // every if every == 3 else 12 * every)  # and the first batch
    if every > 0:
        with pytest.warns(
            RuntimeWarning, match="batches differ from the batches of DataCollator"
        ) as seen:
            ours = run(fastloop.DataLoader, True)
        assert_identical(ours, run(DataLoader, True))
        assert len(seen) == 1
