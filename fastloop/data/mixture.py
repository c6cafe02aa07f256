"""MixtureDataset: several datasets as one, whose samples come in exact shares.

The order of the sources is a tree of Beatty sequences (``fl_mixture.h``), which the core computes
for any position without the positions before. Python reads weights, finds the ends, and asks the
sources for samples.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from fastloop._core import Mixture
from fastloop.base import checks
from fastloop.base.shown import repr_of
from fastloop.data.columns import (
    Columns,
    Request,
    check_single,
    columns_of,
    datasets_within,
    join_columns,
    leave_if,
    own,
)
from fastloop.data.epochs import Epoch, EpochDataset, check_epoch
from fastloop.data.field import read_row
from fastloop.data.samplers import read_lengths
from fastloop.data.tokens.dataset import TokenDataset

_ENDS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
_ONCE = _ENDS[2]
_MOST = 2**62 - 1  # the largest position, and the most samples of all sources together
_TURNS = 2**20  # of the rows of a source with an order of its own, as in the core
_SMALL = 2**52  # the sum of rounded weights
_STATE = "pass what state_dict() of a MixtureDataset returned, unchanged"

Weights = dict[str, Fraction]


def _read_weight(name: str, weight: Any) -> Fraction:
    """Return a weight exactly. A float counts as the decimal number that it prints as."""
    rule = "a finite number > 0"
    checks.check_type(name, weight, checks.is_number(weight), rule)
    if checks.is_int(weight):
        exact = Fraction(operator.index(weight))
    else:
        is_finite = math.isfinite(checks.to_float(weight))
        checks.check_value(name, weight, is_finite, rule, "leave such a source out")
        is_text = isinstance(weight, (float, np.floating, Decimal, Fraction))
        exact = Fraction(str(weight if is_text else float(weight)))
    checks.check_value(name, weight, exact > 0, rule, "leave such a source out")
    return exact


def _read_weights(name: str, weights: Any, known: Sequence[str]) -> Weights:
    rule = "a mapping of the names of sources to numbers"
    checks.check_type(name, weights, isinstance(weights, Mapping), rule)
    checks.check_value(name, weights, len(weights) > 0, f"{rule}, at least one")
    for source in weights:
        if source not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(checks.make_message(name, f"of the sources {names}", source))
    return {source: _read_weight(f"{name}[{source!r}]", weights[source]) for source in weights}


def _as_integers(weights: Sequence[Fraction]) -> list[int]:
    """Return integers in the ratio of the weights. Only integers of more than 62 bits together are
    rounded."""
    whole = math.lcm(*(weight.denominator for weight in weights))
    integers = [int(weight * whole) for weight in weights]
    divisor = math.gcd(*integers)
    integers, total = [i // divisor for i in integers], sum(integers) // divisor
    return integers if total <= _MOST else [max(1, i * _SMALL // total) for i in integers]


def _find_first(holds: Callable[[int], bool], most: int) -> int:
    """Return the lowest of the numbers 1 to `most` from which on the condition holds; most + 1: it
    holds for none."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _mean_tokens(name: str, source: Any) -> Fraction:
    """Return the mean number of tokens in a sample of a source."""
    if isinstance(source, TokenDataset):
        return Fraction(source._arguments.seq_len)
    for field in checks.look_up(source, "_fields", (source,)):
        lengths = checks.look_up(field, "lengths")  # a RaggedArray's, also as a field of a dataset
        if lengths is not None:
            total = int(read_lengths(lengths, None).sum())
            checks.refuse_if(total < 1, f"sources[{name!r}] must have tokens, got none")
            return Fraction(total, len(source))
    length = checks.look_up(source, "seq_len")
    if not checks.is_int(length):
        remedy = "give it an attribute `lengths` or `seq_len`, or pass by='samples'"
        rule = "a dataset with lengths for by='tokens'"
        raise TypeError(checks.make_message(f"sources[{name!r}]", rule, type(source), remedy))
    return Fraction(int(length))


