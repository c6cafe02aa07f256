"""What happens where next() of a loop over workers, on its way to a device, meets itself: Python
code runs in it, so a signal handler or another thread may come in."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from time_limits import limit

from fastloop import DataLoader, _core
from fastloop.device.accelerator import HostAccelerator
from fastloop.device.destinations import Destination, DeviceMemory
from fastloop.loader.shared import Shared

pytestmark = pytest.mark.usefixtures("one_thread")  # for forks
NESTED = "from inside its own next"


class Interrupted(DeviceMemory):
    """Host memory as a device, where something happens in the n-th call of a method."""

    def __init__(self, method: str, at: int, happens: Callable[[], object]) -> None:
        super().__init__(HostAccelerator(torch.device("cpu")))
        self.method, self.left, self.happens = method, at, happens

    def _count(self, method: str) -> None:
        self.left -= method == self.method
        if self.left == 0:
            self.left = -1
            self.happens()

    def allocate(self, size: int) -> torch.Tensor:
        self._count("allocate")
        return super().allocate(size)

    def split(self, *args: Any) -> Any:
        self._count("split")
        return super().split(*args)

    def send(self, batch: Any) -> Any:
        return batch


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index)


def loop_with(monkeypatch: pytest.MonkeyPatch, memory: Interrupted) -> Any:
    monkeypatch.setattr(
        Shared, "open_destination", lambda shared, *_, is_shared: (shared.memory(is_shared), memory)
    )
    return iter(DataLoader(Samples(), 4, num_workers=1))


@pytest.mark.parametrize("at", [2, 3])
def test_next_in_a_signal_handler_is_refused(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    said: list[object] = []

    def handle(*_: object) -> None:
        with pytest.raises(RuntimeError, match=NESTED) as raised:
            next(iterator)
        said.append(raised)

    memory = Interrupted("allocate", at, lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        iterator = loop_with(monkeypatch, memory)
        assert [batch[0, 0].item() for batch in iterator] == [*range(0, 32, 4)]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said


def test_no_batch_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Interrupted("split", 2, lambda: next(iterator))
    iterator = loop_with(monkeypatch, memory)
    seen = [next(iterator)[0, 0].item()]
    with pytest.raises(RuntimeError, match=NESTED):
        next(iterator)
    seen += [batch[0, 0].item() for batch in iterator]
    assert len(seen) == len(set(seen))


def test_close_meanwhile_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def close() -> None:
        thread = threading.Thread(target=iterator.close)
        thread.start()
        thread.join(limit(60))

    iterator = loop_with(monkeypatch, Interrupted("allocate", 3, close))
    with pytest.raises(RuntimeError, match="closed"):
        list(iterator)


def test_buffers_made_meanwhile_are_not_too_many() -> None:
    """Written past the room for two, the copier's memory would be damaged."""
    made: list[int] = []
    is_armed: list[bool] = []

    def allocate(size: int) -> torch.Tensor:
        made.append(size)
        if is_armed:
            is_armed.clear()
            parent_end.run_ahead(1)
        return torch.zeros(size, dtype=torch.uint8)

    pool = _core.BatchPool(0, is_shared=True)
    parent_end = _core.ParentEnd(pool, torch.Tensor, 1, 4, 1 << 30, Destination(allocate))
    worker_end = _core.WorkerEnd(torch.Tensor, *parent_end.address(), 0)
    parent_end.submit(0, b"x", (0, None))
    worker_end.receive(1.0)
    source = torch.ones(100_000, dtype=torch.uint8)
    worker_end.copy(source.data_ptr(), source.nbytes)
    worker_end.answer(b"head", 1, False)
    received: Any = parent_end.receive(1.0)
    received[1].deliver()
    before = len(made)
    is_armed.append(True)
    parent_end.run_ahead(1)
    assert len(made) - before == 3  # one of them for nothing
    parent_end.run_ahead(1)
    assert len(made) - before == 3  # none is missing
    parent_end.release()
