"""Closes a loader while one thread waits for a batch, another for the lock of next()."""

import threading
from typing import Any

import torch
from helpers import outcome
from time_limits import limit
from workers import Items, SleepAt, children, wait_until

from fastloop import DataLoader


def close_in_next(path: str, is_persistent: bool) -> None:
    hook, results = SleepAt(0), list[Any]()
    loader: Any = DataLoader(
        Items(8, hook), 2, num_workers=1, persistent_workers=is_persistent, path=path
    )
    iterator = iter(loader)

    def take() -> None:
        results.append(outcome(lambda: next(iterator)))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: bool(hook.is_there))
    loader.close()
    for thread in threads:
        thread.join(limit(300))
    assert [kind for _, kind, _ in results] == [RuntimeError] * 2, results
    assert all("closed; call iter()" in text for _, _, text in results), results
    assert not children()


torch.set_num_threads(1)
for path, is_persistent in (("process", False), ("process", True), ("torch", False)):
    close_in_next(path, is_persistent)
