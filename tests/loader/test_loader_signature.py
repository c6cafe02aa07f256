"""fastloop.DataLoader as a class: torch's signature, attributes, errors and copies of it."""

import copy
import inspect
import pickle
import typing
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    ListSampler,
    N,
    TorchLoader,
    assert_same,
    assert_same_trace,
    epoch,
    outcome,
    small_dataset,
    trace,
)
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import fastloop
from fastloop import ArrayDataset, DataLoader

TORCH_PARAMETERS = inspect.signature(TorchLoader.__init__).parameters


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(5))


def test_signature_is_torchs_with_more_keywords() -> None:
    ours = dict(inspect.signature(DataLoader.__init__).parameters)
    names = ["device", "path", "device_transform", "batch_transform", "static_buffers"]
    names += ["transforms_on"]
    names += ["snapshot_every_n_steps", "resume", "on_worker_death", "worker_timeout"]
    names += ["memory_budget", "epochs_ahead", "numa", "name"]
    assert list(ours)[-14:] == names
    extras = {name: ours.pop(name) for name in names}
    assert list(ours) == list(TORCH_PARAMETERS)
    for name, theirs in TORCH_PARAMETERS.items():
        assert ours[name].kind is theirs.kind, name
        assert ours[name].default is theirs.default, name
        assert ours[name].annotation == theirs.annotation, name
    assert {p.kind for p in extras.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert [p.default for p in extras.values()] == [
        None,
        "auto",
        None,
        None,
        False,
        "auto",
        1,
        None,
        "raise",
        0,
        None,
        0,
        "auto",
        None,
    ]


def test_class_is_a_plain_generic_subclass() -> None:
    loader = DataLoader(small_dataset())
    assert isinstance(loader, TorchLoader)
    assert DataLoader.__name__ == "DataLoader"
    assert typing.get_origin(DataLoader[int]) is DataLoader
    assert typing.get_args(DataLoader[int]) == (int,)
    assert len(DataLoader[int](small_dataset(), batch_size=5)) == N // 5
    assert "__slots__" not in vars(DataLoader)
    loader.anything = 1  # type: ignore[attr-defined]


def test_names_of_the_package() -> None:
    assert set(fastloop.__all__) <= set(dir(fastloop))
    for name in fastloop.__all__:
        assert getattr(fastloop, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Dataloader'"):
        _ = fastloop.Dataloader  # type: ignore[attr-defined]


def test_torchs_positional_order_is_kept() -> None:
    args = (small_dataset(), 4, False, None, None, 1, list, False, True, 3, len, None, None)
    ours, theirs = vars(DataLoader(*args)), vars(TorchLoader(*args))
    for name, value in theirs.items():
        if not name.startswith("_") and "sampler" not in name:
            assert ours[name] is value or ours[name] == value, name
    with pytest.raises(TypeError):
        DataLoader(*args, 2)  # type: ignore[misc]


def test_each_parameter_is_stored_under_its_name() -> None:
    values: dict[str, Any] = {
        "dataset": small_dataset(),
        "batch_size": 3,
        "sampler": ListSampler(range(9)),
        "num_workers": 1,
        "collate_fn": list,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 7.5,
        "worker_init_fn": print,
        "multiprocessing_context": "spawn",
        "generator": torch.Generator(),
        "prefetch_factor": 5,
        "persistent_workers": True,
        "pin_memory_device": "cpu",
        "in_order": False,
        "device": "cpu",
        "path": "torch",
        "device_transform": len,
        "static_buffers": True,
        "snapshot_every_n_steps": 3,
        "resume": "skip",
        "on_worker_death": "raise",
        "memory_budget": 1 << 20,
        "name": "train",
    }
    loader = DataLoader(**values)
    for name, value in values.items():
        if name != "multiprocessing_context":
            assert getattr(loader, name) is value, name
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert isinstance(loader.batch_sampler, BatchSampler)


@pytest.mark.parametrize(
    "kwargs", [{}, {"shuffle": True}, {"num_workers": 2}, {"batch_size": None}]
)
def test_attributes_are_those_of_torchs_loader(kwargs: dict[str, Any]) -> None:
    dataset = small_dataset()
    ours, theirs = DataLoader(dataset, **kwargs), TorchLoader(dataset, **kwargs)
    assert set(vars(theirs)) <= set(vars(ours))
    for name, value in vars(theirs).items():
        if name in ("sampler", "batch_sampler") and value is not None:
            assert type(getattr(ours, name)) is type(value)
        else:
            assert getattr(ours, name) == value, name
    assert len(ours) == len(theirs)
    assert len(iter(ours)) == len(iter(theirs))


WORKERS = {"num_workers": 1}
BAD_ARGUMENTS: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"num_workers": "2"},
    {"timeout": -1},
    {"timeout": "1"},
    {"prefetch_factor": 2},
    dict(prefetch_factor=-2, **WORKERS),
    dict(prefetch_factor="2", **WORKERS),
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": True},
    {"batch_size": 2.0},
    {"batch_size": "2"},
    {"drop_last": 1},
    {"drop_last": None},
    {"batch_size": None, "drop_last": True},
    {"shuffle": True, "sampler": ListSampler(range(3))},
    {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "shuffle": True},
    {"batch_sampler": [[0]], "sampler": ListSampler([0])},
    {"batch_sampler": [[0]], "drop_last": True},
    {"batch_sampler": [[0]], "batch_size": None},
    {"multiprocessing_context": "fork"},
    dict(multiprocessing_context="thread", **WORKERS),
    dict(multiprocessing_context=3, **WORKERS),
    {"dataset": Stream(), "shuffle": True},
    {"dataset": Stream(), "sampler": ListSampler([0])},
    {"dataset": Stream(), "batch_sampler": [[0]]},
    {"dataset": TensorDataset(torch.zeros(0)), "shuffle": True},
    {"dataset": None, "shuffle": True},
    {"unknown": 1},
    {"dataset": small_dataset(), "batch_size": 1, "shuffle": True, "generator": "seed"},
]


