"""Datasets that say where they stand are resumed in the middle of an epoch, at every batch."""

import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import STREAMS, MapWithState, OfBoth, OfDataset, OfIterator, OwnIterator, Plain

import fastloop.loader.workers.child
from fastloop import DataLoader
from fastloop.loader.workers.batch_pickle import pack

# The keys that say where a dataset stands, without workers; with workers the last one does.
NOWHERE: dict[str, Any] = {"dataset_state": None, "fetcher_state": None, "_snapshot": {}}
LENGTHS = {0: [7], 1: [7], 2: [5, 2], 3: [1, 5, 3]}  # uneven: some end early
Epochs = list[list[Any]]


def loader_of(kind: Any, workers: int, **given: Any) -> DataLoader[Any]:
    dataset = kind if isinstance(kind, torch.utils.data.Dataset) else kind(LENGTHS[workers])
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": workers, **given})


def values(batch: Any) -> Any:
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in batch]


def read(loader: DataLoader[Any], epochs: int = 2) -> Epochs:
    return [[values(batch) for batch in loader] for _ in range(epochs)]


def states_of(loader: DataLoader[Any]) -> list[dict[str, Any]]:
    """Before the first batch, after each, and after the epoch."""
    iterator = iter(loader)
    states = [loader.state_dict()]
    states.extend(loader.state_dict() for _ in iterator)
    return [*states, loader.state_dict()]


def check_all(make: Any, positions: int | None = None) -> None:
    """From every state of the first epoch, the rest of it and the next epoch come."""
    expected = read(make(), 3)
    states = states_of(make())
    assert len(states) == len(expected[0]) + 2
    for k, state in list(enumerate(states))[-(positions or len(states)) :]:
        loader = make()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader.load_state_dict(state, strict=True)
        is_over = k == len(states) - 1
        rest = [] if is_over else [expected[0][k:]]
        assert read(loader, 1 + len(rest)) == [*rest, expected[1]], k


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("size", [None, 2])
def test_without_workers(kind: str, size: int | None) -> None:
    check_all(lambda: loader_of(STREAMS[kind], 0, batch_size=size))


@pytest.mark.parametrize("kind", [*STREAMS.values(), MapWithState])
@pytest.mark.parametrize("persistent", [False, True])
def test_with_a_thread(kind: Any, persistent: bool) -> None:
    """The dataset is in this process, and so goes on from epoch to epoch."""
    lengths = 9 if kind is MapWithState else [7]
    given = {"path": "thread", "persistent_workers": persistent}
    check_all(lambda: loader_of(kind(lengths), 1, **given))


def test_a_thread_and_a_process_resume_each_other() -> None:
    expected = read(loader_of(OfBoth, 1), 1)[0]
    for saver, resumer in (("thread", "process"), ("process", "thread")):
        iterator = iter(loader := loader_of(OfBoth, 1, path=saver))
        next(iterator)
        other = loader_of(OfBoth, 1, path=resumer)
        other.load_state_dict(loader.state_dict(), strict=True)
        assert read(other, 1) == [expected[1:]]


