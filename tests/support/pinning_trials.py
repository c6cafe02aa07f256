"""Trials of pinned slots and blocks of device memory, and how many there are:
`python pinning_trials.py core.so trial`."""

import math
import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from process_loop import CheckedLoop, ImageDataset
from time_limits import limit
from upload_device import EAGER, FIELDS, LAZY, RANDOM, SOURCES, Device, core, fake, make_table

from fastloop import ArrayDataset, DataLoader
from fastloop.loader.arrays.iterator import ArrayConfig

AHEAD = 2  # FL_COPY_AHEAD
AHEAD_BYTES = 512 << 20  # FL_COPY_AHEAD_BYTES
PAGE = 4096
LONG_S = 120


def make_feed(device: Device, workers: int, prefetch: int, **more: Any) -> Any:
    table = more.pop("table", None) or make_table()
    pool = more.pop("slots", None) or core.BatchPool(3, device=device.device)
    given = {"workers": workers, "prefetch": prefetch, "destination": device, "budget": 1 << 40}
    config = ArrayConfig((None,) * table.outputs, **{**given, **more})
    return core.ArrayLoader(table, pool, config)


def bytes_of(rows: int) -> int:
    """That a slot for a batch of so many rows takes, with what its fields are padded by."""
    size = 0
    for field in FIELDS:
        size += -(-rows * field[0].nbytes // 64) * 64
    return -(-size // PAGE) * PAGE


def each_way() -> Iterator[int]:
    """Numbers of workers, with some order set."""
    for workers, order, seed in ((1, EAGER, 0), (3, LAZY, 0), (1, RANDOM, 0), (3, RANDOM, 1)):
        fake.fake_set_order(order, seed)
        yield workers


def await_registered(count: int) -> None:
    deadline = time.monotonic() + limit(LONG_S)
    while fake.fake_count_pins().registered < count:
        assert time.monotonic() < deadline, fake.fake_count_pins().registered
        time.sleep(0.001)


# ---- blocks


def blocks_are_for_the_next_batches_alone() -> None:
    """The user's batch, the one it is exchanged for, and those ahead."""
    for workers in each_way():
        for in_order in (True, False):
            device = Device()
            feed = make_feed(device, workers, 8, in_order=in_order)
            todo = [[k, 39 - k] * 30 for k in range(20)]
            feed.restart(iter(todo), 1, None)
            assert device.most_out <= 1
            for rows in todo:
                batch = next(feed)
                if in_order:
                    device.compare(batch, rows)
                del batch
                assert device.most_out <= 1 + AHEAD
            assert device.most_out == 1 + AHEAD
            device.synchronize()
            del feed
            device.close()


def blocks_of_large_batches_are_fewer() -> None:
    """Than two, where two take more than the bound; one batch is always allowed."""
    fake.fake_set_order(EAGER, 0)
    table = core.Table(torch.Tensor, ((np.zeros((1, AHEAD_BYTES // 32), np.uint8), "a", None),))
    for rows, most in ((16, 1 + AHEAD), (17, 2), (33, 2)):
        device = Device()
        feed = make_feed(
            device, 1, 4, table=table,
            destination=SimpleNamespace(allocate=device.allocate, split=lambda b, *_: [b[:0]]),
            slots=core.BatchPool(1, device=0),
        )  # fmt: skip
        feed.restart(iter([[0], *[[0] * rows] * 3]), 1, None)
        next(feed)  # the others have not been filled, and need not be
        assert device.most_out == most, (rows, device.most_out)
        feed.close()
        del feed
        device.close()


def batches_without_a_block_wait_filled() -> None:
    """Their copies are queued as soon as they have one, although nobody takes them."""
    fake.fake_set_order(EAGER, 0)
    for prefetch in (2, 6):
        device = Device()
        feed = make_feed(device, 2, prefetch)
        todo = [[k, 39 - k] * 30 for k in range(20)]
        feed.restart(iter(todo), 1, None)
        for k, rows in enumerate(todo):
            device.compare(next(feed), rows)
            ahead = min(len(todo) - 1 - k, AHEAD)
            deadline = time.monotonic() + limit(LONG_S)
            while fake.fake_copies() < k + 1 + ahead:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            assert fake.fake_copies() == k + 1 + ahead
        fake.fake_forget_copies()
        device.synchronize()
        del feed
        device.close()


def the_budget_bounds_what_is_posted() -> None:
    """And one batch always comes."""
    size = bytes_of(60)
    for workers in each_way():
        for fitting in (0, 1, 3):
            device = Device()
            drawn = 0

            def draw() -> Iterator[list[int]]:
                nonlocal drawn
                for k in range(20):
                    drawn += 1
                    yield [k, 39 - k] * 30

            slots = core.BatchPool(3, device=0)
            feed = make_feed(device, workers, 8, slots=slots, budget=size * fitting + 1)
            feed.restart(draw(), 1, None)
            assert slots.count()["made"] <= 1 + max(fitting, 1)  # one is the try of the pool
            assert drawn == max(fitting, 1) + 1  # one waits for room
            for k in range(20):
                device.compare(next(feed), [k, 39 - k] * 30)
                device.synchronize()
                assert slots.count()["made"] <= 1 + max(fitting, 1) + 1, slots.count()
            assert next(feed, None) is None and drawn == 20
            del feed, slots
            device.close()


def what_copies_still_read_counts_in_the_budget() -> None:
    """Nothing is read ahead while it is used up."""
    fake.fake_set_order(LAZY, 0)
    device = Device()
    slots = core.BatchPool(3, device=0)
    feed = make_feed(device, 1, 8, slots=slots, budget=3 * bytes_of(60))
    todo = [[k, 39 - k] * 30 for k in range(20)]
    feed.restart(iter(todo), 1, None)
    for k, rows in enumerate(todo[:10], 1):
        device.compare(next(feed), rows)
        assert slots.count()["made"] <= 1 + max(3, k + 1)
    device.synchronize()
    del feed, slots
    device.close()
    device = Device()
    order = [*range(40)] * 2
    loader: Any = DataLoader(ImageDataset(), 4, sampler=order, num_workers=1, prefetch_factor=8)
    loader.memory_budget = 2 * 4 * (64 << 10)  # half of it for requests, and none smaller
    loop = CheckedLoop(loader, device)
    iterator = loop.begin()
    for k in range(14):
        loop.check(next(iterator), order[4 * k : 4 * k + 4])
    made = loader._shared.worker_memory.count()["made"]
    assert made <= 14 + 3, (
        made
    )  # one is sent, one there, and one tries whether memory can be pinned
    del iterator, loader
    loop.close()


def the_budget_of_a_loader_is_that() -> None:
    """Of one on a device, and where batches are gathered to pinned memory."""
    fake.fake_set_order(EAGER, 0)
    for budget, most in ((1, 1), (3 * bytes_of(10), 3), (None, 8)):
        device = Device()
        loader: Any = DataLoader(ArrayDataset(*SOURCES), 10, num_workers=2, prefetch_factor=4)
        loader.memory_budget = budget
        loop = CheckedLoop(loader, device)
        iterator = loop.begin()
        assert loader._shared.array_memory.count()["made"] == 1 + min(most, 4)
        for k in range(4):
            device.compare(next(iterator), list(range(10 * k, 10 * k + 10)))
            device.synchronize()
        del iterator, loader
        loop.close()
        gathered = 0

        def allocate(size: int) -> torch.Tensor:
            nonlocal gathered
            gathered += 1
            return torch.empty(size, dtype=torch.uint8)

        feed = make_feed(
            device, 2, 4, slots=core.BatchPool(3),
            destination=SimpleNamespace(allocate=allocate, split=device.split),
            **({"budget": budget} if budget else {}),
        )  # fmt: skip
        feed.restart(iter([list(range(10))] * 20), 1, None)
        assert gathered == most
        for _ in range(20):
            (_, numbers, _) = next(feed)
            assert numbers.tolist() == [7 * k for k in range(10)]
        assert next(feed, None) is None and gathered == 20


# ---- registering


def the_first_batch_is_registered_first() -> None:
    """Nothing else is registered before it is handed out. What is, is so while the interpreter
    lock is free: Device.close() looks."""
    for workers in each_way():
        device = Device()
        before = fake.fake_count_pins()
        at_first: list[int] = []

        def split(*args: Any, device: Device = device, seen: list[int] = at_first) -> Any:
            seen.append(fake.fake_count_pins().bytes)
            return device.split(*args)

        feed = make_feed(
            device,
            workers,
            4,
            destination=SimpleNamespace(allocate=device.allocate, split=split),
        )
        probed = fake.fake_count_pins().bytes - before.bytes  # the try of the pool
        assert probed == os.sysconf("SC_PAGE_SIZE")
        before = fake.fake_count_pins()
        todo = [[k, 39 - k, 3] * 20 for k in range(20)]
        feed.restart(iter(todo), 1, None)
        time.sleep(0.01)  # whoever wanted to register more would
        device.compare(next(feed), todo[0])
        assert at_first[0] - before.bytes == bytes_of(60)
        await_registered(before.registered + 1 + AHEAD)  # behind it, and nobody asks
        for rows in todo[1:]:
            device.compare(next(feed), rows)
        device.synchronize()
        del feed
        device.close()


# ---- registering again


def epochs_keep_what_is_registered() -> None:
    """However many slots an epoch has used."""
    for workers in each_way():
        for persistent in (False, True):
            device = Device()
            slots = core.BatchPool(3, device=0)
            before = fake.fake_count_pins()
            feed: Any = None
            for _ in range(3):
                if feed is None or not persistent:
                    feed = make_feed(device, workers, 2, slots=slots, persistent=persistent)
                todo = [[k, 39 - k, 3] * 20 for k in range(20)]
                feed.restart(iter(todo), 1, None)
                for rows in todo:
                    device.compare(next(feed), rows)
                assert next(feed, None) is None
                now = fake.fake_count_pins()
                assert now.unregistered == before.unregistered
                made = slots.count()["made"]
                assert now.registered - before.registered <= made
                device.synchronize()
            del feed, slots
            device.close()


def growing_batches_are_registered_a_few_times() -> None:
    """As often as they double, in each slot."""
    for workers in each_way():
        device = Device()
        slots = core.BatchPool(3, device=0)
        feed = make_feed(device, workers, 2, slots=slots)
        before = fake.fake_count_pins()
        todo = [[k] * k for k in range(1, 40)]
        feed.restart(iter(todo), 1, None)
        for rows in todo:
            device.compare(next(feed), rows)
            device.synchronize()
        doublings = math.ceil(math.log2(bytes_of(39) / bytes_of(1)))
        in_use = 2 * workers + 2  # posted, handed out, and one whose copy was not looked for
        now = fake.fake_count_pins()
        assert now.registered - before.registered <= in_use * (1 + doublings)
        assert now.bytes - before.bytes <= in_use * 4 * bytes_of(39)
        del feed, slots
        device.close()


def batches_of_workers_keep_what_is_registered() -> None:
    """Whatever there is in memory when an epoch begins."""
    for workers in each_way():
        for persistent in (False, True):
            device = Device()
            loader: Any = DataLoader(
                ImageDataset(),
                4,
                num_workers=workers,
                persistent_workers=persistent,
                prefetch_factor=2,
            )
            loop = CheckedLoop(loader, device)
            before = fake.fake_count_pins()
            iterator: Any = None
            for epoch in range(3):
                loader.memory_budget = 32 << 20 << epoch
                if iterator is None or not persistent:
                    iterator = loop.begin()
                else:
                    iterator._reset(loader)
                for k in range(10):
                    loop.check(next(iterator), list(range(4 * k, 4 * k + 4)))
                assert next(iterator, None) is None
                now = fake.fake_count_pins()
                made = loader._shared.worker_memory.count()["made"]
                assert now.unregistered == before.unregistered
                assert now.registered - before.registered <= made
                device.synchronize()
            del iterator, loader
            loop.close()


def grown(samples: list[Any]) -> Any:
    """As many rows as the first index says."""
    return torch.full((samples[0]["label"] + 1, 5000), samples[0]["label"], dtype=torch.float32)


def growing_batches_of_workers() -> None:
    for workers in each_way():
        device = Device()
        indices = [[k] for k in range(40)]
        loader: Any = DataLoader(
            ImageDataset(), batch_sampler=indices, num_workers=workers, collate_fn=grown
        )
        loop = CheckedLoop(loader, device)
        before = fake.fake_count_pins()
        iterator = loop.begin()
        for k in range(40):
            loop.check_tensor(next(iterator), torch.full((k + 1, 5000), float(k)))
            device.synchronize()
        now = fake.fake_count_pins()
        in_use = 2 * workers + 3
        # The slots themselves are made anew as batches outgrow them, a quarter each time.
        most = in_use * (1 + math.ceil(math.log2(40)))
        assert now.registered - before.registered <= most, now.registered - before.registered
        del iterator, loader
        loop.close()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
