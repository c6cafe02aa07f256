"""A script of torch alone, trained by two ranks: whoever starts them, `run` and patch() give it
fastloop's iterators and torch's losses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rank_program
from time_limits import limit

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from rank_program import leave_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PATCH = ""

def train(rank=None):
    exec(PATCH)
    torch.set_num_threads(1)
    place = f"file://{os.getcwd()}/store"
    how = {} if rank is None else {"init_method": place, "rank": rank, "world_size": 2}
    dist.init_process_group("gloo", **how)
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(50, 3), torch.randn(50, 1))
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=1)
    losses = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        for x, y in batches:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    # In one write: the ranks share the pipe.
    os.write(1, f"rank {dist.get_rank()}: {type(batches).__name__} {losses!r}\\n".encode())
    dist.barrier()
    leave_ranks()

if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    torch.multiprocessing.spawn(train, nprocs=2)
"""
SUPPORT = Path(rank_program.__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


Trained = dict[str, tuple[str, str]]  # by rank: the iterator's type, and the losses as text


def ranks_of(folder: Path, *command: str, patch: str = "") -> Trained:
    (folder / "train.py").write_text(SCRIPT.replace('PATCH = ""', f"PATCH = {patch!r}"))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^rank (\d): (\w+) (\[.*\])$", done.stdout, re.MULTILINE)
    assert sorted(rank for rank, *_ in found) == ["0", "1"], done.stdout + done.stderr
    return {rank: (kind, losses) for rank, kind, losses in found}


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return ranks_of(tmp_path_factory.mktemp("torch"), *TORCHRUN, "train.py")


WAYS = {
    "torchrun": ((*TORCHRUN, "-m", "fastloop", "run", "train.py"), ""),
    "spawn-patch": (("train.py",), "import fastloop; fastloop.patch()"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slowest
def test_ranks_train_the_same_numbers(torchs: Trained, tmp_path: Path, way: str) -> None:
    command, patch = WAYS[way]
    ours = ranks_of(tmp_path, *command, patch=patch)
    for rank, (kind, losses) in torchs.items():
        assert kind == "_MultiProcessingDataLoaderIter"
        assert ours[rank] == ("ArrayIter", losses)


@pytest.mark.slowest
def test_accelerate_starts_a_patched_script(torchs: Trained, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
    ours = ranks_of(tmp_path, *launch, "--module", "fastloop", "run", "train.py")
    assert ours == {rank: ("ArrayIter", losses) for rank, (_, losses) in torchs.items()}
