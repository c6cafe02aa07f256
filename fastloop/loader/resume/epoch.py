"""The epochs of a loader, as ``iter()`` needs them. A loader's ``Position`` is its latest epoch and
the ``LoaderState`` that the next ``iter()`` begins from. A ``LoaderEpoch`` is one pass of an
iterator over the sampler, from the beginning or from the middle. ``ResumableIter`` is the base of
iterators that have an epoch. ``saving.py`` writes and loads states.

A sampler draws from generators. An epoch notes the generators' states twice: before
``iter(sampler)``, and before the first item is asked for. A resumed epoch draws again from these
states and skips the batches that were yielded, without loading samples. This code runs once for
each epoch, on the thread that iterates.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import chain, count, filterfalse, islice
from operator import itemgetter
from types import MappingProxyType
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import SubsetRandomSampler, WeightedRandomSampler

from fastloop._core import FinalizerBase
from fastloop.base.checks import look_up
from fastloop.base.interrupts import interrupt_later
from fastloop.compat.torch_parts import BaseIter, call_as_torch
from fastloop.data.columns import epochs_within
from fastloop.data.epochs import NO_EPOCHS, IteratorEpochs
from fastloop.data.samplers import (
    ORDERS,
    Dealt,
    EpochSampler,
    RankedBatchSampler,
    ShuffleSampler,
    distributed_order,
    is_planned,
)
from fastloop.data.stateful import DatasetStates, ReaderStates, fit_readers, has_cursor, is_stream
from fastloop.loader.resume.recent import RECENT, Recent, SizeWatch, find_item, find_rows

VERSION = 1
TORCH = "torch"  # the name of torch's global generator, which belongs to the program
GENERATORS = (TORCH, "loader", "batch_sampler", "sampler")  # the owners of generators

SEEDED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SEEDLESS = (SequentialSampler, DistributedSampler, *ORDERS)
# In iter() these samplers draw nothing. They draw when they are asked for the first item.
_LAZY = (BatchSampler, SequentialSampler, *SEEDED)

Generators = dict[str, torch.Generator]
RandomStates = dict[str, torch.Tensor]


class LoaderState:
    """The position of a loader: in the middle of an epoch, or before an epoch that has yet to
    begin. Arguments are attributes with other values than at a loader's beginning."""

    def __init__(self, **given: Any) -> None:
        self.epoch = 0
        self.yielded = 0
        self.begun = False
        self.draws_base_seed = True  # the next new epoch draws a base seed
        self.draws_each_epoch = True  # the epochs after the next one draw base seeds
        self.not_resumable = ""  # why the epoch cannot be resumed in the middle, or ""
        self.dealt: list[list[int]] = []  # samplers.Dealt; `yielded` counts anew
        self.place: list[int] = []  # a PackedDataset's, of the next row, or none
        self.sampler_epoch = -1  # -1: the sampler has no epoch
        self.random_epoch = 0  # for datasets' random numbers; between epochs the lowest possible
        self.set_epochs: list[int | None] = []  # set_epoch()'s, for each dataset
        self.fits: dict[str, str] = {}  # the facts of state.describe()
        self.generators: dict[str, RandomStates] = {}  # at each of state.MOMENTS
        self.rank = 0  # the rank that saved the state, if the dataset has a position of its own
        self.joined: list[dict[str, Any]] = []  # one part a rank, by join_states()
        self.readers = ReaderStates()
        self.version = VERSION
        self.is_spent = False  # no batch of the epoch remains, whatever `yielded` says; not saved
        if unknown := given.keys() - vars(self).keys():
            raise TypeError(f"a LoaderState has no {', '.join(unknown)}")
        vars(self).update(given)

    def but(self, **given: Any) -> LoaderState:
        """Return a copy in which the given attributes have the given values."""
        return LoaderState(**{**vars(self), **given})

    def next_epoch(self) -> LoaderState:
        """Return the state before the next epoch."""
        state = self.but(epoch=self.epoch + 1, random_epoch=self.random_epoch + 1)
        sampler_epoch = self.sampler_epoch + (self.sampler_epoch >= 0)
        state = state.but(yielded=0, begun=False, not_resumable="", dealt=[], place=[])
        return state.but(sampler_epoch=sampler_epoch)


