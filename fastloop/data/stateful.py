"""Datasets that can report their position, by torchdata's protocol: ``state_dict()`` and
``load_state_dict()`` of the dataset, of its iterator, or of both.

``DatasetReader`` reads such a dataset in one process. ``DatasetStates`` has the positions of all
readers in one epoch, as the loader's process knows them: batches that were read ahead do not count.
Workers send a state after a batch, and the state stays pickled until a loader's state is asked for.

A *reader state* has the same parts as torchdata's state of a worker: ``dataset_state`` and, for an
IterableDataset, ``fetcher_state`` with the iterator's state and whether the iterator has ended.
fastloop adds ``steps``, the batches read since these states.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, get_worker_info

from fastloop.base.checks import look_up, make_message
from fastloop.compat.torch_parts import ExceptionWrapper, StreamEnd

ReaderState = dict[str, Any]


def is_stateful(thing: object) -> bool:
    """Tell whether `thing` follows torchdata's protocol."""
    return all(callable(look_up(thing, name)) for name in ("state_dict", "load_state_dict"))


def is_stream(dataset: object) -> bool:
    """Tell whether `dataset` is read by its iterator, and is not a data pipe."""
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)


def has_cursor(dataset: object) -> bool:
    """Tell whether the position of a dataset is noted with its batches. The state of a dataset
    whose samples are a function of the index says what the dataset is, and not a position."""
    return is_stream(dataset) or (is_stateful(dataset) and look_up(dataset, "_has_cursor", True))


def new_reader_state(is_stream: bool, dataset_state: Any = None) -> ReaderState:
    """Return the state of a reader that begins at the position of `dataset_state`."""
    fetcher_state = {"dataset_iter_state": None, "fetcher_ended": False, "steps": 0}
    return {"dataset_state": dataset_state, "fetcher_state": fetcher_state if is_stream else None}


def fetcher_state_of(state: ReaderState) -> dict[str, Any]:
    """Return the state of the dataset's iterator; for a map-style dataset a new state."""
    found: dict[str, Any] = state["fetcher_state"] or new_reader_state(True)["fetcher_state"]
    return found


def has_state(state: ReaderState) -> bool:
    """Tell whether the dataset or its iterator has given a state."""
    states = state["dataset_state"], fetcher_state_of(state)["dataset_iter_state"]
    return any(part is not None for part in states)


def _load_into(thing: Any, state: Any, name: str) -> None:
    if not is_stateful(thing):
        kind = type(thing).__name__
        text = f"the state has a part for {name}, but {kind} has no load_state_dict()"
        raise ValueError(f"{text}; pass the dataset of the saved run")
    thing.load_state_dict(state)


def _samples(iterator: Iterator[Any]) -> Iterator[Any]:
    # `for sample in iterator` would call iter(), and a user's iterator may then begin anew.
    return map(next, repeat(iterator))


# ---- in the process that reads the dataset


