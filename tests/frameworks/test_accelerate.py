"""accelerate: its loaders train the same behind fastloop.patch(), and keep fastloop's arguments."""

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
from helpers import run_program, run_ranks
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import fastloop
from fastloop.base.machine import budget_of
from fastloop.loader.workers import processes as process_iter
from fastloop.loader.workers.threads import ThreadIter

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker
from accelerate.utils import DataLoaderConfiguration


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """Forget the arguments of the first Accelerator, which accelerate keeps for all."""
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


# ---- fastloop's own loader


def double(batch: Any) -> Any:
    return [part * 2 for part in batch]


def ours(**given: Any) -> fastloop.DataLoader[Any]:
    return fastloop.DataLoader(arrays(), **{"batch_size": 4, "device": "cpu", **given})


def is_doubled(loader: Any, first: int = 0) -> bool:
    rows = torch.cat([x for x, _ in loader])
    return torch.equal(rows, arrays().tensors[0][first:] * 2)


@pytest.fixture
def patched() -> Iterator[None]:
    with fastloop.patched():
        yield


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [arrays, Samples, Stream])
def test_a_transform_survives_prepare_and_what_follows(
    dataset: Any, workers: int, patched: None, no_warning: None
) -> None:
    given: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if dataset is Stream:
        given = {}
    loader = fastloop.DataLoader(dataset(), 4, device="cpu", device_transform=double, **given)
    plain = DataLoader(loader.dataset, 4)
    accelerator = accelerator_of(dispatch_batches=False)
    prepared = accelerator.prepare(loader)
    assert type(prepared.base_dataloader) is fastloop.DataLoader
    del loader
    assert is_doubled(prepared) and is_doubled(prepared)
    assert is_doubled(accelerator.skip_first_batches(prepared, 2), 8)
    assert fastloop.stats(prepared).batches == 2 * len(list(plain))
    assert not is_doubled(plain)  # the same dataset in a plain loader


def test_a_transform_survives_copies_and_a_second_prepare(patched: None) -> None:
    prepared = accelerator_of().prepare(ours(device_transform=double))
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert is_doubled(other)
    again = accelerate.data_loader.prepare_data_loader(dataloader=prepared, put_on_device=False)
    assert is_doubled(again)


def test_all_of_a_loader_that_is_skipped_into_before_prepare(patched: None) -> None:
    loader = ours(device_transform=double)
    assert is_doubled(accelerator_of().skip_first_batches(loader, 1), 4)
    assert is_doubled(accelerate.skip_first_batches(loader, 1), 4)


def test_a_transform_over_a_data_pipe_survives_prepare(patched: None) -> None:
    pipe = IterableWrapper([torch.arange(4)] * 3)
    loader = fastloop.DataLoader(pipe, device="cpu", device_transform=lambda batch: batch * 2)
    rows = list(accelerator_of(dispatch_batches=False).prepare(loader))
    assert [row.tolist() for row in rows] == [[[0, 2, 4, 6]]] * 3


def test_path_budget_restarts_and_states_survive_prepare(
    patched: None, monkeypatch: pytest.MonkeyPatch, no_warning: None
) -> None:
    budgets = []

    def spy(loader: Any) -> int:
        budgets.append(budget_of(loader))
        return budgets[-1]

    monkeypatch.setattr("fastloop.base.machine.budget_of", spy)
    given: dict[str, Any] = {"path": "process", "on_worker_death": "restart", "resume": "skip"}
    given["name"] = "train"
    accelerator = accelerator_of()
    prepared = accelerator.prepare(ours(num_workers=1, memory_budget=5 << 20, **given))
    iterator = prepared.base_dataloader.__iter__()
    assert type(iterator) is process_iter.ProcessIter and iterator._replaces_dead
    assert budgets == [5 << 20]
    assert fastloop.stats(prepared).path == "process"
    assert (prepared.base_dataloader.resume, prepared.base_dataloader.name) == ("skip", "train")
    prepared = accelerator.prepare(ours(num_workers=1, path="thread"))
    assert type(prepared.base_dataloader.__iter__()) is ThreadIter


@pytest.mark.parametrize("how", ["made", "unpickled"])
@pytest.mark.parametrize("module", ["accelerate", "accelerate.data_loader"])
def test_a_loader_that_is_there_before_accelerate(module: str, how: str, tmp_path: Path) -> None:
    run_program(tmp_path, "loader_before_accelerate", module, how)


def test_a_loader_without_arguments_of_its_own_becomes_torchs(patched: None) -> None:
    prepared = accelerator_of().prepare(fastloop.DataLoader(arrays(), 4))
    assert type(prepared.base_dataloader) is DataLoader
    skipped = accelerate.skip_first_batches(DataLoader(arrays(), 4), 1)
    assert type(skipped) is DataLoader and len(list(skipped)) == -(-ROWS // 4) - 1


def test_accelerates_functions_are_its_own_without_patch() -> None:
    """Also under the name by which another module has imported one."""
    modules = accelerate.data_loader, accelerate.accelerator
    before = [module.prepare_data_loader for module in modules]
    prepared = accelerator_of().prepare(ours(path="array"))
    assert type(prepared.base_dataloader) is DataLoader
    with fastloop.patched():
        during = [module.prepare_data_loader for module in modules]
    after = [module.prepare_data_loader for module in modules]
    assert before == after and not {*before} & {*during}


def test_a_transform_that_prepare_would_drop_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"call fastloop\.patch\(\) before prepare\(\) to keep"):
        ours(device_transform=double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(path="array")
        with fastloop.patched():
            ours(device_transform=double)


def test_a_stateful_loader_cannot_take_them_over(patched: None) -> None:
    with pytest.warns(RuntimeWarning, match="which loses device, path; leave out use_stateful"):
        accelerator_of(use_stateful_dataloader=True).prepare(ours(path="array"))
    with pytest.raises(ValueError, match="which loses device, device_transform; leave out"):
        accelerator_of(use_stateful_dataloader=True).prepare(ours(device_transform=double))


def test_static_buffers_are_refused(patched: None) -> None:
    with pytest.raises(ValueError, match="static_buffers must be False with accelerate"):
        accelerator_of().prepare(ours(static_buffers=True))


def test_numbers_of_updates_go_to_its_trackers() -> None:
    logged: list[Any] = []

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "own", False, None

        def store_init_configuration(self, values: Any) -> None:
            pass

        def log(self, values: Any, step: Any = None, **kwargs: Any) -> None:
            logged.append((step, values))

    accelerator = accelerate.Accelerator(cpu=True, log_with=Tracker())
    accelerator.init_trackers("project")
    report = fastloop.report(verbose=False)
    report.on_update(fastloop.log_to(accelerator))
    with report:
        pass
    ((step, values),) = logged
    assert step == 0 == values["fastloop/steps"] and "fastloop/wait_share" not in values
