"""What decoding JPEG files has cost in this process, and in the processes that it has started:
``run`` says at its end what a cache of images would have saved.

Threads add without a lock, which a fork might find held; so a file may be lost. Imports no torch,
which a launcher need not have.
"""

from __future__ import annotations

import math
import os
from time import process_time_ns, thread_time_ns
from zlib import crc32

TYPE_CHECKING = False  # importing typing would take as long as all of this
if TYPE_CHECKING:
    from typing import Any

_BITS = 1 << 16
_LEAST_GAIN = 1.5  # of a cache that is worth a sentence
_REPEATS = 1.5  # files decoded for each file
_PIXEL_BYTES = 1.5  # of the planes of most files


class Decoded:
    """Files that a cache of images would have kept, or had no room for.

    Attributes:
        files, pixels: sums over all decodings.
        saved_ns: CPU time that reading kept planes would save.
        cpu_ns: CPU time of the processes that decode, from their first file to their last.
        marks: a bit for each file, by a hash of its path. How many are set tells how many files
            there are.
        full: why files found no room, or "".
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.files = self.pixels = self.saved_ns = self.cpu_ns = self.marks = 0
        self.full = ""
        self._first_ns = 0

    def begin(self) -> int:
        """Begin to decode a file. Return the time for ``add``."""
        self._first_ns = self._first_ns or process_time_ns()
        return thread_time_ns()

    def add(self, path: str, pixels: int, begin_ns: int, saved: float) -> None:
        """Count a file that this thread has decoded.

        Args:
            saved: the part of the time that kept planes would save.
        """
        self.files += 1
        self.pixels += pixels
        self.saved_ns += int((thread_time_ns() - begin_ns) * saved)
        self.cpu_ns = process_time_ns() - self._first_ns
        self.marks |= 1 << crc32(path.encode(errors="surrogatepass")) % _BITS

    def counts(self) -> list[Any]:
        """Return what ``merge`` takes, for JSON."""
        numbers = self.files, self.pixels, self.saved_ns, self.cpu_ns
        return [*numbers, hex(self.marks), self.full]

    def merge(self, counts: list[Any]) -> None:
        """Add the counts of another process."""
        files, pixels, saved_ns, cpu_ns, marks, full = counts
        self.files += files
        self.pixels += pixels
        self.saved_ns += saved_ns
        self.cpu_ns += cpu_ns
        self.marks |= int(marks, 16)
        self.full = self.full or full

    def describe(self) -> list[str]:
        """Return a sentence or none: that the cache is full, or what a cache would have saved, if
        files were decoded again and the cache would have room for them."""
        if self.full:
            return [self.full]
        empty = _BITS - self.marks.bit_count()
        if not self.files or not empty:
            return []
        there = _BITS * math.log(_BITS / empty)  # files
        mib = self.pixels / self.files * there * _PIXEL_BYTES / 2**20
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
        gain = self.cpu_ns / max(self.cpu_ns - self.saved_ns, 1)
        if gain < _LEAST_GAIN or self.files < _REPEATS * there or mib > memory / 2:
            return []
        told = f"with --cache, later epochs would have loaded about {gain:.1f} x as fast"
        return [f"{told}, out of {mib:,.0f} MiB of decoded JPEG files"]


decoded = Decoded()