class DatasetReader:
    """A dataset, the position from which it is read, and its state after each batch. torch's
    fetcher takes a reader in place of an IterableDataset and sees the same samples.

    Args:
        dataset: a dataset of either style.
        size: samples in a batch.
        every: for an IterableDataset, ``state_after`` returns a state after every so many batches;
            0: never.
        start: the state from which the first epoch begins; None: the dataset's own beginning.
        is_over: the epoch of `start` has ended, and the first epoch here is the next one.
    """

    def __init__(
        self, dataset: Any, size: int, every: int, start: ReaderState | None, is_over: bool
    ) -> None:
        self.dataset = dataset
        self.is_ended = False
        self.fault: ExceptionWrapper | None = None  # the error of a worker that could not begin
        self._size = size
        self.is_stream = is_stream(dataset)
        self._every = every if self.is_stream else 1
        self._start = start
        self._is_over = is_over
        self._iterator: Any = None  # the iterator of an IterableDataset
        self._steps = 0  # batches since the last state was taken

    # ---- the beginning of reading

    def begin_in_worker(self, init: Callable[[int], object] | None, worker: int) -> None:
        """Begin in a worker process, as its worker_init_fn. `init`, the user's function, runs
        before any state is loaded, and sees the dataset itself."""
        object.__setattr__(get_worker_info(), "dataset", self.dataset)
        with self._noting_fault():
            if init is not None:
                init(worker)
            if not self.is_stream:
                self.load_dataset()

    @contextmanager
    def _noting_fault(self) -> Iterator[None]:
        """Keep an error of a worker process. torch's worker reports it with its first batch."""
        try:
            yield
        except Exception:
            if (info := get_worker_info()) is not None:
                where = f"in DataLoader worker process {info.id}"
                self.fault = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            raise

    def load_dataset(self) -> None:
        """Load the dataset's own state. A map-style dataset has no further state."""
        if self._start is not None and self._start["dataset_state"] is not None:
            _load_into(self.dataset, self._start["dataset_state"], "the dataset")

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. torch's fetcher calls this method."""
        self._steps, self.is_ended, self.fault = 0, False, None
        with self._noting_fault():
            self.load_dataset()
            start, self._start = self._start, None
            self._iterator = iter(self.dataset)
            if start is not None:
                self._go_on(start["fetcher_state"])
        return iter(()) if self.is_ended else chain(_samples(self._iterator), self._note_end())

    def _go_on(self, start: dict[str, Any]) -> None:
        state = start["dataset_iter_state"]
        if state is not None:
            _load_into(self._iterator, state, "the dataset's iterator")
        if self._is_over:
            if state is not None:
                self._iterator = iter(self.dataset)
            return
        self._steps = start["steps"]
        self.is_ended = start["fetcher_ended"]
        wanted = 0 if self.is_ended else self._steps * self._size
        passed = sum(1 for _ in islice(_samples(self._iterator), wanted))
        if passed <= wanted - self._size:
            text = f"the state counts {self._steps} batches of {self._size} to pass over, but the"
            text = f"{text} {type(self.dataset).__name__} ended after {passed} samples"
            raise ValueError(f"{text}; pass the dataset of the saved run, or do not load the state")
        self.is_ended = self.is_ended or passed < wanted

    def _note_end(self) -> Iterator[Any]:
        # This generator is chained after the dataset's iterator, so it runs at the iterator's end.
        self.is_ended = True
        yield from ()

    # ---- states

    def state(self) -> ReaderState:
        """Return the state now, with the user's objects as they were returned."""
        state = new_reader_state(self.is_stream)
        if self.is_stream:
            state["fetcher_state"]["fetcher_ended"] = self.is_ended
        if is_stateful(self._iterator):
            state["fetcher_state"]["dataset_iter_state"] = self._iterator.state_dict()
        if is_stateful(self.dataset) and self._iterator is not self.dataset:
            state["dataset_state"] = self.dataset.state_dict()
        return state

    def dump(self) -> bytes | None:
        """Return the pickled state now, or the pickled error that the user's code raised; None if
        neither the dataset nor its iterator has a state."""
        if not (is_stateful(self.dataset) or is_stateful(self._iterator)):
            return None
        try:
            return pickle.dumps(self.state(), 5)
        except Exception:
            where = f"in state_dict() of the dataset ({type(self.dataset).__name__})"
            return pickle.dumps(ExceptionWrapper(where=where), 5)  # type: ignore[no-untyped-call]

    def state_after(self, data: Any) -> bytes | None:
        """Return the state after a batch, an error or the end, if one is due."""
        if isinstance(data, ExceptionWrapper):
            return None
        self._steps += 1
        if not (0 < self._every <= self._steps or isinstance(data, StreamEnd)):
            return None
        self._steps = 0
        return self.dump()


# ---- in the loader's process


class ReaderStates(NamedTuple):
    """The part of a loader's state that concerns its dataset."""

    readers: Sequence[ReaderState] = ()  # one a worker, or this process's; (): nothing is known
    workers: int = 0
    last_worker: int = -1  # the worker whose batch was yielded last
    base_seed: int = -1  # the seed of the workers; -1: unknown
    ranks: int = 0  # readers are of this many saved ranks, in order; 0: of this rank

    @property
    def has_states(self) -> bool:
        """True if any reader has a state of its dataset."""
        return any(map(has_state, self.readers))

    @property
    def has_lost(self) -> bool:
        """True if samples must be read again, because no state has the position."""
        fetchers = [fetcher_state_of(state) for state in self.readers if not has_state(state)]
        return any(state["steps"] > 0 and not state["fetcher_ended"] for state in fetchers)


