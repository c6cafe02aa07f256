"""Where the dataset of an epoch stands, in this process or in each worker, as far as its batches
are the user's: what workers have read ahead does not count.

``DatasetStates`` is one epoch's. Workers send a state behind a batch; it is kept as the bytes that
came until it is the newest of the user's, and unpickled when a loader's state is asked for.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from fastloop.data.stateful import (
    DatasetReader,
    Source,
    has_place,
    has_state,
    is_stream,
    load_source,
    new_source,
)

State = dict[str, Any]

# The keys of a loader's state that are StatefulDataLoader's: without workers the first two say
# where the dataset stands. With workers the last one does, and is there alone.
NOWHERE: State = {"dataset_state": None, "fetcher_state": None, "_snapshot": {}}
_ADVICE = "pass what state_dict() of a fastloop.DataLoader returned, unchanged"


class WorkerCountError(ValueError, AssertionError):
    """A state is of another number of workers. StatefulDataLoader asserts the number."""


class Places(NamedTuple):
    """What a loader's state says of its dataset."""

    sources: list[Source]  # of each worker, or of this process; none: nothing is known
    workers: int = 0
    last_worker: int = -1  # whose batch was yielded last
    base_seed: int | None = None  # that the workers had

    @property
    def has_states(self) -> bool:
        return any(has_state(source) for source in self.sources)

    @property
    def has_lost(self) -> bool:
        """Whether batches are to be passed over for want of a state."""
        return any(
            source["fetcher_state"]["steps"] > 0 and not source["fetcher_state"]["fetcher_ended"]
            for source in self.sources
            if source["fetcher_state"] is not None and not has_state(source)
        )


class _Worker:
    """One worker's place, or this process's."""

    def __init__(self, start: Source) -> None:
        self.state: bytes | Source = start
        # The user's batches since that state.
        self.steps: int = (start["fetcher_state"] or {"steps": 0})["steps"]
        self.yielded = 0
        self.received = 0
        self.has_begun = False
        self.end: tuple[int, bytes | None] | None = None  # after how many batches, and the state

    def take(self, state: bytes | None) -> None:
        self.yielded += 1
        self.steps += 1
        if state is not None:
            self.state, self.steps = state, 0

    def save(self, is_ahead: bool = False) -> Source:
        """Its place behind the batches that are the user's, or behind all that have come."""
        ahead = self.received - self.yielded if is_ahead else 0
        state, steps, has_ended = self.state, self.steps + ahead, False
        if self.end is not None and self.end[0] == self.yielded + ahead:
            state, has_ended = self.end[1] or state, True
            steps = steps if self.end[1] is None else 0
        source = load_source(state) if isinstance(state, bytes) else deepcopy(state)
        if source["fetcher_state"] is not None:
            source["fetcher_state"]["steps"] = steps
            source["fetcher_state"]["fetcher_ended"] |= has_ended
        return source


