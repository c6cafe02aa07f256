"""patch(): torch's own DataLoader gives torch's batches, made by fastloop, until unpatch()."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import collector_off
from time_limits import limit
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch.utils.data.datapipes.iter import IterableWrapper

import fastloop
from fastloop.compat.seams import Patch
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.shared import PlainIter, SyncIter
from fastloop.loader.workers.processes import ProcessIter

TORCHS = vars(DataLoader)["_get_iterator"], vars(DataLoader)["__iter__"]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    fastloop.unpatch()
    assert (vars(DataLoader)["_get_iterator"], vars(DataLoader)["__iter__"]) == TORCHS


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "noise": torch.rand(2), "y": index * index}


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for i in range(7):
            yield torch.tensor([i, -1 if info is None else info.id])


def arrays() -> TensorDataset:
    return TensorDataset(torch.arange(46.0).reshape(23, 2), torch.arange(23))


def run(make: Any, epochs: int = 2) -> list[torch.Tensor]:
    """All that is yielded, and the states of torch's generator at iter() and at each next()."""
    torch.manual_seed(5)
    loader = make()
    found: list[Any] = []
    for _ in range(epochs):
        batches = iter(loader)
        torch.rand(1)
        found.append(torch.get_rng_state())
        for batch in batches:
            found += list(batch.values()) if isinstance(batch, dict) else list(batch)
            found.append(torch.get_rng_state())
    return found


CASES: dict[str, Any] = {
    "array": (lambda: DataLoader(arrays(), 4, shuffle=True), ArrayIter),
    "array workers": (lambda: DataLoader(arrays(), 4, shuffle=True, num_workers=2), ArrayIter),
    "subset": (
        lambda: DataLoader(Subset(arrays(), range(3, 20)), 4, shuffle=True, drop_last=True),
        ArrayIter,
    ),
    "generator": (
        lambda: DataLoader(arrays(), 4, True, generator=torch.Generator().manual_seed(3)),
        ArrayIter,
    ),
    "sync": (lambda: DataLoader(Squares(), 4, shuffle=True), PlainIter),
    "process": (lambda: DataLoader(Squares(), 4, shuffle=True, num_workers=2), ProcessIter),
    "persistent": (
        lambda: DataLoader(Squares(), 4, True, num_workers=2, persistent_workers=True),
        ProcessIter,
    ),
    "stream": (lambda: DataLoader(Counting(), 2), PlainIter),
    "stream workers": (lambda: DataLoader(Counting(), 2, num_workers=2), ProcessIter),
    "no batches": (lambda: DataLoader(arrays(), None), SyncIter),
    "no batches workers": (lambda: DataLoader(arrays(), None, num_workers=2), ArrayIter),
}


@pytest.mark.parametrize("case", CASES)
def test_torchs_loader_gives_the_same_through_fastloop(case: str) -> None:
    make, kind = CASES[case]
    wanted = run(make)
    with fastloop.patched():
        for _ in range(2):  # the dataset's own code is traced twice, before it is left alone
            iter(make())
        assert type(iter(make())) is kind
        found = run(make)
    assert len(found) == len(wanted)
    assert all(map(torch.equal, found, wanted))


def test_loaders_made_before_and_names_bound_before_are_served() -> None:
    loader = DataLoader(arrays(), 4)
    fastloop.patch()
    assert isinstance(iter(loader), ArrayIter)
    assert type(loader) is DataLoader and "_shared" not in vars(loader)
    fastloop.unpatch()
    assert type(iter(loader)) is _SingleProcessDataLoaderIter


