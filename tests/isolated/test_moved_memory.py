"""torch moves the memory of a tensor when it shares it with another process (`share_memory_()`, a
pickle for a spawned worker, a queue, a pool) and frees what it had. Whatever holds an address of it
here, threads that read ahead among them, must not read that. Sizes are such that the freed memory
is unmapped, so that reading it ends the process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import PROGRAMS, run_program, run_script

from fastloop.compat.moves import tensors_in

HEAD = """
import sys
import numpy as np
import torch
import torch.multiprocessing as mp
import fastloop
from fastloop import ArrayDataset, DataLoader, PadCollate, PackCollate, RaggedArray, TokenDataset
from fastloop import transforms
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split
from torch.utils.data import DataLoader as TorchLoader

sys.path.insert(0, FOLDER)
from head import *
""".replace("FOLDER", repr(str(PROGRAMS / "moved_memory")))

# How each kind of dataset is made of a tensor whose row i holds i.
KINDS = {
    "tensors": "TensorDataset(x, torch.arange(ROWS))",
    "numpy": "TensorDataset(x := torch.from_numpy(x.numpy().copy()), torch.arange(ROWS))",
    "fields": "ArrayDataset(x, np.arange(ROWS))",
    "subset": "Subset(TensorDataset(x, torch.arange(ROWS)), torch.randperm(ROWS))",
    "several": "ConcatDataset([TensorDataset(part, labels) for part, labels in "
    "zip(x.chunk(2), torch.arange(ROWS).chunk(2))])",
    "stack": "StackDataset(x, torch.arange(ROWS))",
    "images": "ArrayDataset(x := (x[:, :2500] % 250).byte().reshape(ROWS, 1, 50, 50), "
    "np.arange(ROWS) % 250, transform=transforms.Compose([transforms.RandomHorizontalFlip()]))",
}
MOVES = ["share", "put", "run_pool", "spawn"]
WORKERS = [0, 2]


def run(tmp_path: Path, body: str, *args: object) -> str:
    lines = body.strip().splitlines()
    main = "\n".join(f"    {line}" for line in lines)
    return run_script(tmp_path, f'{HEAD}\n\nif __name__ == "__main__":\n{main}\n', *args)


OPEN_LOADER = """
x = numbered()
dataset = {dataset}
address = x.data_ptr()
loader = DataLoader(dataset, 16, num_workers={workers}, path="array", shuffle=True)
batches = iter(loader)
count = check_rows([next(batches) for _ in range(5)])
{move}(x)
check_moves(x, address)
held = poison(x)
assert count + check_rows(batches) == ROWS
assert check_rows(loader) == ROWS
"""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("move", MOVES)
def test_an_open_loader_survives_a_move(tmp_path: Path, move: str, workers: int) -> None:
    run(tmp_path, OPEN_LOADER.format(dataset=KINDS["tensors"], move=move, workers=workers))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dataset_survives_a_move(tmp_path: Path, kind: str, workers: int) -> None:
    run(tmp_path, OPEN_LOADER.format(dataset=KINDS[kind], move="share", workers=workers))


def test_batches_are_right_while_memory_moves(tmp_path: Path) -> None:
    """Threads are in the middle of a copy when the memory goes."""
    run(
        tmp_path,
        """
