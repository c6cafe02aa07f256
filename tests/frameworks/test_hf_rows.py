"""The seam "texts": rows of a datasets.Dataset for collate functions of programs are those that
datasets makes. FASTLOOP_FUZZ is how many datasets are compared, FASTLOOP_FUZZ_SEED the seed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import mutants
import pytest
from compare import assert_identical
from torch.utils.data import DataLoader

import fastloop
from fastloop.adapters import hugging_face_rows, originals
from fastloop.compat import verdicts, verification
from fastloop.compat.verification import running_original

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets = pytest.importorskip("datasets")

DATASETS = int(os.environ.get("FASTLOOP_FUZZ", "60"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[list[int]]:
    """Puts the seam in, and gives the numbers of rows that fastloop has made."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    verification.verification_of.cache_clear()
    made: list[int] = []
    fetch = hugging_face_rows.Rows.fetch

    def counted(self: Any, keys: Any) -> Any:
        rows = fetch(self, keys)
        made.append(len(rows))
        return rows

    monkeypatch.setattr(hugging_face_rows.Rows, "fetch", counted)
    with fastloop.patched(["dataloader", "texts"]):
        yield made
    verification.verification_of.cache_clear()


def dataset_of(any_of: random.Random, folder: Any) -> Any:
    count = any_of.choice((8, 30))
    lists = [
        [any_of.randrange(-100, 100) for _ in range(any_of.randrange(5))] for _ in range(count)
    ]
    columns: dict[str, tuple[Any, Any]] = {
        "ids": (lists, datasets.List(datasets.Value(any_of.choice(("int8", "int32", "int64"))))),
        "large": ([[2**40, -1]] * count, datasets.LargeList(datasets.Value("int64"))),
        "label": (list(range(count)), datasets.Value(any_of.choice(("uint8", "int64", "float32")))),
        "class": ([i % 2 for i in range(count)], datasets.ClassLabel(names=["a", "b"])),
        "flag": ([i % 3 == 0 for i in range(count)], datasets.Value("bool")),
        "half": ([i / 3 for i in range(count)], datasets.Value("float32")),
    }
    odd: dict[str, tuple[Any, Any]] = {
        "text": (["words"] * count, datasets.Value("string")),
        "none": ([None, *range(count - 1)], datasets.Value("int64")),
        "fixed": ([[1, 2]] * count, datasets.List(datasets.Value("int64"), length=2)),
        "reals": ([[0.5]] * count, datasets.List(datasets.Value("float32"))),
    }
    names = any_of.sample(sorted(columns), any_of.randint(1, 5))
    columns |= odd
    names += any_of.sample(sorted(odd), any_of.choice((0, 0, 0, 1)))
    made = datasets.Dataset.from_dict(
        {name: columns[name][0] for name in names},
        features=datasets.Features({name: columns[name][1] for name in names}),
    )
    if any_of.random() < 0.3:
        made.save_to_disk(folder)
        made = datasets.load_from_disk(folder)
    if any_of.random() < 0.3:
        made = datasets.concatenate_datasets([made.select(range(5)), made.select(range(3, 8))])
    if any_of.random() < 0.5:
        made = made.shuffle(seed=any_of.randrange(9))
    if any_of.random() < 0.2:
        made = made.with_format(None, columns=names[:1])
    if any_of.random() < 0.1:
        made = made.with_format("numpy")
    return made


def outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def test_random_datasets_and_keys(
    fetched: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(verification.Verification, "is_due", lambda *given: False)
    any_of = random.Random(SEED)
    for number in range(DATASETS):
        dataset = dataset_of(any_of, tmp_path / str(number))
        count = len(dataset)
        for _ in range(4):
            keys: Any = [any_of.randrange(count) for _ in range(any_of.choice((1, 3, 9)))]
            odd = [], [0, -1], [0, count], [True], [0.5], (0, 1), range(3)
            keys = any_of.choice(odd) if any_of.random() < 0.2 else keys
            ours = outcome(lambda: dataset.__getitems__(keys))  # noqa: B023
            with running_original():
                theirs = outcome(lambda: dataset.__getitems__(keys))  # noqa: B023
            try:
                assert repr(ours) == repr(theirs)
                assert dataset.format["type"] == "numpy" or verification.same_bits(ours, theirs)
            except AssertionError:
                text = f"seed {SEED}, case {number}: {dataset.features}, {keys}"
                raise AssertionError(text) from None
    assert len(fetched) > DATASETS


def rows(count: int = 24) -> Any:
    return datasets.Dataset.from_dict({"ids": [[i] * (i % 5) for i in range(count)]})


@pytest.mark.parametrize("workers", [0, 2])
def test_each_fetch_makes_new_lists(fetched: list[int], workers: int) -> None:
    def collate(samples: Any) -> Any:
        for sample in samples:
            sample["ids"].append(7)
        return samples

    options: dict[str, Any] = {"batch_size": 4, "collate_fn": collate, "num_workers": workers}
    loader = DataLoader(rows(), **options)
    found = [list(loader), list(loader)]
    assert found[0] == found[1] and (len(fetched) == 12 or workers)
    with running_original():
        assert_identical(found[0], list(DataLoader(rows(), batch_size=4, collate_fn=collate)))


def test_a_changed_dataset_is_read_anew(fetched: list[int]) -> None:
    dataset = rows()
    dataset.__getitems__([1, 2])
    dataset.set_format("torch")
    assert dataset.__getitems__([1])[0]["ids"].tolist() == [1]
    dataset.reset_format()
    dataset._data = rows(30)._data
    assert dataset.__getitems__([29]) == [{"ids": [29] * 4}]
    dataset._indices = dataset.select([5, 6, 5])._indices
    assert dataset.__getitems__([1]) == [{"ids": [6]}] and len(fetched) == 3


def test_a_function_in_place_of_datasets_own_is_called(
    fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = fastloop.DataLoader(rows(), batch_size=8, collate_fn=list)
    assert len(list(loader)) == len(fetched) == 3
    monkeypatch.setattr(datasets.Dataset, "__getitems__", lambda self, keys: ["mine"] * len(keys))
    assert list(loader) == [["mine"] * 8] * 3


def test_left_to_datasets(fetched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(datasets.Dataset):
        pass

    own = Own(rows()._data, fingerprint="own")
    assert own.__getitems__([1]) == [{"ids": [1]}]
    monkeypatch.setattr(datasets.Dataset, "_getitem", lambda self, key: {"ids": [["mine"]]})
    assert rows().__getitems__([1]) == [{"ids": ["mine"]}]
    monkeypatch.undo()
    fastloop.unpatch()
    assert rows().__getitems__([1]) == [{"ids": [1]}] and not fetched


@pytest.mark.parametrize(("index", "is_served"), [("i + 0", True), ("0", False)])
def test_a_battery_judges_changed_code(
    monkeypatch: pytest.MonkeyPatch, index: str, is_served: bool
) -> None:
    function = originals.function_of("datasets.arrow_dataset:Dataset.__getitems__")
    changed = mutants.replaced(function, "array[i]", f"array[{index}]")
    monkeypatch.setattr(function, "__code__", changed)
    verdicts._read.clear()
    hugging_face_rows.find_unknown.cache_clear()
    try:
        found = rows().__getitems__([3, 4])
        assert found == [{"ids": [3] * 3}, {"ids": [4] * 4 if is_served else [3] * 3}]
        assert bool(hugging_face_rows.find_unknown().why) is not is_served
    finally:
        hugging_face_rows.find_unknown.cache_clear()
        verdicts._read.clear()
