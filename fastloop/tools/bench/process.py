"""Each variant of a contestant of ``bench`` runs in a process of its own, which is told when: the
contestants take turns, and none meets what another has done to memory, caches of allocators or
thread pools."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any

from fastloop.base.machine import cpu_seconds, pss_bytes


@dataclass(frozen=True)
class Round:
    """One turn of a variant.

    Attributes:
        seconds: a step, on the clock.
        cpu_seconds: a step, of the process and those that work for it; None: not known.
        pss_bytes: their memory, at the end; None: not known.
    """

    seconds: float
    cpu_seconds: float | None
    pss_bytes: int | None


def _sum(values: list[Any]) -> Any:
    return None if None in values else sum(values)


def _take_turn(work: Any, seconds: float) -> Round:
    def used() -> float | None:
        found: float | None = _sum([cpu_seconds(pid) for pid in (os.getpid(), *work.pids())])
        return found

    before, begin, steps = used(), perf_counter(), 0
    while steps == 0 or perf_counter() - begin < seconds:
        steps += work.run()
    took, after = perf_counter() - begin, used()
    memory = _sum([pss_bytes(pid) for pid in (os.getpid(), *work.pids())])
    spent = None if before is None or after is None else (after - before) / steps
    return Round(took / steps, spent, memory)


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Answers calls until there are no more; an error is the answer, too."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    # Workers start as in a program that says nothing of it, not as this process has.
    multiprocessing.set_start_method(None, force=True)
    try:
        work = make(*arguments)
        calls = {
            "check": work.check,
            "warm": work.run,
            "turn": lambda seconds: _take_turn(work, seconds),
        }
        while True:
            name, *given = pipe.recv()
            pipe.send((calls[name](*given), None))
    except EOFError:
        pass
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))


class BenchError(Exception):
    """A contestant could not do its work."""


def _get_context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    # torch's optimizers import the second, which takes seconds.
    context.set_forkserver_preload(["fastloop.tools.bench.cases", "torch._dynamo"])
    return context


def start_server() -> None:
    """Returns when it has imported everything: no case is to wait for that."""
    process = _get_context().Process(target=int)
    process.start()
    process.join()


class Contestant:
    """One variant in its process.

    Args:
        make: of a case; it and ``arguments`` are pickled.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = _get_context()
        self._pipe, theirs = context.Pipe()
        # No daemon: it has workers.
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, make, arguments))
        self._process.start()
        theirs.close()
        self._name = " ".join(map(str, arguments[:2]))

    def call(self, name: str, *arguments: Any) -> Any:
        with suppress(OSError):  # it may have answered already: by an error
            self._pipe.send((name, *arguments))
        try:
            result, fault = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            fault = f"its process ended with code {self._process.exitcode}"
        if fault is not None:
            raise BenchError(f"{self._name}: {fault}")
        return result

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
