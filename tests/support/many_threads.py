"""Work on several threads that begin together."""

import threading
from collections.abc import Callable
from typing import Any

from time_limits import limit

THREADS = 8


def run_threads(work: Callable[[int], object], threads: int = THREADS) -> list[Any]:
    """What ``work(number)`` returns on each of so many threads. Raises what one of them raised."""
    results: list[Any] = [None] * threads
    errors: list[BaseException] = []
    begin = threading.Barrier(threads)

    def run(number: int) -> None:
        try:
            begin.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=[n]) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(limit(120))
    assert not any(thread.is_alive() for thread in running)
    if errors:
        raise errors[0]
    return results
