"""accelerate: its loaders train the same behind fastloop.patch(), and take our arguments along."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from framework_runs import (
    ROWS,
    Samples,
    Stream,
    Trained,
    accelerate_epoch,
    arrays,
    assert_trains_alike,
    model_of,
    weights,
)
from helpers import run_ranks
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.datapipes.iter import IterableWrapper

import fastloop
from fastloop.base.machine import budget_of
from fastloop.loader.workers import processes as process_iter
from fastloop.loader.workers.threads import ThreadIter

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """accelerate keeps the arguments of the first Accelerator for all."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerator_of(accumulate: int = 1, **config: Any) -> Any:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(**config),
    )


def train(loader: Any, skip: int = 0, **given: Any) -> Trained:
    """Two epochs of accelerate's loop; the first begins after `skip` batches."""
    accelerator = accelerator_of(**given)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for epoch in range(2):
        rest = loader if epoch or not skip else accelerator.skip_first_batches(loader, skip)
        for loss, size in accelerate_epoch(accelerator, model, optimizer, rest):
            losses.append((loss, accelerator.sync_gradients, size))
    return Trained((losses, weights(model)), loader)


def shuffled(**given: Any) -> DataLoader[Any]:
    return DataLoader(arrays(), 4, shuffle=True, **given)


