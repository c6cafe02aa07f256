"""What runs in a worker process: torch's own loop, over the shared memory of its iterator."""

from __future__ import annotations

import pickle
import queue
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fastloop._core import WorkerEnd, keep_heap
from fastloop.base.interrupts import end_quietly, release_in_child
from fastloop.base.torch_parts import ExceptionWrapper, Resume, StreamEnd, run_worker_loop
from fastloop.data.collate import lend, make_collate, may_borrow, open_collate
from fastloop.data.stateful import DatasetReader
from fastloop.workers.batch_pickle import OBJECT, WRITTEN, pack
from fastloop.workers.dataset_transfer import DatasetTransfer
from fastloop.workers.tasks import NO_STATE, InitialState

_OBJECTS = (ExceptionWrapper, StreamEnd)


class _Results:
    """The worker's end of the result queue.

    Args:
        reader: of a dataset that can say where it stands. Batches, errors and ends then come as
            pairs: the second is the state after them, or NO_STATE.
    """

    def __init__(
        self,
        worker_end: WorkerEnd,
        worker: int,
        has_destination: bool,
        reader: DatasetReader | None,
    ) -> None:
        self._worker_end = worker_end
        self._has_destination = has_destination
        self._where = f"in DataLoader worker process {worker}"
        self._reader = reader
        self.is_collated = False  # batches come from the C collate: fresh, plain, without cycles
        # What waits for more memory, by request, and whether it is no batch.
        self.too_large: dict[int, tuple[Any, bool]] = {}

    def put(self, item: tuple[Any, Any]) -> None:
        task, data = item
        is_object = data is None or isinstance(data, _OBJECTS)
        if self._reader is not None and isinstance(task, int):
            is_object = isinstance(data, _OBJECTS)
            data = data, self._reader.take_behind(data) or NO_STATE
        self.send(data, is_object)

    def put_initial_state(self) -> None:
        """The state before the first batch of an epoch, or why there is none."""
        assert self._reader is not None
        self.send(self._reader.fault or self._reader.dump(), is_object=True)

    def send(self, data: Any, is_object: bool = False) -> None:
        number = self._worker_end.number()
        is_written = self.is_collated and not is_object
        fits = self._worker_end.write(data, WRITTEN) if is_written else None
        if fits is None:
            fits = self._worker_end.answer(*self._pack(data, is_object))
        if not fits:
            self.too_large[number] = data, is_object

    def _pack(self, data: Any, is_object: bool) -> tuple[bytes, int, bool]:
        try:
            head, kind, host_only = pack(self._worker_end, data, self._has_destination)
        except Exception:
            if self._reader is None or not isinstance(data, tuple):
                return self._pack(self._explain(data), True)
            return self._pack((self._explain(data[0]), NO_STATE), True)
        return head, OBJECT if is_object else kind, host_only

    def _explain(self, data: Any) -> ExceptionWrapper:
        """Why it could not be pickled, as an error that can be."""
        self._worker_end.rewind()
        if not isinstance(data, ExceptionWrapper):
            return ExceptionWrapper(where=self._where)  # type: ignore[no-untyped-call]
        name = data.exc_type.__qualname__
        data.exc_msg = f"{name}, an exception that cannot be pickled\n{data.exc_msg}"
        data.exc_type = RuntimeError
        return data

    # Torch's loop calls these at its end.

    def cancel_join_thread(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Requests:
    """The worker's end of its index queue."""

    def __init__(self, worker_end: WorkerEnd, results: _Results) -> None:
        self._worker_end = worker_end
        self._results = results

    def get(self, timeout: float) -> Any:
        while True:
            request = self._worker_end.receive(timeout)
            if request is None:
                return None
            if request is False:
                raise queue.Empty
            if not isinstance(request, int):
                task = pickle.loads(request)
                if not isinstance(task, InitialState):
                    break
                self._results.put_initial_state()
                continue
            self._results.send(*self._results.too_large.pop(request))
        if isinstance(task, Resume):
            self._results.too_large.clear()
        return task


class _Done:
    """The worker's view of the event that ends all work."""

    def __init__(self, worker_end: WorkerEnd) -> None:
        self.is_set = worker_end.is_closed


def run_worker(
    transfer: DatasetTransfer,
    parent: int,
    is_interruptible: bool,
    has_destination: bool,
    has_reader: bool,
) -> None:
    """The target of a worker process.

    Args:
        transfer: torch's arguments of the loop, and where the shared memory is.
        parent: the process to serve; this one ends soon after it.
        is_interruptible: whether Ctrl-C reaches the parent's main thread; it is held back here
            until this function can end quietly.
        has_destination: the parent copies batches elsewhere, to a device say.
        has_reader: the dataset among those arguments is a DatasetReader.
    """
    try:
        release_in_child()
        keep_heap()
        arguments, address, worker = transfer.unload()
        worker_end = WorkerEnd(torch.Tensor, *address, worker)
        worker_end.watch(parent)
        reader = arguments["dataset"] if has_reader else None
        results = _Results(worker_end, worker, has_destination, reader)
        if reader is not None:
            arguments["init_fn"] = partial(reader.begin_in_worker, arguments["init_fn"])
            if not reader.is_stream:
                arguments["dataset"] = reader.dataset
        collate_fn: Callable[[Any], Any] = arguments["collate_fn"]
        found = open_collate(collate_fn, partial(make_collate, worker_end))
        if arguments["auto_collation"] and found is not None:
            collate_fn, collate = found
            results.is_collated = True
            if collate_fn is collate and may_borrow(arguments["dataset"]):
                lend(collate)
        arguments.update(
            index_queue=_Requests(worker_end, results),
            data_queue=results,
            done_event=_Done(worker_end),
            collate_fn=collate_fn,
        )
        if is_interruptible:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        run_worker_loop(**arguments)
    except KeyboardInterrupt:
        pass
    end_quietly()
