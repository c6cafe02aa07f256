"""The code of a worker process: torch's own loop, over the shared memory of its iterator."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import queue
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastloop._core import WorkerEnd, keep_heap
from fastloop.base.interrupts import end_quietly, release_in_child
from fastloop.compat.counts import has_parent
from fastloop.compat.torch_parts import (
    ExceptionWrapper,
    Resume,
    StreamEnd,
    forms_of,
    run_worker_loop,
)
from fastloop.data.collate import Collation, Fetch, fetch, lend, make_collate
from fastloop.data.columns import adapters
from fastloop.data.stateful import DatasetReader
from fastloop.loader.workers.batch_pickle import NO_STATE, OBJECT, WRITTEN, Order, pack

_CHANNELS = ("index_queue", "data_queue", "done_event")
_OBJECTS = (ExceptionWrapper, StreamEnd)
# Asks a worker for its stack. Processes that have not registered for the signal ignore it.
STACK_SIGNAL = signal.SIGURG


class _Claims:
    """The work of one process on a batch that all processes share, some rows at a time.

    Args:
        number, indices: the batch's.
        where: its place in shared memory (``ParentEnd.stage``), the bytes of a row, and the shares
            in which the open rows are claimed.
    """

    def __init__(
        self, worker_end: WorkerEnd, number: int, indices: list[Any], where: tuple[int, int, int]
    ) -> None:
        self._worker_end, self._where = worker_end, where
        self._number, self._indices = number, indices
        self._claimed = 0, 0, 0  # the first row, the number of rows, and their address
        self.made: list[tuple[int, Any, Any, list[Any]]] = []  # for dealt.py

    def claim(self) -> tuple[int, list[Any]] | None:
        """Return a task for torch's loop, with a negative number; None if no row is left."""
        offset, row_bytes, shares = self._where
        claimed = self._worker_end.claim(offset, len(self._indices), row_bytes, shares)
        if claimed is None:
            return None
        self._claimed = first, count, _ = claimed
        return ~self._number, self._indices[first : first + count]

    def note(self, data: Any) -> bool:
        """Note the batch of the claimed rows. False: its first field does not lie in these rows."""
        first, _, address = self._claimed
        stack = data[0] if type(data) is list and data else None
        if type(stack) is not torch.Tensor or stack.data_ptr() != address:
            return False
        self.made.append((first, stack.dtype, stack.shape, data[1:]))
        return True