class Own(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return _SingleProcessDataLoaderIter(self)


class Infinite(DataLoader[Any]):
    """As ultralytics' and timm's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield next(self.iterator)


class Unhashable(DataLoader[Any]):
    __hash__ = None  # type: ignore[assignment]


def test_subclasses_are_served_unless_they_make_their_own_iterators() -> None:
    with fastloop.patched() as state:
        assert state.seams["dataloader"].native == 0
        assert type(iter(Own(arrays(), 4))) is _SingleProcessDataLoaderIter
        assert isinstance(Infinite(arrays(), 4).iterator, ArrayIter)
        unhashable = Unhashable(arrays(), 4)
        assert isinstance(iter(unhashable), ArrayIter) and isinstance(iter(unhashable), ArrayIter)
        pipe: Any = IterableWrapper(range(4))
        assert next(iter(DataLoader(pipe, 2))).tolist() == [0, 1]
        found = fastloop.patch_status().seams["dataloader"]
    assert found.is_on and found.native == 3
    assert found.fallbacks == {
        "Own makes its own iterators": 1,
        "the dataset is a data pipe": 1,
    }


class Alone(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([self.dataset[0]])


class AloneByYield(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield self.dataset[0]


class Late(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


def test_loaders_that_never_come_to_torchs_iter_are_counted_as_left() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    with fastloop.patched():

        class New(Alone):
            pass

        for cls in (torchdata.StatefulDataLoader, Alone, AloneByYield, New, Late, Infinite):
            next(iter(cls(arrays(), 4)))
        found = fastloop.patch_status().seams["dataloader"]
    assert found.fallbacks == {
        f"{name} makes its own iterators": 1
        for name in ("StatefulDataLoader", "Alone", "AloneByYield", New.__qualname__)
    }
    assert found.native == 2 and "__wrapped__" not in vars(vars(Alone)["__iter__"])


class Around(DataLoader[Any]):
    """As Ray Train's, around a loader of its own."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.__dict__.update(loader.__dict__)
        self.loader = loader

    def __iter__(self) -> Any:
        self.iterator = iter(self.loader)
        return self

    def __next__(self) -> Any:
        return next(self.iterator)


@pytest.mark.parametrize("kind", [DataLoader, fastloop.DataLoader])
def test_a_loader_around_a_loader_does_not_count(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOOP_STRICT", "1")
    with fastloop.patched():
        loader = Around(kind(arrays(), 4))
        for _ in range(2):
            next(iter(loader))
        found = fastloop.patch_status().seams["dataloader"]
    assert (found.native, found.fallbacks) == (2 if kind is DataLoader else 0, {})


def own_collate(samples: list[Any]) -> list[Any]:
    return samples


def test_the_status_says_loaders_epochs_and_how_each_dataset_is_loaded() -> None:
    with fastloop.patched():
        first = DataLoader(arrays(), 4)
        for loader in (first, first, DataLoader(arrays(), 4), DataLoader(Squares(), 4)):
            list(loader)
        list(DataLoader(Squares(), 4, num_workers=1))
        list(DataLoader(Squares(), 4, collate_fn=own_collate))
        state = fastloop.patch_status()
    assert state.seams["dataloader"].served == {
        "TensorDataset: gathered by threads": (2, 3),
        "Squares: in this process, collated by fastloop": (1, 1),
        "Squares: 1 worker process": (1, 1),
        "Squares: in this process, collated by the program's function": (1, 1),
    }
    text = "dataloader 6 native [TensorDataset: gathered by threads, 2 loaders, 3 epochs; Squares"
    assert str(state).startswith(text)


def test_the_status_names_what_is_replaced_replaced_for_good() -> None:
    iter(DataLoader(TensorDataset(torch.arange(4)), 2))
    with fastloop.patched():
        iter(DataLoader(TensorDataset(torch.arange(4)), 2))
    status = fastloop.patch_status()
    assert "torch.UntypedStorage.share_memory_" in status.replaced_for_good
    assert str(status).endswith(f"replaced for good: {', '.join(status.replaced_for_good)}")


def test_fastloops_own_class_does_not_go_through_the_seam() -> None:
    with fastloop.patched():
        list(fastloop.DataLoader(arrays(), 4))
        assert fastloop.patch_status().seams["dataloader"].native == 0


def test_patch_is_idempotent_and_a_block_takes_out_only_its_own() -> None:
    fastloop.patch()
    ours = vars(DataLoader)["_get_iterator"]
    fastloop.patch("dataloader")
    assert vars(DataLoader)["_get_iterator"] is ours
    with fastloop.patched():
        pass
    assert fastloop.patch_status().seams["dataloader"].is_on
    fastloop.unpatch()
    fastloop.unpatch()
    assert not fastloop.patch_status().seams["dataloader"].is_on


def test_what_others_have_wrapped_stays_and_passes_on() -> None:
    fastloop.patch()
    ours: Any = vars(DataLoader)["_get_iterator"]
    calls = []

    def theirs(self: Any) -> Any:
        calls.append(self)
        return ours(self)

    try:
        DataLoader._get_iterator = theirs  # type: ignore[method-assign]
        assert isinstance(iter(DataLoader(arrays(), 4)), ArrayIter)
        status = fastloop.unpatch().seams["dataloader"]
        assert not status.is_on and "other tools have put around" in status.why
        assert vars(DataLoader)["_get_iterator"] is theirs
        assert type(iter(DataLoader(arrays(), 4))) is _SingleProcessDataLoaderIter
        assert len(calls) == 2
        fastloop.patch()
        assert isinstance(iter(DataLoader(arrays(), 4)), ArrayIter)
    finally:
        DataLoader._get_iterator = ours
        fastloop.unpatch()


@pytest.mark.parametrize("name", ["_get_iterator", "__iter__"])
@pytest.mark.parametrize("is_unpatched", [False, True])
def test_what_another_tool_has_put_back_is_told_and_patched_anew(
    name: str, is_unpatched: bool
) -> None:
    fastloop.patch()
    setattr(DataLoader, name, TORCHS[name == "__iter__"])
    status = fastloop.patch_status().seams["dataloader"]
    assert not status.is_on and f"put torch's DataLoader.{name} back" in status.why
    if is_unpatched:
        fastloop.unpatch()
    assert fastloop.patch().seams["dataloader"].is_on
    assert isinstance(iter(DataLoader(arrays(), 4)), ArrayIter)


def test_what_another_tool_has_put_in_place_of_ours_is_wrapped_anew() -> None:
    fastloop.patch()
    theirs: Any = lambda self: TORCHS[0](self)  # noqa: E731
    try:
        DataLoader._get_iterator = theirs  # type: ignore[method-assign]
        fastloop.unpatch()
        assert fastloop.patch().seams["dataloader"].is_on
        assert isinstance(iter(DataLoader(arrays(), 4)), ArrayIter)
        fastloop.unpatch()
        assert vars(DataLoader)["_get_iterator"] is theirs
    finally:
        DataLoader._get_iterator = TORCHS[0]


def test_a_torch_that_differs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    next_batch = ArrayIter.__next__

    def draw_more(self: Any) -> Any:
        torch.rand(1)
        return next_batch(self)

    monkeypatch.setattr(ArrayIter, "__next__", draw_more)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # whatever the tests have started
    status = fastloop.patch(verbose=False).seams["dataloader"]
    assert not status.is_on and "differs from those that fastloop knows" in status.why
    assert type(iter(DataLoader(arrays(), 4))) is _SingleProcessDataLoaderIter


def test_the_check_leaves_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    fastloop.patch()
    assert torch.equal(torch.get_rng_state(), state)


def test_iterators_go_on_when_the_seam_is_taken_out() -> None:
    with fastloop.patched():
        batches = iter(DataLoader(arrays(), 4))
        next(batches)
    assert len(list(batches)) == 5


def test_loaders_pickle_copy_and_die_as_before() -> None:
    loader = DataLoader(arrays(), 4)
    before = set(vars(loader))
    with fastloop.patched():
        list(loader)
        assert set(vars(loader)) == before
        for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
            assert len(list(other)) == 6
        reference = weakref.ref(loader)
        with collector_off():
            del loader, other
            assert reference() is None


def test_persistent_workers_that_died_are_made_anew() -> None:
    with fastloop.patched():
        loader = DataLoader(Squares(), 4, num_workers=1, persistent_workers=True)
        list(loader)
        iterator: Any = loader._iterator
        iterator._workers[0].terminate()
        iterator._workers[0].join(limit(300))
        assert len(list(loader)) == 3
        assert loader._iterator is not iterator


def test_persistent_workers_that_are_dying_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are alive when they are looked at, and dead when they are told of the next epoch."""
    with fastloop.patched():
        loader = DataLoader(Squares(), 4, num_workers=1, persistent_workers=True)
        list(loader)
        iterator: Any = loader._iterator
        looks = iter([False])
        is_broken = ProcessIter.is_broken

        def look(self: ProcessIter) -> bool:
            return next(looks, None) is None and is_broken(self)

        monkeypatch.setattr(ProcessIter, "is_broken", look)
        iterator._workers[0].terminate()
        iterator._workers[0].join(limit(300))
        assert len(list(loader)) == 3
        assert loader._iterator is not iterator


def iterate_in_child(loader: DataLoader[Any], results: Any) -> None:
    results.put([len(list(loader)) for _ in range(2)])


def test_persistent_workers_of_the_parent_are_left_to_it() -> None:
    with fastloop.patched():
        loader = DataLoader(Squares(), 4, num_workers=1, persistent_workers=True)
        list(loader)
        iterator = loader._iterator
        context = torch.multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=iterate_in_child, args=(loader, results))
        child.start()
        child.join(limit(300))
        assert child.exitcode == 0 and results.get() == [3, 3]
        assert len(list(loader)) == 3 and loader._iterator is iterator


@pytest.mark.parametrize("what", ["dataloaders", ["dataloader", "optimizer"]])
def test_unknown_names_are_refused(what: Any) -> None:
    for call in (fastloop.patch, fastloop.unpatch, lambda w: fastloop.patched(w).__enter__()):
        with pytest.raises(ValueError, match=r"what must be one of 'dataloader', .*, got '"):
            call(what)
    assert not fastloop.patch_status().seams["dataloader"].is_on


def test_the_environment_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP", "0")
    status = fastloop.patch().seams["dataloader"]
    assert not status.is_on
    assert type(iter(DataLoader(arrays(), 4))) is _SingleProcessDataLoaderIter


def test_strict_mode_raises_for_what_is_left_to_torch() -> None:
    code = """if True:
        import fastloop, torch
        from torch.utils.data import DataLoader
        from torch.utils.data.datapipes.iter import IterableWrapper
        fastloop.patch()
        list(DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)), 2))
        class Alone(DataLoader):
            def __iter__(self):
                return iter(self.dataset)
        for loader in (DataLoader(IterableWrapper(range(4)), 2), Alone(range(4))):
            try:
                list(loader)
            except RuntimeError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FASTLOOP_STRICT": "1"},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stderr
    assert "FASTLOOP_STRICT=1" in done.stdout and "data pipe" in done.stdout
    assert "Alone makes its own iterators" in done.stdout


