"""Seam: functions inside torch that are replaced in their class or module, and put back.

Attributes of torch's classes and modules are replaced, so a seam serves every instance and
subclass, whether a framework was imported before or after. If a tool has wrapped a function since,
the function stays in and passes every call on. The seams of a process hand their counts over to the
process that started it (``counts.py``).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import util
from typing import Any

import torch
from torch import Tensor

from fastloop.base.checks import look_up
from fastloop.compat.counts import enter_child, hand_over, open_counts, take_counts
from fastloop.compat.decoded import decoded
from fastloop.compat.torch_parts import before_workers, difference, is_known

Function = Callable[..., Any]
Maker = Callable[[Function], Function]

# The thread that runs a seam's check, which reports must not see; 0: none. Guarded by patch()'s
# lock.
checking_thread = 0


@dataclass(frozen=True)
class SeamStatus:
    """The state of a seam, and its counts since ``patch()``.

    Attributes:
        is_on: whether calls go to fastloop.
        why: the reason if they do not, else "".
        native: how many calls fastloop has served.
        fallbacks: how many calls were left to torch, by reason.
        served: the numbers of loaders and epochs, by dataset and way of loading.
        fallback_ns: for transforms, how long Python took for these calls, by reason.
    """

    is_on: bool
    why: str
    native: int
    fallbacks: dict[str, int]
    served: dict[str, tuple[int, int]] = field(default_factory=dict)
    fallback_ns: dict[str, int] = field(default_factory=dict)


def find_subclasses(cls: Any) -> Iterator[Any]:
    """Yield the subclasses of `cls` that exist now, and their subclasses."""
    for other in type.__subclasses__(cls):
        yield other
        yield from find_subclasses(other)


@dataclass(eq=False)
class Patch:
    """A function inside torch, under the name by which torch itself looks up the function.

    Attributes:
        make: takes the function that is there and returns the one to put there, which calls the
            former while the seam is off.
        aliases: owners and names of the same function elsewhere.
        is_shared: other modules have imported the function by its name.
        ours: the function that is put in, None if none is.
    """

    owner: Any
    name: str
    make: Maker
    aliases: Iterable[tuple[Any, str]] = ()
    is_shared: bool = False
    before: Any = field(default=None, init=False)  # the function that was there
    ours: Any = field(default=None, init=False)

    @property
    def is_put_back(self) -> bool:
        """Tell whether a tool has put back the function that was there before."""
        return self.ours is not None and vars(self.owner).get(self.name) is self.before

    def put_in(self, anew: bool = False) -> None:
        """Put the function in, unless it is there or inside a tool's function.

        Args:
            anew: the tool's function does not call this one, so wrap the tool's function.
        """
        there = vars(self.owner)[self.name]
        if self.ours is None or there is self.before or (anew and there is not self.ours):
            self.before, self.ours = there, functools.wraps(there)(self.make(there))
            self._replace(there, self.ours)

    def take_out(self) -> bool:
        """Put the old function back; False if a tool's function is on top."""
        if self.ours is None:
            return True
        if not self.is_put_back and vars(self.owner).get(self.name) is not self.ours:
            return False
        self._replace(self.ours, self.before)
        self.before = self.ours = None
        return True

    def _replace(self, old: Any, new: Any) -> None:
        owners = [(self.owner, self.name), *self.aliases]
        if self.is_shared:
            owners += [(module, self.name) for module in list(sys.modules.values())]
        for owner, name in owners:
            if look_up(owner, "__dict__", {}).get(name) is old:
                setattr(owner, name, new)