class DatasetStates:
    """Of one epoch.

    Args:
        loader: whose epoch it is.
        places: where the epoch goes on.
        is_over: that was the end of the epoch before this one.
    """

    def __init__(self, loader: DataLoader[Any], places: Places, is_over: bool = False) -> None:
        self.reader: DatasetReader | None = None  # in this process
        self.is_read_ahead = False
        self._noted = 0  # the last batch's number
        self._dataset = loader.dataset
        self._every: int = getattr(loader, "snapshot_every_n_steps", 1)
        self._size: int = getattr(loader._index_sampler, "batch_size", None) or 1
        self._count = loader.num_workers
        self.is_here = self._count == 0  # the dataset is in this process
        self._places = places
        self._is_over = is_over
        self.base_seed = None if is_over else places.base_seed
        self._last_worker = -1 if is_over else places.last_worker
        fresh = new_source(is_stream(loader.dataset))
        starts = places.sources if places.sources and not is_over else [fresh] * (self._count or 1)
        self._workers = [_Worker(start) for start in starts]
        self._ahead: deque[tuple[int, int, bytes | None]] = deque()
        self._before: DatasetStates | None = None

    def follow(self, before: DatasetStates) -> None:
        """The same workers go on from an epoch that these were the states of."""
        self._before, before._before = before, None

    @property
    def first_worker(self) -> int:
        """Whose turn it is at the beginning."""
        return (self._last_worker + 1) % max(self._count, 1)

    def outlive_epoch(self, has_persistent_workers: bool) -> bool:
        """Whether an epoch that has ended leaves a state to the next one: worker processes that end
        with it leave none."""
        return self.is_here or has_persistent_workers

    @property
    def wants_initial(self) -> bool:
        """Whether workers are to send the states that they begin with."""
        return self._is_over or not self._places.has_states

    def make_reader(self, worker: int = 0) -> DatasetReader:
        start = deepcopy(self._places.sources[worker]) if self._places.sources else None
        return DatasetReader(self._dataset, self._size, self._every, start, self._is_over)

    def make_successor(self, worker: int, is_resuming: bool) -> DatasetReader | None:
        """For a process in the place of one that has ended: it goes on behind all batches that have
        come of that one. None: no state says where that is.

        Args:
            is_resuming: it has yet to be told that this epoch begins.

        Raises: what state_dict() of the dataset or its iterator raised.
        """
        is_here = self._workers[worker].has_begun or not self.wants_initial
        if not is_here and self._before is None:
            return self.make_reader(worker)
        states = self if is_here or self._before is None else self._before
        source = states._workers[worker].save(is_ahead=True)
        if not has_state(source):
            return None
        is_over = not is_here and not is_resuming
        return DatasetReader(self._dataset, self._size, self._every, source, is_over)

    def can_succeed(self, worker: int) -> bool:
        """Whether a state says where the next epoch of a worker begins."""
        try:
            return has_state(self._workers[worker].save(is_ahead=True))
        except Exception:  # of the user's state_dict()
            return False

    def read_ahead(self) -> None:
        """Batches are handed out before they are the user's: in this process, too, states are to be
        taken behind each."""
        self.is_read_ahead = True
        if self.reader is not None and self.wants_initial:
            self.begin(0, self.reader.dump())

    # ---- what comes of workers

    def begin(self, worker: int, state: bytes | None) -> None:
        """The state before its first batch."""
        self._workers[worker].has_begun = True
        if state is not None:
            self._workers[worker].state = state

    def receive(self, worker: int) -> None:
        """A batch has come, which may be read ahead."""
        self._workers[worker].received += 1

    def end(self, worker: int, state: bytes | None) -> None:
        """It has no more batches than have come."""
        self._workers[worker].end = self._workers[worker].received, state

    def note(self, number: int, worker: int, state: bytes | None, yielded: int) -> None:
        """A batch is handed out.

        Args:
            number: of batches handed out in this epoch, this one included.
            state: after it, where one is due.
            yielded: how many of those are the user's already.
        """
        self._noted = number
        self._ahead.append((number, worker, state))
        self._take(yielded)

    def _take(self, yielded: int) -> None:
        while self._ahead and self._ahead[0][0] <= yielded:
            _, self._last_worker, state = self._ahead.popleft()
            self._workers[self._last_worker].take(state)

    # ---- saving

    def save(self, yielded: int) -> State:
        """The parts of a loader's state that are the dataset's.

        Raises: what state_dict() of the dataset or its iterator raised.
        """
        self._take(yielded)
        if self._count == 0:
            return {**NOWHERE, **self._save_here(yielded)}
        workers = {
            f"worker_{i}": {"worker_id": i, **worker.save()}
            for i, worker in enumerate(self._workers)
        }
        return {
            "_snapshot": {
                "_worker_snapshots": workers,
                "_last_yielded_worker_id": self._last_worker,
                "_base_seed": -1 if self.base_seed is None else self.base_seed,
            },
        }

    def _save_here(self, yielded: int) -> Source:
        if self.reader is None or yielded < self._noted:
            return self._workers[0].save()
        source = self.reader.state()
        if source["fetcher_state"] is not None and not has_state(source):
            source["fetcher_state"]["steps"] = yielded
        return source


def fresh_states(loader: DataLoader[Any]) -> State:
    """Those parts where nothing is known: the epoch begins as the dataset does."""
    return DatasetStates(loader, Places([])).save(0) if has_place(loader.dataset) else NOWHERE


# ---- loading


def _check_source(source: Any, name: str) -> Source:
    if not isinstance(source, dict) or not {"dataset_state", "fetcher_state"} <= set(source):
        raise ValueError(f"{name} is {source!r}, not the state of a worker; {_ADVICE}")
    fetcher_state = source["fetcher_state"]
    if fetcher_state is not None:
        kinds = {"fetcher_ended": bool, "steps": int}
        keys = {"dataset_iter_state", *kinds}
        is_one = isinstance(fetcher_state, dict) and set(fetcher_state) == keys
        if not is_one or not all(type(fetcher_state[key]) is kinds[key] for key in kinds):
            raise ValueError(f"{name}['fetcher_state'] is {fetcher_state!r}; {_ADVICE}")
        if fetcher_state["steps"] < 0:
            raise ValueError(f"{name} counts {fetcher_state['steps']} batches; {_ADVICE}")
    return {"dataset_state": source["dataset_state"], "fetcher_state": fetcher_state}