class _Channel:
    """The worker's end of the channel, with the methods of its two queues and of the closing event
    that torch's loop calls.

    Args:
        reader: reads a dataset that can report its position. Batches, errors and ends are then sent
            as pairs: the second item is the state after the first, or NO_STATE.
    """

    def __init__(
        self, worker_end: WorkerEnd, has_destination: bool, reader: DatasetReader | None
    ) -> None:
        self.is_set = worker_end.is_closed  # the method of the event
        self._worker_end = worker_end
        self._has_destination = has_destination
        self._reader = reader
        self.is_beginning = False  # a worker_init_fn runs or has raised
        self.is_collated = False  # fastloop collates batches: fresh, plain, without cycles
        # The random states before the batches that were read ahead.
        self._states: tuple[Any, Any, torch.Tensor] | None = None
        self._claims: _Claims | None = None  # while it claims rows of a shared batch
        # By request: data that wait for more memory, and whether the data are not a batch.
        self._too_large: dict[int, tuple[Any, bool]] = {}

    def begin(self, init: Callable[[int], object], worker: int) -> None:
        """Call a worker_init_fn. torch's loop sends its error instead of the first batch."""
        self.is_beginning = True
        init(worker)
        self.is_beginning = False

    def get(self, timeout: float) -> Any:
        """Return the next task for torch's loop. Answer fastloop's own requests meanwhile."""
        while True:
            if self._claims is not None:
                claimed = self._claims.claim()
                if claimed is not None:
                    return claimed
                self._end_claims(self._claims.made)
            request = self._worker_end.receive(timeout)
            if request is None:
                return None
            if request is False:
                raise queue.Empty
            if isinstance(request, int):
                self._send(*self._too_large.pop(request))
                continue
            task = pickle.loads(request)
            if isinstance(task, tuple) and len(task) > 2:
                self._claims = _Claims(self._worker_end, *task)
                continue
            if isinstance(task, Order) and task.generators == "keep":
                self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()
                return Resume()
            if isinstance(task, Order) and task.generators == "restore":
                self._restore()
                task = Resume()
            if isinstance(task, Order):
                assert self._reader is not None
                self._send(self._reader.fault or self._reader.dump(), is_object=True)
                continue
            if isinstance(task, Resume):
                self._too_large.clear()
            return task

    def _restore(self) -> None:
        """Put the random states back, because the batches that were read ahead are dropped. The
        successor of a dead worker has no such states."""
        if self._states is not None:
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
            torch.set_rng_state(self._states[2])

    def put(self, item: tuple[Any, Any]) -> None:
        """Send the answer of torch's loop to a task."""
        task, data = item
        is_batch = isinstance(task, int)  # else torch's order to begin an epoch
        is_part = is_batch and task < 0  # of a dealt batch
        is_object = is_part or not is_batch or isinstance(data, _OBJECTS)
        if self.is_beginning and is_batch:
            data.is_of_init, self.is_beginning = True, False
        if self._claims is not None and is_part:
            if not self._claims.note(data):
                self._end_claims(data if isinstance(data, ExceptionWrapper) else None)
            return
        if self._reader is not None and is_batch:
            data = data, self._reader.state_after(data) or NO_STATE
        self._send(data, is_object)

    def _end_claims(self, answer: Any) -> None:
        """Answer a request for rows by what was made, an error, or None if rows lie elsewhere."""
        self._claims = None
        self._send(answer, is_object=True)
        # The loop waits for this batch. If all CPUs are busy, the kernel may let this process run
        # on for milliseconds.
        os.sched_yield()

    def _send(self, data: Any, is_object: bool) -> None:
        number = self._worker_end.number()
        is_written = self.is_collated and not is_object
        fits = self._worker_end.write(data, WRITTEN) if is_written else None
        if fits is None:
            fits = self._worker_end.answer(*self._pack(data, is_object))
        if not fits:
            self._too_large[number] = data, is_object

    def _pack(self, data: Any, is_object: bool) -> tuple[bytes, int, bool]:
        try:
            head, kind, host_only = pack(self._worker_end, data, self._has_destination)
        except Exception:
            if self._reader is None or not isinstance(data, tuple):
                return self._pack(self._explain(data), True)
            return self._pack((self._explain(data[0]), NO_STATE), True)
        return head, OBJECT if is_object else kind, host_only

    def _explain(self, data: Any) -> ExceptionWrapper:
        """Return the reason why `data` could not be pickled, as an error that can be pickled."""
        self._worker_end.rewind()
        if not isinstance(data, ExceptionWrapper):
            info: Any = get_worker_info()
            where = f"in DataLoader worker process {info.id}"
            return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        name = data.exc_type.__qualname__
        data.exc_msg = f"{name}, an exception that cannot be pickled\n{data.exc_msg}"
        data.exc_type = RuntimeError
        return data

    def close(self) -> None:
        """Do nothing: torch's loop closes its queue at its end."""

    cancel_join_thread = close


def run_worker(
    transfer: Any,
    parent: int,
    is_interruptible: bool,
    has_destination: bool,
    is_served: bool,
    digests: Any,
) -> None:
    """Run a worker process. This function is the target of the process.

    Args:
        transfer: torch's arguments of the loop, the address of the shared memory, and the file for
            stacks.
        parent: the process to serve. If the parent ends, this process ends soon after.
        is_interruptible: whether Ctrl-C reaches the parent's main thread. SIGINT is held back here
            until this function can end quietly.
        has_destination: the parent copies batches elsewhere, for example to a device.
        is_served: see ``Fetch``.
        digests: the digests of other libraries' functions, from the parent.
    """
    try:
        release_in_child()
        forms_of.update(digests)
        if has_parent():
            from fastloop.compat.seams import hand_over_at_end

            hand_over_at_end()
        # A spawned process has no seam yet. A forked one has its parent's value for this thread.
        Fetch.is_served = fetch.is_served = is_served and adapters().serve_fetches()
        keep_heap(True)
        # A collection of all that torch has made takes 0.2 s, and copies the pages of a fork. If it
        # is due in the parent, each worker of each epoch would do it.
        gc.freeze()
        arguments, address, stacks = transfer.contents
        if stacks >= 0:
            faulthandler.register(STACK_SIGNAL, stacks, all_threads=False)
        worker_end = WorkerEnd(torch.Tensor, *[*address, arguments["worker_id"]])
        worker_end.watch(parent)
        dataset = arguments["dataset"]
        reader = dataset if isinstance(dataset, DatasetReader) else None
        channel = _Channel(worker_end, has_destination, reader)
        if reader is not None:
            arguments["init_fn"] = partial(reader.begin_in_worker, arguments["init_fn"])
            if not reader.is_stream:
                arguments["dataset"] = reader.dataset
        if arguments["init_fn"] is not None:
            arguments["init_fn"] = partial(channel.begin, arguments["init_fn"])
        found = arguments["dataset"], arguments["collate_fn"], arguments["auto_collation"]
        collation = Collation(*found, partial(make_collate, worker_end))
        arguments["collate_fn"] = collation.function
        channel.is_collated = collation.core is not None
        lend(collation.lender)
        if is_interruptible:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        run_worker_loop(arguments | dict.fromkeys(_CHANNELS, channel))
    except KeyboardInterrupt:
        pass
    end_quietly()