@pytest.mark.parametrize("kwargs", BAD_ARGUMENTS, ids=lambda kw: ",".join(kw))
def test_bad_arguments_raise_as_in_torch(kwargs: dict[str, Any]) -> None:
    kwargs = {"dataset": small_dataset(), **kwargs}
    theirs = outcome(lambda: len(list(TorchLoader(**kwargs))))
    assert theirs[0] == "raised"
    assert outcome(lambda: len(list(DataLoader(**kwargs)))) == theirs


@pytest.mark.parametrize("others", [{}, {"prefetch_factor": "auto"}])
def test_workers_that_are_to_be_chosen_are_refused_with_what_to_write(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastloop.loader.dataloader.usable_cpus", lambda: 3)
    wanted: Any = "auto"
    with pytest.raises(TypeError) as caught:
        DataLoader(small_dataset(), num_workers=wanted, **others)
    assert str(caught.value) == (
        "num_workers must be an int >= 0, got 'auto' (begin with one per CPU, so 3; "
        "fastloop.tune(loader) measures which is best)"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"timeout": 1},
        {"timeout": 0.5, "batch_size": None},
        {"prefetch_factor": 0, "num_workers": 1},
        {"sampler": 3},
        {"batch_sampler": 3},
        {"batch_size": None, "sampler": 3},
        {"generator": "seed"},
    ],
    ids=lambda kw: ",".join(kw),
)
def test_errors_of_iter_are_torchs(kwargs: dict[str, Any]) -> None:
    dataset = small_dataset()
    theirs = outcome(lambda: next(iter(TorchLoader(dataset, **kwargs))))
    assert theirs[0] == "raised"
    loader = DataLoader(dataset, **kwargs)
    assert outcome(lambda: next(iter(loader))) == theirs
    assert outcome(lambda: next(iter(loader))) == theirs