# ---- the objects from which a loader draws its order


def samplers_of(loader: DataLoader[Any]) -> tuple[Any, Any]:
    """Return the sampler that yields batches (samples, with batch_size=None), and the sampler that
    it takes indices from."""
    outer = loader._index_sampler
    return outer, look_up(outer, "sampler")


def sampler_with_epoch(loader: DataLoader[Any]) -> Any:
    """Return the sampler that has set_epoch(), as DistributedSampler does, or None."""
    outer = loader._index_sampler
    for sampler in (outer, look_up(outer, "sampler")):
        has_setter = callable(look_up(sampler, "set_epoch"))
        if has_setter and type(look_up(sampler, "epoch")) is int:
            return sampler
    return None


def generators_of(loader: DataLoader[Any]) -> Generators:
    """Return the generators that an epoch's order may depend on, each once, by their owners."""
    outer = loader._index_sampler
    inner = look_up(outer, "sampler")
    is_map = loader._dataset_kind == 0  # for a stream only the seeds of workers are drawn
    found: Generators = {}
    sampler = inner if type(outer) is BatchSampler else outer
    is_given = type(sampler) in SEEDED and sampler.generator not in (None, torch.default_generator)
    if is_map and not (is_given or type(sampler) in _SEEDLESS or is_planned(sampler)):
        found[TORCH] = torch.default_generator
    owners = (loader, outer, inner) if is_map else (loader,)
    for name, owner in zip(GENERATORS[1:], owners, strict=False):
        generator = look_up(owner, "generator")
        if generator is None or not issubclass(type(generator), torch.Generator):
            continue
        if generator not in (torch.default_generator, *found.values()):
            found[name] = generator
    return found


def states_of(generators: Mapping[str, torch.Generator]) -> RandomStates:
    """Return the states that generators have now."""
    return {name: generator.get_state() for name, generator in generators.items()}


@contextmanager
def _restoring(*generators: torch.Generator) -> Iterator[None]:
    """Restore generators at the end of the block to their states at its beginning."""
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


# ---- the rest of an epoch


def count_passed(dealt: Dealt) -> int:
    """Return the rows that earlier ranks have had."""
    return sum(ranks * size * batches for ranks, size, batches in dealt)


def count_rest(sampler: Any, ranks: int, dealt: Dealt) -> int:
    """Return the rows of each rank after the rows that earlier ranks have had."""
    is_ours = type(sampler) in ORDERS
    length = sampler.length if is_ours else len(sampler.dataset)
    rest = max(length - count_passed(dealt), 0)  # a damaged state may have dealt out more
    return rest // ranks if getattr(sampler, "drop_last", False) else -(-rest // ranks)


def blocks_after(sampler: Any, dealt: Dealt, first: int) -> Iterator[torch.Tensor]:
    """Yield the rows of a rank after the rows that earlier ranks have had, without the first ones.
    As in torch, padding is the beginning of the epoch's order."""
    passed = count_passed(dealt)
    if type(sampler) in ORDERS:
        yield from sampler.blocks(first, passed)
        return
    order, ranks = distributed_order(sampler), sampler.num_replicas
    rounds = torch.arange(first, max(count_rest(sampler, ranks, dealt), first), device="cpu")
    yield order[(passed + sampler.rank + rounds * ranks) % len(order)]


def _items_after(sampler: Any, dealt: Dealt, first: int) -> Iterator[Any]:
    """Return a sampler's items whose rows ``blocks_after`` yields."""
    if isinstance(sampler, RankedBatchSampler):
        return sampler.iter_from(first, dealt)
    is_batched = type(sampler) is BatchSampler
    inner: Any = sampler.sampler if is_batched else sampler
    blocks = blocks_after(inner, dealt, first * (sampler.batch_size if is_batched else 1))
    rows = chain.from_iterable(block.tolist() for block in blocks)
    return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last)) if is_batched else rows


