"""What a loader has done so far, as a small value."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerStats:
    """What one worker process has done.

    Attributes:
        batches: batches it has built.
        seconds_busy: seconds from a request to its answer: loading, collating, packing.
        seconds_waiting: seconds it had nothing to do.
    """

    batches: int
    seconds_busy: float
    seconds_waiting: float


@dataclass(frozen=True)
class LoaderStats:
    """Counts since the loader was made, over all of its iterators.

    Attributes:
        path: how batches are made now: ``"array"`` (C, no Python per sample), ``"process"``
            (worker processes over shared memory), ``"sync"`` (in this process) or ``"torch"``.
        why: why that path; and why torch uploads batches to a CUDA device, where it does so
            because fastloop's own uploads do not work there.
        batches: batches given to the user, or uploaded ahead for the loop.
        samples: samples in them; None where they are not counted: all paths but ``"array"``.
        bytes: bytes of their memory, alignment included; None on the sync and torch paths.
        waits: how many batches ``next()`` had to wait for. Without workers that is every one; on
            the process path replies of persistent workers to ``iter()`` count as well, and a
            batch that came out of order counts by itself.
        seconds_waited: seconds blocked in that, and no others. With workers (threads on the array
            path, which also makes what it would wait for): until the batch has arrived. It
            leaves out what is done with a batch that is there: opening, unpickling, pinning,
            uploading. Without workers: all of the making of the batch, sampler, dataset and
            collate included, but on the array path only the gathering.
        slots_lent: blocks of batch memory whose tensors are alive now.
        slots_replaced: blocks made because more than usual were held by the user.
        workers: on the process path, of each worker of the latest iterator, as far as its replies
            have been taken.
        fallbacks: leaves of batches that torch's own functions collated, by reason, by the latest
            iterator.
    """

    path: str
    why: str
    batches: int
    samples: int | None
    bytes: int | None
    waits: int
    seconds_waited: float
    slots_lent: int
    slots_replaced: int
    workers: tuple[WorkerStats, ...] = ()
    fallbacks: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        made = f"{self.batches:,} batches"
        if self.samples is not None:
            made += f", {self.samples:,} samples"
        if self.bytes is not None:
            made += f", {self.bytes / 1e6:,.1f} MB"
        text = (
            f"LoaderStats(path={self.path!r}: {self.why}; {made}; "
            f"waited {self.waits:,} times, {self.seconds_waited:.3f} s; "
            f"slots: {self.slots_lent} lent, {self.slots_replaced} replaced"
        )
        for number, worker in enumerate(self.workers):
            text += (
                f"; worker {number}: {worker.batches:,} batches, {worker.seconds_busy:.3f} s busy, "
                f"{worker.seconds_waiting:.3f} s waiting"
            )
        for reason, count in self.fallbacks.items():
            text += f"; {count:,} fallbacks to torch's collate: {reason}"
        return text + ")"
