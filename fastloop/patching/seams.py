"""Seam: functions of torch's that are replaced where they live, and put back.

What is replaced are attributes of torch's classes and modules, never names that others have bound:
so it holds for every instance and subclass, before and after a framework was imported. A function
that somebody else has wrapped since cannot be taken out. It then passes every call on.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastloop.base.torch_parts import count_dispatch_modes, difference, is_known
from fastloop.patching.bootstrap.fastloop_import_hook import after_import

Function = Callable[..., Any]

# The thread that runs a seam's check, of which reports are told nothing; 0: none does. One at a
# time, under patch()'s lock.
checking_thread = 0


def has_dispatch_mode() -> bool:
    """Whether somebody watches torch's operations one by one, as FakeTensorMode, make_fx and
    counters of operations do."""
    return bool(count_dispatch_modes() > 0)


def _on_cpu() -> AbstractContextManager[Any]:
    """Makes the CPU the default device. Where it is already, without a mode of torch's, which would
    take a third of the time."""
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


@dataclass(frozen=True)
class SeamStatus:
    """What a seam does, and has done since it was put in.

    Attributes:
        is_on: whether calls go to fastloop.
        why: why they do not; empty where they do.
        native: calls that fastloop has served.
        left: calls that were left to torch, by reason.
        served: by dataset and how it is loaded: how many loaders, and how many epochs of them.
    """

    is_on: bool
    why: str
    native: int
    left: dict[str, int]
    served: dict[str, tuple[int, int]] = field(default_factory=dict)


def find_subclasses(cls: Any) -> Iterator[Any]:
    """Those that exist now, and theirs."""
    for other in type.__subclasses__(cls):
        yield other
        yield from find_subclasses(other)


class Place:
    """A function of torch's, or several in a tuple, under the name that torch itself looks it up
    by, and others.

    Args:
        make: is given what is there and returns what is put there. That calls what was there while
            the seam is off.
        aliases: owners and names of the same function elsewhere.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        aliases: Iterable[tuple[Any, str]] = (),
    ) -> None:
        self._owner = owner
        self._name = name
        self._make = make
        self._aliases = list(aliases)
        self._before: Any = None  # what was there; None: ours is not
        self.ours: Any = None

    @property
    def is_put_back(self) -> bool:
        """Whether another tool has put back what was there before."""
        return self.ours is not None and vars(self._owner).get(self._name) is self._before

    def put_in(self) -> None:
        if self.ours is not None and not self.is_put_back:
            return  # it is there, or below what somebody else has put there
        before = vars(self._owner)[self._name]
        ours = self._make(before)
        self._before = before
        self.ours = functools.wraps(before)(ours) if callable(ours) else ours
        self._replace(before, self.ours)

    def put_in_anew(self) -> None:
        """Around what is there now, which does not come to the function that was put in."""
        if self.ours is not None and vars(self._owner)[self._name] is not self.ours:
            self._before = self.ours = None
        self.put_in()

    def take_out(self) -> bool:
        """False: it stays, because somebody else's is on top of it."""
        if self.ours is None:
            return True
        if not self.is_put_back and vars(self._owner).get(self._name) is not self.ours:
            return False
        self._replace(self.ours, self._before)
        self._before = self.ours = None
        return True

    def __str__(self) -> str:
        return f"{getattr(self._owner, '__name__', self._owner)}.{self._name}"

    def _replace(self, old: Any, new: Any) -> None:
        for owner, name in [(self._owner, self._name), *self._aliases]:
            if vars(owner).get(name) is old:
                setattr(owner, name, new)


class LatePlace(Place):
    """One in a module that is imported later, or never. Where the module is not as we know it, it
    is left as it is, which the seam counts, and nothing else is."""

    def __init__(self, seam: Seam, module: str, name: str, make: Callable[[Any], Any]) -> None:
        super().__init__(None, name, make)
        self._seam = seam
        self._module = module

    def put_in(self) -> None:
        if self._module in sys.modules:
            self._put_in_now()
        else:
            after_import(self._module, self._arrive)  # type: ignore[no-untyped-call]

    def _arrive(self) -> None:
        if self._seam.is_on:
            self._put_in_now()

    def _put_in_now(self) -> None:
        module = sys.modules[self._module]
        if module is not self._owner:  # also when it is imported anew
            self._owner, self._before, self.ours = module, None, None
        try:
            super().put_in()
        except Exception as error:
            self._seam.note(f"{self._module} is not as this version of fastloop knows it: {error}")