labels = torch.arange(ROWS)
for _ in range(12):
    x = numbered()
    batches = iter(DataLoader(TensorDataset(x, labels), 500, num_workers=3, path="array"))
    for i in range(ROWS // 500):
        if i == 2:
            x.share_memory_()
        check_rows([next(batches)])
""",
    )


def test_other_threads_go_on_while_memory_moves(tmp_path: Path) -> None:
    """A thread that moves waits for readers, and readers for it: nobody waits for ever."""
    run(
        tmp_path,
        """
import threading
from time_limits import limit
labels = torch.arange(ROWS)
for workers in (0, 2):
    for size in (8, 400):
        x = numbered()
        dataset = TensorDataset(x, labels)
        counts = []

        def read():
            counts.append(check_rows(DataLoader(dataset, size, num_workers=workers, path="array")))

        threads = [threading.Thread(target=read) for _ in range(4)]
        threads += [threading.Thread(target=share, args=(x,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit(100))
        assert counts == [ROWS] * 4, (workers, size, counts)
""",
    )


SECOND = """
x = numbered()
dataset = TensorDataset(x, torch.arange(ROWS))
{prepare}
batches = iter({Loader}(train, 16, num_workers=2))
count = check_rows([next(batches) for _ in range(3)])
other = {Loader}(valid, 100, num_workers=1, collate_fn=collate, multiprocessing_context="spawn")
assert check_rows(other) == len(valid)
held = poison(x)
assert count + check_rows(batches) == len(train)
"""
COLLATE = """
from torch.utils.data import default_collate

def collate(samples):
    return default_collate(samples)

"""


@pytest.mark.slowest
@pytest.mark.parametrize("Loader", ["DataLoader", "TorchLoader"])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_second_loader_with_spawned_workers(tmp_path: Path, is_split: bool, Loader: str) -> None:  # noqa: N803
    """Of torch's too, which moves the tensors."""
    prepare = "train = valid = dataset"
    if is_split:
        prepare = "train, valid = random_split(dataset, [ROWS - 500, 500])"
    body = SECOND.format(prepare=prepare, Loader=Loader)
    body = body.replace(f"iter({Loader}", "iter(DataLoader")
    script = f'{HEAD}{COLLATE}\n\nif __name__ == "__main__":\n'
    run_script(tmp_path, script + "\n".join(f"    {line}" for line in body.splitlines()))


@pytest.mark.slowest
def test_a_second_loader_behind_patch(tmp_path: Path) -> None:
    prepare = "train, valid = random_split(dataset, [ROWS - 500, 500]); fastloop.patch()"
    body = SECOND.format(prepare=prepare, Loader="TorchLoader")
    script = f'{HEAD}{COLLATE}\n\nif __name__ == "__main__":\n'
    run_script(tmp_path, script + "\n".join(f"    {line}" for line in body.splitlines()))


@pytest.mark.slowest
def test_loaders_of_this_package_move_nothing(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "moved_memory/loaders_of_this_package_move_nothing",
    )


TOKENS = """
tokens = torch.arange(6_000_000, dtype=torch.int32)
dataset = TokenDataset.from_buffers(tokens, [0, len(tokens)], 1000)
check = lambda batches: [
    [bool((x == x[:, :1] + torch.arange(1000)).all() and (y == x + 1).all()) for x, y in batches]
]
batches = iter(DataLoader(dataset, 32, num_workers={workers}))
first = next(batches)
address = tokens.data_ptr()
{move}(tokens)
check_moves(tokens, address)
held = poison(tokens)
assert dataset[3][0].tolist() == list(range(3000, 4000))
assert dataset.__getitems__([0, 5])[1][0].tolist() == list(range(5000, 6000))
for each in (batches, DataLoader(dataset, 32, num_workers={workers}), TorchLoader(dataset, 32)):
    for x, y in each:
        assert bool((x == x[:, :1] + torch.arange(1000)).all() and (y == x + 1).all())
"""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("move", ["share", "put"])
def test_tokens_in_a_tensor_survive_a_move(tmp_path: Path, move: str, workers: int) -> None:
    body = TOKENS.format(move=move, workers=workers)
    body = body.replace("[0, len(tokens)]", "torch.tensor([0, len(tokens)])")
    start = body.index("check = ")
    body = body[:start] + body[body.index("batches = ") :]
    run(tmp_path, body)


RAGGED = """
lengths = torch.arange(ROWS) % 700 + 1500
offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
values = torch.repeat_interleave(torch.arange(ROWS), lengths)
dataset = ArrayDataset(tokens=RaggedArray(values, offsets), number=torch.arange(ROWS))


def check(batches):
    for batch in batches:
        {check}


loader = DataLoader(dataset, 8, num_workers={workers}, collate_fn={collate}, path="array")
batches = iter(loader)
check([next(batches)])
address = values.data_ptr()
values.share_memory_()
check_moves(values, address)
held = poison(values)
check(batches)
check(loader)
"""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("collate", ["PadCollate(padding_value=-7)", "PackCollate()"])
def test_sequences_in_a_tensor_survive_a_move(tmp_path: Path, collate: str, workers: int) -> None:
    check = "assert set(batch['tokens'].unique().tolist()) - {-7} == set(batch['number'].tolist())"
    run(tmp_path, RAGGED.format(check=check, collate=collate, workers=workers))


@pytest.mark.slowest
def test_a_spawned_worker_has_what_a_forked_one_has(tmp_path: Path) -> None:
    """Its own copy of each tensor, views of one storage as views of one storage; what is in shared
    memory is shared with everybody. Batches are torch's."""
    run_program(tmp_path, "moved_memory/a_spawned_worker_has_what_a_forked_one_has")


def test_without_the_methods_that_move_no_address_is_kept(tmp_path: Path) -> None:
    """As a later release of torch may be."""
    run(
        tmp_path,
        """
import warnings
from fastloop.compat import torch_parts
parts = torch_parts._PARTS
parts["moves"] += (torch_parts.Part("torch:UntypedStorage._share_otherwise_"),)
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", "The tensors of datasets are left", RuntimeWarning)
x = numbered()
loader = DataLoader(TensorDataset(x, torch.arange(ROWS)), 100, num_workers=2)
assert check_rows(loader) == ROWS
assert loader.stats().path == "process" and "UntypedStorage._share_otherwise_ is gone" in (
    loader.stats().why
)
tokens = torch.arange(6_000_000)
dataset = TokenDataset.from_buffers(tokens, torch.tensor([0, 6_000_000]), 1000)
tokens.share_memory_()
held = poison(tokens)
assert dataset[3][0].tolist() == list(range(3000, 4000))
""".replace("", ""),
    )


def test_the_tensors_of_a_new_kind_of_source_are_found() -> None:
    class Source:
        sources = (torch.arange(3), np.arange(3), (torch.ones(2),))

    found = list(tensors_in(((Source(), "name", None), (np.arange(3), "array", ("path", 0, len)))))
    assert list(map(id, found)) == [id(Source.sources[0]), id(Source.sources[2][0])]