@dataclass(eq=False)
class Seam:
    """Replaced functions that are put in and taken out together.

    Attributes:
        name: the name for users.
        is_strict: whether leaving a call to torch is an error.
        probe: uses the functions on the CPU and returns tensors that must be equal with torch alone
            and with fastloop. Its argument says whether this thread is the only one, so that no
            other draws from torch's own generator. Run whenever the seam is put in.
        groups: the groups of compat/torch_parts.py that the seam needs.
        is_on: whether calls go to fastloop.
        serves_some: some calls go to fastloop while the seam is off.
        native, fallbacks, served, fallback_ns: the counts of SeamStatus.
    """

    name: str
    is_strict: bool
    probe: Callable[[bool], list[Tensor]]
    groups: Iterable[str] = ()
    is_on: bool = False
    serves_some: bool = False
    _why: str = "patch() was not called for it"
    _patches: list[Patch] = field(default_factory=list)
    native: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    served: dict[str, tuple[int, int]] = field(default_factory=dict)
    fallback_ns: Counter[str] = field(default_factory=Counter)

    def add(self, owner: Any, name: str, make: Maker, *aliases: tuple[Any, str]) -> Patch:
        self._patches.append(Patch(owner, name, make, aliases))
        return self._patches[-1]

    def reset(self) -> None:
        """Begin to count anew."""
        self.native, self.served = 0, {}
        self.fallbacks, self.fallback_ns = Counter(), Counter()

    def put_in(self) -> bool:
        """Put the seam in and tell whether it is on; ``status()`` says why not."""
        global checking_thread
        if self.status().is_on:
            return True
        for group in self.groups:
            if not is_known(group, f"patch() leaves {self.name}"):
                self._why = difference(group)
                return False
        checking_thread = threading.get_ident()
        try:
            # Entering torch.device costs a third of the check.
            is_on_cpu = torch.empty(0).device.type == "cpu"
            with nullcontext() if is_on_cpu else torch.device("cpu"):
                self._put_in()
        except Exception as error:
            self.take_out(f"this torch differs from those that fastloop knows: {error}")
        finally:
            checking_thread = 0
        return self.is_on

    def _put_in(self) -> None:
        self.is_on = False
        is_alone = threading.active_count() == 1  # asked once: a thread may end meanwhile
        wanted = self.probe(is_alone)
        for anew in (False, True):
            for patch in self._patches:
                patch.put_in(anew)
            self.is_on = True
            self.reset()
            if not all(map(torch.equal, wanted, self.probe(is_alone))):
                raise AssertionError("results or random numbers differ")
            if self.native > 0:
                break
        else:
            raise AssertionError("its calls do not reach fastloop")
        self.reset()

    def take_out(self, why: str = "it was taken out") -> None:
        self.is_on = False
        is_out = [patch.take_out() for patch in self._patches]
        self._why = why
        if not all(is_out):
            self._why += "; functions that other tools have put around it stay"

    def leave(self, what: str, reason: str) -> None:
        """Leave one call to torch; `what` names it in the error.

        Raises:
            RuntimeError: FASTLOOP_STRICT=1 is set.
        """
        self.fallbacks[reason] += 1
        if self.is_strict:
            raise RuntimeError(f"FASTLOOP_STRICT=1, and {what} is left to torch: {reason}")

    def status(self) -> SeamStatus:
        why = "" if self.is_on else self._why
        for patch in self._patches:
            if self.is_on and patch.is_put_back:
                name = f"{getattr(patch.owner, '__name__', patch.owner)}.{patch.name}"
                why = f"another tool has put torch's {name} back; call fastloop.patch()"
        counts = self.native, dict(self.fallbacks), dict(self.served), dict(self.fallback_ns)
        return SeamStatus(not why, why, *counts)


# The seams of this process, by name. Guarded by `lock`, which a forked child makes anew.
opened: dict[str, Seam] = {}
lock = threading.RLock()


# ---- processes that this one starts


def _begin_worker() -> None:
    if any(seam.is_on or seam.serves_some for seam in opened.values()):
        open_counts()


def _enter_child() -> None:
    global lock
    lock = threading.RLock()  # a thread that is not here may hold the other one
    enter_child()
    decoded.reset()
    for seam in opened.values():
        seam.reset()


def _hand_over() -> None:
    with suppress(Exception):  # counts are not worth a traceback
        take_counts(opened)
        hand_over(opened)


os.register_at_fork(before=_begin_worker, after_in_child=_enter_child)
before_workers.append(_begin_worker)


def hand_over_at_end() -> None:
    """Hand the counts over when this process of multiprocessing ends, which is without atexit. A
    forked process does so by itself, a spawned process does not."""
    util.Finalize(None, _hand_over, exitpriority=0)


util.register_after_fork(Seam, lambda _: hand_over_at_end())
