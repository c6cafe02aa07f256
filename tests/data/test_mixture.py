"""MixtureDataset: shares within the proven bound at every position, ends, turns, changes of weights
by name, and bad input. The properties are stated here; the core's arithmetic has tests in C."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from fastloop import (
    ArrayDataset,
    MixtureDataset,
    RaggedArray,
    ShuffleSampler,
    TokenDataset,
    transforms,
)

LENGTHS = {"a": 50, "b": 20, "c": 30}
ORDERS = ["jittered", "even"]


class Counted(Dataset[tuple[str, int]]):
    """A source of Python, which says who asks for what."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[str, int]:
        assert type(index) is int and 0 <= index < self.length
        return self.name, index


def make(lengths: Any = None, weights: Any = None, **given: Any) -> MixtureDataset:
    lengths = lengths or LENGTHS
    return MixtureDataset({n: Counted(n, k) for n, k in lengths.items()}, weights, **given)


def located(data: MixtureDataset, first: int, end: int) -> list[tuple[str, int]]:
    return [data.locate(n) for n in range(first, end)]


def bound_of(data: MixtureDataset) -> float:
    """The bound that explain() prints."""
    return float(data.explain().rsplit("proven bound ", 1)[1].split(":")[0])


# ---- shares


def many_weights() -> list[tuple[int, ...]]:
    draw = random.Random(3)
    small = [*itertools.product(range(1, 6), repeat=2), *itertools.product(range(1, 4), repeat=3)]
    large = [[draw.randint(1, 10 ** draw.randint(1, 6)) for _ in range(k)] for k in range(2, 14)]
    return [*small, *map(tuple, large)]


@pytest.mark.parametrize("order", ORDERS)
def test_samples_come_in_order_and_within_the_bound(order: str) -> None:
    for weights in many_weights():
        names = [f"s{i}" for i in range(len(weights))]
        data = make(
            dict.fromkeys(names, 10**12),
            dict(zip(names, weights, strict=True)),
            order=order,
            shuffle=False,
            length=99,
        )
        had, bound, total = Counter[str](), bound_of(data), sum(weights)
        assert len(weights) > 5 or bound <= (1.001 if order == "even" else 2.001)
        period = total // math.gcd(*weights)
        for n in range(min(2 * period, 130)):
            name, index = data.locate(n)
            assert index == had[name], "none is left out, none comes twice"
            had[name] += 1
            for source, weight in zip(names, weights, strict=True):
                off = had[source] - Fraction(weight * (n + 1), total)
                assert abs(off) <= bound + 1e-9, (weights, n)
            if (n + 1) % period == 0:
                assert [had[source] * total for source in names] == [w * (n + 1) for w in weights]
        assert {source: had[source] for source in names} == data.seen(had.total())


@pytest.mark.parametrize("order", ORDERS)
def test_floats_are_the_decimals_that_they_print_as(order: str) -> None:
    sources = dict.fromkeys("abc", 10**15)
    for weights in ([0.29, 0.31, 0.4], [0.35, 0.65], [0.333, 0.667], [np.float32(0.1), 0.9]):
        given = dict(zip("abc", weights, strict=False))
        data = make({n: sources[n] for n in given}, given, order=order, length=10)
        at = 10**12
        for name, weight in given.items():
            assert data.seen(at)[name] == Fraction(str(weight)) * at, "no drift"


@pytest.mark.parametrize("order", ORDERS)
def test_far_positions(order: str) -> None:
    data = make(weights={"a": 0.7, "b": 0.2, "c": 0.1}, order=order)
    for at in (10**15 + 7, 2**61, 2**62 - 2):
        name, index = data.locate(at)
        before, after = data.seen(at), data.seen(at + 1)
        assert sum(before.values()) == at and 0 <= index < LENGTHS[name]
        assert {n: after[n] - before[n] for n in after} == {n: int(n == name) for n in LENGTHS}
    with pytest.raises(ValueError, match="n must be an int in"):
        data.locate(2**62)


