"""Texts of different length: which package a function comes from, told by its source.

The texts are the functions of Python's own standard library, which every machine has, cut into
words. The model is the mean of word vectors and two layers. torch's loop pads lists with
pad_sequence, fastloop's pads a RaggedArray with PadCollate; both take their batches from the same
LengthBucketBatchSampler, so both train the same numbers. One more column pads batches of any
lengths, as shuffle=True gives them.

    python examples/textclass.py [--epochs 5] [--max-tokens 4096] [--seed 0]
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import fastloop

PACKAGES = "asyncio email http importlib multiprocessing unittest urllib xml".split()
WORDS = 5_000  # of the vocabulary; 0 is padding, 1 any other word
LONGEST = 200  # words of a text that are kept
ROUNDS = 3  # each training this often, in turns; the medians are shown


@dataclass(frozen=True)
class Texts:
    """Word numbers of each text, and the number of its package."""

    words: list[list[int]]
    labels: list[int]

    def part(self, indices: list[int]) -> Texts:
        return Texts([self.words[i] for i in indices], [self.labels[i] for i in indices])


def functions_of(package: str) -> Iterator[str]:
    folder = Path(sysconfig.get_paths()["stdlib"]) / package
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def load_texts(seed: int) -> tuple[Texts, Texts]:
    """Four fifths to train on, the rest to test with."""
    found = [
        (re.findall(r"\w+|[^\w\s]", text)[:LONGEST], label)
        for label, package in enumerate(PACKAGES)
        for text in functions_of(package)
    ]
    common = Counter(word for words, _ in found for word in words).most_common(WORDS - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, 2)}
    words = [[numbers.get(word, 1) for word in words] for words, _ in found]
    texts = Texts(words, [label for _, label in found])
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed)).tolist()
    cut = len(order) * 4 // 5
    return texts.part(order[:cut]), texts.part(order[cut:])


class Lists(Dataset[tuple[list[int], int]]):
    """What a user of torch writes."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts.labels)

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return self.texts.words[index], self.texts.labels[index]


def pad(samples: list[tuple[list[int], int]]) -> dict[str, Tensor]:
    """And this."""
    words = pad_sequence([torch.tensor(words) for words, _ in samples], batch_first=True)
    lengths = torch.tensor([len(words) for words, _ in samples])
    mask = (torch.arange(words.shape[1]) < lengths[:, None]).long()
    labels = torch.tensor([label for _, label in samples])
    return {"input_ids": words, "labels": labels, "attention_mask": mask}


def arrays(texts: Texts) -> fastloop.ArrayDataset:
    return fastloop.ArrayDataset(
        input_ids=fastloop.RaggedArray.from_list(texts.words), labels=np.array(texts.labels)
    )


class Classifier(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.head = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, len(PACKAGES))
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, :, None]
        return self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)  # mean of each epoch
    accuracy: float = 0.0  # of the texts to test with
    padding: float = 0.0  # share of all that was padded
    seconds: float = 0.0
    seconds_waiting: float = 0.0


def bucketed(texts: Texts, args: argparse.Namespace) -> fastloop.LengthBucketBatchSampler:
    lengths = [len(words) for words in texts.words]
    return fastloop.LengthBucketBatchSampler(lengths, max_tokens=args.max_tokens, seed=args.seed)


def torchs_loader(texts: Texts, args: argparse.Namespace) -> DataLoader[Any]:
    return DataLoader(Lists(texts), batch_sampler=bucketed(texts, args), collate_fn=pad)


def fastloops_loader(texts: Texts, args: argparse.Namespace) -> DataLoader[Any]:
    collate = fastloop.PadCollate(return_mask=True)
    sampler = bucketed(texts, args)
    return fastloop.DataLoader(arrays(texts), batch_sampler=sampler, collate_fn=collate)


def unsorted_loader(texts: Texts, args: argparse.Namespace) -> DataLoader[Any]:
    """With as many texts a batch as the others have on average."""
    size = len(texts.labels) // len(bucketed(texts, args))
    collate = fastloop.PadCollate(return_mask=True)
    return fastloop.DataLoader(arrays(texts), size, shuffle=True, collate_fn=collate)


TRAININGS: dict[str, Callable[[Texts, argparse.Namespace], DataLoader[Any]]] = {
    "torch": torchs_loader,
    "fastloop": fastloops_loader,
    "any lengths": unsorted_loader,
}


def train(name: str, parts: tuple[Texts, Texts], args: argparse.Namespace) -> Run:
    torch.manual_seed(args.seed)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = TRAININGS[name](parts[0], args)
    run, tokens, padded = Run(), 0, 0
    start = perf_counter()
    for epoch in range(args.epochs):
        if isinstance(loader.batch_sampler, fastloop.LengthBucketBatchSampler):
            loader.batch_sampler.set_epoch(epoch)
        total = 0.0
        asked = perf_counter()
        for batch in loader:
            run.seconds_waiting += perf_counter() - asked
            mask, labels = batch["attention_mask"], batch["labels"]
            loss = functional.cross_entropy(model(batch["input_ids"], mask), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(labels)
            tokens, padded = tokens + int(mask.sum()), padded + mask.numel()
            asked = perf_counter()
        run.losses.append(total / len(parts[0].labels))
    run.seconds, run.padding = perf_counter() - start, 1 - tokens / padded
    run.accuracy = test(model, parts[1])
    return run


@torch.no_grad()
def test(model: nn.Module, texts: Texts) -> float:
    collate = fastloop.PadCollate(return_mask=True)
    right = 0
    for batch in fastloop.DataLoader(arrays(texts), 64, collate_fn=collate):
        found = model(batch["input_ids"], batch["attention_mask"]).argmax(1)
        right += int((found == batch["labels"]).sum())
    return right / len(texts.labels)


def report(runs: dict[str, list[Run]]) -> None:
    def row(title: str, show: str, value: Callable[[Run], float]) -> None:
        medians = [statistics.median(map(value, of)) for of in runs.values()]
        print(f"{title:28}" + "".join(f"{show.format(x):>16}" for x in medians))

    print(f"{'':28}" + "".join(f"{name:>16}" for name in runs))
    for epoch in range(len(runs["torch"][0].losses)):
        row(f"loss of epoch {epoch + 1}", "{:.4f}", lambda run, epoch=epoch: run.losses[epoch])
    row("accuracy on other texts", "{:.1%}", lambda run: run.accuracy)
    row("padding", "{:.1%}", lambda run: run.padding)
    row("seconds", "{:.2f}", lambda run: run.seconds)
    row("time waiting for batches", "{:.1%}", lambda run: run.seconds_waiting / run.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch, padding included")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    parts = load_texts(args.seed)
    runs: dict[str, list[Run]] = {name: [] for name in TRAININGS}
    with tqdm(total=ROUNDS * len(runs), unit="training", disable=None) as bar:
        for _ in range(ROUNDS):
            for name in runs:
                bar.set_description(name)
                runs[name].append(train(name, parts, args))
                bar.update()
    report(runs)
    ours, theirs = (runs[name][0].losses for name in ("fastloop", "torch"))
    if ours != theirs:
        print("\nThe curves of torch and fastloop differ: please report this.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
