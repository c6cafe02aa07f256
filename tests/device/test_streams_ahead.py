"""Streams whose batches are read ahead of the user, on their way to a device."""

from typing import Any

import pytest
from lazy_device import LazyAccelerator, LazyDevice
from streams import OfDataset, OwnIterator

import fastloop.loader.device_iter
from fastloop import DataLoader, prefetch

LENGTHS = {0: [9], 2: [5, 2]}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    device = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    return device


def loader_of(workers: int, **given: Any) -> DataLoader[Any]:
    return DataLoader(OfDataset(LENGTHS[workers]), 2, num_workers=workers, **given)


def values(batch: Any, late: LazyDevice | None = None) -> Any:
    if late is not None:
        late.run()
    return [part.tolist() for part in batch]


def resumed(state: dict[str, Any], workers: int) -> list[Any]:
    loader = loader_of(workers)
    loader.load_state_dict(state, strict=True)
    return [values(batch) for batch in loader] + [values(batch) for batch in loader]


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 2), (2, 1)])
@pytest.mark.parametrize("depth", [None, 1, 4])
def test_what_is_read_ahead_does_not_count(
    late: LazyDevice, depth: int | None, workers: int, every: int
) -> None:
    loader = loader_of(workers)
    expected = [values(batch) for _ in range(2) for batch in loader]
    device = {"device": "cuda"} if depth is None else {}
    loader = loader_of(workers, snapshot_every_n_steps=every, **device)
    batches = iter(loader) if depth is None else prefetch(loader, "cuda", depth)
    states = [loader.state_dict()]
    for k, batch in enumerate(batches):
        assert values(batch, late) == expected[k]
        states.append(loader.state_dict())
    states.append(loader.state_dict())
    for k, state in enumerate(states[:-1]):
        assert resumed(state, workers) == expected[k:], k
        assert state["yielded"] == k
    assert states[-1]["epoch"] == 1
    assert resumed(states[-1], workers)[: len(expected) // 2] == expected[len(expected) // 2 :]


def test_a_state_that_was_loaded_stays_as_it_was(late: LazyDevice) -> None:
    """While the dataset that it was loaded into reads ahead, and changes it in place."""

    def make() -> DataLoader[Any]:
        return DataLoader(OwnIterator([20]), 2, snapshot_every_n_steps=5)

    expected = [values(batch) for batch in make()]
    iterator = iter(loader := make())
    next(iterator)
    other = make()
    other.load_state_dict(loader.state_dict())
    batches = prefetch(other, "cuda", 3)
    assert values(next(batches), late) == expected[1]
    last = make()
    last.load_state_dict(other.state_dict())
    assert [values(batch) for batch in last] == expected[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_prefetcher_that_is_closed_hands_back_what_it_read(
    late: LazyDevice, workers: int
) -> None:
    expected = [values(batch) for batch in loader_of(workers)]
    loader = loader_of(workers)
    batches = prefetch(loader, "cuda", 3)
    next(batches)
    batches.close()
    assert loader.state_dict()["yielded"] == 1
    assert resumed(loader.state_dict(), workers)[: len(expected) - 1] == expected[1:]
    with pytest.raises(StopIteration):
        next(batches)