def test_no_rank_has_another_share() -> None:
    for weights, ranks in (([4, 3, 2, 1], 10), ([3, 2], 5), ([7, 2, 1], 10), ([1, 1], 2)):
        given = dict(zip("abcd", weights, strict=False))
        data = make(dict.fromkeys(given, 10**6), given, length=800 * ranks)
        names = [data.locate(n)[0] for n in range(len(data))]
        for rank in range(0, ranks, 3):
            sampler = ShuffleSampler(data, shuffle=False, num_replicas=ranks, rank=rank)
            count = Counter(names[i] for i in sampler)
            for name, weight in given.items():
                assert abs(count[name] / 800 - weight / sum(weights)) < 0.09


# ---- ends


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "weights", [None, {"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 1, "b": 1, "c": 1}]
)
def test_ends(order: str, weights: Any) -> None:
    for stop in ("first_exhausted", "all_exhausted"):
        data = make(weights=weights, stopping_strategy=stop, order=order)
        seen, after = data.seen(len(data)), data.seen(len(data) + 1)
        if stop == "first_exhausted":
            assert all(seen[n] <= LENGTHS[n] for n in seen)
            assert any(after[n] > LENGTHS[n] for n in seen)
        else:
            before = data.seen(len(data) - 1)
            assert all(seen[n] >= LENGTHS[n] for n in seen)
            assert any(before[n] < LENGTHS[n] for n in seen)
    assert len(make(weights=weights, length=17, order=order)) == 17


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("weights", [None, {"a": 0.2, "b": 0.7, "c": 0.1}])
def test_each_sample_once_in_every_epoch(order: str, weights: Any) -> None:
    once = "all_exhausted_without_replacement"
    data = make(weights=weights, stopping_strategy=once, order=order)
    everything = sorted((n, i) for n, k in LENGTHS.items() for i in range(k))
    assert len(data) == 100
    assert data.explain().count("proven bound") == (1 if weights is None else 3)
    for epoch in range(3):
        assert sorted(located(data, 100 * epoch, 100 * epoch + 100)) == everything
        assert data.seen(100 * epoch + 100) == {n: k * (epoch + 1) for n, k in LENGTHS.items()}
    if weights is None:  # and so does a union without that word
        assert sorted(located(make(order=order), 500, 600)) == everything


# ---- turns


def turns_of(data: MixtureDataset, name: str, positions: int) -> list[list[int]]:
    found = [i for n, i in located(data, 0, positions) if n == name]
    return [found[at : at + 20] for at in range(0, len(found) - 19, 20)]


def test_each_turn_is_a_permutation_that_other_sources_do_not_change() -> None:
    turns = turns_of(make(weights={"a": 5, "b": 3, "c": 2}), "b", 600)
    assert len(turns) == 9 and len({tuple(turn) for turn in turns}) == 9
    assert all(sorted(turn) == list(range(20)) for turn in turns)
    others = [
        make({"c": 9, "b": 20, "d": 7}, {"b": 1, "c": 2, "d": 3}),
        make({"b": 20}, {"b": 1}, order="even"),
    ]
    for other in others:
        seen = turns_of(other, "b", 240)
        both = min(len(seen), len(turns))
        assert both > 1 and seen[:both] == turns[:both]
    assert turns_of(make({"b": 20}, seed=1), "b", 40) != turns[:2]
    assert turns_of(make({"b": 20}, shuffle=False), "b", 40) == [list(range(20))] * 2


def test_the_order_of_a_dict_changes_nothing() -> None:
    lengths = {"c": 30, "a": 50, "b": 20}
    for weights in ({"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 1, "b": 1, "c": 1}):
        other = make(lengths, {name: weights[name] for name in ("b", "c", "a")})
        assert located(other, 0, 300) == located(make(weights=weights), 0, 300)


def test_an_epoch_goes_on_where_the_last_has_ended() -> None:
    data = make(weights={"a": 0.7, "b": 0.2, "c": 0.1})
    for epoch in range(3):
        data.set_epoch(epoch)
        first = epoch * len(data)
        assert [data[i] for i in range(len(data))] == located(data, first, first + len(data))
        assert data[-1] == data.locate(first + len(data) - 1)
        indices = [5, 0, -1, 5]
        assert data.__getitems__(indices) == [data[i] for i in indices]


def test_sources_get_the_epoch_also_inside_others() -> None:
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    flip = transforms.RandomHorizontalFlip()
    inner, nested = (ArrayDataset(images, transform=flip) for _ in range(2))
    data = MixtureDataset({"a": inner, "b": MixtureDataset({"c": Subset(nested, range(3))})})
    data.set_epoch(7)
    assert [each._epoch_now() for each in (data, inner, nested)] == [7, 7, 7]
    with pytest.raises(ValueError, match="epoch must be an int in"):
        data.set_epoch(-1)


# ---- weights that change


def test_the_past_stays_and_sources_go_on() -> None:
    data = make()
    data.set_weights(0, {"a": 0.5, "b": 0.5})
    length, past = len(data), located(data, 0, 30)
    before = data.seen(30)
    data.set_weights(30, {"a": 1})
    assert located(data, 0, 30) == past and len(data) == length
    assert {name for name, _ in located(data, 30, 60)} == {"a"}
    data.set_weights(60, {"b": 1, "d": 1}, {"d": Counted("d", 9)})
    assert located(data, 0, 30) == past
    later = [i for n, i in located(data, 60, 200) if n == "b"]
    whole = make({"b": 20}, seed=0)
    expected = [whole.locate(n)[1] for n in range(before["b"], before["b"] + len(later))]
    assert later == expected, "b goes on with the sample after its last"
    assert data.seen(60)["b"] == before["b"] and data.seen(60)["d"] == 0
    data.set_weights(40, {"c": 1})
    assert {name for name, _ in located(data, 40, 500)} == {"c"}, "later weights are dropped"
    assert "from position 40: shares of samples c 1" in data.explain()


def test_a_schedule_is_the_same_as_changes() -> None:
    first, second = {"a": 0.9, "b": 0.1}, {"b": 1, "c": 2}
    one = make(weights=first, schedule={100: second, 250: {"a": 1}})
    other = make(weights={**first, "c": 1})
    for at, weights in ((0, first), (100, second), (250, {"a": 1})):
        other.set_weights(at, weights)
    assert located(one, 0, 400) == located(other, 0, 400)
    for end in (100, 250, 400):
        assert sum(one.seen(end).values()) == end


def test_a_state_brings_back_all_positions() -> None:
    data = make(weights={"a": 0.7, "b": 0.2, "c": 0.1})
    data.set_weights(25, {"a": 1, "d": 3}, {"d": Counted("d", 9)})
    state = pickle.loads(pickle.dumps(data.state_dict()))
    assert len(pickle.dumps(state)) < 400
    again = make({"c": 30, "a": 50, "d": 9, "b": 20})
    again.load_state_dict(state)
    assert located(again, 0, 300) == located(data, 0, 300) and len(again) == len(data)
    fewer = make({"a": 50, "d": 9})
    fewer.load_state_dict(state)
    assert located(fewer, 0, 300) == located(data, 0, 300)
    assert fewer.__getitems__([40, 41]) == data.__getitems__([40, 41])
    gone = next(n for n in range(25) if data.locate(n)[0] == "b")
    with pytest.raises(ValueError, match="sources must hold 'b'"):
        fewer[gone]
    longer = make({**LENGTHS, "b": 21})
    with pytest.raises(ValueError, match=r"len\(sources\['b'\]\) must be 20, as when .* got 21"):
        longer.load_state_dict(state)
    with pytest.raises(ValueError, match="'segments'"):
        longer.load_state_dict({})
    for wrong in ({"segments": []}, {"lengths": {"c": -1}}, {"segments": [[5, {"a": "1"}]]}):
        before = again.state_dict()
        with pytest.raises(ValueError):
            again.load_state_dict({**state, **wrong})
        assert again.state_dict() == before
        assert located(again, 0, 300) == located(data, 0, 300)


def test_the_largest_mixture() -> None:
    assert len(make({"a": 2**61, "b": 2**61 - 1})) == 2**62 - 1


# ---- tokens


def test_weights_of_tokens() -> None:
    draw = np.random.default_rng(0)
    sources: dict[str, Any] = {}
    for name, mean in (("short", 30), ("long", 130)):
        lengths = draw.integers(1, 2 * mean, 500)
        ragged = RaggedArray(np.zeros(lengths.sum(), np.int32), np.append(0, np.cumsum(lengths)))
        sources[name] = ArrayDataset(input_ids=ragged)
    sources["windows"] = TokenDataset.from_buffers(np.zeros(90_000, np.int32), [0, 90_000], 60)
    weights = {"short": 0.5, "long": 0.3, "windows": 0.2}
    data = MixtureDataset(
        sources, weights, by="tokens", length=20_000, stopping_strategy="all_exhausted"
    )
    tokens = dict.fromkeys(weights, 0)
    for n in range(20_000):
        name, index = data.locate(n)
        sample: Any = sources[name]
        tokens[name] += 60 if name == "windows" else len(sample._fields[0][index])
    for name, weight in weights.items():
        assert abs(tokens[name] / sum(tokens.values()) - weight) < 0.003
    without = {"short": sources["short"]}
    again = MixtureDataset(without, {"short": 1}, by="tokens")
    again.load_state_dict(data.state_dict())
    assert located(again, 0, 500) == located(data, 0, 500)
    one = MixtureDataset({"one": RaggedArray(np.arange(1, 4), [0, 3])}, {"one": 1}, by="tokens")
    assert one[0].tolist() == [1, 2, 3]
    with pytest.raises(
        TypeError, match=r"sources\['a'\] must be a dataset with lengths for by='to"
    ):
        make({"a": 5}, {"a": 1}, by="tokens")
    with pytest.raises(ValueError, match="weights must be given with by='tokens', got None"):
        MixtureDataset(sources, by="tokens")


# ---- samples of any source


def test_samples_with_their_source() -> None:
    data = make(weights={"a": 0.7, "b": 0.2, "c": 0.1}, return_source=True)
    for n in range(len(data)):
        sample, name = data[n]
        assert sample == data.locate(n) and name == sample[0]


def test_sources_are_asked_once_for_a_batch() -> None:
    asked = []

    class Batched(Counted):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self[i] for i in indices]

    data = MixtureDataset({n: Batched(n, k) for n, k in LENGTHS.items()})
    assert data.__getitems__(range(30)) == located(data, 0, 30)
    assert len(asked) == 3 and sum(map(len, asked)) == 30


def test_samples_must_be_alike() -> None:
    x = torch.zeros(9, 2)
    pairs = [
        (ArrayDataset(x, x), ArrayDataset(x)),
        (ArrayDataset(a=x), ArrayDataset(b=x)),
        (ArrayDataset(x), ArrayDataset(x.long())),
        (x, [1] * 9),
    ]
    for one, other in pairs:
        data = MixtureDataset({"one": one, "other": other})
        with pytest.raises(
            ValueError, match=r"samples of source 'o.*' must have the structure of s"
        ):
            data.__getitems__(range(18))


class Doubled(MixtureDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * 2


def test_a_subclass_decides_on_samples() -> None:
    data = Doubled({"x": torch.arange(5)}, shuffle=False)
    assert [x.item() for x in data.__getitems__([1, 2])] == [2, 4]


@pytest.mark.slow
def test_it_is_small_and_works_in_workers_of_a_fork_server() -> None:
    sources = {"x": torch.arange(60), "y": torch.arange(100, 140)}
    data = MixtureDataset(sources, {"x": 2, "y": 1})
    bare = make(dict.fromkeys(map(str, range(100)), 9))
    assert len(pickle.dumps(bare)) < 10_000 + len(pickle.dumps(bare._sources))
    data.set_epoch(1)
    expected = [data.locate(len(data) + i)[1] for i in range(len(data))]
    loader = DataLoader(data, 7, num_workers=1, multiprocessing_context="forkserver")
    got = torch.cat(list(loader)).tolist()
    assert [x - 100 * (x >= 100) for x in got] == expected


# ---- bad input

STREAM = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})()


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        (
            {"a": 0, "b": 1, "c": 1},
            ValueError,
            r"weights\['a'\] must be .* > 0, got 0 \(leave such",
        ),
        ({"a": -1, "b": 1, "c": 1}, ValueError, r"weights\['a'\] must be .*, got -1"),
        ({"a": 1, "b": math.nan, "c": 1}, ValueError, r"weights\['b'\] must be .*, got nan"),
        ({"a": 1, "b": 1, "c": math.inf}, ValueError, r"weights\['c'\] must be .*, got inf"),
        ({"a": True, "b": 1, "c": 1}, TypeError, r"weights\['a'\] must be .*, got True"),
        ({"a": "1", "b": 1, "c": 1}, TypeError, r"weights\['a'\] must be .*, got '1'"),
        ({"a": 1, "c": 1}, ValueError, "weights must hold .* got none for 'b'"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, ValueError, "weights must be of the sources.*got 'd'"),
        ({}, ValueError, "at least one, got {}"),
        ([1, 2, 3], TypeError, "weights must be a mapping"),
    ],
)
def test_bad_weights(weights: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(weights=weights)
    data = make()
    before, state = located(data, 0, 50), data.state_dict()
    if "none for" not in text:
        with pytest.raises(error, match=text):
            data.set_weights(5, weights, {"e": Counted("e", 3)})
    assert data.state_dict() == state and located(data, 0, 50) == before


@pytest.mark.parametrize(
    ("sources", "error", "text"),
    [
        ({}, ValueError, "sources must be a mapping .* at least one, got {}"),
        ([[1], [2]], TypeError, "sources must be a mapping of names to datasets, got"),
        ({1: [1]}, TypeError, "each name of sources must be a str, got 1"),
        (
            {"a": []},
            ValueError,
            r"len\(sources\['a'\]\) must be .*, got 0 \(leave the source out\)",
        ),
        ({"a": STREAM}, TypeError, r"sources\['a'\] must be a map-style dataset with a len"),
        ({"a": 5}, TypeError, r"sources\['a'\] must be a map-style dataset with a len"),
        (
            {"a": range(2**61), "b": range(2**61)},
            ValueError,
            "lengths of all sources together must be an int in",
        ),
    ],
)
def test_bad_sources(sources: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MixtureDataset(sources)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"stopping_strategy": "never"}, "stopping_strategy must be one of 'first_exhausted'"),
        ({"by": "words"}, "by must be one of 'samples', 'tokens', got 'words'"),
        ({"order": "random"}, "order must be one of 'jittered', 'even', got 'random'"),
        ({"length": 0}, "length must be an int in .*, got 0"),
        ({"length": 2**62}, "length must be an int in"),
        ({"schedule": {-1: {"a": 1}}}, "each position of schedule must be an int in .*, got -1"),
        (
            {"schedule": {5: {"z": 1}}},
            r"schedule\[5\] must be of the sources 'a', 'b', 'c', got 'z'",
        ),
        (
            {"stopping_strategy": "all_exhausted_without_replacement", "length": 5},
            "length must be No",
        ),
        (
            {"schedule": {5: {"a": 1}}, "stopping_strategy": "all_exhausted"},
            r"weights must be weights that use up every source within 2\*\*62 samples, got",
        ),
    ],
)
def test_bad_arguments(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**given)


def test_changes_that_are_refused() -> None:
    data = make()
    with pytest.raises(ValueError, match=r"sources\['a'\] must be the dataset that has the name"):
        data.set_weights(5, {"a": 1}, {"a": Counted("a", 50)})
    data.set_weights(5, {"a": 1}, {"a": data._sources["a"]})
    once = make(stopping_strategy="all_exhausted_without_replacement")
    with pytest.raises(ValueError, match=r"stopping_strategy must be .* for set_weights"):
        once.set_weights(5, {"a": 1})
    growing = list(range(5))
    data = MixtureDataset({"x": growing})
    growing.append(5)
    with pytest.raises(ValueError, match=r"len\(sources\['x'\]\) must be 5, got 6"):
        data.set_weights(5, {"x": 1}, {"x": growing})
    with pytest.raises(IndexError, match="index 5 is out of bounds for a length of 5"):
        data[5]
