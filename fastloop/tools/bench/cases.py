"""The cases of ``python -m fastloop bench``: the same work by torch and by fastloop.

What a contestant makes is imported by a process of its own, so everything here is found by name.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, TensorDataset, default_collate
from torch.utils.data import DataLoader as TorchLoader

from fastloop.base.machine import usable_cpus
from fastloop.base.nested import list_leaves
from fastloop.data.tokens.dataset import TokenDataset
from fastloop.loader.dataloader import DataLoader
from fastloop.step.clip import clip_grad_norm_
from fastloop.step.scaler import GradScaler
from fastloop.step.stepper import Stepper

SEED = 1234
TORCH, FASTLOOP, SPDL = "torch", "fastloop", "spdl"
_LOADERS: dict[str, type[TorchLoader[Any]]] = {TORCH: TorchLoader, FASTLOOP: DataLoader}


class Work(Protocol):
    """What one contestant does."""

    def check(self) -> tuple[str, list[float]]:
        """What it computes: bytes that must be the same, as a digest, and values that must be
        close."""

    def run(self) -> int:
        """Once over its work; how many steps that was."""

    def pids(self) -> list[int]:
        """Processes that work for it."""


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: to ask for it.
        what: for people.
        variants: of each contestant; the best of them stands for it.
        make: the work of a contestant, by its name, a variant, and whether it is to be short.
        needs_gpu: whether there has to be one.
    """

    name: str
    what: str
    variants: Mapping[str, Sequence[str]]
    make: Callable[[str, str, bool], Work]
    needs_gpu: bool = False