@pytest.mark.parametrize("path", ["array", "process", "thread"])
def test_a_prefetch_factor_is_what_torch_takes_for_one(path: str) -> None:
    dataset = small_dataset()
    arguments: dict[str, Any] = {"batch_size": 3, "num_workers": 1, "prefetch_factor": np.int64(3)}
    ours = DataLoader(dataset, path=path, **arguments)
    assert_same(epoch(ours), epoch(TorchLoader(dataset, **arguments)))
    arguments["prefetch_factor"] = 3.0
    theirs = outcome(lambda: iter(TorchLoader(dataset, **arguments)))
    assert theirs[0] == "raised"
    assert outcome(lambda: iter(DataLoader(dataset, path=path, **arguments))) == theirs


def test_path_and_device_that_do_not_exist_are_named() -> None:
    dataset = small_dataset()
    with pytest.raises(ValueError, match=r"path must be one of 'auto', 'array'.*, got 'fast'"):
        DataLoader(dataset, path="fast")
    with pytest.raises(ValueError, match=r"device must be the CPU or .* got .*meta.*batch\.to"):
        iter(DataLoader(dataset, device="meta"))
    for path, workers, other in (("process", 0, "sync"), ("sync", 2, "process")):
        with pytest.raises(
            ValueError,
            match=f"path='{path}' cannot load this: .*={workers}; use path='{other}'$",
        ):
            iter(DataLoader(dataset, path=path, num_workers=workers))
    for device in (None, "cpu", torch.device("cpu")):
        assert_same(epoch(DataLoader(dataset, device=device)), epoch(TorchLoader(dataset)))


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"batch_size": 7},
        {"batch_size": 7, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[1], [2, 3]]},
        {"sampler": ListSampler([1, 2, 3]), "batch_size": 2},
    ],
    ids=repr,
)
def test_len_is_torchs(kwargs: dict[str, Any]) -> None:
    for dataset in (small_dataset(), TensorDataset(torch.zeros(0, 2))):
        assert len(DataLoader(dataset, **kwargs)) == len(TorchLoader(dataset, **kwargs))


def test_len_without_a_length_raises_as_in_torch() -> None:
    dataset = small_dataset()
    for name, items in (("sampler", [1, 2]), ("batch_sampler", [[1], [2]])):
        ours, theirs = (cls(dataset, **{name: iter(items)}) for cls in (DataLoader, TorchLoader))
        assert outcome(lambda: len(ours)) == outcome(lambda: len(theirs))  # noqa: B023
        assert outcome(lambda: len(ours))[1] is TypeError  # noqa: B023
        assert len(list(ours)) == 2


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_attributes_that_cannot_be_set_are_torchs(name: str) -> None:
    results = []
    for cls in (DataLoader, TorchLoader):
        loader = cls(small_dataset())
        results.append(outcome(lambda loader=loader: setattr(loader, name, getattr(loader, name))))
    assert results[0][1] is ValueError
    assert results[0] == results[1]


