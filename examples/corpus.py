"""A language model over a mixed corpus: torchrun --nproc-per-node 4 examples/corpus.py FOLDER

Three sources of different kinds (a token file, Arrow, Parquet) are mixed by tokens, packed into
rows, and dealt to the ranks in batches of equal cost. Every step is saved. Kill the program and
start it again, on any number of ranks: it goes on at the next row, and at the end every token of
the epoch was trained on exactly once.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
import torch.distributed as dist
from torch import nn

from fastloop import (
    ArrowDataset,
    CostBatchSampler,
    DataLoader,
    MixtureDataset,
    PackedDataset,
    ParquetDataset,
    RaggedArray,
    Stepper,
)

LENGTH, VOCABULARY = 2048, 1000
PAD = VOCABULARY  # a token of its own, so that tokens can be counted
WEIGHTS = {"web": 0.5, "code": 0.3, "chat": 0.2}  # shares of the tokens


def make_files(folder: Path) -> None:
    """Write documents of random tokens in three formats."""
    draw = np.random.default_rng(0)
    for name, mean in {"web": 700, "code": 1300, "chat": 250}.items():
        lengths = draw.lognormal(np.log(mean), 1, 200).astype(np.int64).clip(1, 8000)
        tokens = draw.integers(VOCABULARY, size=lengths.sum(), dtype=np.int32)
        offsets = np.append(0, lengths.cumsum())
        if name == "web":
            np.save(folder / "web.npy", tokens)
            np.save(folder / "web.offsets.npy", offsets)
            continue
        ids = pa.LargeListArray.from_arrays(offsets, tokens)
        table = pa.table({"input_ids": ids})
        if name == "chat":
            pa.parquet.write_table(table, folder / "chat.parquet")
        else:
            with pa.ipc.new_file(folder / "code.arrow", table.schema) as file:
                file.write_table(table, 100)


def open_corpus(folder: Path) -> PackedDataset:
    sources = {
        "web": RaggedArray(folder / "web.npy", np.load(folder / "web.offsets.npy")),
        "code": ArrowDataset(folder / "code.arrow").column("input_ids"),
        "chat": ParquetDataset(folder / "chat.parquet", cache_dir=folder).column("input_ids"),
    }
    mixture = MixtureDataset(sources, WEIGHTS, by="tokens")
    return PackedDataset(mixture, LENGTH, window=500, pad_id=PAD)


def count(rows: torch.Tensor) -> torch.Tensor:
    """Return how often each token occurs."""
    return torch.bincount(rows.flatten(), minlength=VOCABULARY + 1)[:VOCABULARY]


def main(folder: Path) -> None:
    if not dist.is_initialized():  # Ray Train has done it
        dist.init_process_group("gloo")
    rank, saved = dist.get_rank(), folder / "saved.pt"
    if rank == 0 and not (folder / "web.offsets.npy").exists():
        make_files(folder)
    dist.barrier()
    packed = open_corpus(folder)
    batches = CostBatchSampler(packed, max_tokens=2 * LENGTH)
    loader = DataLoader(packed, batch_sampler=batches, num_workers=2)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(VOCABULARY + 1, 16), nn.Linear(16, VOCABULARY))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stepper = Stepper(optimizer, max_norm=1.0, model=model)
    parts = {"loader": loader, "model": model, "optimizer": optimizer, "stepper": stepper}
    seen, stop_after = torch.zeros(VOCABULARY, dtype=torch.int64), os.environ.get("STOP_AFTER")
    if saved.exists():
        found = torch.load(saved, weights_only=True)
        seen = found.pop("seen")
        for name, state in found.items():
            parts[name].load_state_dict(state)
    for batch in stepper.iterate(loader):
        targets = batch["labels"][:, 1:]  # labels[t] is the token that position t - 1 predicts
        with stepper.micro(weight=(targets != -100).sum()):
            scores = model(batch["input_ids"])[:, :-1]
            loss = nn.functional.cross_entropy(scores.transpose(1, 2), targets)
            stepper.backward(loss)
        now = count(batch["input_ids"])
        dist.all_reduce(now)
        seen += now
        if rank == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"seen": seen, **states}, folder / "saving.pt")
            os.replace(folder / "saving.pt", saved)  # the old state or the new one, never a part
            print(f"step {stepper.stepped}: loss {loss.item():.4f}", flush=True)
        if stop_after == str(stepper.stepped):
            os._exit(9)  # the node is lost
    if rank == 0:
        rows = DataLoader(packed, batch_size=64)
        expected = sum(count(batch["input_ids"]) for batch in rows)
        print(f"{seen.sum():,} tokens, each once: {torch.equal(seen, expected)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    dist.destroy_process_group()
