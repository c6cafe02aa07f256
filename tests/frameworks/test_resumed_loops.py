"""Saved at every batch of an epoch and resumed, in the loops people have: a plain one, Lightning's
Trainer and Fabric, accelerate's loader over ours. What each epoch trains is compared with a run
that was not interrupted."""

import logging
import math
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import accelerate
    import accelerate.data_loader
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

from fastloop import DataLoader

ROWS, SIZE, EPOCHS = 18, 4, 3
BATCHES = 5
# Batches trained in the epoch that saves; one more than there are: saved after its end.
STOPS = [0, 1, 3, BATCHES - 1, BATCHES, BATCHES + 1]
AT = 1  # the epoch that saves

Trained = list[list[int]]  # an epoch: the rows of each batch
States = dict[tuple[int, int], Any]  # by epoch and batches trained
stops = pytest.mark.parametrize("stop", STOPS)
workers = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Lightning gives advice that is no concern of these tests."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.|accelerate\.")
        yield


def make(workers: int = 0, seed: int = 5, **kwargs: Any) -> DataLoader[Any]:
    given = {"shuffle": True, "generator": torch.Generator().manual_seed(seed), **kwargs}
    path = {"path": "array"} if workers else {"path": "sync"}
    data = TensorDataset(torch.arange(ROWS))
    return DataLoader(data, **{"batch_size": SIZE, "num_workers": workers, **path, **given})


def distributed() -> dict[str, Any]:
    sampler = DistributedSampler(range(ROWS), 1, 0)
    return {"sampler": sampler, "shuffle": None, "generator": None}


def rows(batch: Any) -> list[int]:
    return batch[0].tolist()  # type: ignore[no-any-return]


# ---- loops of one's own


def train(loader: Any, first: int = 0, states: States | None = None) -> list[Trained]:
    """What each epoch from `first` on trains; takes a state before, in and after each."""
    epochs: list[Trained] = []
    states = {} if states is None else states
    for epoch in range(first, EPOCHS):
        trained: Trained = []
        states[epoch, 0] = loader.state_dict()
        for batch in loader:
            trained.append(rows(batch))
            states[epoch, len(trained)] = loader.state_dict()
        states[epoch, BATCHES + 1] = loader.state_dict()
        epochs.append(trained)
    return epochs


def rest_of(epochs: list[Trained], stop: int) -> list[Trained]:
    """What a run that was saved there still has to train."""
    rest = [epochs[AT][stop:], *epochs[AT + 1 :]]
    return rest if stop <= BATCHES else rest[1:]


def in_any_order(epochs: list[Trained]) -> list[Trained]:
    return [[sorted(chain.from_iterable(epoch))] for epoch in epochs]


def ends_said(caught: list[warnings.WarningMessage]) -> int:
    return sum(f"end of epoch {AT}: this iter() gives no batch" in str(w.message) for w in caught)


@workers
@stops
def test_a_plain_loop(stop: int, workers: int) -> None:
    states: States = {}
    expected = train(make(workers), 0, states)
    loader = make(workers, seed=9)
    loader.load_state_dict(states[AT, stop])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(loader, AT + (stop > BATCHES)) == rest_of(expected, stop)
    assert ends_said(caught) == (stop == BATCHES)