def _digest(batches: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        for path, leaf in list_leaves(batch):
            digest.update(repr(path).encode())
            value = leaf.contiguous().numpy() if isinstance(leaf, torch.Tensor) else repr(leaf)
            digest.update(value.data if isinstance(value, np.ndarray) else value.encode())
    return digest.hexdigest()


@dataclass
class Loop:
    """An epoch over a loader, and something done with each batch."""

    loader: TorchLoader[Any]
    step: Callable[[Any], object] | None = None
    results: list[float] = field(default_factory=list)

    def check(self) -> tuple[str, list[float]]:
        torch.manual_seed(SEED)
        return _digest(self.loader), []

    def run(self) -> int:
        count = 0
        for batch in self.loader:
            if self.step is not None:
                self.step(batch)
            count += 1
        return count

    def pids(self) -> list[int]:
        workers = getattr(self.loader._iterator, "_workers", ())
        return [worker.pid for worker in workers if worker.pid != os.getpid()]


class SpdlLoop:
    """SPDL's pipeline as its guide has it: threads make batches, in torch's order.

    Args:
        batch_of: a batch, from its indices.
        length: of the dataset.
    """

    def __init__(
        self, batch_of: Callable[[list[int]], Any], length: int, batch: int, threads: int
    ) -> None:
        self._batch_of = batch_of
        self._sampler = BatchSampler(RandomSampler(range(length)), batch, drop_last=False)
        self._threads = threads
        self._pipeline: Any = None

    def check(self) -> tuple[str, list[float]]:
        """Of the same indices; its own thread draws them while others draw."""
        torch.manual_seed(SEED)
        torch.empty((), dtype=torch.int64).random_()  # as torch's loader draws
        return _digest(map(self._batch_of, self._sampler)), []

    def run(self) -> int:
        if self._pipeline is None:
            from spdl.pipeline import PipelineBuilder  # type: ignore[import-not-found]

            builder = PipelineBuilder().add_source(self._sampler, continuous=True)
            builder.pipe(self._batch_of, concurrency=self._threads, output_order="input")
            builder.add_sink(2 * self._threads)
            self._pipeline = builder.build(num_threads=self._threads)
            self._pipeline.start()
        return sum(1 for _ in self._pipeline)

    def pids(self) -> list[int]:
        return []


def _workers(variant: str) -> dict[str, Any]:
    """Arguments of a loader: "2 workers", "8 threads"."""
    count, kind = int(variant.split()[0]), variant.split()[1]
    found: dict[str, Any] = {"num_workers": count, "persistent_workers": count > 0}
    return found | ({"path": "thread"} if kind.startswith("thread") else {})


def _counts(*counts: int, kind: str = "workers") -> list[str]:
    return [f"{count} {kind}" for count in dict.fromkeys(counts)]


_CPUS = min(8, max(1, int(usable_cpus())))
_TUNED = {TORCH: _counts(0, 1, 2, _CPUS), FASTLOOP: _counts(0, 1, 2, _CPUS)}


def _loader(who: str, variant: str, dataset: Any, batch: int, **more: Any) -> TorchLoader[Any]:
    return _LOADERS[who](dataset, batch, **_workers(variant), **more)


# ---- rows that lie in memory


def _make_rows(who: str, variant: str, fields: tuple[torch.Tensor, ...], batch: int) -> Work:
    if who != SPDL:
        return Loop(_loader(who, variant, TensorDataset(*fields), batch, shuffle=True))

    def batch_of(indices: list[int]) -> Any:
        rows = torch.tensor(indices)
        return [torch.index_select(rows_of, 0, rows) for rows_of in fields]

    return SpdlLoop(batch_of, len(fields[0]), batch, int(variant.split()[0]))


def make_table(who: str, variant: str, is_short: bool) -> Work:
    values = np.random.default_rng(SEED)
    rows = 5_000 if is_short else 20_000
    inputs = torch.from_numpy(values.random((rows, 20), np.float32))
    targets = torch.from_numpy(values.integers(0, 10, rows))
    return _make_rows(who, variant, (inputs, targets), 256)


def make_images(who: str, variant: str, is_short: bool) -> Work:
    rows = 512 if is_short else 2_048
    pixels = np.random.default_rng(SEED).integers(0, 256, (rows, 3, 96, 96), np.uint8)
    return _make_rows(who, variant, (torch.from_numpy(pixels), torch.arange(rows)), 64)


@dataclass
class Uploads(Loop):
    """An epoch until its batches are on the GPU; ours are when they come."""

    device: str = "cuda"
    is_ours: bool = False

    def _batches(self) -> Iterator[list[torch.Tensor]]:
        for batch in self.loader:
            if self.is_ours:
                yield batch
            else:
                yield [leaf.to(self.device, non_blocking=True) for leaf in batch]

    def check(self) -> tuple[str, list[float]]:
        torch.manual_seed(SEED)
        return _digest([leaf.cpu() for leaf in batch] for batch in self._batches()), []

    def run(self) -> int:
        count = sum(1 for _ in self._batches())
        if self.device == "cuda":
            torch.cuda.synchronize()
        return count


def make_h2d(who: str, variant: str, is_short: bool, device: str = "cuda") -> Work:
    rows = 512 if is_short else 2_048
    pixels = np.random.default_rng(SEED).integers(0, 256, (rows, 3, 96, 96), np.uint8)
    dataset = TensorDataset(torch.from_numpy(pixels), torch.arange(rows))
    is_ours = who == FASTLOOP
    more: dict[str, Any] = {"device": device} if is_ours else {"pin_memory": True}
    loader = _loader(who, variant, dataset, 64, shuffle=True, **more)
    return Uploads(loader, device=device, is_ours=is_ours)


class Windows(Dataset[Any]):
    """Windows of tokens as scripts cut them."""

    def __init__(self, tokens: np.ndarray[Any, Any], length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self._length
        window = self._tokens[begin : begin + self._length + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


def make_tokens(who: str, variant: str, is_short: bool) -> Work:
    count = 1 << (20 if is_short else 22)
    tokens = np.random.default_rng(SEED).integers(0, 50_000, count, np.uint16)
    if who == FASTLOOP:
        ours = TokenDataset.from_buffers(tokens, np.array([0, count]), 512)
        return Loop(_loader(who, variant, ours, 32, shuffle=True))
    return Loop(_loader(who, variant, Windows(tokens, 512), 32, shuffle=True))


# ---- samples that Python makes


class Records(Dataset[dict[str, Any]]):
    """A dict of a feature vector, a label and a weight."""

    def __init__(self, count: int) -> None:
        self._features = np.random.default_rng(SEED).random((1024, 768), np.float32)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self._features[index % 1024], "label": index, "weight": 0.5}


def _make_samples(who: str, variant: str, dataset: Any, batch: int) -> Work:
    if who != SPDL:
        return Loop(_loader(who, variant, dataset, batch, shuffle=True))

    def batch_of(indices: list[int]) -> Any:
        return default_collate([dataset[index] for index in indices])

    return SpdlLoop(batch_of, len(dataset), batch, int(variant.split()[0]))


def make_python(who: str, variant: str, is_short: bool) -> Work:
    return _make_samples(who, variant, Records(4_096 if is_short else 16_384), 128)


class Waits(Dataset[torch.Tensor]):
    """Each sample waits 1 ms, as for a disk or a network."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(1e-3)
        return torch.full((16,), float(index))


def make_waits(who: str, variant: str, is_short: bool) -> Work:
    return _make_samples(who, variant, Waits(256 if is_short else 2_048), 16)


# ---- steps


class Clip:
    """clip_grad_norm_ over the gradients of a model of many small tensors."""

    def __init__(self, clip: Callable[..., torch.Tensor], tensors: int) -> None:
        torch.manual_seed(SEED)
        self._clip = clip
        self._parameters = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(tensors)]
        for parameter in self._parameters:
            parameter.grad = torch.randn(64, 64)

    def check(self) -> tuple[str, list[float]]:
        norm = self._clip(self._parameters, 1.0)
        grads: Iterable[Any] = (parameter.grad for parameter in self._parameters)
        return "", [float(norm), *(float(grad.double().norm()) for grad in grads)]

    def run(self) -> int:
        for _ in range(10):
            self._clip(self._parameters, 1e9)
        return 10

    def pids(self) -> list[int]:
        return []


def make_clip(who: str, variant: str, is_short: bool) -> Work:
    clip = clip_grad_norm_ if who == FASTLOOP else torch.nn.utils.clip_grad_norm_
    return Clip(clip, 100 if is_short else 400)


class Steps:
    """Optimizer steps of four micro-batches each, as for mixed precision: losses are scaled,
    gradients unscaled and clipped, and the step is taken if they are finite.

    Args:
        is_fused: the optimizer is torch's fused one.
    """

    accumulate, max_norm = 4, 1.0

    def __init__(self, is_fused: bool, layers: int) -> None:
        torch.manual_seed(SEED)
        self._model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
        self._batches = torch.randn(self.accumulate, 8, 64)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(self._parameters, 0.01, momentum=0.9, fused=is_fused)

    def _loss(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self._model(batch), batch)

    def _step(self) -> None:
        raise NotImplementedError

    def check(self) -> tuple[str, list[float]]:
        for _ in range(3):
            self._step()
        parameters: Iterable[Any] = (parameter.detach() for parameter in self._parameters)
        return "", [float(parameter.double().norm()) for parameter in parameters]

    def run(self) -> int:
        for _ in range(5):
            self._step()
        return 5

    def pids(self) -> list[int]:
        return []


class TorchSteps(Steps):
    def __init__(self, is_fused: bool, layers: int) -> None:
        super().__init__(is_fused, layers)
        self._scaler = torch.amp.GradScaler("cpu")

    def _step(self) -> None:
        for batch in self._batches:
            loss: Any = self._scaler.scale(self._loss(batch) / self.accumulate)
            loss.backward()
        self._scaler.unscale_(self._optimizer)
        torch.nn.utils.clip_grad_norm_(self._parameters, self.max_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()


class OurSteps(Steps):
    def __init__(self, is_fused: bool, layers: int) -> None:
        super().__init__(is_fused, layers)
        scaler = GradScaler("cpu")
        self._stepper = Stepper(
            self._optimizer, self.accumulate, scaler=scaler, max_norm=self.max_norm
        )

    def _step(self) -> None:
        for batch in self._batches:
            with self._stepper.micro():
                self._stepper.backward(self._loss(batch))


def make_stepper(who: str, variant: str, is_short: bool) -> Work:
    kind = OurSteps if who == FASTLOOP else TorchSteps
    return kind(variant == "fused SGD", 10 if is_short else 40)


def make_compute(who: str, variant: str, is_short: bool) -> Work:
    """A loop that a faster loader cannot help."""
    torch.manual_seed(SEED)
    rows = 48 if is_short else 256
    dataset = TensorDataset(torch.randn(rows, 128), torch.randn(rows, 128))
    layers = ((torch.nn.Linear(128, 128), torch.nn.Tanh()) for _ in range(100))
    model = torch.nn.Sequential(*chain.from_iterable(layers))

    def step(batch: Any) -> None:
        for _ in range(10):
            loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]

    return Loop(_loader(who, variant, dataset, 16), step)


_SPDL = {SPDL: _counts(1, 2, _CPUS, kind="threads")}
_WAITING = {
    TORCH: _counts(0, 2, 8),
    FASTLOOP: _counts(0, 2, 8) + _counts(8, 16, kind="threads"),
    SPDL: _counts(8, 16, kind="threads"),
}
_PINNED = {TORCH: _counts(0, 1, 2), FASTLOOP: _counts(0, 1, 2)}
_SGD = {TORCH: ["SGD", "fused SGD"], FASTLOOP: ["SGD", "fused SGD"]}
_ONE = {TORCH: ["0 workers"], FASTLOOP: ["0 workers"]}
CASES = {
    case.name: case
    for case in (
        Case("table", "rows of a table, batch 256", _TUNED | _SPDL, make_table),
        Case("images", "3x96x96 uint8 images in memory, batch 64", _TUNED | _SPDL, make_images),
        Case("tokens", "windows of 512 tokens, batch 32", _TUNED, make_tokens),
        Case("python", "samples that Python makes, batch 128", _TUNED | _SPDL, make_python),
        Case("h2d", "3x96x96 uint8 images onto the GPU, batch 64", _PINNED, make_h2d, True),
        Case("clip", "clip_grad_norm_ over small tensors", _ONE, make_clip),
        Case("stepper", "4 micro-batches, scaler, clip, SGD", _SGD, make_stepper),
        Case("compute", "a loop that computes: no loader can help it", _ONE, make_compute),
        Case("waits", "samples that wait 1 ms each, batch 16", _WAITING, make_waits),
    )
}
