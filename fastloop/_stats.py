"""What a loader has done so far, as a small value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderStats:
    """Counts since the loader was made, over all of its iterators.

    Attributes:
        path: how batches are made now: ``"array"`` (C, no Python per sample) or ``"torch"``.
        why: why that path.
        batches: batches given to the user.
        samples: samples in them; None on the torch path, which does not count them.
        bytes: bytes of their memory, alignment included; None on the torch path.
        waits: how often ``next()`` had to block, or to make the batch itself (num_workers=0).
        seconds_waited: seconds spent so.
        slots_lent: blocks of batch memory whose tensors are alive now.
        slots_replaced: blocks made because more than usual were held by the user.
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

    def __repr__(self) -> str:
        made = f"{self.batches:,} batches"
        if self.samples is not None and self.bytes is not None:
            made += f", {self.samples:,} samples, {self.bytes / 1e6:,.1f} MB"
        return (
            f"LoaderStats(path={self.path!r}: {self.why}; {made}; "
            f"waited {self.waits:,} times, {self.seconds_waited:.3f} s; "
            f"slots: {self.slots_lent} lent, {self.slots_replaced} replaced)"
        )