class Seam:
    """Places whose functions are in or out together.

    Args:
        name: what users call it.
        is_strict: whether what is left to torch is an error.
        probe: uses the functions on the CPU and returns what must be the same with torch's and with
            fastloop's. It is told whether this thread is the only one, so that no other draws from
            torch's own generator. Run whenever the seam is put in.
        groups: of torch_parts, which have to be as fastloop knows them.
    """

    def __init__(
        self,
        name: str,
        is_strict: bool,
        probe: Callable[[bool], list[Tensor]],
        groups: Iterable[str] = (),
    ) -> None:
        self.name = name
        self._groups = groups
        self.is_on = False
        self._why = "it was not asked for"
        self._is_strict = is_strict
        self._probe = probe
        self._places: list[Place] = []
        self._late: list[LatePlace] = []
        self._native = 0
        self._left: Counter[str] = Counter()
        self._served: dict[str, tuple[int, int]] = {}

    def add(
        self,
        owner: Any,
        name: str,
        make: Callable[[Function], Function],
        aliases: Iterable[tuple[Any, str]] = (),
    ) -> Place:
        place = Place(owner, name, make, aliases)
        self._places.append(place)
        return place

    def add_late(self, module: str, name: str, make: Callable[[Any], Any]) -> None:
        self._late.append(LatePlace(self, module, name, make))

    def put_in(self) -> bool:
        """Whether it is on; its status says why not."""
        global checking_thread
        if self.status().is_on:
            return True
        for group in self._groups:
            if not is_known(group, f"patch() leaves {self.name}"):
                self._why = difference(group)
                return False
        checking_thread = threading.get_ident()
        try:
            with _on_cpu():
                self._put_in()
        except Exception as error:
            self._switch_off(f"torch is not as this version of fastloop knows it: {error}")
        finally:
            checking_thread = 0
        return self.is_on

    def _put_in(self) -> None:
        self.is_on = False
        is_alone = threading.active_count() == 1  # asked once: another thread may end meanwhile
        wanted = self._probe(is_alone)
        for put_in in (Place.put_in, Place.put_in_anew):
            for place in self._places:
                put_in(place)
            self.is_on = True
            self._forget()
            if not all(map(torch.equal, wanted, self._probe(is_alone))):
                raise AssertionError("results or random numbers differ")
            if self._native > 0:
                break
        else:
            raise AssertionError("its calls do not come to fastloop")
        self._forget()
        for late in self._late:
            late.put_in()

    def take_out(self) -> None:
        self._switch_off("it was taken out")

    def _switch_off(self, why: str) -> None:
        self.is_on = False
        is_out = [place.take_out() for place in (*self._places, *self._late)]
        self._why = why if all(is_out) else f"{why}; what somebody else has put around it stays"

    def _forget(self) -> None:
        self._native = 0
        self._left.clear()
        self._served.clear()

    def count(self) -> None:
        """One call was served."""
        self._native += 1

    def note_epoch(self, how: str, is_new: bool) -> None:
        """A call that was served began an epoch of a loader, `is_new`: the first one so."""
        loaders, epochs = self._served.get(how, (0, 0))
        self._served[how] = loaders + is_new, epochs + 1

    def note(self, reason: str) -> None:
        """Why something is left to torch."""
        self._left[reason] += 1

    def leave(self, what: str, reason: str) -> None:
        """One call is left to torch; `what` names it in the error.

        Raises:
            RuntimeError: nothing may be left to torch.
        """
        self.note(reason)
        if self._is_strict:
            raise RuntimeError(f"FASTLOOP_STRICT=1, and {what} is left to torch: {reason}")

    def status(self) -> SeamStatus:
        why = "" if self.is_on else self._why
        for place in self._places:
            if self.is_on and place.is_put_back:
                why = f"another tool has put torch's {place} back; call fastloop.patch()"
        return SeamStatus(not why, why, self._native, dict(self._left), dict(self._served))
