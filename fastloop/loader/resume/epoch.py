"""How an epoch of an iterator goes on from a loaded state; ``checkpoint.py`` has the state itself.

A sampler draws from generators. An epoch notes their states twice: before ``iter(sampler)``, and
before the first item is asked for. A resumed epoch draws again from these states and skips what was
yielded; no sample is loaded for that. Everything here runs once an epoch, on the thread that
iterates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later
from fastloop.base.torch_parts import BaseIter, call_as_torch
from fastloop.data.epochs import IteratorEpochs
from fastloop.data.index_blocks import Block, find_blocks
from fastloop.data.samplers import EpochSampler, LengthBucketBatchSampler, ShuffleSampler
from fastloop.data.stateful import has_place, is_stream
from fastloop.loader.resume.dataset_epochs import (
    epochs_within,
    is_about,
    next_random_epoch,
    numbers_of,
    set_by_user,
)
from fastloop.loader.resume.dataset_states import (
    DatasetStates,
    Places,
    fit_places,
    read_places,
)
from fastloop.loader.resume.left_batches import Left, LeftBatches, read_left

TORCHS = "torch"  # the name of torch's global generator, which belongs to the user
GENERATORS = (TORCHS, "loader", "batch_sampler", "sampler")  # where an order may be drawn from
_SEEDLESS = (SequentialSampler, DistributedSampler, LengthBucketBatchSampler, ShuffleSampler)
_SEEDED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# Their iter() draws nothing; they draw when asked for the first item.
_LAZY = (BatchSampler, SequentialSampler, *_SEEDED)

_T = TypeVar("_T")
State = dict[str, Any]
Generators = dict[str, torch.Generator]
# Leaves out of what a sampler yields what the epoch has yielded already.
_Skip = Callable[["Epoch", Iterator[Any]], Iterator[Any]]


# ---- what a loader draws from


def samplers_of(loader: DataLoader[Any]) -> tuple[Any, Any]:
    """What yields batches (or, with batch_size=None, samples), and what that takes indices from."""
    outer = loader._index_sampler
    return outer, getattr(outer, "sampler", None)


def _draws_from_torch(outer: Any, inner: Any) -> bool:
    sampler: Any = inner if type(outer) is BatchSampler else outer
    if type(sampler) in _SEEDED:
        return sampler.generator is None or sampler.generator is torch.default_generator
    return type(sampler) not in _SEEDLESS


def find_generators(loader: DataLoader[Any]) -> Generators:
    """The generators an epoch's order may depend on, each once, by where they were found."""
    found: Generators = {}
    if loader._dataset_kind != 0:  # of an IterableDataset: its workers' seeds alone are drawn
        if isinstance(loader.generator, torch.Generator):
            found["loader"] = loader.generator
        return found
    outer, inner = samplers_of(loader)
    if _draws_from_torch(outer, inner):
        found[TORCHS] = torch.default_generator
    known = [torch.default_generator]
    for name, owner in zip(GENERATORS[1:], (loader, outer, inner), strict=True):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in known):
            known.append(generator)
            found[name] = generator
    return found


def without_torchs(generators: Mapping[str, _T]) -> dict[str, _T]:
    return {name: g for name, g in generators.items() if name != TORCHS}


def read_states(generators: Generators) -> dict[str, torch.Tensor]:
    return {name: generator.get_state() for name, generator in generators.items()}


