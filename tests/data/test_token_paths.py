"""TokenDataset on every path: the windows that NumPy slices, in the same order, whoever reads them;
files that are cut or hold tokens out of range; memory that stays as it is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from token_writers import some_tokens, write_llmc
from torch.utils.data import RandomSampler, Subset, random_split
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader, TokenDataset, _core
from fastloop.loader.route import choose_route

T, BATCH = 16, 5
COUNTS = (400, 9, 300)
FILES = [some_tokens(count, seed=count) for count in COUNTS]
IN_PROCESS = [
    (TorchLoader, {"num_workers": 0}),
    (DataLoader, {"num_workers": 0, "path": "array"}),
    (DataLoader, {"num_workers": 2, "path": "array"}),
    (DataLoader, {"num_workers": 0, "path": "sync"}),
    (DataLoader, {"num_workers": 0, "path": "torch"}),
]
OVER_PROCESSES: list[Any] = [(TorchLoader, {}), (DataLoader, {"path": "process"})]
# A fork server's workers get the dataset as spawned ones do, as a pickle, and share one import of
# torch (conftest.py).
PROCESSES = [
    (cls, {"num_workers": 2, "multiprocessing_context": context, **more})
    for context in ("fork", "forkserver")
    for cls, more in OVER_PROCESSES
]


def name_of(case: Any) -> str:
    cls, more = case
    kind = "torchs" if cls is TorchLoader else more["path"]
    return f"{kind}-{more['num_workers']}-{more.get('multiprocessing_context', 'none')}"


every_loader = pytest.mark.parametrize("case", IN_PROCESS + PROCESSES, ids=name_of)
MODES: list[dict[str, Any]] = [
    {},
    {"mode": "jittered", "stride": 7},
    {"mode": "random", "out_dtype": torch.int32},
    {"targets": "same", "io": "pread"},
    {"targets": None, "io": "mmap"},
    {"return_docs": True, "eos_id": 3},
    {"return_docs": True, "eos_id": 3, "targets": None},
]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [write_llmc(tmp_path / f"{i}.bin", tokens) for i, tokens in enumerate(FILES)]


def sliced(dataset: TokenDataset, index: int, epoch: int) -> Any:
    """A sample by NumPy."""
    options = dataset._arguments
    begins = np.cumsum([0, *map(len, FILES)])
    begin = int(dataset._windows.starts([index], epoch))
    file = int(np.searchsorted(begins, begin, side="right")) - 1
    first = begin - begins[file]
    kind = {"int64": np.int64, "int32": np.int32}[options.out_dtype]
    ids = FILES[file][first : first + T + 1].astype(kind)
    x, ahead = torch.from_numpy(ids[:T]), torch.from_numpy(ids[1:])
    targets = {"shift": (ahead,), "same": (x,), None: ()}[options.targets]
    if not options.return_docs:
        return (x, *targets) if targets else x
    begins = torch.cat([torch.tensor([True]), x[:-1] == options.eos_id])
    last = torch.where(begins, torch.arange(T), 0).cummax(0).values
    position = torch.arange(T) - last
    mask = x != options.eos_id if options.targets == "shift" else position != 0
    documents = begins.cumsum(0) - 1
    sample = {"input_ids": x, **({"labels": targets[0]} if targets else {})}
    return {**sample, "position_ids": position, "doc_ids": documents, "loss_mask": mask}


stacked = torch.utils.data.default_collate


@every_loader
@pytest.mark.parametrize("options", MODES, ids=str)
def test_every_path_reads_the_windows_of_numpy(
    paths: list[Path], case: Any, options: dict[str, Any]
) -> None:
    check_windows(paths, case, options)


@pytest.mark.slowest
@pytest.mark.parametrize(("cls", "more"), OVER_PROCESSES)
def test_spawned_workers_read_them_too(paths: list[Path], cls: Any, more: dict[str, Any]) -> None:
    case = cls, {"num_workers": 1, "multiprocessing_context": "spawn", **more}
    check_windows(paths, case, MODES[5])


def check_windows(paths: list[Path], case: Any, options: dict[str, Any]) -> None:
    cls, more = case
    dataset = TokenDataset(paths, T, seed=4, **options)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        loader = cls(
            dataset, BATCH, shuffle=True, generator=torch.Generator().manual_seed(epoch), **more
        )
        base = torch.Generator().manual_seed(epoch)
        torch.empty((), dtype=torch.int64).random_(generator=base)  # the base seed
        order = torch.randperm(len(dataset), generator=base).tolist()
        batches = list(loader)
        expected = [
            stacked([sliced(dataset, i, epoch) for i in order[at : at + BATCH]])
            for at in range(0, len(order), BATCH)
        ]
        assert_same(batches, expected)
        if "path" in more:
            assert loader.stats().path == more["path"]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_counted(paths: list[Path], workers: int) -> None:
    dataset = TokenDataset(paths, T, mode="random", seed=2)
    loader = DataLoader(dataset, BATCH, num_workers=workers, path="array")
    for epoch in range(3):
        x = torch.cat([x for x, _ in loader])
        assert_same(x, torch.stack([sliced(dataset, i, epoch)[0] for i in range(len(dataset))]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["array", "auto"])
def test_parts_samples_and_ranks(paths: list[Path], workers: int, path: str) -> None:
    dataset = TokenDataset(paths, T, mode="jittered", seed=1)
    dataset.set_epoch(6)
    part = Subset(random_split(dataset, [20, len(dataset) - 20])[0], [3, -1, 7, 7])
    base = part.dataset.indices
    loader = DataLoader(part, 3, num_workers=workers, path=path)
    assert loader.stats().path == "array"
    (x, y), (x2, _) = loader
    wanted = [sliced(dataset, base[i], 6) for i in part.indices]
    assert_same([x, y], stacked(wanted[:3]))
    assert_same(x2, wanted[3][0][None])
    singles = list(DataLoader(part, None, num_workers=workers, path=path))
    assert_same(singles, [list(each) for each in wanted])
    ranks = [DistributedSampler(dataset, 2, rank, seed=5) for rank in range(2)]
    for sampler in ranks:
        batches = list(DataLoader(dataset, 4, sampler=sampler, num_workers=workers, path=path))
        indices = list(sampler)
        assert_same(batches[1], stacked([sliced(dataset, i, 6) for i in indices[4:8]]))


def test_lists_that_a_sampler_yields_are_no_samples(paths: list[Path]) -> None:
    """With batch_size=None they would be, for a dataset that takes them."""
    dataset = TokenDataset(paths, T)
    for cls in (TorchLoader, DataLoader):
        with pytest.raises(TypeError, match=r"index must be an int, got \[0, 1\]"):
            next(iter(cls(dataset, None, sampler=[[0, 1]])))
    assert DataLoader(dataset, None, sampler=RandomSampler(dataset)).stats().path == "array"


def test_samples_of_one_tensor_are_tensors(paths: list[Path]) -> None:
    dataset = TokenDataset(paths, T, targets=None)
    (single, *_) = DataLoader(dataset, None, path="array")
    assert_same(single, sliced(dataset, 0, 0))
    (batch, *_) = DataLoader(dataset, 2, path="array")
    assert_same(batch, torch.stack([sliced(dataset, i, 0) for i in range(2)]))


@pytest.mark.parametrize(
    ("dtype", "options", "is_narrow"),
    [
        ("uint16", {}, True),
        ("uint8", {"targets": None, "out_dtype": torch.int32}, True),
        ("uint16", {"out_dtype": torch.uint16}, False),
        ("uint32", {"out_dtype": torch.int32}, False),
        ("int64", {}, False),
        ("int64", {"vocab_size": 1000}, True),
    ],
)
def test_narrow_tokens_travel_narrow_to_a_device(
    dtype: str, options: dict[str, Any], is_narrow: bool
) -> None:
    values = np.arange(100).astype(dtype)
    dataset = TokenDataset.from_buffers(values, np.array([0, 100]), T, **options)
    table = choose_route(DataLoader(dataset), "auto", "").columns.table
    there = table.for_device()
    assert (there is not table) is is_narrow
    rows = dataset[0] if isinstance(dataset[0], tuple) else (dataset[0],)
    copies = tuple(torch.zeros_like(row) for row in rows)
    _core.copy_row(table, 0, copies)
    assert_same(copies, rows)
    if is_narrow:
        assert there.outputs == table.outputs == there.for_device().outputs
        with pytest.raises(ValueError, match="no table for a device"):
            _core.copy_row(there, 0, copies)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["array", "sync", "process"])
def test_a_resumed_epoch_goes_on(paths: list[Path], workers: int, path: str) -> None:
    if (path == "sync") == (workers > 0) and path != "array":
        pytest.skip("the path does not take so many workers")
    dataset = TokenDataset(paths, T, mode="random", seed=8)

    def make() -> DataLoader[Any]:
        dataset.set_epoch(2)
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
        return DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers, path=path)

    whole = list(make())
    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    del batches
    resumed = make()
    resumed.load_state_dict(state)
    assert_same(list(resumed), whole[3:])


@pytest.mark.slowest
@every_loader
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_that_is_cut(paths: list[Path], case: Any, io: str) -> None:
    cls, more = case
    if more.get("multiprocessing_context") == "forkserver":
        pytest.skip("such a worker opens files again, and finds that they have changed")
    dataset = TokenDataset(paths, T, io=io)
    loader = cls(dataset, BATCH, **more)
    os.truncate(paths[2], 1024 + 2 * 100)
    with pytest.raises(OSError, match="byte 1224 cannot be read: the file has become shorter"):
        list(loader)
    with pytest.raises(OSError) as caught:
        dataset[len(dataset) - 1]
    assert caught.value.filename == str(paths[2]) and caught.value.errno


@every_loader
def test_a_file_that_is_gone_is_read_on(paths: list[Path], case: Any) -> None:
    cls, more = case
    if more.get("multiprocessing_context") == "forkserver":
        pytest.skip("such a worker opens files again")
    dataset = TokenDataset(paths, T)
    loader = cls(dataset, BATCH, **more)
    for path in paths:
        path.unlink()
    assert_same(torch.cat([x for x, _ in loader])[-1], sliced(dataset, len(dataset) - 1, 0)[0])


@pytest.mark.slowest
@every_loader
def test_a_token_that_is_out_of_range(paths: list[Path], case: Any) -> None:
    cls, more = case
    tokens = FILES[2].copy() % 1000
    tokens[130] = 1000
    for path in paths:
        write_llmc(path, tokens)
    dataset = TokenDataset(paths[2], T, vocab_size=1000)
    text = rf"{paths[2].name}: token 130 must be in \[0, 999\], got 1000"
    with pytest.raises(ValueError, match=text):
        list(cls(dataset, BATCH, **more))


@pytest.mark.slowest
@pytest.mark.slow
@pytest.mark.parametrize("io", ["auto", "pread"])
def test_memory_does_not_grow_with_a_file(tmp_path: Path, io: str) -> None:
    """A sparse file of 2 GiB, of which windows that are read touch some hundred MiB."""
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(2**31)
    program = Path(__file__).parents[1] / "programs" / "token_growth.py"
    run = subprocess.run(
        [sys.executable, program, path, io], capture_output=True, text=True, check=True
    )
    how, growth = run.stdout.split()
    assert how == "pread" and int(growth) < 16