class _Cursor:
    """The position of one reader: after the batches that the loop has."""

    def __init__(self, start: ReaderState) -> None:
        self.state: bytes | ReaderState = start
        self.steps: int = fetcher_state_of(start)["steps"]  # batches yielded since that state
        self.yielded = 0
        self.received = 0
        self.has_begun = False
        self.end: tuple[int, bytes | None] | None = None  # the number of batches, and the state

    def take(self, state: bytes | None) -> None:
        self.yielded += 1
        self.steps += 1
        if state is not None:
            self.state, self.steps = state, 0

    def save(self, is_ahead: bool = False) -> ReaderState:
        """Return the state after the batches yielded, or after all that have arrived. If the user's
        code raised, the state holds the error, which is raised here."""
        ahead = self.received - self.yielded if is_ahead else 0
        state, steps, has_ended = self.state, self.steps + ahead, False
        if self.end is not None and self.end[0] == self.yielded + ahead:
            state, has_ended = self.end[1] or state, True
            steps = steps if self.end[1] is None else 0
        saved: Any = pickle.loads(state) if isinstance(state, bytes) else deepcopy(state)
        if isinstance(saved, ExceptionWrapper):
            saved.reraise()  # type: ignore[no-untyped-call]
        if saved["fetcher_state"] is not None:
            saved["fetcher_state"]["steps"] = steps
            saved["fetcher_state"]["fetcher_ended"] |= has_ended
        return saved  # type: ignore[no-any-return]


class DatasetStates:
    """The states of a dataset's readers in one epoch. The states outlive the loader's iterator.

    Args:
        loader: the loader whose epoch it is.
        start: the states from which the epoch continues.
        is_over: `start` is the end of the previous epoch.
    """

    def __init__(self, loader: DataLoader[Any], start: ReaderStates, is_over: bool = False) -> None:
        self.reader: DatasetReader | None = None  # if this process reads the dataset
        self.is_read_ahead = False
        self._dataset = loader.dataset
        self._every: int = look_up(loader, "snapshot_every_n_steps", 1)
        self._size: int = look_up(loader._index_sampler, "batch_size") or 1
        self._count = loader.num_workers
        self.is_here = self._count == 0  # the dataset is read in this process
        self._start = start
        self._is_over = is_over
        shown = ReaderStates() if is_over else start
        self.base_seed, self._last_worker = shown.base_seed, shown.last_worker
        new = new_reader_state(is_stream(loader.dataset))
        self._cursors = [_Cursor(state) for state in shown.readers or [new] * (self._count or 1)]
        self._ahead: deque[tuple[int, int, bytes | None]] = deque()
        self._before: DatasetStates | None = None

    def follow(self, before: DatasetStates) -> None:
        """Note the states of the previous epoch, from which the same workers continue."""
        self._before, before._before = before, None

    @property
    def first_worker(self) -> int:
        """The worker that yields the first batch."""
        return (self._last_worker + 1) % max(self._count, 1)

    @property
    def wants_initial(self) -> bool:
        """True if workers send the states that they begin with."""
        return self._is_over or not self._start.has_states

    def make_reader(self, worker: int = 0) -> DatasetReader:
        """Return the reader for a worker, or for this process."""
        start = deepcopy(self._start.readers[worker]) if self._start.readers else None
        return DatasetReader(self._dataset, self._size, self._every, start, self._is_over)

    def make_successor(self, worker: int, is_resuming: bool) -> DatasetReader | None:
        """Return the reader for a process in place of a dead one. The reader continues after the
        last batch that the dead process sent. None: no state has that position.

        Args:
            is_resuming: the order to begin this epoch is unanswered, so the new process gets it.

        Raises: what state_dict() of the dataset or its iterator raised.
        """
        is_here = self._cursors[worker].has_begun or not self.wants_initial
        states = self if is_here else self._before
        if states is None:
            return self.make_reader(worker)
        state = states._cursors[worker].save(is_ahead=True)
        if not has_state(state):
            return None
        is_over = not is_here and not is_resuming
        return DatasetReader(self._dataset, self._size, self._every, state, is_over)

    def can_succeed(self, worker: int) -> bool:
        """Tell whether a state has the position at which a worker's next epoch begins."""
        try:
            return has_state(self._cursors[worker].save(is_ahead=True))
        except Exception:  # the user's state_dict() may raise
            return False

    def read_ahead(self) -> None:
        """Note that batches are read before they are yielded. This process then takes a state after
        each batch."""
        self.is_read_ahead = True
        if self.reader is not None and self.wants_initial:
            self.begin(0, self.reader.dump())

    # ---- messages from workers

    def begin(self, worker: int, state: bytes | None) -> None:
        """Note the state before a worker's first batch."""
        self._cursors[worker].has_begun = True
        if state is not None:
            self._cursors[worker].state = state

    def receive(self, worker: int) -> None:
        """Note that a batch has arrived, perhaps ahead of the loop."""
        self._cursors[worker].received += 1

    def end(self, worker: int, state: bytes | None) -> None:
        """Note a worker's last state, and that the worker will send no more batches."""
        self._cursors[worker].end = self._cursors[worker].received, state

    def note(self, number: int, worker: int, state: bytes | None, yielded: int) -> None:
        """Note that a batch is handed out.

        Args:
            number: the number of batches handed out in this epoch, including this one.
            state: the state after the batch, if one is due.
            yielded: the number of batches that the loop has taken already.
        """
        self._ahead.append((number, worker, state))
        self._take(yielded)

    def _take(self, yielded: int) -> None:
        while self._ahead and self._ahead[0][0] <= yielded:
            _, self._last_worker, state = self._ahead.popleft()
            self._cursors[self._last_worker].take(state)

    # ---- saving

    def save(self, yielded: int, is_over: bool, persistent: bool) -> ReaderStates | None:
        """Return the states after `yielded` batches. None: the epoch is over and its worker
        processes have ended, so the next epoch begins without states.

        Raises: what state_dict() of the dataset or its iterator raised.
        """
        if is_over and not (self.is_here or persistent):
            return None
        self._take(yielded)
        if self._count == 0:
            if self.reader is None or self._ahead:
                return ReaderStates([self._cursors[0].save()])
            state = self.reader.state()
            if not has_state(state):
                fetcher_state_of(state)["steps"] = yielded
            return ReaderStates([state])
        readers = [cursor.save() for cursor in self._cursors]
        return ReaderStates(readers, self._count, self._last_worker, self.base_seed)


