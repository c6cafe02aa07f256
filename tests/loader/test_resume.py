"""state_dict() and load_state_dict(): the exact next batch, and every epoch after it."""

import copy
import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    SAMPLERS,
    ListSampler,
    N,
    ShufflingSampler,
    assert_same,
    bits,
    labels,
    small_dataset,
)
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Subset, SubsetRandomSampler

from fastloop import ArrayDataset, DataLoader

ROUTES = ["array", "torch", "own", "thread"]  # `path`; own: "process" or "sync"
# They draw from torch's own generator as they go: workers that read ahead draw too early.
DRAW_AS_THEY_GO = {"user-drawing", "replacement-default-generator"}
WORKERS = [(a, b) for a in (0, 1, 2) for b in (0, 1, 2)]

routes = pytest.mark.parametrize("route", ROUTES)


def make(
    route: str, kind: str = "shuffle", workers: int = 0, seed: int = 11, **kwargs: Any
) -> tuple[DataLoader[Any], torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    arguments = {"batch_size": 6, **SAMPLERS[kind](N, generator), **kwargs}
    if route == "own":
        route = "process" if workers > 0 else "sync"
    if route == "thread" and workers == 0:
        route = "sync"
    return DataLoader(small_dataset(), num_workers=workers, path=route, **arguments), generator


def saved(state: dict[str, Any]) -> Any:
    """As it comes back from a checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def take(iterator: Iterator[Any], count: int | None = None, draws: int = 3) -> list[Any]:
    """Batches, in a loop that draws numbers of its own, as dropout does."""
    batches = []
    while count is None or len(batches) < count:
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        torch.rand(draws)
    return batches


def go_on(
    loader: Any, generator: torch.Generator, rest: Iterator[Any], draws: int = 3
) -> list[Any]:
    """What is left of an epoch, two more epochs, and all random states at the end."""
    is_used = generator in (loader.generator, getattr(loader.sampler, "generator", None))
    batches = [take(rest, None, draws), *(take(iter(loader), None, draws) for _ in range(2))]
    given = bits(generator.get_state()) if is_used else b""
    return [*batches, bits(torch.get_rng_state()), given]


def both_runs(
    route: str,
    kind: str,
    workers: tuple[int, int],
    stop: int,
    before: int = 1,
    draws: int = 3,
    **kwargs: Any,
) -> tuple[list[Any], list[Any]]:
    """A run that is saved after `before` epochs and `stop` batches, and one that resumes."""
    torch.manual_seed(3)
    loader, generator = make(route, kind, workers[0], **kwargs)
    for _ in range(before):
        take(iter(loader), None, draws)
    iterator = iter(loader)
    take(iterator, stop, draws)
    state, torchs = saved(loader.state_dict()), torch.get_rng_state()
    assert (state["epoch"], state["yielded"]) == (before, stop)
    expected = go_on(loader, generator, iterator, draws)

    torch.manual_seed(999)
    loader, generator = make(route, kind, workers[1], seed=77, **kwargs)
    torch.set_rng_state(torchs)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    return go_on(loader, generator, iter(loader), draws), expected


def compare_resumed(*args: Any, **kwargs: Any) -> None:
    assert_same(*both_runs(*args, **kwargs))


# ---- in the middle of an epoch


@routes
@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_next_batch_and_later_epochs_are_those_of_the_run_that_saved(
    route: str, kind: str
) -> None:
    batches = len(make(route, kind)[0])
    # Where blocks of numbers are drawn from the generator of the loop, it must not draw too.
    draws = 0 if kind == "replacement-default-generator" else 3
    for stop in sorted({0, 1, 5, batches - 1, batches} & set(range(batches + 1))):
        compare_resumed(route, kind, (0, 0), stop, draws=draws)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", sorted(set(SAMPLERS) - DRAW_AS_THEY_GO))
def test_any_number_of_threads_resumes_any_other(kind: str, workers: tuple[int, int]) -> None:
    compare_resumed("array", kind, workers, min(2, len(make("array", kind)[0])))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", ["shuffle", "replacement"])
@pytest.mark.parametrize("route", [route for route in ROUTES if route != "array"])
def test_any_number_of_processes_resumes_any_other(
    route: str, kind: str, workers: tuple[int, int]
) -> None:
    compare_resumed(route, kind, workers, 3, before=0)


@routes
@pytest.mark.parametrize("workers", [(0, 0), (2, 1), (0, 2), (2, 0)])
@pytest.mark.parametrize("size", [None, 6])
def test_a_sampler_that_draws_in_iter(
    route: str, size: int | None, workers: tuple[int, int]
) -> None:
    """With workers torch calls it twice, so later epochs need the same number of calls."""
    for cut in (0, 4):
        sampler = ShufflingSampler(24, size)
        given = {"batch_sampler": sampler} if size else {"sampler": sampler, "batch_size": None}
        if size:
            given["batch_size"] = 1
        ours, theirs = both_runs(route, "sequential", workers, cut, **given)
        is_same_count = (workers[0] > 0) == (workers[1] > 0)
        assert_same(ours if is_same_count else ours[0], theirs if is_same_count else theirs[0])


@routes
def test_batch_samplers_and_single_samples(route: str) -> None:
    own = [[3, 1], [2], [9, 8, 7], [0], [5, 5]]
    plain = BatchSampler(RandomSampler(range(N)), 4, True)
    for given in (
        {"batch_sampler": ListSampler(own)},
        {"batch_sampler": own},
        {"batch_sampler": plain},
    ):
        compare_resumed(route, "sequential", (0, 0), 3, batch_size=1, **given)
    compare_resumed(route, "shuffle", (0, 0), 17, batch_size=None)
    compare_resumed(route, "shuffle", (1, 0), 3, drop_last=True)


@routes
def test_a_block_that_was_not_needed_yet_is_drawn_when_it_is(route: str) -> None:
    compare_resumed(route, "replacement-default-generator", (0, 0), 1, batch_size=32)


@pytest.mark.parametrize("saver", ROUTES)
@pytest.mark.parametrize("resumer", ROUTES)
def test_paths_resume_each_other(saver: str, resumer: str) -> None:
    torch.manual_seed(3)
    loader, _ = make(saver)
    iterator = iter(loader)
    take(iterator, 4)
    other, _ = make(resumer)
    other.load_state_dict(loader.state_dict())
    assert_same(list(other), list(iterator))


@routes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_can_be_saved_and_resumed(route: str, workers: int) -> None:
    torch.manual_seed(3)
    loader, _ = make(route, workers=workers)
    whole = iter(loader)
    take(whole, 2)
    for stop in (3, 5):
        state = loader.state_dict()
        loader, _ = make(route, workers=workers)
        loader.load_state_dict(state)
        rest = iter(loader)
        assert loader.state_dict() == {**state, "draws_base_seed": True}
        take(rest, stop - state["yielded"])
        assert loader.state_dict()["yielded"] == stop
    take(whole, 3)
    assert_same(list(rest), list(whole))


@routes
def test_the_users_own_random_numbers_are_untouched_by_resuming(route: str) -> None:
    loader, _ = make(route)
    take(iter(loader), 3)
    other, _ = make(route)
    other.load_state_dict(loader.state_dict())
    before = torch.get_rng_state()
    next(iter(other))
    assert torch.equal(torch.get_rng_state(), before)


@routes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_left_early_can_be_saved_afterwards(route: str, workers: int) -> None:
    torch.manual_seed(3)
    loader, _ = make(route, workers=workers)
    whole = list(loader)
    torch.manual_seed(3)
    for i, _ in enumerate(loader):
        if i == 3:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["yielded"]) == (1, 4)
    loader.load_state_dict(state)
    assert_same(list(loader), whole[4:])
    assert loader.state_dict()["epoch"] == 2


@routes
def test_after_a_resumed_epoch_was_left_the_next_is_whole(route: str) -> None:
    loader, _ = make(route, "sequential")
    take(iter(loader), 3)
    loader.load_state_dict(loader.state_dict())
    assert labels(take(iter(loader), 1))[0][0] == 18
    assert labels(list(loader)) == labels(list(make(route, "sequential")[0]))


@routes
def test_the_iterator_made_last_counts(route: str) -> None:
    loader, _ = make(route)
    first, second = iter(loader), iter(loader)
    take(second, 2)
    take(first, 5)
    assert loader.state_dict()["yielded"] == 2
    assert loader.state_dict()["epoch"] == 1


# ---- at the ends of an epoch


@routes
@pytest.mark.parametrize("workers", [0, 2])
def test_before_the_loop_has_ended_the_rest_is_empty(route: str, workers: int) -> None:
    loader, _ = make(route, workers=workers)
    iterator = iter(loader)
    take(iterator, len(loader))
    state = loader.state_dict()
    assert (state["epoch"], state["yielded"], state["begun"]) == (0, len(loader), True)
    assert next(iterator, None) is None
    after = loader.state_dict()
    assert (after["epoch"], after["yielded"], after["begun"]) == (1, 0, False)
    for loaded, counts in ((state, [0, 9]), (after, [9, 9])):
        loader.load_state_dict(loaded)
        assert [len(list(loader)) for _ in counts] == counts


@routes
@pytest.mark.parametrize("kind", ["shuffle", "shuffle-generator", "random-generator"])
@pytest.mark.parametrize("before", [0, 1])
def test_between_epochs(route: str, kind: str, before: int) -> None:
    torch.manual_seed(3)
    loader, generator = make(route, kind)
    for _ in range(before):
        take(iter(loader))
    state, torchs = saved(loader.state_dict()), torch.get_rng_state()
    assert (state["epoch"], state["yielded"], state["begun"]) == (before, 0, False)
    expected = go_on(loader, generator, iter(loader))
    loader, generator = make(route, kind, seed=77)
    torch.set_rng_state(torchs)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert_same(go_on(loader, generator, iter(loader)), expected)


@routes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffle", "replacement-no-generator", "subset-tensor"])
def test_between_epochs_torchs_generator_is_lent_the_state_it_had(
    route: str, kind: str, workers: int
) -> None:
    """Where the program restores nothing, and its own numbers stay its own."""
    torch.manual_seed(3)
    loader, _ = make(route, kind, workers)
    take(iter(loader))
    state = saved(loader.state_dict())
    expected = list(loader)
    for seeded in (None, 5):
        loader, _ = make(route, kind, workers)
        torch.manual_seed(999)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        if seeded is None:
            before = torch.get_rng_state()
            assert_same(list(loader), expected)
            assert torch.equal(torch.get_rng_state(), before)
        else:
            torch.manual_seed(seeded)
            ours = list(loader)
            torch.manual_seed(seeded)
            assert_same(ours, list(make(route, kind, workers)[0]))


def test_an_epoch_begun_with_a_lent_state_is_resumed() -> None:
    loader, _ = make("array")
    take(iter(loader))
    state = loader.state_dict()
    expected = list(loader)
    torch.manual_seed(999)
    loader.load_state_dict(state)
    take(iter(loader), 2)
    loader.load_state_dict(loader.state_dict())
    assert_same(list(loader), expected[2:])


def test_a_generator_seeded_for_every_epoch_keeps_its_seed() -> None:
    loader, generator = make("array", "shuffle-generator")
    list(loader)
    state = loader.state_dict()
    runs = []
    for _ in range(2):
        loader.load_state_dict(state)
        generator.manual_seed(5)
        runs.append(list(loader))
    assert_same(*runs)


@routes
@pytest.mark.parametrize("kind", ["shuffle", "shuffle-generator"])
@pytest.mark.parametrize("stop", [0, 4])
def test_persistent_workers(route: str, kind: str, stop: int) -> None:
    """Their later epochs draw no base seed, in the run that resumes neither."""
    compare_resumed(route, kind, (2, 2), stop, persistent_workers=True)
    torch.manual_seed(3)
    loader, generator = make(route, kind, 2, persistent_workers=True)
    take(iter(loader))
    state, torchs = loader.state_dict(), torch.get_rng_state()
    assert state["draws_base_seed"] is False
    expected = go_on(loader, generator, iter(loader))
    for workers in (2, 0):
        kwargs = {"persistent_workers": True} if workers else {}
        other, generator = make(route, kind, workers, seed=77, **kwargs)
        torch.set_rng_state(torchs)
        other.load_state_dict(state)
        resumed = take(iter(other))
        assert_same(resumed, expected[0])


PERSISTENT, AGAIN, NONE = (2, True), (2, False), (0, False)  # workers, and whether they stay


@pytest.mark.parametrize("route", ["array", "own"])
@pytest.mark.parametrize("kind", ["shuffle", "shuffle-generator"])
@pytest.mark.parametrize("began", ["not", "between", "middle"])
@pytest.mark.parametrize(
    ("there", "here"),
    [(PERSISTENT, AGAIN), (AGAIN, PERSISTENT), (PERSISTENT, NONE), (NONE, PERSISTENT)],
)
def test_persistent_workers_that_change_change_no_later_order(
    route: str, kind: str, began: str, there: tuple[int, bool], here: tuple[int, bool]
) -> None:
    """A base seed is drawn when it was in the run that saved, after a second resume too."""
    torch.manual_seed(3)
    loader, generator = make(route, kind, there[0], persistent_workers=there[1])
    if began != "not":
        take(iter(loader))
    rest = iter(loader) if began == "middle" else None
    if rest is not None:
        take(rest, 4)
    state, torchs = loader.state_dict(), torch.get_rng_state()
    expected = go_on(loader, generator, rest or iter(loader))[:3]

    workers, stays = here
    torch.set_rng_state(torchs)
    loader, generator = make(route, kind, workers, seed=77, persistent_workers=stays)
    loader.load_state_dict(state)
    resumed = [take(iter(loader), None, 3)]
    again, torchs = loader.state_dict(), torch.get_rng_state()
    resumed.extend(take(iter(loader), None, 3) for _ in range(2))
    assert_same(resumed, expected)

    torch.set_rng_state(torchs)
    loader, generator = make(route, kind, there[0], seed=78, persistent_workers=there[1])
    loader.load_state_dict(again)
    assert_same([take(iter(loader), None, 3) for _ in range(2)], expected[1:])


@routes
def test_persistent_workers_go_back_to_before_they_began(route: str) -> None:
    loader, _ = make(route, "shuffle-generator", 1, persistent_workers=True)
    state = loader.state_dict()
    first = list(loader)
    list(loader)
    loader.load_state_dict(state)
    assert_same(list(loader), first)


def test_a_sampler_that_draws_in_iter_resumes_after_persistent_workers() -> None:
    sampler = ShufflingSampler(24, 6)
    data, given = small_dataset(), {"batch_sampler": sampler, "path": "array"}
    torch.manual_seed(3)
    loader = DataLoader(data, num_workers=2, persistent_workers=True, **given)
    list(loader)
    state, torchs = loader.state_dict(), torch.get_rng_state()
    expected = [list(loader), bits(torch.get_rng_state())]
    torch.set_rng_state(torchs)
    loader = DataLoader(data, **given)
    loader.load_state_dict(state)
    assert_same([list(loader), bits(torch.get_rng_state())], expected)


# ---- what resuming costs


class Counting(Dataset[torch.Tensor]):
    def __init__(self, n: int) -> None:
        self.n, self.loaded = n, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor(index)


@pytest.mark.parametrize("shuffle", [False, True])
def test_no_skipped_sample_is_loaded(shuffle: bool) -> None:
    dataset = Counting(N)
    loader = DataLoader(dataset, 5, shuffle)
    take(iter(loader), 6)
    state = loader.state_dict()
    seen, dataset.loaded = dataset.loaded, []
    loader.load_state_dict(state)
    rest = torch.cat(list(loader)).tolist()
    assert dataset.loaded == rest
    assert sorted(seen + rest) == list(range(N))


def test_a_subset_sampler_yields_the_users_own_indices() -> None:
    dataset = Counting(N)
    loader = DataLoader(dataset, 5, sampler=SubsetRandomSampler(np.arange(N, dtype=np.int32)))
    take(iter(loader), 6)
    loader.load_state_dict(loader.state_dict())
    list(loader)
    assert {type(index) for index in dataset.loaded} == {np.int32}


@pytest.mark.slowest
@pytest.mark.parametrize("route", ["array", "torch", "sync"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_half_of_ten_million_samples(route: str, shuffle: bool) -> None:
    n = 10_000_000
    data = ArrayDataset(torch.arange(n))
    torch.manual_seed(3)
    loader = DataLoader(data, 1000, shuffle, path=route)
    iterator = iter(loader)
    expected = torch.arange(n)
    if shuffle:
        next(iterator)
        torch.manual_seed(3)
        _, seed = (int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2))
        expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    loader.load_state_dict({**loader.state_dict(), "yielded": n // 2000})
    assert torch.equal(next(iter(loader))[0], expected[n // 2 : n // 2 + 1000])


def test_the_state_is_plain_and_small() -> None:
    sizes = []
    for n in (100, 100_000):
        loader = DataLoader(ArrayDataset(torch.arange(n)), 10, True)
        next(iter(loader))
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state == saved(state)
        sizes.append(len(json.dumps(state)))
    assert sizes[1] - sizes[0] < 20


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_copy_of_a_loader_resumes_too(how: Any) -> None:
    loader, _ = make("array")
    iterator = iter(loader)
    take(iterator, 3)
    loader.load_state_dict(loader.state_dict())
    clone = how(loader)
    assert clone.state_dict() == loader.state_dict()
    expected = list(iterator)
    assert_same(list(clone), expected)
    assert loader.state_dict()["yielded"] == 3
    assert_same(list(loader), expected)


def test_subsets_are_resumed_as_datasets_of_their_length() -> None:
    data = Subset(small_dataset(), list(range(0, N, 2)))
    loader = DataLoader(data, 4)
    take(iter(loader), 3)
    loader.load_state_dict(loader.state_dict())
    assert labels(list(loader))[0] == [24, 26, 28, 30]