def test_attributes_that_can_be_set_take_effect() -> None:
    loader = DataLoader(small_dataset(), batch_size=5)
    assert loader.stats().path == "array"
    loader.collate_fn = len
    assert loader.stats().path == "sync"
    assert list(loader) == [5] * (N // 5)
    loader.collate_fn = torch.utils.data.default_collate
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert_same(epoch(loader), epoch(TorchLoader(small_dataset(), batch_size=5)))
    loader.path = "torch"
    assert loader.stats().path == "torch"


class Doubled(DataLoader[Any]):
    """A user's subclass, in torch's style."""

    def __init__(self, *args: Any, factor: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield [x * self.factor, y]


def test_subclass_of_ours() -> None:
    dataset = small_dataset()
    loader = Doubled(dataset, batch_size=N, factor=3)
    x, y = next(iter(loader))
    assert_same([x, y], [dataset.tensors[0] * 3, dataset.tensors[1]])
    with pytest.raises(ValueError, match="after Doubled is initialized"):
        loader.batch_size = 3


def fresh_loader(**kwargs: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    kwargs = {"batch_size": 7, "shuffle": True, "generator": generator, **kwargs}
    return DataLoader(small_dataset(), **kwargs)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_of_a_loader_go_on_as_the_loader_does(how: Any, workers: int) -> None:
    loader = fresh_loader(num_workers=workers)
    epoch(loader)
    held = iter(loader)
    next(held)
    clone = how(loader)
    assert type(clone) is DataLoader
    assert clone.generator is not loader.generator
    assert clone.stats().batches == 0
    assert_same_trace(trace(clone, clone.generator), trace(loader, loader.generator))
    assert len(list(held)) == len(loader) - 1


def test_a_shallow_copy_shares_what_torchs_shares() -> None:
    loader = fresh_loader()
    clone = copy.copy(loader)
    assert clone.generator is loader.generator
    assert clone.dataset is loader.dataset
    assert len(list(clone)) == len(loader)
    assert (clone.stats().batches, loader.stats().batches) == (len(loader), 0)


def test_a_loader_with_a_live_persistent_iterator_copies_as_torchs() -> None:
    outcomes = []
    for cls in (TorchLoader, DataLoader):
        loader = cls(small_dataset(), batch_size=7, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        outcomes.append([outcome(lambda o=o: pickle.dumps(o))[:2] for o in (loader, iterator)])
        del iterator, loader
    assert outcomes[0] == outcomes[1] == [("raised", NotImplementedError)] * 2


@pytest.mark.parametrize("kwargs", [{"shuffle": True}, {"batch_size": None}, {"num_workers": 1}])
@pytest.mark.parametrize("cls", [DataLoader, TorchLoader])
def test_a_loader_can_be_rebuilt_from_its_attributes(cls: Any, kwargs: dict[str, Any]) -> None:
    """As accelerate and Lightning do it: by signature, with batch_sampler in place of its parts."""
    loader = DataLoader(small_dataset(), **{"batch_size": 7, **kwargs})
    names = set(inspect.signature(cls.__init__).parameters) - {"self", "shuffle"}
    given = {name: getattr(loader, name) for name in names}
    if loader.batch_sampler is not None:
        given.update(batch_size=1, sampler=None, drop_last=False)
    assert_same_trace(trace(cls(**given)), trace(loader))


def test_warnings_are_torchs() -> None:
    def warned(cls: Any) -> list[tuple[type, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            cls(small_dataset(), num_workers=1000)
            iter(cls(small_dataset(), pin_memory=True, pin_memory_device="cuda"))
            loader = cls(small_dataset(), batch_size=N)
            loader.num_workers, loader.prefetch_factor = 1, 1
            next(iter(loader))
        return [(w.category, str(w.message)) for w in caught]

    assert warned(DataLoader) == warned(TorchLoader)
    assert len(warned(DataLoader)) >= 2


def test_loaders_are_told_apart_by_their_datasets_not_by_equality() -> None:
    dataset = ArrayDataset(torch.arange(4))
    loader = DataLoader(dataset)
    assert loader == loader
    assert loader != DataLoader(dataset)
    assert {loader: 1}[loader] == 1
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(DataLoader(dataset, shuffle=True).sampler, RandomSampler)


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "1 GB"])
def test_memory_budgets_that_are_none_are_named(budget: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="memory_budget must be an int >= 1, got"):
        DataLoader(small_dataset(), memory_budget=budget)


def test_a_subclass_may_set_the_memory_budget_of_all_its_loaders() -> None:
    class Small(DataLoader[Any]):
        memory_budget = 1 << 20

    assert Small(small_dataset()).memory_budget == 1 << 20
    assert Small(small_dataset(), memory_budget=1).memory_budget == 1