@pytest.mark.parametrize("path", ["thread", "torch"])
def test_workers_that_take_no_states_of_a_map_style_dataset(path: str) -> None:
    """They go on with its order all the same."""
    iterator = iter(loader := loader_of(MapWithState(9), 2))
    next(iterator)
    other = loader_of(MapWithState(9), 2, path=path)
    with pytest.raises(ValueError, match=rf"2 workers of path='{path}' load no state"):
        other.load_state_dict(loader.state_dict(), strict=True)
    with pytest.warns(UserWarning, match="load no state .*; the dataset is not set to its state"):
        other.load_state_dict(loader.state_dict())
    assert [batch[0] for batch in read(other, 1)[0]] == [[2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(("every", "persistent"), [(1, False), (3, True)])
def test_with_workers(kind: str, persistent: bool, every: int) -> None:
    given = {"persistent_workers": persistent, "snapshot_every_n_steps": every}
    check_all(lambda: loader_of(STREAMS[kind], 3, **given))


@pytest.mark.slowest
def test_workers_of_a_fork_server_that_have_read_ahead() -> None:
    """A state says where the batches of the user end, however far workers have read ahead."""
    workers = 1
    given = {"prefetch_factor": 4, "multiprocessing_context": "forkserver"}
    expected = read(loader_of(OfDataset, workers), 1)[0]
    iterator = iter(loader := loader_of(OfDataset, workers, **given))
    next(iterator)
    state = loader.state_dict()
    assert values(next(iterator)) == expected[1]
    other = loader_of(OfDataset, workers, **given)
    other.load_state_dict(state)
    assert read(other, 1) == [expected[1:]]


def test_out_of_order_each_worker_goes_on_at_its_own_place() -> None:
    for stop in (1, 4):
        given = {"in_order": False, "persistent_workers": True}
        iterator = iter(loader := loader_of(OfIterator, 3, **given))
        seen = [values(next(iterator)) for _ in range(stop)]
        other = loader_of(OfIterator, 3, **given)
        other.load_state_dict(loader.state_dict(), strict=True)
        assert sorted(seen + read(other, 1)[0]) == sorted(read(loader_of(OfIterator, 3), 1)[0])


def test_a_loop_that_was_left() -> None:
    for workers in (0, 2):
        loader = loader_of(OfDataset, workers)
        for _ in loader:
            break
        other = loader_of(OfDataset, workers)
        other.load_state_dict(loader.state_dict(), strict=True)
        assert read(other, 1)[0] == read(loader_of(OfDataset, workers), 1)[0][1:]


def test_resumed_twice_within_an_epoch() -> None:
    for every in (1, 3):
        given = {"num_workers": 2, "batch_size": 1, "snapshot_every_n_steps": every}
        expected = read(DataLoader(OfDataset([9, 4]), **given), 1)[0]
        state: dict[str, Any] | None = None
        for k in range(0, 12, 2):
            loader = DataLoader(OfDataset([9, 4]), **given)
            if state is not None:
                loader.load_state_dict(state, strict=True)
                assert loader.state_dict() == state
            iterator = iter(loader)
            assert [values(next(iterator)) for _ in range(2)] == expected[k : k + 2]
            state = loader.state_dict()


def test_the_loader_that_saved_goes_back() -> None:
    """With persistent workers, which are elsewhere then."""
    loader = loader_of(OfDataset, 2, persistent_workers=True)
    states = states_of(loader)
    expected = read(loader_of(OfDataset, 2, persistent_workers=True))
    for k in (0, 2):
        loader.load_state_dict(states[k])
        assert read(loader) == [expected[0][k:], expected[1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_dataset_with_a_state(workers: int) -> None:
    given = {"shuffle": True, "persistent_workers": workers > 0}

    def make() -> DataLoader[Any]:
        g = torch.Generator().manual_seed(3)
        return loader_of(MapWithState(9), workers, generator=g, **given)

    check_all(make)


def test_a_state_is_pickled_at_once() -> None:
    """What a dataset returns may change in place."""
    for workers in (0, 2):
        iterator = iter(loader := loader_of(OwnIterator, workers))
        next(iterator)
        state = loader.state_dict()
        text = repr(state)
        list(iterator)
        assert repr(state) == text


@pytest.mark.parametrize("kind", ["dataset", "own iterator"])
def test_in_a_later_epoch_of_workers_that_persist(kind: str) -> None:
    """A worker of which no batch has come yet is not at the dataset's own beginning."""
    expected = read(loader_of(STREAMS[kind], 3, persistent_workers=True), 2)[1]
    for k in (0, 1):
        loader = loader_of(STREAMS[kind], 3, persistent_workers=True)
        list(loader)
        iterator = iter(loader)
        assert [values(next(iterator)) for _ in range(k)] == expected[:k]
        other = loader_of(STREAMS[kind], 3, persistent_workers=True)
        other.load_state_dict(loader.state_dict(), strict=True)
        assert read(other, 1)[0] == expected[k:]


# ---- without a state


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_skipping(workers: int) -> None:
    """The state may come of a loader that was not told."""
    seed = torch.Generator().manual_seed(8)
    loader = loader_of(Plain, workers, generator=seed)
    torch.manual_seed(1)
    states = states_of(loader)
    torch.manual_seed(1)
    expected = read(loader_of(Plain, workers, generator=torch.Generator().manual_seed(8)), 1)[0]
    for k, state in enumerate(states[:-1]):
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(9)
        other = loader_of(Plain, workers, resume="skip", generator=generator)
        other.load_state_dict(state, strict=True)
        rest = read(other, 1)[0]
        assert [batch[0] for batch in rest] == [batch[0] for batch in expected[k:]]
        assert rest == expected[k:] or workers == 0  # the program's own numbers are the program's


@pytest.mark.parametrize("steps", [4, 1 << 40])
def test_skipping_in_a_stream_that_has_become_shorter(steps: int) -> None:
    iterator = iter(loader := DataLoader(Plain([9]), 2))
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    state["fetcher_state"]["steps"] = steps
    other = DataLoader(Plain([3]), 2, resume="skip")
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=rf"counts {steps} batches of 2 .* ended after 3 samples"):
        iter(other)


@pytest.mark.parametrize("resume", [None, "skip"])
def test_torchs_own_workers_send_no_states(resume: str | None) -> None:
    iterator = iter(loader := loader_of(OfDataset, 2, path="torch"))
    next(iterator)
    other = loader_of(OfDataset, 2, resume=resume)
    with pytest.raises(ValueError, match="this path's workers do not send the position"):
        other.load_state_dict(loader.state_dict(), strict=True)
    iterator = iter(other)
    next(iterator)
    with pytest.warns(RuntimeWarning, match="this path's workers do not send the position"):
        loader.load_state_dict(other.state_dict())
    assert len(read(loader, 1)[0]) == 4


# ---- before the first batch


def broken(worker: int) -> None:
    raise ValueError(f"not in {worker}")


@pytest.mark.parametrize("path", ["process", "thread"])
@pytest.mark.parametrize("kind", [OfDataset, MapWithState])
def test_iter_raises_what_a_worker_raises_as_it_begins(kind: Any, path: str) -> None:
    given = {"worker_init_fn": broken, "path": path, "num_workers": 1}
    with pytest.raises(ValueError, match=r"worker (process|thread) 0"):
        iter(DataLoader(kind([3] if kind is OfDataset else 3), **given))


@pytest.mark.parametrize("path", ["process", "thread"])
def test_an_iterator_that_was_dropped_at_once_has_left_its_states(path: str) -> None:
    workers = 2 if path == "process" else 1
    loader = loader_of(Counted, workers, path=path)
    iter(loader)
    states = loader.state_dict()["_snapshot"]["_worker_snapshots"].values()
    assert [state["dataset_state"] for state in states] == [{"begun": 1}] * workers


class Counted(OfDataset):
    """Its state counts iter()."""

    begun = 0

    def __iter__(self) -> Any:
        self.begun += 1
        return iter(range(3))

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Draws(MapWithState):
    """Its samples are the worker's random numbers."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(torch.randint(1000, ()))


def test_workers_of_a_state_before_the_first_iter_have_the_seeds_of_then() -> None:
    state = (loader := loader_of(Draws(9), 2)).state_dict()
    expected = read(loader, 1)
    other = loader_of(Draws(9), 2)
    next(iter(other))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert read(other, 1) == expected
    other.load_state_dict(state)
    torch.manual_seed(5)  # counts
    drawn = read(other, 1)
    torch.manual_seed(5)
    assert read(loader_of(Draws(9), 2), 1) == drawn != expected


def test_a_state_has_the_keys_of_torchdatas_with_workers_and_without() -> None:
    for workers in (0, 2):
        loader = loader_of(OfDataset, workers)
        keys = {tuple(key for key in NOWHERE if key in state) for state in states_of(loader)}
        assert keys == {("_snapshot",) if workers else tuple(NOWHERE)}
        other = loader_of(OfDataset, workers)
        other.load_state_dict(state := loader.state_dict(), strict=True)
        assert other.state_dict() == state
        for key in keys.pop():
            damaged = {name: part for name, part in state.items() if name != key}
            with pytest.raises(
                ValueError, match=r"state must be a dict with .(_snap|dataset_st|fetch)"
            ):
                other.load_state_dict(damaged)


# ---- what may go wrong


class Raises(OfDataset):
    def state_dict(self) -> dict[str, Any]:
        if self.at == 2:
            raise ValueError("not now")
        return super().state_dict()


class Unpicklable(OfDataset):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "f": lambda: None}


class Refuses(OfDataset):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("of another file")


@pytest.mark.parametrize("workers", [0, 2])
def test_state_dict_of_a_dataset_raises(workers: int) -> None:
    """The batches go on, and so does saving later."""
    dataset = Raises([5, 1] if workers else [5])
    iterator = iter(loader := loader_of(dataset, workers))
    loader.state_dict()
    next(iterator)
    with pytest.raises(ValueError, match="not now"):
        loader.state_dict()
    next(iterator)
    next(iterator)
    loader.state_dict()
    list(iterator)


def test_a_state_that_cannot_be_pickled() -> None:
    loader = loader_of(Unpicklable, 2)
    assert len(read(loader, 1)[0]) == 4
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(Exception, match="state_dict\\(\\) of the dataset \\(Unpicklable\\)"):
        loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_load_state_dict_of_a_dataset_raises(workers: int) -> None:
    iterator = iter(loader := loader_of(OfDataset, workers))
    next(iterator)
    other = loader_of(Refuses, workers)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="of another file"):
        next(iter(other))


def test_a_state_of_another_dataset() -> None:
    next(iter(loader := loader_of(OfIterator, 0)))
    other = loader_of(OfDataset, 0)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="generator has no load_state_dict"):
        iter(other)
    next(iter(loader := loader_of(OfDataset, 2)))
    other = DataLoader(list(range(7)), 2, num_workers=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"list has no load_state_dict\(\)"):
        other.load_state_dict(loader.state_dict(), strict=True)


@pytest.mark.parametrize(("saved", "here"), [(2, 3), (2, 0), (0, 2)])
def test_another_number_of_workers(saved: int, here: int) -> None:
    iterator = iter(loader := loader_of(OfDataset, saved))
    next(iterator)
    state = loader.state_dict()
    other = loader_of(OfDataset, here)
    why = rf"num_workers must be {saved}, .* got {here} \(or give OfDataset a method reshard"
    with pytest.raises(ValueError, match=why):
        other.load_state_dict(state, strict=True)
    assert read(other, 1) == read(loader_of(OfDataset, here), 1)
    other.load_state_dict(state)
    for kind in (ValueError, AssertionError):  # which StatefulDataLoader's is
        with pytest.raises(kind, match=why):
            iter(other)
    assert other.state_dict() == state
    other.load_state_dict(loader_of(OfDataset, saved).state_dict(), strict=True)  # knows nothing
    assert read(other, 1)[0]


class Resharded(OfDataset):
    """Its state is what is left to read."""

    def __init__(self, count: int) -> None:
        super().__init__([count])
        self.left: list[int] | None = None

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        if self.left is None:
            step, first = (1, 0) if info is None else (info.num_workers, info.id)
            self.left = list(range(self.lengths[0]))[first::step]
        while self.left:
            yield self.left.pop(0), 0

    def state_dict(self) -> Any:
        return self.left

    def load_state_dict(self, state: Any) -> None:
        self.left = state

    def reshard_state_dict(self, states: list[Any], num_workers: int) -> list[Any]:
        left = sorted(chain.from_iterable(states))
        return [left[worker::num_workers] for worker in range(num_workers)]


@pytest.mark.parametrize(("saved", "here"), [(2, 3), (2, 0), (0, 2), (3, 1)])
def test_a_dataset_that_divides_what_is_left_anew(saved: int, here: int) -> None:
    iterator = iter(loader := DataLoader(Resharded(12), 2, num_workers=saved))
    seen = [values(next(iterator))[0] for _ in range(3)]
    other = DataLoader(Resharded(12), 2, num_workers=here)
    other.load_state_dict(loader.state_dict(), strict=True)
    rest = [batch[0] for batch in read(other, 1)[0]]
    assert sorted(chain.from_iterable(seen + rest)) == list(range(12))


DAMAGES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no worker": (
        {"_worker_snapshots": {}},
        ValueError,
        r"must be about all workers, got .*_snapshots': \[\]",
    ),
    "worker 0 missing": (
        {"_worker_snapshots": {"worker_1": {}}},
        ValueError,
        r"must be about all workers, got .*_snapshots': \['worker_1'\]",
    ),
    "empty worker": (
        {"_worker_snapshots": {"worker_0": {}}},
        ValueError,
        "worker_0 must be a dict with 'dataset_state', got a dict without",
    ),
    "another kind": ({"_worker_snapshots": 3}, TypeError, "snapshots'. must be a dict, got 3"),
    "turn": ({"_last_yielded_worker_id": 2}, ValueError, "worker_id': 2"),
    "seed": ({"_base_seed": None}, TypeError, "_base_seed'. must be an int in .*, got None"),
    "too large a seed": ({"_base_seed": 1 << 63}, ValueError, "_base_seed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state(damage: str) -> None:
    next(iter(loader := loader_of(OfDataset, 2)))
    state = loader.state_dict()
    changed, error, why = DAMAGES[damage]
    state["_snapshot"].update(changed)
    with pytest.raises(error, match=why):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (None, TypeError),
        ({"dataset_state": 1}, ValueError),
        ({"fetcher_state": {"steps": 1}}, ValueError),
    ],
)
def test_a_damaged_state_of_a_worker(part: Any, error: type[Exception]) -> None:
    next(iter(loader := loader_of(OfDataset, 2)))
    state = loader.state_dict()
    workers = state["_snapshot"]["_worker_snapshots"]
    workers["worker_1"] = {**workers["worker_1"], **part} if part is not None else None
    if part == {"dataset_state": 1}:
        del workers["worker_1"]["fetcher_state"]
    with pytest.raises(error, match="worker_1"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_in_which_parts_do_not_go_together(workers: int) -> None:
    next(iter(loader := loader_of(OfDataset, workers)))
    state = loader.state_dict()
    sources = [state, *state["_snapshot"].get("_worker_snapshots", {}).values()]
    last = sources[-1]
    last["fetcher_state"]["steps"] = True
    with pytest.raises(TypeError, match=r"\['steps'\] must be an int in .*, got True"):
        loader.load_state_dict(state)
    last["fetcher_state"] = None
    with pytest.raises(ValueError, match=r"not of an IterableDataset.*OfDataset.*is one"):
        loader.load_state_dict(state)
    state.update(NOWHERE)  # with batches yielded
    with pytest.raises(ValueError, match="cannot be resumed there"):
        loader.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"snapshot_every_n_steps": -1}, ValueError),
        ({"snapshot_every_n_steps": True}, TypeError),
        ({"resume": "yes"}, ValueError),
    ],
)
def test_bad_arguments(given: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(given))):
        DataLoader(Plain([3]), **given)


# ---- what else stays


def test_the_dataset_of_a_worker_is_the_users() -> None:
    seen = list(DataLoader(Tells(), None, num_workers=1, worker_init_fn=mark))
    assert seen == [True, "marked"]


def mark(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.mark = "marked"  # type: ignore[attr-defined]


class Tells(torch.utils.data.IterableDataset[Any]):
    mark = ""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        yield info is not None and info.dataset is self
        yield self.mark


@pytest.mark.parametrize("kind", [OfDataset, Plain])
def test_batches_of_streams_need_no_pickle(
    kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pack_and_tell(end: Any, data: Any, has_destination: bool = False) -> Any:
        if isinstance(data, tuple) and isinstance(data[0], list):
            (tmp_path / "pickled").touch()
        return pack(end, data, has_destination)

    monkeypatch.setattr(fastloop.loader.workers.child, "pack", pack_and_tell)
    assert len(list(loader_of(kind, 2, multiprocessing_context="fork"))) == 4
    assert not (tmp_path / "pickled").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_streams_are_collated_in_c(workers: int) -> None:
    loader = loader_of(Plain, workers, path="process" if workers else "sync")
    batches = list(loader)
    assert all(type(part) is torch.Tensor for batch in batches for part in batch)
    assert not loader.stats().fallbacks


def records(shards: list[int]) -> Any:
    for shard in shards:
        yield from ({"at": 10 * shard + row} for row in range(4))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_of_hugging_face(workers: int) -> None:
    reason = "datasets, whose IterableDataset follows the protocol, is not installed"
    datasets = pytest.importorskip("datasets", reason=reason, exc_type=ImportError)

    def make() -> DataLoader[Any]:
        shards = {"shards": list(range(4))}
        stream = datasets.IterableDataset.from_generator(records, gen_kwargs=shards)
        return DataLoader(stream, 3, num_workers=workers)

    expected = [batch["at"].tolist() for batch in make()]
    for k, state in enumerate(states_of(make())[:-1]):
        loader = make()
        loader.load_state_dict(state, strict=True)
        assert [batch["at"].tolist() for batch in loader] == expected[k:]