def skip_items(epoch: LoaderEpoch, items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of a sampler without the items of batches that were yielded."""
    sampler, count = epoch.sampler, epoch.skipped
    if epoch.state.dealt:
        return _items_after(sampler, epoch.state.dealt, count)
    if epoch.is_stream or count == 0:
        return items  # all items of a stream are alike
    is_batched = type(sampler) is BatchSampler
    inner = sampler.sampler if is_batched else sampler
    if isinstance(inner, EpochSampler) and type(inner).__iter__ is EpochSampler.__iter__:
        if not is_batched:
            return inner.iter_from(count)
        rows = inner.iter_from(min(count * sampler.batch_size, len(cast(Any, inner))))
        return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last))
    passed = sum(1 for _ in islice(items, count))
    if passed < count:
        name = type(sampler).__name__
        text = f"the state counts {count} batches, but the sampler ({name}) ended after {passed}"
        raise ValueError(f"{text}; reset the sampler to its beginning, or do not load the state")
    return items


class PlainEpoch:
    """One pass of an iterator over the sampler. Nobody can ask for a state of the loader, so
    nothing is noted, and the pass begins like one of torch's own iterators.

    Attributes:
        is_resumed: the pass begins in the middle of an epoch.
        draws_seed: whether a base seed is drawn. None: torch's iterator decides.
        kept_seed: the base seed of persistent workers that the iterator replaces, or None.
        lent: the state of torch's generator for the draws that begin this epoch.
        generators: the generators whose states are noted.
        with_epoch: the sampler that has an epoch, or None.
        states: the states of the dataset, if the dataset has a position of its own.
        skipped, yielded: the batches that came before, and the batches so far.
    """

    is_resumed = is_over = False
    draws_seed: bool | None = None
    kept_seed: int | None = None
    lent: torch.Tensor | None = None
    generators: Mapping[str, torch.Generator] = MappingProxyType({})
    with_epoch: Any = None
    states: DatasetStates | None = None
    skipped = yielded = 0

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Lend torch's generator the state that it had when the loader was saved. Draws that begin
        an epoch are then the same as there."""
        if self.lent is None:
            yield
            return
        with _restoring(torch.default_generator):
            torch.default_generator.set_state(self.lent)
            yield
            self.lent = torch.default_generator.get_state()

    def drawing_iter(self) -> AbstractContextManager[None]:
        """Return the context of ``iter(sampler)``, in which the base seed may also be drawn."""
        return nullcontext()

    def remaining(self, source: Iterator[Any], skip: Callable[..., Any]) -> Iterator[Any]:
        """Return the rest of `source`. The work begins when the first item is asked for.

        Args: skip: takes this epoch and `source`, and leaves out the items yielded already.
        """
        return source


class LoaderEpoch(PlainEpoch):
    """One pass of an iterator over the sampler. What a state of the loader needs is noted.

    Args:
        loader: the loader whose iterator begins.
        position: the loader's position.
        datasets: the epochs of the iterator's datasets, which begin here.
        has_states: if the loader has a state, the iterator asks the dataset for its states.

    Attributes:
        state: the state from which the epoch begins. `is_resumed`: it was saved in this epoch,
            after its order was drawn.
        iterator: returns the iterator that the loop has.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        position: Position,
        datasets: IteratorEpochs,
        has_states: bool,
    ) -> None:
        start, self.kept_seed = position.start, position.kept_seed
        is_new = position.is_loaded and not start.begun
        self.sampler: Any = loader._index_sampler
        self.batch_size = look_up(self.sampler, "batch_size")
        self.with_epoch = sampler_with_epoch(loader)
        if isinstance(self.with_epoch, ShuffleSampler):
            self.with_epoch.expect_batches(self.batch_size)
        self.generators = generators_of(loader)
        self.is_stream = bool(position.has_cursor) and is_stream(loader.dataset)
        self.is_resumed = start.begun
        self.iterator: Callable[[], Any] = lambda: None
        set_epochs = [epoch.users for epoch in datasets.epochs] if datasets.epochs else []
        if start.begun:
            self.state = copy(start)
            if len(start.set_epochs) != len(set_epochs):  # the state is from different datasets
                self.state.set_epochs = set_epochs
        else:
            number = start.random_epoch
            if self.with_epoch is not None:
                number = max(number, look_up(self.with_epoch, "epoch", 0))
            self.state = LoaderState(
                epoch=start.epoch, begun=True, random_epoch=number, set_epochs=set_epochs
            )
            if is_new:
                self.draws_seed = start.draws_base_seed
            elif self.kept_seed is not None:
                self.draws_seed = False
            elif position.draws_each_epoch is not None:
                self.draws_seed = position.draws_otherwise(loader)
        if is_new:
            self.lent = position.torch_state_to_lend()
        if position.has_cursor and has_states:
            readers = fit_readers(loader, start.readers) if position.is_loaded else ReaderStates()
            self.states = DatasetStates(loader, readers, is_new)
        if datasets.epochs:
            datasets.begin(self.state.set_epochs, self.state.random_epoch)
        self.skipped = self.yielded = self.state.yielded
        self.at_iter = self.state.generators.get("iter", {})
        self.at_next = self.state.generators.get("next", {})

    def _enter_sampler_epoch(self) -> None:
        """Note the sampler's epoch. For a resumed epoch, set the sampler to the epoch of the state,
        even if set_epoch() was called since."""
        if not self.is_resumed:
            self.state.sampler_epoch = look_up(self.with_epoch, "epoch", -1)
        elif look_up(self.with_epoch, "epoch") != self.state.sampler_epoch >= 0:
            self.with_epoch.set_epoch(self.state.sampler_epoch)

    def _set_generators(self, states: Mapping[str, torch.Tensor]) -> None:
        for name, state in states.items():
            self.generators[name].set_state(state)

    def drawing_iter(self) -> AbstractContextManager[None]:
        if self.with_epoch is not None:
            self._enter_sampler_epoch()
        if self.is_resumed:
            return self._drawing_again()
        if type(self.sampler) not in _LAZY:
            self.at_iter = states_of(self.generators)
            if self.lent is not None and TORCH in self.at_iter:
                self.at_iter[TORCH] = self.lent
        return nullcontext() if self.lent is None else self.lending()

    @contextmanager
    def _drawing_again(self) -> Iterator[None]:
        # A finished epoch draws nothing: loading has set the states after the epoch.
        over = self.generators.values() if self.state.is_spent else ()
        with _restoring(torch.default_generator, *over):
            if not self.state.is_spent:
                self._set_generators(self.at_iter)
            yield

    def remaining(self, source: Iterator[Any], skip: Callable[..., Any]) -> Iterator[Any]:
        if self.is_resumed or self.lent is not None:
            return chain.from_iterable(self._remaining_again(source, skip))
        # If a signal's handler raised in a generator, the generator and thus the epoch would be
        # over. This iterator calls again.
        return chain(iter(self._note_first, None), source)

    def _note_first(self) -> None:
        """Note what the sampler is about to draw from, before its first item is asked for."""
        if type(self.sampler) in _LAZY and self.with_epoch is not None:
            self._enter_sampler_epoch()
        if self.generators:
            self.at_next = states_of(self.generators)

    def _remaining_again(self, source: Any, skip: Callable[..., Any]) -> Iterator[Iterator[Any]]:
        if self.state.is_spent:
            return
        first: list[Any] = []
        # A state saved before the first item was drawn has no state of torch's own generator: the
        # draw is still to come, from the program's numbers.
        is_kept = self.is_resumed and TORCH in self.at_next
        with self.lending(), _restoring(*((torch.default_generator,) if is_kept else ())):
            if self.with_epoch is not None and (self.is_resumed or type(self.sampler) in _LAZY):
                self._enter_sampler_epoch()
            self.at_next = {**states_of(self.generators), **self.at_next}
            if self.is_resumed:
                self._set_generators(self.at_next)
                source = skip(self, source)
            if self.skipped == 0:
                first = list(islice(source, 1))
        yield chain(first, source)

    def count(self) -> int:
        """Return the number of batches yielded so far."""
        iterator = self.iterator()
        if iterator is not None and iterator._epoch is self:
            self.yielded = iterator._num_yielded
        return self.yielded


class ResumableIter(FinalizerBase, BaseIter):
    """Base that makes torch's iterators resumable.

    The base comes after torch's iterator in the list of bases. Thus it replaces the sampler's
    iterator after torch's base class has made it, and before torch asks for the first index.
    ``_begin_epoch`` must be called before ``__init__``.
    """

    _num_yielded = 0
    _has_states = True  # the states of a dataset that has a position of its own are kept
    _has_epochs = True  # datasets with epochs are looked for
    _in_processes = False  # samples are fetched in worker processes
    _shared: Any
    _datasets: Any = None  # the IteratorEpochs of the datasets; None: not looked for
    _epoch: Any  # a LoaderEpoch, or a PlainEpoch
    _destination: Any = None  # the memory to which fastloop copies batches, or None
    # The latest items of this epoch that were taken from the sampler; None: nobody has noted them.
    _recent: Recent | None = None
    _watch: SizeWatch | None = None  # if these items are blocks of rows

    @property
    def is_on_device(self) -> bool:
        """Tell whether batches are on the device when they are handed out."""
        return self._destination is not None and self._destination.is_on_device

    def keep_indices(self) -> Callable[[int], Any] | None:
        """Return a function of the number of a batch in the epoch: it returns the indices of recent
        samples, or None. None: the indices are unknown."""
        if self._dataset_kind != 0 or not look_up(self, "_in_order", True):
            return None
        if self._recent is None and self._num_workers == 0:
            recent = self._recent = deque(maxlen=RECENT)
            numbers = count(self._num_yielded - self._epoch.skipped)
            numbered = zip(self._sampler_iter, numbers, strict=False)
            self._sampler_iter = map(itemgetter(0), filterfalse(recent.append, numbered))
        if self._recent is None:
            return None
        find, skipped = partial(find_item, self._recent), self._epoch.skipped
        if self._watch is not None:
            find = partial(find_rows, self._recent, self._watch)
        return lambda number: find(number - skipped)

    def _keep_recent(self, cut_by: Any) -> Recent:
        """Return a list in which the array path notes the items of its sampler. `cut_by` is the
        BatchSampler that cuts blocks; None: the items are batches."""
        self._recent = deque(maxlen=RECENT * 4)  # blocks may be small
        self._watch = None if cut_by is None else SizeWatch(cut_by)
        return self._recent

    def _begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Decide which epoch begins. ``_shared`` must be set."""
        if self._datasets is None:
            epochs = epochs_within(loader.dataset) if self._has_epochs else []
            self._datasets = IteratorEpochs(epochs, self._in_processes) if epochs else NO_EPOCHS
        before = getattr(self.__dict__.get("_epoch"), "states", None)
        position = self._shared.position
        if not (position.can_be_asked or self._datasets.epochs or position.kept_seed is not None):
            self._epoch = PlainEpoch()
            return
        epoch = LoaderEpoch(loader, position, self._datasets, self._has_states)
        self._epoch, epoch.iterator = epoch, weakref.ref(self)
        if (states := epoch.states) is not None:
            states.is_here = not self._in_processes
            if before is not None:
                states.follow(before)

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._shared.idle = None  # what the array path has read ahead, and this iterator not taken
        epoch, kind = self._epoch, "MultiProcessing" if loader.num_workers > 0 else "SingleProcess"
        caller = f"_{kind}DataLoaderIter.__init__"
        how = {"may_warn": loader.pin_memory}  # torch's __init__ warns of pinned memory only
        begin = partial(call_as_torch, caller, super().__init__, loader, **how)
        profile_name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        if type(epoch) is PlainEpoch:
            begin()
            self._profile_name = profile_name
            return
        if epoch.draws_seed is False:
            # torch's __init__ draws a seed in any case, so the draw is undone.
            with _restoring(torch.default_generator, *epoch.generators.values()):
                begin()
            if self._num_workers == 0:  # with workers _reset() does this
                with epoch.drawing_iter():
                    self._sampler_iter = iter(self._index_sampler)
        else:
            with epoch.drawing_iter():
                begin()
        if epoch.states is not None and epoch.states.base_seed >= 0:
            self._base_seed = epoch.states.base_seed
        elif epoch.kept_seed is not None:
            self._base_seed = epoch.kept_seed
        self._profile_name = profile_name
        self._skip_yielded()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if not first_iter:
            self._keep_count()
            self._begin_epoch(loader)
            if self._epoch.draws_seed:
                with self._epoch.lending():
                    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        with self._epoch.drawing_iter():
            super()._reset(loader, first_iter)
        self._skip_yielded()

    def await_states(self) -> None:
        """Wait until all states of the dataset at the beginning of the epoch have arrived."""

    def _skip_yielded(self) -> None:
        if self._epoch.states is not None:
            self._epoch.states.base_seed = int(self._base_seed)
        epoch = self._epoch
        is_noted = epoch.generators or epoch.with_epoch is not None
        if is_noted or epoch.is_resumed or epoch.lent is not None:
            self._sampler_iter = epoch.remaining(self._sampler_iter, skip_items)
        self._num_yielded = epoch.skipped

    def _keep_count(self) -> None:
        epoch = self.__dict__.get("_epoch")
        if epoch is not None:
            epoch.yielded = self._num_yielded

    _finalize = _keep_count

    _interrupt_later = staticmethod(interrupt_later)


# ---- between epochs


def draws_each_epoch(loader: DataLoader[Any]) -> bool:
    """Tell whether torch draws a base seed at every iter(). Persistent workers keep their first."""
    return not (loader.persistent_workers and loader.num_workers > 0)


class Position:
    """The latest epoch of a loader, and the state that the next iter() begins from.

    Args: can_be_asked: the loader has a ``state_dict()``. Loaders of torch's class have none.

    Attributes:
        is_loaded: `start` was loaded, and iter() has not been called since.
        kept_seed: the seed of persistent workers that the next iterator replaces, or None.
        draws_each_epoch: whether the loader that saved the loaded state draws a seed in each epoch;
            None: no state was loaded.
        has_cursor: states of the loader hold the dataset's own position. None: not known yet.
    """

    def __init__(self, can_be_asked: bool = True) -> None:
        self.can_be_asked = can_be_asked
        self.start = LoaderState()
        self.is_loaded = False
        self.current: LoaderEpoch | None = None
        self.kept_seed: int | None = None
        self.torch_at_loading: torch.Tensor | None = None
        self.draws_each_epoch: bool | None = None
        self.has_cursor: bool | None = None

    def look_at(self, dataset: Any) -> None:
        """Read what the dataset has, once: torch forbids to change a loader's dataset."""
        self.has_cursor = has_cursor(dataset)

    def copy(self) -> Position:
        """Return the position of a copy of the loader, which has no iterator."""
        position = copy(self)
        position.current = position.has_cursor = None
        return position

    def begin(self, iterator: BaseIter) -> None:
        """Note the iterator that iter() is about to return."""
        epoch: LoaderEpoch | None = look_up(iterator, "_epoch")
        if epoch is None:
            return
        before = epoch.state
        self.start = LoaderState(epoch=before.epoch + 1, random_epoch=before.random_epoch + 1)
        self.current, self.is_loaded, self.kept_seed = epoch, False, None

    def draws_otherwise(self, loader: DataLoader[Any]) -> bool | None:
        """Tell whether a base seed is drawn in each epoch, if this loader differs in that from the
        loader that saved the loaded state; else None."""
        draws = self.draws_each_epoch
        return None if draws == draws_each_epoch(loader) else draws

    def torch_state_to_lend(self) -> torch.Tensor | None:
        """Return the state of torch's generator at saving. None if the program has restored that
        state, or has seeded the generator or drawn from it since loading."""
        saved = self.start.generators["now"].get(TORCH)
        at_loading, now = self.torch_at_loading, torch.default_generator.get_state()
        is_untouched = at_loading is not None and torch.equal(at_loading, now)
        return saved if is_untouched and saved is not None and not saved.equal(now) else None
