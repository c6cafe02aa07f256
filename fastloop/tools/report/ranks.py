"""Ranks: compares the ranks of a training while the training runs, and names the slowest rank.

Each rank sends its totals in a datagram (UDP) to port MASTER_PORT of MASTER_ADDR. On rank 0 the
port is free, because the store of torch.distributed, on the same machine, uses the port for TCP.
Sending and receiving never block, and there is no thread and no collective, so no rank ever waits
for a rank, dead or alive. Totals only grow, so a lost datagram costs nothing. Whoever reaches the
port can change what rank 0 says about ranks, and nothing else.

The thread that trains calls everything here, between two steps.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Any, NamedTuple

import torch.distributed as dist

from fastloop.base.checks import look_up
from fastloop.tools.report.observer import NEVER
from fastloop.tools.report.summary import COMPUTES, WARM_UP
from fastloop.tools.text import percent

_EVERY_NS = 500_000_000
_OPEN_NS = 5_000_000_000  # until the program trains with ranks: a look costs as much as a step
_WINDOW_NS = 10_000_000_000
_MIN_STEPS = 10
_LAG = 0.1  # a rank that loses a smaller share of each step than the other ranks is not named
_FORM, _MAGIC = struct.Struct("!8sII9q"), b"fastloop"
_LOSSES = {
    "delayed": "has no CPU for",
    "waited": "waits for data",
    "after": "runs your other code for",
    "computed": "runs forward and backward for",
}


class RankTotals(NamedTuple):
    """Numbers of a rank that only grow. Times are ns of the thread that trains.

    Attributes:
        elapsed: the time of the report.
        steps, in_steps: the number of steps, and their time.
        waited: the time in which steps waited for data.
        delayed: the time in which the thread was ready to run and had no CPU.
        after: the time after the last update of each step.
        loading: the time to make batches, as far as that was watched.
        computing: the part of ``loading`` in which a CPU was used or wanted.
        computed: the time from each batch to the last gradient of its backward(); on CUDA the time
            of the device.
    """

    elapsed: int
    steps: int
    in_steps: int
    waited: int
    delayed: int
    after: int
    loading: int
    computing: int
    computed: int

    def share(self, name: str) -> float:
        """Return the share of the steps' time, or of all time if steps are not told apart."""
        whole = self.elapsed if name == "delayed" else self.in_steps
        return float(getattr(self, name) / max(whole, 1))

    def since(self, before: RankTotals) -> RankTotals:
        return RankTotals(*(b - a for a, b in zip(before, self, strict=True)))


_Table = dict[int, RankTotals]  # by rank


class Comparison(NamedTuple):
    """The result of ``Ranks.compare()``; empty on all ranks but rank 0.

    Attributes:
        waits: the share of a step in which each rank waits for data.
        slowest: the rank that loses most; None if ranks differ little.
        text: what the slowest rank does, in words.
    """

    waits: dict[int, float]
    slowest: int | None = None
    text: str = ""