# The loader, what train() is given, and the path.
CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "prepare": (shuffled, {}, "array"),
    "threads": (lambda: shuffled(num_workers=2), {}, "array"),
    "samples": (lambda: DataLoader(Samples(), 4, shuffle=True), {}, "sync"),
    "processes": (
        lambda: DataLoader(Samples(), 4, True, num_workers=1, persistent_workers=True),
        {},
        "process",
    ),
    "generator": (lambda: shuffled(generator=torch.Generator().manual_seed(5)), {}, "array"),
    "accumulation": (shuffled, {"accumulate": 4}, "array"),
    "uneven batches": (shuffled, {"even_batches": False}, "array"),
    "dispatch": (shuffled, {"dispatch_batches": True}, "array"),
    "split": (shuffled, {"split_batches": True}, "array"),
    "seedable": (shuffled, {"use_seedable_sampler": True, "data_seed": 7}, "array"),
    "skip": (shuffled, {"skip": 3}, "array"),
    "stream": (lambda: DataLoader(Stream(), 4), {}, "sync"),
    "stream shared out": (lambda: DataLoader(Stream(), 4), {"dispatch_batches": False}, "sync"),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_alike(case: str) -> None:
    make, given, path = CASES[case]
    losses, _ = assert_trains_alike(lambda: train(make(), **given), path)
    assert len(losses) == 2 * -(-ROWS // 4) - given.get("skip", 0)


def test_a_stateful_loader_stays_torchdatas() -> None:
    assert_trains_alike(lambda: train(shuffled(), use_stateful_dataloader=True), "torch")


@pytest.mark.slow
def test_two_ranks_train_alike(tmp_path: Path) -> None:
    for output in run_ranks(tmp_path, "accelerate_patched_ranks.py"):
        assert output.endswith("all alike\n"), output


# ---- our own loader


def double(batch: Any) -> Any:
    return [part * 2 for part in batch]


def ours(**given: Any) -> fastloop.DataLoader[Any]:
    return fastloop.DataLoader(arrays(), **{"batch_size": 4, "device": "cpu", **given})


def is_doubled(loader: Any, first: int = 0) -> bool:
    rows = torch.cat([x for x, _ in loader])
    return torch.equal(rows, arrays().tensors[0][first:] * 2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [arrays, Samples, Stream])
def test_a_transform_survives_prepare_and_what_follows(dataset: Any, workers: int) -> None:
    given: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if dataset is Stream:
        given = {}
    loader = fastloop.DataLoader(dataset(), 4, device="cpu", device_transform=double, **given)
    plain = DataLoader(loader.dataset, 4)
    with fastloop.patched(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        accelerator = accelerator_of(dispatch_batches=False)
        prepared = accelerator.prepare(loader)
        assert type(prepared.base_dataloader) is DataLoader
        del loader
        assert is_doubled(prepared) and is_doubled(prepared)
        assert is_doubled(accelerator.skip_first_batches(prepared, 2), 8)
        assert fastloop.stats(prepared).batches == 2 * len(list(plain))
        assert not is_doubled(plain)  # the same dataset, and no loader of ours


def test_a_transform_survives_copies_of_the_prepared_loader() -> None:
    with fastloop.patched():
        prepared = accelerator_of().prepare(ours(device_transform=double))
        for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
            assert is_doubled(other)


def test_all_of_a_loader_that_is_skipped_into_before_prepare() -> None:
    with fastloop.patched():
        loader = accelerator_of().skip_first_batches(ours(device_transform=double), 1)
        assert is_doubled(loader, 4)


def test_path_budget_and_restarts_survive_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []

    def spy(loader: Any) -> int:
        budgets.append(budget_of(loader))
        return budgets[-1]

    monkeypatch.setattr(process_iter, "budget_of", spy)
    given: dict[str, Any] = {"path": "process", "on_worker_death": "restart"}
    with fastloop.patched():
        accelerator = accelerator_of()
        prepared = accelerator.prepare(ours(num_workers=1, memory_budget=5 << 20, **given))
        iterator = prepared.base_dataloader.__iter__()
        assert type(iterator) is process_iter.ProcessIter and iterator._has_restarts()
        assert budgets == [5 << 20]
        assert fastloop.stats(prepared).path == "process"
        prepared = accelerator.prepare(ours(num_workers=1, path="thread"))
        assert type(prepared.base_dataloader.__iter__()) is ThreadIter


def said_by_prepare(loader: Any, **config: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator_of(**config).prepare(loader)
    found = [w for w in caught if issubclass(w.category, RuntimeWarning)]
    assert all(w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def test_without_the_seam_prepare_names_what_is_lost() -> None:
    assert said_by_prepare(fastloop.DataLoader(arrays(), 4)) == []
    given: dict[str, Any] = {"path": "array", "memory_budget": 1 << 20, "resume": "skip"}
    (text,) = said_by_prepare(ours(**given))
    assert "take over device, path, memory_budget, resume; call fastloop.patch() before" in text
    with pytest.raises(ValueError, match=r"device, device_transform; call fastloop\.patch\(\)"):
        accelerator_of().prepare(ours(device_transform=double))


def test_with_the_seam_prepare_names_what_torch_iterates() -> None:
    with fastloop.patched():
        assert said_by_prepare(ours(path="array")) == []
        (text,) = said_by_prepare(ours(resume="skip"))
        assert "take over resume: they belong to state_dict()" in text
        (text,) = said_by_prepare(ours(), use_stateful_dataloader=True)
        assert "take over device; leave out use_stateful_dataloader" in text
        pipe = fastloop.DataLoader(IterableWrapper(range(4)), device="cpu", device_transform=double)
        with pytest.raises(ValueError, match="device, device_transform"):
            accelerator_of().prepare(pipe)


def test_unpatch_names_what_prepared_loaders_lose() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with fastloop.patched():
            accelerator_of().prepare(ours(device_transform=double))  # and is gone
            kept = accelerator_of().prepare(ours(device=None, path="array"))
    with (
        pytest.warns(RuntimeWarning, match=r"next iter\(\) on they lose device, device_transform$"),
        fastloop.patched(),
    ):
        kept = accelerator_of().prepare(ours(device_transform=double))
    assert not fastloop.patch_status().seams["dataloader"].is_on and not is_doubled(kept)


@pytest.mark.parametrize("is_on", [False, True])
def test_static_buffers_are_refused(is_on: bool) -> None:
    with (
        fastloop.patched() if is_on else warnings.catch_warnings(),
        pytest.raises(ValueError, match="static_buffers=True does not go with accelerate"),
    ):
        accelerator_of().prepare(ours(static_buffers=True))


def test_others_read_what_was_given() -> None:
    loader = ours(device_transform=double, static_buffers=True)
    assert type(loader.pin_memory_device) is str
    loader.pin_memory_device = "cuda"
    assert loader.pin_memory_device == vars(loader)["pin_memory_device"] == "cuda"
    with fastloop.patched():
        batches = BatchSampler(SequentialSampler(range(ROWS)), 4, False)
        loader = fastloop.DataLoader(
            arrays(), batch_sampler=batches, path="array", pin_memory_device="cuda"
        )
        assert accelerator_of().prepare(loader).pin_memory_device == "cuda"
