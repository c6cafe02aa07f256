"""How one process reads a dataset that can say where it stands, after torchdata's protocol:
``state_dict()`` and ``load_state_dict()`` of the dataset, of the iterator that it gives, or both.

A *source* is such a state as torchdata's loader keeps it for a worker: ``dataset_state``, and of an
IterableDataset ``fetcher_state`` with the iterator's state and whether the iterator has ended. The
batches read since that state, ``steps``, are ours.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info

from fastloop.base.torch_parts import ExceptionWrapper, StreamEnd

Source = dict[str, Any]


def is_stateful(thing: object) -> bool:
    """Whether it follows torchdata's protocol."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def is_stream(dataset: object) -> bool:
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)


def has_place(dataset: object) -> bool:
    """Whether where a dataset stands is noted with its batches."""
    return is_stream(dataset) or is_stateful(dataset)


def new_source(is_stream: bool, dataset_state: Any = None) -> Source:
    fetcher_state = {"dataset_iter_state": None, "fetcher_ended": False, "steps": 0}
    return {"dataset_state": dataset_state, "fetcher_state": fetcher_state if is_stream else None}


def has_state(source: Source) -> bool:
    fetcher_state = source["fetcher_state"] or {}
    states = source["dataset_state"], fetcher_state.get("dataset_iter_state")
    return any(state is not None for state in states)


def _load_into(thing: Any, state: Any, what: str) -> None:
    if not is_stateful(thing):
        raise ValueError(
            f"the loaded state has one of {what}, but {type(thing).__name__} has no "
            "load_state_dict(); load it into a loader of the same dataset"
        )
    thing.load_state_dict(state)


class _Begun:
    """An iterator, for itertools, which ask for one: iter() of the user's may begin anew."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


class DatasetReader:
    """A dataset, where it goes on, and its state after each batch. torch's fetcher takes this in
    the place of an IterableDataset and sees the same samples.

    Args:
        dataset: of either style.
        size: samples in a batch.
        every: of an IterableDataset, batches from one state that ``take`` gives to the next; 0:
            there is none.
        start: where the first epoch begins; None: at the dataset's own beginning.
        is_over: that epoch has ended, and the first one here is the next.
    """

    def __init__(
        self,
        dataset: Any,
        size: int,
        every: int = 1,
        start: Source | None = None,
        is_over: bool = False,
    ) -> None:
        self.dataset = dataset
        self.is_ended = False
        self.fault: ExceptionWrapper | None = None  # of a worker that could not begin
        self._size = size
        self.is_stream = is_stream(dataset)
        self._every = every if self.is_stream else 1
        self._start = start
        self._is_over = is_over
        self._iterator: Any = None  # over an IterableDataset
        self._steps = 0  # since the last state was taken

    # ---- where reading begins

    def begin_in_worker(self, init: Callable[[int], object] | None, worker: int) -> None:
        """The worker_init_fn of a worker: the user's, who is to find the dataset itself, comes
        before any state is loaded."""
        object.__setattr__(get_worker_info(), "dataset", self.dataset)
        with self._noting_fault():
            if init is not None:
                init(worker)
            if not self.is_stream:
                self.load_dataset()

    @contextmanager
    def _noting_fault(self) -> Iterator[None]:
        """An error in a worker, as torch's worker tells it with its first batch."""
        try:
            yield
        except Exception:
            if (info := get_worker_info()) is not None:
                where = f"in DataLoader worker process {info.id}"
                self.fault = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            raise

    def load_dataset(self) -> None:
        """Of a map-style dataset this is all there is to load."""
        if self._start is not None and self._start["dataset_state"] is not None:
            _load_into(self.dataset, self._start["dataset_state"], "the dataset")

    def __iter__(self) -> Iterator[Any]:
        """torch's fetcher begins an epoch."""
        self._steps, self.is_ended, self.fault = 0, False, None
        with self._noting_fault():
            self.load_dataset()
            start, self._start = self._start, None
            self._iterator = iter(self.dataset)
            if start is not None:
                self._go_on(start)
        return iter(()) if self.is_ended else chain(_Begun(self._iterator), self._note_end())

    def _go_on(self, start: Source) -> None:
        fetcher_state = start["fetcher_state"]
        state = fetcher_state["dataset_iter_state"]
        if state is not None:
            _load_into(self._iterator, state, "the dataset's iterator")
        if self._is_over:
            if state is not None:
                self._iterator = iter(self.dataset)
            return
        self._steps = fetcher_state["steps"]
        self.is_ended = fetcher_state["fetcher_ended"]
        wanted = 0 if self.is_ended else self._steps * self._size
        passed = sum(1 for _ in islice(_Begun(self._iterator), min(wanted, sys.maxsize)))
        if passed <= wanted - self._size:
            raise ValueError(
                f"the state counts {self._steps} batches of {self._size} to pass over, but the "
                f"dataset ({type(self.dataset).__name__}) ended after {passed} samples; load it "
                "into a loader of the same data"
            )
        self.is_ended = self.is_ended or passed < wanted

    def _note_end(self) -> Iterator[Any]:
        """Stands behind the dataset's iterator, and so is asked when that one has ended."""
        self.is_ended = True
        yield from ()

    # ---- states

    @property
    def is_stateful(self) -> bool:
        return is_stateful(self.dataset) or is_stateful(self._iterator)

    def state(self) -> Source:
        """Now, with what the user's objects return as it is."""
        source = new_source(self.is_stream)
        if self.is_stream:
            source["fetcher_state"]["fetcher_ended"] = self.is_ended
        if is_stateful(self._iterator):
            source["fetcher_state"]["dataset_iter_state"] = self._iterator.state_dict()
        if is_stateful(self.dataset) and self._iterator is not self.dataset:
            source["dataset_state"] = self.dataset.state_dict()
        return source

    def dump(self) -> bytes | None:
        """The state now, pickled; an error if the user's code raises one; None: there is none."""
        if not self.is_stateful:
            return None
        try:
            return pickle.dumps(self.state(), pickle.HIGHEST_PROTOCOL)
        except Exception:
            where = f"in state_dict() of the dataset ({type(self.dataset).__name__})"
            error = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        try:
            return pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        except Exception:  # of a class that cannot be pickled
            error.exc_msg = f"{error.exc_type.__qualname__}\n{error.exc_msg}"
            error.exc_type = RuntimeError
            return pickle.dumps(error, pickle.HIGHEST_PROTOCOL)

    def take(self) -> bytes | None:
        """After a batch: the state, if one is due."""
        self._steps += 1
        if self._every == 0 or self._steps < self._every:
            return None
        self._steps = 0
        return self.dump()

    def take_behind(self, data: Any) -> bytes | None:
        """The state behind what torch's worker has made, if one is due: a batch, an error or the
        end."""
        if isinstance(data, ExceptionWrapper):
            return None
        is_end = isinstance(data, StreamEnd)
        return self.dump() if is_end else self.take()


def load_source(dumped: bytes) -> Source:
    """What ``DatasetReader.dump`` gave. Raises the error of the user's code, if that is it."""
    source = pickle.loads(dumped)
    if isinstance(source, ExceptionWrapper):
        source.reraise()  # type: ignore[no-untyped-call]
    loaded: Source = source
    return loaded