class Ranks:
    """The ranks, as far as one report knows them.

    Attributes:
        due: the time of the next ``exchange()``, in ns.
    """

    _process = 0  # the process whose report compares: a second report would mix up totals

    def __init__(self, observer: Any) -> None:
        self._observer = observer
        self._socket: Any = None
        self._address: Any = None  # of rank 0
        self.due = self._rank = self._world = self._turn = 0
        self._hooks: list[Any] = []  # of parameters
        self._latest: _Table = {}
        self._warm: _Table = {}  # when a rank was first heard after its warm-up
        self._middle: _Table = {}  # at the beginning of the window
        self._before: _Table = {}  # at the beginning of the window before

    def exchange(self, now: int) -> None:
        """Send this rank's totals. On rank 0, receive the totals of the other ranks instead."""
        self.due = now + _OPEN_NS
        if self._socket is None and not self._open():
            return
        self.due = now + _EVERY_NS
        own = self._read()
        with suppress(OSError):  # rank 0 is gone, or nothing more has come
            if self._rank > 0:
                form = _FORM.pack(_MAGIC, self._rank, self._world, *own)
                self._socket.sendto(form, self._address)
                return
            self._note(0, own)
            for _ in range(4 * self._world):
                self._take(self._socket.recv(_FORM.size + 1))
        begin = self._middle.get(0) or self._warm.get(0) or own
        if now >= self._turn and own.steps >= begin.steps + _MIN_STEPS:
            self._turn = now + _WINDOW_NS
            self._before, self._middle = self._middle, {**self._latest}

    def watch(self, optimizer: Any) -> None:
        """Note the gradients of the first parameter of an optimizer, if there are other ranks. Most
        models use this parameter first, so its gradient is the last of backward(), which then waits
        for other ranks."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
            return
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        first = next((one for one in parameters if look_up(one, "requires_grad", False)), None)
        # FSDP2 calls the hooks of a DTensor after ranks have waited for each other, and a hook
        # makes it wait for copies of offloaded gradients.
        if first is not None and look_up(first, "device_mesh") is None:
            with suppress(RuntimeError):  # not a leaf
                hook = first.register_post_accumulate_grad_hook(self._observer.note_gradient)
                self._hooks.append(hook)

    def close(self) -> None:
        """Close the socket and take out the hooks. What was heard stays."""
        self.due = NEVER
        while self._hooks:
            self._hooks.pop().remove()
        if self._socket is not None:
            self._socket.close()
            Ranks._process = 0

    def _open(self) -> bool:
        """Open the socket if the program trains with ranks by now."""
        host, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        is_ready = dist.is_available() and dist.is_initialized() and host and port
        if not is_ready or dist.get_world_size() < 2 or Ranks._process == os.getpid():
            return False
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        try:
            family, kind, _, _, self._address = socket.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM
            )[0]
            self._socket = socket.socket(family, kind)
        except (OSError, ValueError):
            self.due = NEVER
            return False
        self._socket.setblocking(False)
        with suppress(OSError):  # if the port is taken, rank 0 hears nobody
            if self._rank == 0:
                self._socket.bind(("", self._address[1]))
        Ranks._process = os.getpid()
        # Worker processes would keep the port beyond the end of the report.
        os.register_at_fork(after_in_child=self._socket.close)
        return True

    def _read(self) -> RankTotals:
        """Return this rank's totals."""
        recorder = self._observer.recorder
        made = [source.made for source in self._observer.sources if source.trains]
        return RankTotals(
            elapsed=recorder.elapsed(),
            steps=recorder.steps.count,
            in_steps=recorder.totals.steps,
            waited=recorder.waited,
            delayed=self._observer.cpu_wait or 0,
            after=recorder.after_update,
            loading=sum(one[0] for one in made),
            computing=sum(one[1] for one in made),
            computed=recorder.computed + self._observer.waits.computed,
        )

    def _take(self, data: bytes) -> None:
        """Keep what a rank has sent. Datagrams of other programs are left out."""
        if len(data) == _FORM.size:
            magic, rank, world, *totals = _FORM.unpack(data)
            if magic == _MAGIC and 0 < rank < self._world == world:
                self._note(rank, RankTotals(*totals))

    def _note(self, rank: int, totals: RankTotals) -> None:
        if totals.steps < self._latest.get(rank, totals).steps:  # the rank has a new report
            for table in (self._warm, self._middle, self._before):
                table.pop(rank, None)
        self._latest[rank] = totals
        if totals.steps >= WARM_UP:
            self._warm.setdefault(rank, totals)

    def compare(self, is_whole: bool = False) -> Comparison:
        """Compare the ranks since 10 to 20 seconds ago.

        Args:
            is_whole: compares the ranks since their warm-up instead.
        """
        if not self._warm:
            return Comparison({})
        before = {} if is_whole else self._before
        spent = {
            rank: self._latest[rank].since(before.get(rank, warm))
            for rank, warm in sorted(self._warm.items())
        }
        spent = {rank: one for rank, one in spent.items() if one.steps >= _MIN_STEPS}
        waits = {rank: one.share("waited") for rank, one in spent.items()}
        *found, computed = (_find_lag(spent, name) for name in _LOSSES)
        # A rank without a CPU also computes longer, so the computation is blamed last.
        lag, rank, text = max(found, key=lambda one: one[0])
        if lag < _LAG:
            lag, rank, text = computed
        if len(spent) < 2 or lag < _LAG:
            return Comparison(waits)
        return Comparison(waits, rank, text)

    def describe(self) -> dict[str, Any] | None:
        """Return the whole run's comparison for the report; None on all ranks but rank 0."""
        if not self._latest:
            return None
        found = self.compare(is_whole=True)
        silent = self._world - len(self._latest)
        text = found.text or (f"{silent} of {self._world} were never heard" if silent else "")
        waits = {str(rank): share for rank, share in found.waits.items()}
        return {"waits": waits, "slowest": found.slowest, "text": text}


def _find_lag(spent: _Table, name: str) -> tuple[float, int, str]:
    """Return by how much a rank's share exceeds that of the other ranks, the rank, and a text.

    A rank that waits for data or a CPU is compared with the median of the others. Code after an
    update may wait for a slow rank, by a collective or ``.item()``. So a rank is blamed for such
    code only if the share of each other rank is smaller, and there are two others. For forward and
    backward the share of each other rank must be smaller and known.
    """
    shares = {rank: one.share(name) for rank, one in spent.items()}
    slowest = max(shares, key=lambda rank: shares[rank], default=0)
    others = sorted(share for rank, share in shares.items() if rank != slowest)
    is_unknown = (name == "after" and len(others) < 2) or (name == "computed" and 0 in others)
    if not others or is_unknown:
        return 0.0, 0, ""
    is_median = name in ("delayed", "waited")
    usual = others[(len(others) - 1) // 2] if is_median else others[-1]
    made, what = spent[slowest], _LOSSES[name]
    if name == "waited" and made.computing < COMPUTES * made.loading:
        what = "waits for storage"
    text = f"rank {slowest} {what} {percent(shares[slowest])} of each step"
    return shares[slowest] - usual, slowest, f"{text}; the others {percent(usual)}"