def from_hex(texts: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The states of the generators that have one: an empty text stands for none."""
    return {
        name: torch.from_numpy(np.frombuffer(bytes.fromhex(text), np.uint8).copy())
        for name, text in texts.items()
        if text
    }


@contextmanager
def _restored(*generators: torch.Generator) -> Iterator[None]:
    """At the end of the block these have the states they had before it."""
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def sampler_with_epoch(loader: DataLoader[Any]) -> Any:
    """The sampler that has set_epoch(), as DistributedSampler does, or None."""
    for sampler in samplers_of(loader):
        has_setter = callable(getattr(sampler, "set_epoch", None))
        if has_setter and type(getattr(sampler, "epoch", None)) is int:
            return sampler
    return None


def draws_each_epoch(loader: DataLoader[Any]) -> bool:
    """Whether torch draws a base seed at every iter(). Persistent workers keep their first."""
    return not (loader.persistent_workers and loader.num_workers > 0)


# ---- what is left of an epoch


def rest_of_block(block: Block, rows: int) -> Block:
    if isinstance(block, tuple):
        first, count = block
        return first + rows, count - rows
    return block[rows:]


def _skip_rows(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """The blocks without the first `rows` rows. Draws the blocks that hold those now."""
    for block in blocks:
        count = block[1] if isinstance(block, tuple) else len(block)
        if rows < count:
            return chain((rest_of_block(block, rows),), blocks)
        rows -= count
        if rows == 0:
            return blocks
    return blocks


def _first_of_block(block: Block, rows: int) -> Block:
    if isinstance(block, tuple):
        first, count = block
        return first, min(count, rows)
    return block[:rows]


def _take_rows(blocks: Iterator[Block], rows: int) -> tuple[list[Block], Iterator[Block]]:
    """The first `rows` rows, and the blocks behind them."""
    taken: list[Block] = []
    for block in blocks:
        taken.append(_first_of_block(block, rows))
        count = block[1] if isinstance(block, tuple) else len(block)
        if rows < count:
            return taken, chain((rest_of_block(block, rows),), blocks)
        rows -= count
        if rows == 0:
            break
    return taken, blocks


def _leave_blocks(blocks: Iterator[Block], left: Left, size: int) -> Iterator[Block]:
    """Where batches were overtaken: all of these are whole, or the last of the epoch."""
    overtaken: list[Block] = []
    passed = 0
    for number in left.overtaken:
        rows, blocks = _take_rows(_skip_rows(blocks, number * size - passed), size)
        overtaken.extend(rows)
        passed = (number + 1) * size
    return chain(overtaken, _skip_rows(blocks, left.first * size - passed))


def skip_blocks(epoch: Epoch, blocks: Iterator[Block]) -> Iterator[Block]:
    left, size = epoch.left.begin, epoch.sampler.batch_size
    if left.overtaken:
        return _leave_blocks(blocks, left, size)
    sampler = epoch.sampler.sampler
    if type(sampler) is ShuffleSampler:
        return sampler.blocks(left.first * size)
    return _skip_rows(blocks, left.first * size)


def _as_ints(block: Block) -> range | list[int]:
    if isinstance(block, tuple):
        return range(block[0], block[0] + block[1])
    return block.tolist()


def _begins_anywhere(sampler: Any) -> bool:
    return isinstance(sampler, EpochSampler) and type(sampler).__iter__ is EpochSampler.__iter__


def skip_items(epoch: Epoch, items: Iterator[Any]) -> Iterator[Any]:
    sampler, left = epoch.sampler, epoch.left.begin
    if epoch.is_stream:
        return items  # which are all alike
    if left.first > 0 and not left.overtaken and _begins_anywhere(sampler):
        rest: Iterator[Any] = sampler.iter_from(left.first)
        return rest
    blocks = find_blocks(sampler) if left.first > 0 else None
    # A SubsetRandomSampler yields its own objects, which need not be ints.
    if blocks is not None and type(sampler.sampler) is not SubsetRandomSampler:
        rows = chain.from_iterable(map(_as_ints, skip_blocks(epoch, blocks)))
        return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last))
    overtaken, passed = left.take_overtaken(items)
    if passed < left.first:
        raise ValueError(
            f"the state counts {left.first} batches, but the sampler "
            f"({type(sampler).__name__}) ended after {passed}; bring it into the state it had "
            "when the epoch began, or iterate without load_state_dict()"
        )
    return chain(overtaken, items)


class Epoch:
    """One pass of an iterator over the sampler: what it began with, and what it has yielded."""

    def __init__(
        self,
        loader: DataLoader[Any],
        position: Position,
        datasets: IteratorEpochs,
        has_states: bool = True,
    ) -> None:
        pending = position.pending
        self.number = position.number if pending is None else pending["epoch"]
        self.sampler: Any = loader._index_sampler
        self.batch_size = getattr(self.sampler, "batch_size", None)
        self.with_epoch = sampler_with_epoch(loader)
        self.generators = find_generators(loader)
        # Of datasets that draw random numbers, and what the user has set in place of it.
        self.random_epoch = next_random_epoch(position.random_epoch, self.with_epoch)
        self.set_epochs = set_by_user(datasets.epochs)
        self.skipped = 0
        self.yielded = 0
        self.left = LeftBatches(Left((), 0), 0)
        self.is_over = False
        self.iterator: Callable[[], Any] = lambda: None  # that the user has
        self.at_iter: dict[str, torch.Tensor] = {}
        self.at_next: dict[str, torch.Tensor] = {}
        self.sampler_epoch: int | None = None
        self.is_resumed = pending is not None and pending["begun"]
        self.is_spent = position.is_spent  # no batch is left, whatever was yielded
        # Whether a base seed is drawn. None: as torch's iterator does by itself.
        self.kept_seed = position.kept_seed
        self.draws_seed = position.draws_otherwise(loader) if self.kept_seed is None else False
        self.borrowed: torch.Tensor | None = None  # what torch's generator is in for our draws
        if pending is not None and self.is_resumed:
            self.draws_seed = None  # it was drawn before the state was saved
            self._resume(pending, datasets)
        elif pending is not None:
            self.random_epoch = next_random_epoch(pending["random_epoch"], self.with_epoch)
            self.draws_seed = pending["draws_base_seed"]
            self.borrowed = position.torchs_at_saving()
        self.is_stream = is_stream(loader.dataset)
        self.states: DatasetStates | None = None  # of a dataset that is asked where it stands
        if has_states and has_place(loader.dataset):
            places = Places([]) if pending is None else fit_places(loader, read_places(pending))
            is_over = pending is not None and not self.is_resumed
            self.states = DatasetStates(loader, places, is_over)
        datasets.begin(numbers_of(self.set_epochs, self.random_epoch))

    def _resume(self, state: State, datasets: IteratorEpochs) -> None:
        self.skipped = self.yielded = state["yielded"]
        self.left = LeftBatches(read_left(state["left"], self.skipped), self.skipped)
        self.random_epoch = state["random_epoch"]
        if is_about(state["set_epochs"], datasets.epochs):
            self.set_epochs = state["set_epochs"]
        self.at_iter = from_hex(state["generators"]["iter"])
        self.at_next = from_hex(state["generators"]["next"])
        if state["sampler_epoch"] >= 0:
            self.sampler_epoch = state["sampler_epoch"]

    def _set_sampler_epoch(self) -> None:
        """What began in one epoch of a sampler goes on in it, whatever set_epoch() said since."""
        if self.with_epoch is not None and self.with_epoch.epoch != self.sampler_epoch:
            self.with_epoch.set_epoch(self.sampler_epoch)

    def _set_generators(self, states: Mapping[str, torch.Tensor]) -> None:
        for name, state in states.items():
            self.generators[name].set_state(state)

    def _is_lazy(self) -> bool:
        return type(self.sampler) in _LAZY

    def _note_sampler_epoch(self) -> None:
        if self.with_epoch is not None:
            self.sampler_epoch = self.with_epoch.epoch

    @contextmanager
    def drawing_iter(self) -> Iterator[None]:
        """Around ``iter(sampler)``; the draw of a base seed may be in it, too."""
        if self.is_resumed:
            self._set_sampler_epoch()
            # An epoch of which nothing is left draws no more: loading has set the states after it.
            over = without_torchs(self.generators) if self.is_spent else {}
            with _restored(torch.default_generator, *over.values()):
                if not self.is_spent:
                    self._set_generators(self.at_iter)
                yield
            return
        self._note_sampler_epoch()
        if not self._is_lazy():
            self.at_iter = read_states(self.generators)
        yield

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Around draws of an epoch that begins as it would have where it was saved: torch's own
        generator is lent the state it had there."""
        if self.borrowed is None:
            yield
            return
        with _restored(torch.default_generator):
            torch.default_generator.set_state(self.borrowed)
            yield
            self.borrowed = torch.default_generator.get_state()

    @contextmanager
    def making_iterator(self) -> Iterator[None]:
        """Around all that torch draws to make an iterator."""
        kept: tuple[torch.Generator, ...] = ()
        if self.draws_seed is False:
            kept = (torch.default_generator, *without_torchs(self.generators).values())
        with self.borrowing(), _restored(*kept), self.drawing_iter():
            yield

    def remaining(self, source: Iterator[Any], skip: _Skip) -> Iterator[Iterator[Any]]:
        """What is left of `source`, in parts. Runs when the first item is asked for."""
        if self.is_spent:
            return
        if not self.is_resumed:
            with self.borrowing():
                if self._is_lazy():
                    self._note_sampler_epoch()
                self.at_next = read_states(self.generators)
                first = [] if self.borrowed is None else list(islice(source, 1))
            yield iter(first)
            yield source
            return
        # A state saved before the first item was drawn has none of torch's own generator: the
        # draw is then still to come, from the user's numbers.
        kept = (torch.default_generator,) if TORCHS in self.at_next else ()
        self._set_sampler_epoch()
        with _restored(*kept):
            self.at_next = {**read_states(self.generators), **self.at_next}
            self._set_generators(self.at_next)
            source = skip(self, source)
            first = list(islice(source, 1)) if self.skipped == 0 else []
        yield iter(first)
        yield source

    def count(self) -> int:
        """Batches yielded so far."""
        iterator = self.iterator()
        if iterator is not None and iterator._epoch is self:
            self.yielded = iterator._num_yielded
        return self.yielded


class ResumableIter(FinalizerBase, BaseIter):
    """A base that makes torch's iterators resumable.

    It stands after torch's iterator in the list of bases: so it replaces the sampler's iterator
    after torch's base class has made it, and before torch's code asks for the first index.
    ``_begin_epoch`` must be called before ``__init__``.
    """

    _num_yielded = 0
    _has_states = True  # of a dataset that says where it stands
    _shared: Any

    def _begin_epoch(self, loader: DataLoader[Any], in_workers: bool = False) -> None:
        """Decides which epoch this is. ``_shared`` must be set.

        Args:
            in_workers: the iterator is new, and samples are fetched in worker processes.
        """
        if "_datasets" not in self.__dict__:
            self._datasets = IteratorEpochs(epochs_within(loader.dataset), in_workers)
        self._epoch = Epoch(loader, self._shared.position, self._datasets, self._has_states)
        self._epoch.iterator = weakref.ref(self)

    def __init__(self, loader: DataLoader[Any]) -> None:
        states = self._epoch.states
        with self._epoch.making_iterator():
            call_as_torch(super().__init__, loader)
        if states is not None and states.base_seed is not None:
            self._base_seed = states.base_seed
        elif self._epoch.kept_seed is not None:
            self._base_seed = self._epoch.kept_seed
        self._note_base_seed()
        kind = "MultiProcessing" if self._num_workers > 0 else "SingleProcess"
        self._profile_name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        if self._epoch.draws_seed is False and self._num_workers == 0:
            with self._epoch.borrowing():
                self._sampler_iter = iter(self._index_sampler)  # with what the seed was drawn from
        self._skip_yielded()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if not first_iter:
            self._keep_count()
            self._begin_epoch(loader)
            if self._epoch.draws_seed:
                with self._epoch.borrowing():
                    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        with self._epoch.borrowing(), self._epoch.drawing_iter():
            super()._reset(loader, first_iter)
        self._note_base_seed()
        self._skip_yielded()

    def await_states(self) -> None:
        """Until all that the dataset's state at the beginning of the epoch takes has come."""

    def _note_base_seed(self) -> None:
        if self._epoch.states is not None:
            self._epoch.states.base_seed = int(self._base_seed)

    def _skip_yielded(self) -> None:
        self._sampler_iter = self._remaining(self._sampler_iter, skip_items)
        self._num_yielded = self._epoch.skipped

    def _remaining(self, source: Iterator[Any], skip: _Skip) -> Iterator[Any]:
        return chain.from_iterable(self._epoch.remaining(source, skip))

    def _keep_count(self) -> None:
        epoch = self.__dict__.get("_epoch")
        if epoch is not None:
            epoch.yielded = self._num_yielded

    def _finalize(self) -> None:
        self._keep_count()

    _interrupt_later = staticmethod(interrupt_later)


class Position:
    """Where a loader stands: its latest epoch, or a loaded state that waits for iter()."""

    def __init__(
        self, number: int = 0, pending: State | None = None, is_spent: bool = False
    ) -> None:
        self.number = number  # of the next epoch
        self.random_epoch = number  # the lowest that the next epoch's random numbers may be of
        self.pending = pending
        self.is_spent = is_spent  # the pending state's epoch has no batch left
        self.current: Epoch | None = None
        self._torchs_at_loading: torch.Tensor | None = None
        self._draws_each_epoch: bool | None = None  # of the loader that saved the loaded state
        # That of persistent workers, which the next iterator replaces.
        self.kept_seed: int | None = None

    def begin(self, iterator: BaseIter) -> None:
        """iter() has given this."""
        epoch = getattr(iterator, "_epoch", None)
        if epoch is None:
            return
        self.current = epoch
        epoch.iterator = weakref.ref(iterator)
        self.number = epoch.number + 1
        self.random_epoch = epoch.random_epoch + 1
        self.pending, self.is_spent, self.kept_seed = None, False, None

    def load(self, state: State, is_spent: bool = False) -> None:
        """The next iter() goes on from `state`."""
        self.pending, self.is_spent = state, is_spent
        self._torchs_at_loading = torch.default_generator.get_state()
        self._draws_each_epoch = state["draws_each_epoch"]

    def draws_otherwise(self, loader: DataLoader[Any]) -> bool | None:
        """Whether a base seed is drawn in each epoch, where the loader that saved the loaded state
        differed from this one in that. None: it did not, or none was loaded."""
        draws = self._draws_each_epoch
        return None if draws == draws_each_epoch(loader) else draws

    def torchs_at_saving(self) -> torch.Tensor | None:
        """The state that torch's generator is to be in for the draws of a pending epoch. None: as
        it is. So it is where the program has seeded it, or drawn from it, since loading."""
        assert self.pending is not None
        saved = from_hex({TORCHS: self.pending["generators"]["now"][TORCHS]}).get(TORCHS)
        at_loading, now = self._torchs_at_loading, torch.default_generator.get_state()
        is_untouched = at_loading is not None and torch.equal(at_loading, now)
        return saved if is_untouched and not (saved is None or torch.equal(saved, now)) else None

    def restart(self, state: State) -> None:
        """The next iter() begins the epoch of `state`."""
        self.number, self.random_epoch = state["epoch"], state["random_epoch"]
        self.pending, self.is_spent, self.current = None, False, None
        self._draws_each_epoch = None

    def copy(self) -> Position:
        """For a copy of the loader, which has no iterator."""
        position = Position(self.number, self.pending, self.is_spent)
        position.random_epoch = self.random_epoch
        position._torchs_at_loading = self._torchs_at_loading
        position._draws_each_epoch = self._draws_each_epoch
        return position