# ---- in a loader with a different number of workers


class WorkerCountError(ValueError, AssertionError):
    """A state was saved with a different number of workers, which StatefulDataLoader asserts."""


def fit_readers(
    loader: DataLoader[Any], saved: ReaderStates, ranks: int = 1, rank: int = 0
) -> ReaderStates:
    """Return the saved states for the workers that `loader` has on this rank of several.

    Raises:
        WorkerCountError: the number of workers or ranks differs from the saved one, and the dataset
            cannot divide its states.
        ValueError: the states are of the other style of dataset.
    """
    dataset: Any = loader.dataset
    name, style, count = type(dataset).__name__, is_stream(dataset), loader.num_workers
    if any((state["fetcher_state"] is not None) != style for state in saved.readers):
        negated = ("not ", "") if style else ("", "not ")
        text = "the state is {}of an IterableDataset, and the loader's dataset ({}) is {}one"
        raise ValueError(text.format(negated[0], name, negated[1]))
    if saved.workers == count and saved.ranks == 0:
        return saved
    fetchers = [fetcher_state_of(state) for state in saved.readers]
    steps = any(state["steps"] > 0 for state in fetchers)
    if not (saved.has_states or steps or any(state["fetcher_ended"] for state in fetchers)):
        return ReaderStates()
    reshard = look_up(dataset, "reshard_state_dict")
    states = [state["dataset_state"] for state in saved.readers]
    if not callable(reshard) or steps or any(state is None for state in states):
        what, had, here = "num_workers", saved.workers, count
        if saved.ranks > 0:
            what, had, here = "the number of ranks", saved.ranks, ranks
        raise WorkerCountError(
            f"{what} must be {had}, as in the loader that saved the state, got {here} (or give "
            f"{name} a method reshard_state_dict(states, num_workers) and a state_dict() of its "
            "own, saved after each batch: snapshot_every_n_steps=1)"
        )
    own = max(count, 1)
    new = reshard(states, ranks * own)
    if not isinstance(new, list) or len(new) != ranks * own:
        rule = f"a list of {ranks * own} states"
        raise ValueError(make_message(f"the result of {name}.reshard_state_dict()", rule, new))
    new = new[rank * own : (rank + 1) * own]
    return ReaderStates([new_reader_state(style, state) for state in new], count)