class Sets:
    """What Fabric gives to the loop, with the states Fabric would save."""

    def __init__(self, fabric: Fabric, loader: DataLoader[Any], folder: Path) -> None:
        self.fabric, self.folder = fabric, folder
        self.loader: Any = fabric.setup_dataloaders(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> Path:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.ckpt"
        self.fabric.save(path, {"loader": self.loader})
        return path

    def load_state_dict(self, path: Path) -> None:
        self.fabric.load(path, {"loader": self.loader})


@workers
@pytest.mark.parametrize("kind", ["shuffle", "distributed"])
def test_fabric(kind: str, workers: int, tmp_path: Path) -> None:
    def sets(seed: int) -> Sets:
        kwargs = distributed() if kind == "distributed" else {}
        return Sets(fabric, make(workers, seed, **kwargs), tmp_path)

    fabric = Fabric(accelerator="cpu", devices=1)
    states: States = {}
    expected = train(sets(5), 0, states)
    for stop in STOPS:
        resumed = sets(9)
        resumed.load_state_dict(states[AT, stop])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the loaded state is at the end")
            got = train(resumed, AT + (stop > BATCHES))
        wanted = rest_of(expected, stop)
        if kind == "distributed":  # Fabric numbers the sampler's epochs from 0 in each run
            whole = 0 if stop in (0, BATCHES + 1) else 1
            got[whole:], wanted[whole:] = in_any_order(got[whole:]), in_any_order(wanted[whole:])
        assert got == wanted, stop


@workers
def test_accelerate_over_our_loader(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the name is swapped; prepare() makes a loader of torch's otherwise. It looks one batch
    ahead, so its state after the last batch is that of the next epoch."""
    monkeypatch.setattr(accelerate.data_loader, "DataLoader", DataLoader)
    accelerator = accelerate.Accelerator(cpu=True)
    states: States = {}
    expected = train(accelerator.prepare(make(workers)), 0, states)
    for stop in STOPS:
        loader = accelerator.prepare(make(workers, seed=9))
        assert type(loader.base_dataloader) is DataLoader
        loader.load_state_dict(states[AT, stop])
        ends = stop >= BATCHES
        assert train(loader, AT + ends) == rest_of(expected, BATCHES + 1 if ends else stop), stop


class Stream(IterableDataset[tuple[torch.Tensor]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return iter([(torch.tensor(row),) for row in range(8)])


def test_accelerate_over_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate.data_loader, "DataLoader", DataLoader)
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(Stream(), SIZE))
    assert [rows(batch) for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.state_dict()["epoch"] == 1


# ---- Lightning's Trainer


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.epochs: list[Trained] = [[] for _ in range(EPOCHS)]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.epochs[self.current_epoch].append(rows(batch))
        return self.weight.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class SavesEverywhere(pl.Callback):
    """A checkpoint at every hook of the epoch AT; `paths` has them by hook and batches trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[tuple[str, int], Path] = {}

    def save(self, trainer: pl.Trainer, hook: str, trained: int) -> None:
        if trainer.current_epoch == AT and trainer.state.stage == "train":
            path = self.folder / f"{hook}-{trained}.ckpt"
            trainer.save_checkpoint(path)
            self.paths[hook, trained] = path

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.save(trainer, "batch start", batch_idx)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.save(trainer, "batch end", batch_idx + 1)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == AT:
            trained = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            path = self.folder / f"validation-{trained}.ckpt"
            trainer.save_checkpoint(path)
            self.paths["validation", trained] = path

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.save(trainer, "epoch end", BATCHES + 1)


def fit(
    loader: Any, callback: pl.Callback | None = None, path: Path | None = None, **kwargs: Any
) -> list[Trained]:
    given = {"max_epochs": EPOCHS, "enable_checkpointing": False, **kwargs}
    for name in ("logger", "enable_progress_bar", "enable_model_summary"):
        given.setdefault(name, False)
    validates = given.pop("validates", False)
    model = Model()
    trainer = pl.Trainer(accelerator="cpu", callbacks=callback, **given)
    held_out = torch.utils.data.DataLoader(TensorDataset(torch.arange(2)))
    trainer.fit(model, loader, held_out if validates else None, ckpt_path=path)
    return model.epochs


TRAINERS: dict[str, dict[str, Any]] = {
    "epochs": {},
    "steps": {"max_epochs": -1, "max_steps": EPOCHS * BATCHES},
    "validation": {"validates": True, "num_sanity_val_steps": 0, "val_check_interval": 3},
    "validation at the end": {"validates": True, "num_sanity_val_steps": 0},
    "part of each epoch": {"limit_train_batches": 3},
    "distributed": {"sampler": True},
}


@workers
@pytest.mark.parametrize("kind", TRAINERS)
def test_lightning_trains_what_was_left(kind: str, workers: int, tmp_path: Path) -> None:
    given, callback = dict(TRAINERS[kind]), SavesEverywhere(tmp_path)
    sampler = distributed if given.pop("sampler", False) else dict
    expected = fit(make(workers, **sampler()), callback, **given)
    batches = len(expected[AT])
    assert ("batch end", batches) in callback.paths
    for (hook, trained), path in callback.paths.items():
        wanted = [[], expected[AT][trained:], *expected[AT + 1 :]]
        if hook == "epoch end" and kind != "steps":
            continue  # Lightning loads no state of a loader then
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "the loaded state is at the end")
            loader = make(workers, seed=9, **sampler())
            assert fit(loader, path=path, **given) == wanted, (hook, trained)


def test_lightnings_default_trainer_over_a_stream(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {
        "enable_checkpointing": True,
        "default_root_dir": tmp_path,
        "logger": None,
    }
    expected = [[[0, 1, 2, 3], [4, 5, 6, 7]]] * EPOCHS
    assert fit(DataLoader(Stream(), SIZE), **kwargs) == expected


def test_lightning_saves_batches_that_came_out_of_order(tmp_path: Path) -> None:
    callback = SavesEverywhere(tmp_path)
    given = {"workers": 2, "in_order": False}
    fit(make(**given), callback)
    for trained in (2, BATCHES):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = fit(make(**given, seed=9), path=callback.paths["batch end", trained])
        assert [len(epoch) for epoch in got] == [0, BATCHES - trained, BATCHES]
        said = sum("in_order=False" in str(w.message) for w in caught)
        assert said == (trained < BATCHES)


@pytest.mark.parametrize(("ranks", "size"), [(1, 3), (1, 2), (2, 2), (2, 1), (3, 4), (9, 1)])
def test_lightning_on_other_ranks_takes_all_that_is_left_or_nothing(
    ranks: int, size: int, tmp_path: Path
) -> None:
    """One rank has saved; each rank loads its checkpoint."""

    def loader_of(ranks: int, rank: int, size: int) -> DataLoader[Any]:
        sampler = DistributedSampler(range(ROWS), ranks, rank, shuffle=False)
        return make(**{**distributed(), "sampler": sampler, "batch_size": size})

    callback, given = SavesEverywhere(tmp_path), {"use_distributed_sampler": False}
    fit(loader_of(1, 0, SIZE), callback, **given)
    for trained in (1, 2, 3, 4):
        path, rest = callback.paths["batch end", trained], list[int]()
        loaders = [loader_of(ranks, rank, size) for rank in range(ranks)]
        is_counted = len(loaders[0]) - math.ceil((ROWS - trained * SIZE) / ranks / size) == trained
        for loader in loaders:
            if not is_counted and trained < BATCHES:
                with pytest.raises(ValueError, match=f"Lightning counts {trained} batches of the"):
                    fit(loader, path=path, **given)
                continue
            got = fit(loader, path=path, **given)
            rest += chain.from_iterable(got[AT])
            assert len(got[AT + 1]) == len(loader)
        if is_counted or trained == BATCHES:
            assert set(rest) == set(range(trained * SIZE, ROWS)) | (set(rest) & set(range(ranks)))


@pytest.mark.parametrize("changed", [{"batch_size": 2}, {"shuffle": False, "generator": None}])
def test_lightning_goes_on_with_a_loader_that_has_changed(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    callback = SavesEverywhere(tmp_path)
    fit(make(), callback)
    path = callback.paths["batch end", 2]
    with pytest.warns(UserWarning, match=f"does not fit.* epoch {AT} starts anew"):
        got = fit(make(**changed), path=path)
    count = len(make(**changed))
    assert [len(epoch) for epoch in got] == [0, count - 2, count]
