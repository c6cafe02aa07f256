"""Seam: functions inside torch that are replaced where they live, and put back.

Attributes of torch's classes and modules are replaced, never names that other modules have bound:
so a seam serves every instance and subclass, whether a framework was imported before or after. A
function that another tool has wrapped since cannot be taken out; it then passes every call on.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastloop.base.torch_parts import count_dispatch_modes, difference, is_known

Function = Callable[..., Any]

# The thread that runs a seam's check, which reports must not see; 0: none. Guarded by patch()'s
# lock.
checking_thread = 0


def has_dispatch_mode() -> bool:
    """Tell whether a mode watches torch's operations one by one: FakeTensorMode, make_fx,
    counters."""
    return bool(count_dispatch_modes() > 0)


def _on_cpu() -> AbstractContextManager[Any]:
    """Make the CPU the default device; a no-op if it is already (entering torch.device costs a
    third of the check)."""
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


@dataclass(frozen=True)
class SeamStatus:
    """The state of a seam and its counts since it was put in.

    Attributes:
        is_on: whether calls go to fastloop.
        why: the reason if they do not, else "".
        native: how many calls fastloop has served.
        left: how many calls were left to torch, by reason.
        served: by dataset and how it is loaded: how many loaders, and how many epochs of them.
    """

    is_on: bool
    why: str
    native: int
    left: dict[str, int]
    served: dict[str, tuple[int, int]] = field(default_factory=dict)


def find_subclasses(cls: Any) -> Iterator[Any]:
    """Yield the subclasses of `cls` that exist now, and their subclasses."""
    for other in type.__subclasses__(cls):
        yield other
        yield from find_subclasses(other)


class Place:
    """A function inside torch, under the name by which torch itself looks it up, and its aliases.

    Args:
        make: takes the function that is there and returns the one to put there, which calls the
            former while the seam is off.
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
        self._before: Any = None  # the function that was there; None: nothing is put in
        self.ours: Any = None

    @property
    def is_put_back(self) -> bool:
        """Tell whether another tool has put back the function that was there before."""
        return self.ours is not None and vars(self._owner).get(self._name) is self._before

    def put_in(self) -> None:
        if self.ours is not None and not self.is_put_back:
            return  # it is there, or below another tool's function
        before = vars(self._owner)[self._name]
        ours = self._make(before)
        self._before = before
        self.ours = functools.wraps(before)(ours) if callable(ours) else ours
        self._replace(before, self.ours)

    def put_in_anew(self) -> None:
        """Put it around the function that is there now and does not call the one put in before."""
        if self.ours is not None and vars(self._owner)[self._name] is not self.ours:
            self._before = self.ours = None
        self.put_in()

    def take_out(self) -> bool:
        """Put the old function back; False if another tool's function is on top."""
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


class Seam:
    """Replaced functions that are put in and taken out together.

    Args:
        name: the name that users give it.
        is_strict: whether leaving a call to torch is an error.
        probe: uses the functions on the CPU and returns tensors that must be equal with torch alone
            and with fastloop. Its argument says whether this thread is the only one, so that no
            other draws from torch's own generator. Run whenever the seam is put in.
        groups: the groups of base/torch_parts.py on which it relies.
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
        self._why = "patch() was not called for it"
        self._is_strict = is_strict
        self._probe = probe
        self._places: list[Place] = []
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

    def put_in(self) -> bool:
        """Put it in and tell whether it is on; ``status()`` says why not."""
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
            self._switch_off(f"this torch differs from those that fastloop knows: {error}")
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
            raise AssertionError("its calls do not reach fastloop")
        self._forget()

    def take_out(self) -> None:
        self._switch_off("it was taken out")

    def _switch_off(self, why: str) -> None:
        self.is_on = False
        is_out = [place.take_out() for place in self._places]
        self._why = (
            why if all(is_out) else f"{why}; functions that other tools have put around it stay"
        )

    def _forget(self) -> None:
        self._native = 0
        self._left.clear()
        self._served.clear()

    def count(self) -> None:
        """Count one call that was served."""
        self._native += 1

    def note_epoch(self, how: str, is_new: bool) -> None:
        """Count an epoch of a loader that was served; `is_new`: the loader's first one of this
        kind."""
        loaders, epochs = self._served.get(how, (0, 0))
        self._served[how] = loaders + is_new, epochs + 1

    def note(self, reason: str) -> None:
        """Count one call that is left to torch."""
        self._left[reason] += 1

    def leave(self, what: str, reason: str) -> None:
        """Leave one call to torch; `what` names it in the error.

        Raises:
            RuntimeError: FASTLOOP_STRICT=1 is set.
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
