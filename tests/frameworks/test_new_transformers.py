"""A release of transformers that fastloop does not know: a battery decides which collators are
served. FASTLOOP_MUTANTS is the number of changed functions that are tried."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mutants
import pytest
import torch
from compare import assert_identical
from time_limits import limit
from torch.utils.data import DataLoader

import fastloop

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.data import data_collator as collators
from transformers.tokenization_utils_base import BatchEncoding

from fastloop.adapters import originals
from fastloop.compat import verdicts, verification

MUTANTS = int(os.environ.get("FASTLOOP_MUTANTS", "24"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
FLATTENING = collators.DataCollatorWithFlattening.__call__
LANGUAGE = collators.DataCollatorForLanguageModeling.torch_call


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    verification.verification_of.cache_clear()
    verdicts._read.clear()
    yield
    verification.verification_of.cache_clear()
    verdicts._read.clear()


def change(patch: pytest.MonkeyPatch, function: Any, before: str, after: str) -> None:
    patch.setattr(function, "__code__", mutants.replaced(function, before, after))


def loaders_of(cls: Any, rows: int = 40) -> dict[str, Any]:
    """A loader for each collator, by its name."""
    words = WordLevel({str(id): id for id in range(30)}, "0")
    cls_of_tokens = transformers.PreTrainedTokenizerFast
    tokenizer = cls_of_tokens(tokenizer_object=Tokenizer(words), pad_token="3")
    any_of = random.Random(7)
    lengths = [any_of.choice((1, 2, 5, 11)) for _ in range(rows)]
    texts = {"input_ids": [[any_of.randrange(30) for _ in range(n)] for n in lengths]}
    masked = {**texts, "attention_mask": [[any_of.randrange(2)] * n for n in lengths]}
    labelled = {**masked, "labels": texts["input_ids"]}
    numbers = {"x": [[i, 1.5] for i in range(rows)], "label": list(range(rows))}
    made = {
        "DataCollatorWithPadding": (masked, collators.DataCollatorWithPadding(tokenizer)),
        "DataCollatorForLanguageModeling": (
            masked,
            collators.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        ),
        "DataCollatorForTokenClassification": (
            labelled,
            collators.DataCollatorForTokenClassification(tokenizer),
        ),
        "DataCollatorForSeq2Seq": (labelled, collators.DataCollatorForSeq2Seq(tokenizer)),
        "DataCollatorWithFlattening": (
            texts,
            collators.DataCollatorWithFlattening(return_flash_attn_kwargs=True),
        ),
        "default_data_collator": (numbers, collators.default_data_collator),
        "DefaultDataCollator": (numbers, collators.DefaultDataCollator()),
    }
    return {
        name: cls(datasets.Dataset.from_dict(columns), batch_size=7, collate_fn=collator)
        for name, (columns, collator) in made.items()
    }


def served() -> dict[str, str]:
    """Why the batches of each collator are transformers' own; "" if they are fastloop's. All of
    them equal torch's."""
    found, theirs = {}, loaders_of(DataLoader)
    for name, ours in loaders_of(fastloop.DataLoader).items():
        stats = ours.stats()
        found[name] = "" if stats.path == "array" else stats.why
        torch.manual_seed(5)
        try:
            expected = [list(theirs[name]), torch.get_rng_state()]
        except Exception:
            continue
        torch.manual_seed(5)
        assert_identical([list(ours), torch.get_rng_state()], expected)
    return found


def test_all_collators_of_the_installed_release_are_served() -> None:
    assert set(served().values()) == {""}


def test_a_changed_function_that_makes_the_same_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, FLATTENING, "if return_tensors is None:", "if not return_tensors:")
    path = "transformers.tokenization_utils_base:PreTrainedTokenizerBase.pad"
    pad = originals.function_of(path)  # an earlier test may have put a seam around it
    change(monkeypatch, pad, "== PaddingStrategy.LON", "is PaddingStrategy.LON")
    assert set(served().values()) == {""}
    text = f"collators: proven for transformers {transformers.__version__} "
    assert any(map(text.__eq__, (line[: len(text)] for line in verdicts.in_force())))


def test_one_of_64_batches_of_unknown_code_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, FLATTENING, "if return_tensors is None:", "if not return_tensors:")
    monkeypatch.setattr(verification, "_REST", -1e9)
    asked = []
    compare = verification.Verification.compare
    monkeypatch.setattr(
        verification.Verification,
        "compare",
        lambda self, *args: asked.append(self.what) or compare(self, *args),
    )
    loader = loaders_of(fastloop.DataLoader, 7 * 130)["DataCollatorWithFlattening"]
    assert len(list(loader)) == 130 and loader.stats().path == "array"
    assert len(asked) == 1 + 2  # the first batch, and one of 64