def test_threads_may_patch_at_once() -> None:
    def toggle() -> None:
        for _ in range(20):
            fastloop.patch()
            fastloop.unpatch()

    threads = [threading.Thread(target=toggle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not fastloop.patch_status().seams["dataloader"].is_on


def test_the_check_goes_beside_threads_that_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    next_batch = ArrayIter.__next__

    def draw_beside(self: Any) -> Any:
        drawer = threading.Thread(target=torch.rand, args=[1])
        drawer.start()
        drawer.join()
        return next_batch(self)

    monkeypatch.setattr(ArrayIter, "__next__", draw_beside)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        torch.manual_seed(1)
        status = fastloop.patch("dataloader").seams["dataloader"]
    finally:
        is_over.set()
        thread.join()
    assert status.is_on, status.why
    found = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(
        torch.rand(5)[-1:], found
    )  # after one for each of three batches, and the end


def test_a_thread_may_end_during_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in, is_over = Patch.put_in, threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()

    def end_it(patch: Patch, anew: bool = False) -> None:
        is_over.set()
        thread.join()
        put_in(patch, anew)

    monkeypatch.setattr(Patch, "put_in", end_it)
    status = fastloop.patch("dataloader").seams["dataloader"]
    assert status.is_on, status.why


def test_verbose_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    fastloop.patch(verbose=True)
    assert (
        "on for dataloader, grad_scaler, clip_grad_norm, transforms, texts (torch"
        in capsys.readouterr().err
    )


class Stateful(Squares):
    """Counts in shared memory how often its state is asked for."""

    def __init__(self) -> None:
        self.asked = torch.zeros(1, dtype=torch.int64).share_memory_()

    def state_dict(self) -> dict[str, int]:
        self.asked += 1
        return {"place": int(self.asked)}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class StatefulStream(Stateful, IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("kind", [Stateful, StatefulStream])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_no_dataset_is_asked_for_a_state_that_nobody_can_ask_a_loader_for(
    kind: type[Stateful], workers: int, persistent: bool
) -> None:
    with fastloop.patched():
        dataset = kind()
        is_kept = persistent and workers > 0
        loader: Any = DataLoader(dataset, 2, num_workers=workers, persistent_workers=is_kept)
        assert [*loader, *loader]
        assert int(dataset.asked) == 0


class Watched(Sampler[int]):
    """Notes the names that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name != "asked":
            self.asked.append(name)
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


@pytest.mark.parametrize("workers", [0, 1])
def test_no_sampler_is_asked_what_resuming_alone_needs(workers: int) -> None:
    with fastloop.patched():
        sampler = Watched()
        loader: Any = DataLoader(Squares(), 4, sampler=sampler, num_workers=workers)
        assert len(list(loader)) == 3
        assert sampler.asked == []
