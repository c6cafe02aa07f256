"""Seam: functions of torch's that are replaced where they live, and put back.

What is replaced are attributes of torch's classes and modules, never names that others have bound:
so it holds for every instance and subclass, before and after a framework was imported. A function
that somebody else has wrapped since cannot be taken out. It then passes every call on.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastloop.patching.bootstrap.fastloop_import_hook import after_import

Function = Callable[..., Any]


def has_dispatch_mode() -> bool:
    """Whether somebody watches torch's operations one by one, as FakeTensorMode, make_fx and
    counters of operations do."""
    return torch._C._len_torch_dispatch_stack() > 0


def _on_cpu() -> AbstractContextManager[Any]:
    """Makes the CPU the default device. Where it is already, without a mode of torch's, which would
    take a third of the time."""
    if torch._C._len_torch_function_stack() == 0 and torch._C._get_default_device() == "cpu":
        return nullcontext()
    return torch.device("cpu")


@dataclass(frozen=True)
class SeamStatus:
    """What a seam does, and has done since it was put in.

    Attributes:
        is_on: whether calls go to fastloop.
        why: why they do not; empty where they do.
        native: calls that fastloop has served.
        left: calls that were left to torch, by reason.
    """

    is_on: bool
    why: str
    native: int
    left: dict[str, int]


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

    def put_in(self) -> None:
        if self.ours is not None:
            return  # it is there, or below what somebody else has put there
        before = vars(self._owner)[self._name]
        ours = self._make(before)
        self._before = before
        self.ours = functools.wraps(before)(ours) if callable(ours) else ours
        self._replace(before, self.ours)

    def take_out(self) -> bool:
        """False: it stays, because somebody else's is on top of it."""
        if self.ours is None:
            return True
        if vars(self._owner).get(self._name) is not self.ours:
            return False
        self._replace(self.ours, self._before)
        self._before = self.ours = None
        return True

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
            ours. Run whenever it is put in.

    Attributes:
        say_lost: what objects lose that go on without it; "" if nothing.
    """

    def __init__(self, name: str, is_strict: bool, probe: Callable[[], list[Tensor]]) -> None:
        self.name = name
        self.is_on = False
        self.say_lost: Callable[[], str] = str
        self._why = "it was not asked for"
        self._is_strict = is_strict
        self._probe = probe
        self._places: list[Place] = []
        self._late: list[LatePlace] = []
        self._native = 0
        self._left: Counter[str] = Counter()

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
        if self.is_on:
            return True
        try:
            with _on_cpu():
                self._put_in()
        except Exception as error:
            self._switch_off(f"torch is not as this version of fastloop knows it: {error}")
        return self.is_on

    def _put_in(self) -> None:
        wanted = self._probe()
        for place in self._places:
            place.put_in()
        self.is_on = True
        self._forget()
        if not all(map(torch.equal, wanted, self._probe())):
            raise AssertionError("results or random numbers differ")
        if self._native == 0:
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

    def count(self) -> None:
        """One call was served."""
        self._native += 1

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
        return SeamStatus(
            self.is_on, "" if self.is_on else self._why, self._native, dict(self._left)
        )