@pytest.mark.filterwarnings("ignore:fastloop's batches differ")
@pytest.mark.parametrize("shuffle", [False, True])
def test_after_a_difference_the_epoch_goes_on_with_the_originals_batches(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The battery has no ids above 600, and the first 64 batches in order have none either."""
    before, after = 'sample["input_ids"]', 'sample["input_ids"]; input_ids[0] = min(600, {})'
    change(monkeypatch, FLATTENING, before, after.format("input_ids[0]"))
    monkeypatch.setattr(verification, "_REST", -1e9)
    dataset = datasets.Dataset.from_dict({"input_ids": [[i, 1] for i in range(915)]})
    options = {"batch_size": 7, "shuffle": shuffle, "drop_last": shuffle}
    options["collate_fn"] = collators.DataCollatorWithFlattening()
    loader, found = fastloop.DataLoader(dataset, **options), []
    assert loader.stats().path == "array"
    for each in (DataLoader(dataset, **options), loader):
        torch.manual_seed(5)
        found.append([*each, torch.get_rng_state()])
    assert len(found[0]) == 1 + (130 if shuffle else 131)
    assert_identical(found[1], found[0])
    assert loader.stats().path == "sync"


def test_a_difference_costs_one_collator(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, FLATTENING, "cu_seq_lens = [0]", "cu_seq_lens = [1]")
    found = served()
    reason = found.pop("DataCollatorWithFlattening")
    assert reason.endswith(": a batch of DataCollatorWithFlattening differs")
    assert set(found.values()) == {""}


def test_what_the_battery_does_not_run_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    after = (
        "batch = {'input_ids': [], 'labels': []}\n    if len(features) > 99:\n        batch = {}"
    )
    change(monkeypatch, FLATTENING, 'batch = {"input_ids": [], "labels": []}', after)
    assert "__call__ has not run" in str(served())


def test_a_new_function_must_run_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called by a new statement, and one of its statements is for rare values alone."""
    before, after = "if not is_tensor(value):", "if not is_tensor(helped(value)):"
    function = BatchEncoding.convert_to_tensors
    for rare, is_served in (
        ("value == 77", False),
        ("value is None", False),
        ("len(value) > 1", True),
    ):
        text = f"def helped(value):\n    if {rare}:\n        return value\n    return value\n"
        module = sys.modules[function.__module__]
        helped = mutants.function_of(text, function)
        monkeypatch.setattr(module, "helped", helped, raising=False)
        verdicts._read.clear()  # the release stands for functions that fastloop does not list
        with monkeypatch.context() as patch:
            change(patch, function, before, after)
            assert (served()["DataCollatorWithPadding"] == "") is is_served


def test_a_later_process_finds_the_verdict(tmp_path: Path) -> None:
    """Sets have another order in it."""
    program = """
import tests_of_transformers as tests
loader = tests.loaders_of(tests.fastloop.DataLoader)["DataCollatorWithPadding"]
assert loader.stats().path == "array"
"""
    support = Path(mutants.__file__).parent
    (tmp_path / "tests_of_transformers.py").write_text(Path(__file__).read_text())
    kept = []
    for seed in ("1", "2", "3"):
        variables = {"PYTHONHASHSEED": seed, "FASTLOOP_CACHE": "1", "XDG_CACHE_HOME": str(tmp_path)}
        paths = [str(tmp_path), str(support), *sys.path]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-c", program]
        subprocess.run(command, env=os.environ | variables, check=True, timeout=limit(120))
        kept.append(
            {file: file.stat().st_ino for file in (tmp_path / "fastloop/verdicts").iterdir()}
        )
    assert kept[0] and kept == [kept[0]] * 3  # later processes write nothing


def test_a_function_of_the_program_is_not_called_to_find_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, before = [], collators.DataCollatorWithFlattening.__call__

    def own(self: Any, features: Any, *args: Any, **named: Any) -> Any:
        called.append(len(features))
        return before(self, features, *args, **named)

    monkeypatch.setattr(collators.DataCollatorWithFlattening, "__call__", own)
    loader = loaders_of(fastloop.DataLoader)["DataCollatorWithFlattening"]
    assert loader.stats().path == "sync" and called == []


@pytest.mark.filterwarnings("ignore")
def test_no_mutant_changes_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the battery finds no difference, fastloop's batches are the mutant's."""
    any_of, tried, kept = random.Random(SEED), 0, []
    groups = [e for e in originals.entries_of(["collators"]) if e.module.startswith("transformers")]
    while tried < MUTANTS:
        entry = any_of.choice(groups)
        function = originals.function_of(f"{entry.module}:{entry.name}")
        code = mutants.mutant_of(function, any_of)
        if code is None:
            continue
        tried += 1
        with monkeypatch.context() as patch:
            patch.setattr(function, "__code__", code)
            try:
                found = served()
            except AssertionError as error:
                raise AssertionError(
                    f"{entry.name}, seed {SEED}, number {tried}: {error}"
                ) from None
            kept += [entry.name] * (set(found.values()) == {""})
        verification.verification_of.cache_clear()
    print(f"{len(kept)} of {tried} mutants are served: {sorted(kept)}")