def _describe(sample: Any) -> Any:
    """Return the structure of a sample: containers, keys, and the kind of each item."""
    if isinstance(sample, Mapping):
        return {key: _describe(sample[key]) for key in sample}
    if isinstance(sample, tuple):
        return tuple(map(_describe, sample))
    dtype = checks.look_up(sample, "dtype")
    return type(sample).__name__ + (f" of {dtype}" if dtype is not None else "")


def _join_windows(sources: Sequence[TokenDataset]) -> TokenDataset:
    """Return one dataset with the windows of all sources. Windows of other modes than "strided"
    depend on their numbers in their own datasets."""
    joined = copy(sources[0])
    for source in sources:
        is_alike = source._arguments == joined._arguments and source._tokens is None
        is_plain = is_alike and joined._arguments.mode == "strided"
        leave_if(not is_plain, "windows of two sources differ, or are not strided")
    joined._files = tuple(file for source in sources for file in source._files)
    joined._core = None  # opens the files
    return joined


class MixtureDataset(EpochDataset):
    """Several datasets as one map-style dataset, whose samples come in the shares of weights.

    Sample ``i`` in epoch ``e`` is at position ``e * len(dataset) + i`` of one endless order. Of the
    first ``n`` positions a source of share ``s`` has ``n * s`` samples, give or take a bound that
    does not grow with ``n``: 2 for up to five sources, 1 with ``order="even"``. ``explain()``
    prints the bound. Any position is found without the positions before, so the dataset needs no
    memory for each sample, and an epoch resumes at any sample on any number of ranks.

    A source goes on from epoch to epoch: none of its samples comes twice before all have come once.
    Each turn has an order of its own, which depends on ``seed``, the source's name and the turn
    alone. The dataset shuffles by itself: give the loader ``shuffle=False``, or a
    ``ShuffleSampler(dataset, shuffle=False)`` for several ranks.

    For example, ``MixtureDataset({"web": web, "code": code}, {"web": .7, "code": .3})``.

    Args:
        sources: datasets by name: fastloop's, torch's, or any map-style dataset with a ``len()``.
            Their samples must have the same structure. Rows of a ``PackedDataset`` come in orders
            of its own: each turn is an epoch with ``repack=False``.
        weights: a number > 0 for each source. Weights are exact: a float counts as the decimal
            number that it prints as. None: the lengths, so that each sample comes once.
        stopping_strategy: the end of an epoch, with the words of Hugging Face's
            ``interleave_datasets``. ``"first_exhausted"``: before a source comes for the second
            time. ``"all_exhausted"``: when all samples of every source have come; shorter sources
            repeat. ``"all_exhausted_without_replacement"``: each sample comes once; a source that
            is used up leaves.
        length: the number of samples in an epoch, instead of ``stopping_strategy``.
        by: ``"tokens"``: weights are shares of the tokens, not of the samples. A sample then counts
            with its source's mean number of tokens.
        order: ``"jittered"``: places of a source are random within their periods, so no rank of
            ``ShuffleSampler`` meets one source more than another. ``"even"``: places are as even as
            they can be; take ``ShuffleSampler(..., deal="runs")`` with several ranks.
        shuffle: False: the samples of each source come in order.
        schedule: other weights from a position on, counted through all epochs, for example
            ``{100_000: {"code": 1.0}}``. A source without a weight pauses.
        return_source: samples are pairs of the sample and its source's name.
        seed: from 0 to 2**64 - 1.

    fastloop's loaders count epochs; with torch's loader, call ``set_epoch()`` before each epoch. It
    also sets the epoch of the sources. fastloop's threads gather batches from sources of plain
    arrays; other sources are asked for a batch's samples by one ``__getitems__`` each.

    The order follows R. Tijdeman's problem of the chairman (1980); the tree of two-way splits, its
    bound and the keyed periods are derived in ``docs/internals/mixtures.md``.

    Raises:
        TypeError: an argument has a wrong type; a source has no ``len()``; with ``by="tokens"`` a
            source does not tell its tokens.
        ValueError: an empty source; a weight that is not above 0, is absent or has no source;
            arguments that do not go together; more than 2**62 samples. Later: samples of two
            sources differ in structure, with the names of both.
    """

    _has_cursor = False  # state_dict() says what the dataset is
    _epoch: Epoch

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        *,
        stopping_strategy: str = "first_exhausted",
        length: int | None = None,
        by: str = "samples",
        order: str = "jittered",
        shuffle: bool = True,
        schedule: Mapping[int, Mapping[str, float]] | None = None,
        return_source: bool = False,
        seed: int = 0,
    ) -> None:
        self._stop = checks.read_choice("stopping_strategy", stopping_strategy, _ENDS)
        self._by = checks.read_choice("by", by, ("samples", "tokens"))
        self._order = checks.read_choice("order", order, ("jittered", "even"))
        self._seed = checks.read_int("seed", seed, 0, 2**64 - 1)
        self._shuffle, self._return_source = bool(shuffle), bool(return_source)
        wanted = checks.read_optional_int("length", length, 1, _MOST)
        self._sources: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}
        self._means: Weights = {}
        self._epoch = Epoch()
        self._add_sources(sources)
        if self._stop == _ONCE and (wanted is not None or schedule is not None):
            rule = f"None with stopping_strategy={_ONCE!r}"
            name, got = ("length", length) if wanted is not None else ("schedule", schedule)
            raise ValueError(checks.make_message(name, rule, got))
        if weights is None and by == "tokens":
            raise ValueError(checks.make_message("weights", "given with by='tokens'", None))
        self._segments = self._read_segments(weights, schedule)
        self._end = self._stop if wanted is None else "as length says"
        self._length = wanted or self._find_length()
        self._open()

    # ---- sources and weights

    def _add_sources(self, sources: Any) -> None:
        rule = "a mapping of names to datasets"
        checks.check_type("sources", sources, isinstance(sources, Mapping), rule)
        for name in sources:
            source, called = sources[name], f"sources[{name!r}]"
            if (turns := own(source, "_turns")) is not None:
                source = turns(source)
            elif isinstance(source, EpochDataset) and getattr(source, "_repack", False):
                rule = "a PackedDataset itself, or a subclass with repack=False"
                raise TypeError(checks.make_message(called, rule, source, "its len() changes"))
            checks.check_type("each name of sources", name, isinstance(name, str), "a str")
            kind = type(source)
            is_map = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
            is_map = is_map and not isinstance(source, IterableDataset)
            checks.check_type(called, kind, is_map, "a map-style dataset with a len()")
            if name in self._sources and self._sources[name] is not source:
                rule = "the dataset that has the name already"
                raise ValueError(checks.make_message(called, rule, source, "take a new name"))
            remedy = "leave the source out"
            length = checks.read_int(f"len({called})", len(source), 1, _MOST, remedy)
            if self._lengths.setdefault(name, length) != length:
                raise ValueError(
                    checks.make_message(f"len({called})", f"{self._lengths[name]}", length)
                )
            if self._by == "tokens":
                self._means[name] = _mean_tokens(name, source)
            self._sources[name] = source
        checks.check_value("sources", sources, len(self._sources) > 0, f"{rule}, at least one")
        total = sum(self._lengths.values())
        checks.read_int("the lengths of all sources together", total, 1, _MOST)

    def _read_segments(self, weights: Any, schedule: Any) -> list[tuple[int, Weights]]:
        names = list(self._lengths)
        given: dict[int, Any] = {0: self._lengths if weights is None else weights}
        if schedule is not None:
            is_mapping = isinstance(schedule, Mapping)
            checks.check_type("schedule", schedule, is_mapping, "a mapping of positions to weights")
            for at in schedule:
                given[checks.read_int("each position of schedule", at, 0, _MOST)] = schedule[at]
        found = []
        for at in sorted(given):
            called = "weights" if at == 0 else f"schedule[{at}]"
            found.append((at, _read_weights(called, given[at], names)))
        absent = set(names).difference(*(each for _, each in found))
        rule, remedy = "a weight for each source", "or leave the source out"
        text = f"none for {', '.join(map(repr, sorted(absent)))}"
        checks.refuse_if(absent, f"weights must hold {rule}, got {text} ({remedy})")
        return found

    def _make_core(self, length: int, is_alike: bool = False, segments: Any = None) -> Mixture:
        numbers = {name: number for number, name in enumerate(self._lengths)}
        made = []
        for at, weights in segments or self._segments:
            names = sorted(weights)  # the order in which a user lists sources changes nothing
            shares = [weights[name] / self._means.get(name, 1) for name in names]
            places = np.array([numbers[name] for name in names], np.int64)
            made.append((at, places, np.array(_as_integers(shares), np.int64)))
        sums = np.array([zlib.crc32(name.encode()) for name in numbers], np.uint32)
        lengths, is_even = np.array([*self._lengths.values()], np.int64), self._order == "even"
        how = self._seed, is_even, self._shuffle, length, is_alike
        endless = bytes(name in self._endless for name in numbers)
        return Mixture(lengths, sums, tuple(made), *how, endless)

    @property
    def _endless(self) -> set[str]:
        """The sources with an order of their own for each turn."""
        return {name for name in self._lengths if own(self._sources.get(name), "_turns")}

    def _find_length(self) -> int:
        """Return the samples of an epoch; for _ONCE, also add the segments in which the sources
        that are left go on."""
        lengths = np.array([*self._lengths.values()], np.int64)
        total, core = int(lengths.sum()), self._make_core(1)
        if self._stop == "first_exhausted":
            return _find_first(lambda n: bool((core.seen(n) > lengths).any()), total) - 1
        if self._stop == "all_exhausted":
            found = _find_first(lambda n: bool((core.seen(n) >= lengths).all()), _MOST)
            if found > _MOST:
                rare = [
                    name for name, n in zip(self._lengths, core.seen(_MOST), strict=True) if n < 1
                ]
                rule = "weights that use up every source within 2**62 samples"
                raise ValueError(f"weights must be {rule}, got {rare or 'smaller ones'}")
            return found
        had = np.zeros_like(lengths)  # before the last segment
        while (had + core.seen(total) != lengths).any():
            weights = self._segments[-1][1]
            live = np.array([name in weights for name in self._lengths])
            end = _find_first(lambda n: bool((had + core.seen(n) >= lengths)[live].any()), total)  # noqa: B023
            had = had + core.seen(end)
            names = [
                name for name, is_left in zip(self._lengths, had < lengths, strict=True) if is_left
            ]
            self._segments.append((end, {name: weights[name] for name in names}))
            # All segments in one core would take the cube of the number of sources.
            core = self._make_core(1, segments=[self._segments[0], self._segments[-1]])
            had = had - core.seen(end)
        return total

    def _open(self) -> None:
        """Make the core's object, and forget the structures of samples."""
        self._core = self._make_core(self._length, self._stop == _ONCE)
        self._names = list(self._lengths)
        rows = [n * (_TURNS if name in self._endless else 1) for name, n in self._lengths.items()]
        self._starts = np.append(0, np.cumsum(rows, dtype=np.int64))
        self._structures: dict[str, Any] = {}
        self._joined: dict[Any, Any] = {}

    def set_weights(
        self, at: int, weights: Mapping[str, float], sources: Mapping[str, Any] | None = None
    ) -> None:
        """Change the weights from a position on; earlier positions stay, and ``len()`` does.

        A source that ``weights`` leaves out pauses; if the source comes back, it goes on. Weights
        set for positions from ``at`` on are dropped. Loaders see the change at the next ``iter()``,
        persistent workers not at all.

        Args:
            at: the first position with these weights, counted through all epochs:
                ``epoch * len(dataset) + index``.
            weights: a number > 0 for each source that has a part.
            sources: new datasets by name.

        Raises:
            TypeError, ValueError: as for the class; nothing has changed then. Also ValueError for
                ``"all_exhausted_without_replacement"``, whose samples come once whatever the
                weights.
        """
        at = checks.read_int("at", at, 0, _MOST)
        rule = f"'first_exhausted' or 'all_exhausted' for set_weights(), got {self._stop!r}"
        checks.refuse_if(self._stop == _ONCE, f"stopping_strategy must be {rule}")
        before = dict(self._sources), dict(self._lengths), dict(self._means)
        try:
            self._add_sources({} if sources is None else sources)
            read = _read_weights("weights", weights, list(self._lengths))
        except BaseException:
            self._sources, self._lengths, self._means = before
            raise
        self._segments = [*(part for part in self._segments if part[0] < at), (at, read)]
        self._open()

    # ---- positions

    def locate(self, n: int) -> tuple[str, int]:
        """Return the source's name, and the index in the source, at position ``n``.

        ``n`` counts through all epochs: sample ``i`` of epoch ``e`` is at ``e * len(dataset) + i``.
        """
        row = int(self._core.rows(np.array([checks.read_int("n", n, 0, _MOST)], np.int64))[0])
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        name = self._names[number]
        return name, (row - int(self._starts[number])) % self._lengths[name]

    def seen(self, n: int) -> dict[str, int]:
        """Return how many samples of each source the first ``n`` positions of all epochs have."""
        counts = self._core.seen(checks.read_int("n", n, 0, _MOST))
        return dict(zip(self._names, counts.tolist(), strict=True))

    @property
    def _source_lengths(self) -> str:
        """The facts that a loader's state must find again. Later weights may change."""
        weights = self._segments[0][1]
        names = sorted(weights)
        shares = _as_integers([weights[name] / self._means.get(name, 1) for name in names])
        how = f"shares {shares}, {self._order}, shuffle={self._shuffle}, seed={self._seed}"
        of = {name: str(self._lengths[name]) for name in names}
        for name in names:
            if facts := checks.look_up(self._sources[name], "_source_lengths"):
                of[name] += f" of checksum {zlib.crc32(facts.encode()):08x}"
        return f"{self._length} of {', '.join(f'{n}: {of[n]}' for n in names)}; {how}"

    @property
    def _combined(self) -> Sequence[Any]:  # type: ignore[override]
        return [source for source in self._sources.values() if source is not None]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the order, and of all sources, in all processes that have the dataset.
        fastloop's loaders then no longer count epochs for the dataset."""
        epoch = check_epoch(epoch)
        for found in datasets_within(self):
            if found._epoch is not None:
                found._epoch.set(epoch)

    # ---- samples

    def _columns(self, request: Request) -> Columns:
        check_single(request, "MixtureDataset", gives_views=False)
        (sources, maps, joined), lengths = self._mixed(), [*self._lengths.values()]
        if all(type(source) is TokenDataset for source in sources):
            if "windows" not in joined:
                joined["windows"] = _join_windows(sources)
            columns = columns_of(joined["windows"], request)
        else:
            columns = join_columns(sources, lengths, request, "MixtureDataset")
        columns.maps = maps
        return columns

    def _mixed(self) -> tuple[list[Any], tuple[Mixture, ...], dict[Any, Any]]:
        """Return the sources, whose rows count as one list; the map from positions to rows; and
        what a collate keeps of the sources. Raises NotCoveredError."""
        leave_if(self._return_source, "return_source adds a name to each sample")
        return [*self._sources.values()], (self._core,), self._joined

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._get([read_row(index, self._length)])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._has_own_samples(MixtureDataset):
            return [self[index] for index in indices]
        return self._get([read_row(index, self._length) for index in indices])

    def _get(self, positions: list[int]) -> list[Any]:
        rows = self._core.rows(np.array(positions, np.int64), self._epoch_now())
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        samples: list[Any] = [None] * len(positions)
        for number in np.unique(numbers).tolist():
            places, name = np.flatnonzero(numbers == number), self._names[number]
            found = self._fetch(name, (rows[places] - self._starts[number]).tolist())
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = (sample, name) if self._return_source else sample
        return samples

    def _fetch(self, name: str, indices: list[int]) -> Sequence[Any]:
        source = self._sources[name]
        if source is None:
            remedy = "pass the dataset, or begin after the samples of the source"
            raise ValueError(f"sources must hold {name!r} for this sample, got none ({remedy})")
        get = getattr(source, "__getitems__", None)
        found: Sequence[Any] = [source[i] for i in indices] if get is None else get(indices)
        if name not in self._structures:
            self._structures[name] = structure = _describe(found[0])
            other = next(iter(self._structures))
            if structure != self._structures[other]:
                del self._structures[name]
                rule = f"the structure of source {other!r}, {self._structures[other]}"
                raise ValueError(f"samples of source {name!r} must have {rule}, got {structure}")
        return found

    # ---- state and description

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of all positions, about 20 bytes for each source and change. A
        loader's state has the position."""
        texts = [[at, {n: str(weights[n]) for n in weights}] for at, weights in self._segments]
        means = {name: str(mean) for name, mean in self._means.items()}
        lengths = dict(self._lengths)
        return {"segments": texts, "lengths": lengths, "means": means, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the weights of a state, so that all its positions are as they were. A source that
        has gone meanwhile keeps its past; call ``set_weights()`` to go on without it.

        Raises:
            ValueError: a source had a different length, with names and lengths; not such a state.
                Nothing has changed then.
        """
        like = {"segments": [], "lengths": {}, "means": {}, "length": 1}
        checks.check_state("state", state, like, _STATE)
        for name, length in self._lengths.items():
            had = state["lengths"].get(name, length)
            rule = f"{had}, as when the state was saved"
            checks.check_value(f"len(sources[{name!r}])", length, had == length, rule)
        lengths = {**state["lengths"], **self._lengths}
        segments = []
        for number, (at, weights) in enumerate(state["segments"]):
            called = f"state['segments'][{number}]"
            fractions = {name: Fraction(weight) for name, weight in weights.items()}
            segments.append((at, _read_weights(called, fractions, list(lengths))))
        new = {name: mean for name, mean in self._means.items() if name not in state["lengths"]}
        before = dict(vars(self))
        try:
            self._lengths, self._segments, self._length = lengths, segments, state["length"]
            self._means = new | {name: Fraction(mean) for name, mean in state["means"].items()}
            self._sources = {name: self._sources.get(name) for name in lengths}
            self._open()
        except BaseException:
            vars(self).update(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        left = ("_core", "_starts", "_structures", "_names", "_joined")
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def explain(self) -> str:
        """Return a text: the length, the sources with their samples in an epoch, and for each
        change of weights the shares and the proven bound."""
        lines = [
            f"an epoch: {self._length:,} samples, {self._end}; order {self._order}, "
            f"seed {self._seed}, {self._epoch.explain()}"
        ]
        counts = self.seen(self._length)
        for name, length in self._lengths.items():
            lines.append(f"{name}: {counts[name]:,} of {length:,} samples in the first epoch")
        for (at, weights), bound in zip(self._segments, self._core.bounds, strict=True):
            shares = {name: weights[name] / self._means.get(name, 1) for name in weights}
            total, above = sum(shares.values()), math.ceil(bound * 1e6 - 1e-3) / 1e6
            each = ", ".join(f"{name} {float(shares[name] / total):.4g}" for name in shares)
            lines.append(
                f"from position {at:,}: shares of samples {each}; proven bound {above:.7g}: at "
                "every position each source has had its share, give or take this many samples"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return repr_of(self, f"{self._length:,} samples of {', '.join(self._names)}", self._end)
