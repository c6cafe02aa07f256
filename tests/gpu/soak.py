"""The device stage under a consumer that does everything it may at the worst moment.

    python tests/gpu/soak.py [SECONDS]

It queues long kernels before it reads a batch, drops the batch before they have run, keeps some for
long, writes into them, changes streams, and leaves loops early; paths, workers and sizes change
from loop to loop. Sums that kernels have made of every batch are compared at the end of a loop."""

import random
import sys
from time import monotonic
from typing import Any

import torch
from torch import Tensor

import fastloop

CUDA = torch.device("cuda", 0)
ROWS = 4000
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((self.width,), i, dtype=torch.int32), i


def make_loader(draw: random.Random) -> Any:
    width = draw.choice([1, 1000, 50_000])
    numbers = torch.arange(ROWS, dtype=torch.int32)
    if draw.random() < 0.5:
        data: Any = fastloop.ArrayDataset(numbers[:, None].repeat(1, width), numbers.long())
    else:
        data = Squares(width)
    more: dict[str, Any] = {}
    workers = draw.choice([0, 1, 3])
    if workers:
        more["prefetch_factor"] = draw.choice([1, 4])
    if draw.random() < 0.3:
        more["device_transform"] = lambda batch: (batch[0] * 1, batch[1])
    return fastloop.DataLoader(
        data, draw.choice([8, 100]), shuffle=True, num_workers=workers, device=CUDA, **more
    )


class Consumer:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(2))]
        self.work = torch.randn(2048, 2048, device=CUDA)
        for stream in self.streams:  # cuBLAS takes memory of its own for each
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.work @ self.work
        torch.cuda.synchronize()
        self.kept: list[tuple[Tensor, Tensor]] = []

    def loop(self) -> int:
        loader, wrong, batches = make_loader(self.draw), [], 0
        last = self.draw.choice([3, 40, ROWS])
        for x, y in loader:
            stream = self.draw.choice(self.streams)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(self.draw.choice([0, 0, 3, 20])):
                    self.work = torch.tanh(self.work @ self.work)
                wrong.append((x != y[:, None].to(x.dtype)).any())
                for t in (x, y):
                    t.record_stream(stream)
                if self.draw.random() < 0.2:
                    x.fill_(-1)
                elif self.draw.random() < 0.1:
                    self.kept.append((x, y))
            torch.cuda.current_stream().wait_stream(stream)
            del x, y
            batches += 1
            if batches == last:
                break
        if len(self.kept) > 50:
            wrong += [(x != y[:, None].to(x.dtype)).any() for x, y in self.kept]
            self.kept.clear()
        torch.cuda.synchronize()
        assert not torch.stack(wrong).any(), "a batch was not what it should be"
        return batches


def main() -> None:
    end, seed, batches = monotonic() + SECONDS, 0, 0
    consumer = Consumer(seed)
    before = torch.cuda.memory_allocated()
    while monotonic() < end:
        batches += consumer.loop()
        seed += 1
    consumer.kept.clear()
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - before
    assert grown < 1 << 20, f"{grown} bytes of device memory are still in use"
    print(f"{seed} loops, {batches} batches, none wrong")


if __name__ == "__main__":
    main()