def states_within(state: State) -> State:
    """Those parts of a loader's state, as far as it has them. Raises ValueError if one is
    missing."""
    found = {key: state[key] for key in NOWHERE if key in state}
    missing = [key for key in NOWHERE if key not in found]
    if missing and list(found) != ["_snapshot"]:
        raise ValueError(f"state has no {missing[0]!r}; {_ADVICE}")
    return found


def without_states(state: State) -> State:
    """A loader's state without those parts."""
    return {key: value for key, value in state.items() if key not in NOWHERE}


def read_places(state: State) -> Places:
    """What a loader's state says of the dataset. Raises ValueError if that is damaged."""
    state = {**NOWHERE, **state}
    snapshot = state["_snapshot"]
    if snapshot == {}:
        source = _check_source({key: state[key] for key in list(NOWHERE)[:2]}, "state")
        is_known = source["fetcher_state"] is not None or has_state(source)
        return Places([source] if is_known else [])
    kinds = {"_worker_snapshots": dict, "_last_yielded_worker_id": int, "_base_seed": int}
    is_one = isinstance(snapshot, dict) and set(snapshot) == set(kinds)
    if not is_one or not all(type(snapshot[key]) is kind for key, kind in kinds.items()):
        raise ValueError(f"state['_snapshot'] is {snapshot!r}; {_ADVICE}")
    workers = snapshot["_worker_snapshots"]
    names = [f"worker_{i}" for i in range(len(workers))]
    last = snapshot["_last_yielded_worker_id"]
    if not snapshot["_base_seed"] < 1 << 63:
        raise ValueError(f"state['_snapshot']['_base_seed'] is {snapshot['_base_seed']}; {_ADVICE}")
    if not workers or set(workers) != set(names) or not -1 <= last < len(workers):
        raise ValueError(
            f"state['_snapshot'] has {sorted(workers)} and last {last}: a worker is missing; "
            f"{_ADVICE}"
        )
    sources = [_check_source(workers[name], f"state of {name}") for name in names]
    seed = snapshot["_base_seed"]
    return Places(sources, len(workers), last, None if seed < 0 else seed)


def _is_known(source: Source) -> bool:
    fetcher_state = source["fetcher_state"] or {"fetcher_ended": False, "steps": 0}
    return has_state(source) or fetcher_state["fetcher_ended"] or fetcher_state["steps"] > 0


def fit_places(loader: DataLoader[Any], places: Places) -> Places:
    """The places for the workers that this loader has.

    Raises:
        WorkerCountError: the number of workers is another, and the dataset cannot tell what each
            is to read.
        ValueError: they are of a dataset of the other style.
    """
    style = is_stream(loader.dataset)
    if any((source["fetcher_state"] is not None) != style for source in places.sources):
        raise ValueError(
            f"the state is {'not ' if style else ''}of an IterableDataset, and the loader's "
            f"dataset ({type(loader.dataset).__name__}) is {'' if style else 'not '}one; {_ADVICE}"
        )
    if places.workers == loader.num_workers:
        return places
    if not any(map(_is_known, places.sources)):
        return Places([])
    dataset: Any = loader.dataset
    what = (
        f"the state is of a loader with num_workers={places.workers}, and this one has "
        f"num_workers={loader.num_workers}"
    )
    reshard = getattr(dataset, "reshard_state_dict", None)
    if not callable(reshard):
        raise WorkerCountError(
            f"{what}: each worker's part of the dataset has a state of its own; make the loader "
            f"with num_workers={places.workers}, or give {type(dataset).__name__} a method "
            "reshard_state_dict(states, num_workers)"
        )
    states = [source["dataset_state"] for source in places.sources]
    steps = [(source["fetcher_state"] or {}).get("steps", 0) for source in places.sources]
    if any(state is None for state in states) or any(steps):
        raise WorkerCountError(
            f"{what}: reshard_state_dict() takes states of the dataset itself, after each batch "
            "(snapshot_every_n_steps=1)"
        )
    count = max(loader.num_workers, 1)
    new = reshard(states, count)
    if not isinstance(new, list) or len(new) != count:
        raise ValueError(
            f"reshard_state_dict() of {type(dataset).__name__} returned {new!r}, not a list of "
            f"{count} states"
        )
    sources = [new_source(is_stream(dataset), state) for state in new]
    return Places(sources, loader.num_workers)
