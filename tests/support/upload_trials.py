"""Trials of uploads in a process of their own: `python upload_trials.py core.so trial`."""

import gc
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from time_limits import limit
from upload_device import (
    EAGER,
    FAULTS,
    IS_SENT,
    LAZY,
    NAMES,
    RANDOM,
    SOURCES,
    Device,
    FakeAccelerator,
    check_errors,
    core,
    expect,
    fake,
    make_table,
    on_another_thread,
)

from fastloop.loader.arrays.iterator import ArrayConfig

LIST, DICT = (None,) * 3, dict.fromkeys(NAMES)
NESTED = {"inner": {NAMES[0]: None}, "others": (None, None)}


def make_feed(device: Device, workers: int = 2, structure: Any = LIST, **more: Any) -> Any:
    pool = more.pop("slots", None) or core.BatchPool(3, device=device.device)
    given = {"fetch": lambda item: item, "workers": workers, "prefetch": 2, "destination": device}
    config = ArrayConfig(structure, **{**given, **more})
    return core.ArrayLoader(make_table().for_device(IS_SENT), pool, config)


def batches(seed: int, count: int = 12) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(40), k=draw.randrange(1, 9)) for _ in range(count)]


def each_way(seeds: int = 2) -> Iterator[tuple[int, int]]:
    """Workers and a seed, with each order set."""
    for workers in (0, 1, 3):
        for order, seed in ((EAGER, 0), (LAZY, 0), *((RANDOM, seed) for seed in range(seeds))):
            fake.fake_set_order(order, seed)
            yield workers, seed


def each_way_with_workers() -> Iterator[tuple[int, int, Device, Any]]:
    """The same with workers alone, and a device that has a stream, and its accelerator. What is on
    the device must be dropped before the next."""
    for workers, seed in each_way():
        if workers > 0:
            device = Device(1)
            device.use(device.new_stream())
            yield workers, seed, device, FakeAccelerator(device)
            device.close()


def batches_and_singles_lists_and_dicts() -> None:
    for workers, seed in each_way():
        device = Device()
        for kind, structure in product((1, 2), (LIST, DICT, NESTED)):
            todo: list[Any] = batches(seed) if kind == 1 else [0, 39, [3, 4], 17, [5]]
            feed = make_feed(device, workers, structure)
            feed.restart(iter(todo), kind, None)
            for rows in todo:
                device.compare(next(feed), rows)
            assert next(feed, None) is None
        device.synchronize()
        del feed
        device.close()
    assert fake.fake_compared() > 1000


def the_current_stream_may_change() -> None:
    for workers, seed in each_way():
        for number in (0, 1):
            device = Device(number)
            streams = [device.new_stream() for _ in range(3)]
            feed = make_feed(device, workers)
            device.use(streams[0])
            todo = batches(seed, 20)
            feed.restart(iter(todo), 1, None)
            for k, rows in enumerate(todo):
                device.use(streams[k // 4 % 3])
                device.compare(next(feed), rows)
            assert device.other_streams == 0 if workers == 0 else device.other_streams > 0
            device.synchronize()
            del feed
            device.close()


def large_batches_go_up_in_slices() -> None:
    """Two of more than 4 MiB of the largest field, where a batch is not filled before it has
    its buffer and a pinned slot; then what lies around them."""
    draw, sliced = random.Random(0), 0
    for workers, _ in each_way(1):
        device = Device()
        slots = core.BatchPool(3, device=0)
        for _ in range(2):
            todo = [draw.choices(range(40), k=840) for _ in range(4)]
            feed = make_feed(device, workers, slots=slots)
            fake.fake_forget_copies()
            feed.restart(iter(todo), 1, None)
            for rows in todo:
                device.compare(next(feed), rows)
            device.synchronize()
            assert 4 <= fake.fake_copies() <= 4 * 4
            sliced += fake.fake_copies() - 4
            del feed
        del slots
        device.close()
    assert sliced > 0


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def await_threads(count: int) -> None:
    deadline = time.monotonic() + limit(60)
    while len(threads()) != count:  # one that was joined may be listed for a moment
        assert time.monotonic() < deadline, threads()
        time.sleep(0.001)


def threads_and_streams_live_on() -> None:
    """The next epoch uses them, unless it is another's; the end of the pool is theirs."""
    fake.fake_set_order(RANDOM, 0)
    device, others = Device(), len(threads())
    slots = core.BatchPool(3, device=0)

    def run(workers: int, reach: int = 12) -> Any:
        feed = make_feed(device, workers, slots=slots)
        todo = batches(reach)
        feed.restart(iter(todo), 1, None)
        for rows in todo[:reach]:
            device.compare(next(feed), rows)
        if reach == len(todo):
            assert next(feed, None) is None
        return feed

    run(3)
    of_first = threads()
    assert len(of_first) == others + 3
    run(3)
    for reach in (5, 12, 0, 12):  # left early, too
        run(3, reach)
        assert threads() == of_first
    feeds = [run(3, 4), run(3, 4)]  # two at once
    assert of_first < threads() and len(threads()) == others + 6
    del feeds
    await_threads(others + 3)
    run(2)
    await_threads(others + 2)
    feed = run(2, 4)
    feed.close()  # closed by the user, it ends its own
    await_threads(others)
    run(1)
    slots.trim()
    await_threads(others)
    run(1)
    device.synchronize()
    del feed
    slots = None
    await_threads(others)
    device.close()


def no_context_on_a_device_that_nobody_chose() -> None:
    """The consumer and the threads that fill begin on device 0, where they have no business."""
    for workers, seed in each_way():
        device = Device(1)
        device.use(device.new_stream())
        todo = batches(seed)

        def consume(
            workers: int = workers, device: Device = device, todo: Any = todo, reach: int = seed + 9
        ) -> None:
            feed = make_feed(device, workers)
            feed.restart(iter(todo), 1, None)
            for rows in todo[:reach]:
                device.compare(next(feed), rows)
            device.synchronize()

        on_another_thread(consume)
        consume()
        device.close()
    assert fake.fake_has_context(1) and not fake.fake_has_context(0)


def a_loop_is_left_early() -> None:
    for workers, seed in each_way():
        device = Device()
        feed = make_feed(device, workers, persistent=True)
        for taken in (0, 2, 5):
            todo = batches(seed + taken)
            feed.restart(iter(todo), 1, None)
            for rows in todo[:taken]:
                device.compare(next(feed), rows)
        feed.restart(iter([]), 1, None)
        own = device.allocate(4096)  # a block that was dropped is somebody else's now
        fake.fake_launch_fill(None, own.data_ptr(), 7, 4096)
        device.synchronize()
        feed.close()
        fake.fake_launch_compare(None, own.data_ptr(), b"\7" * 4096, 4096)
        device.synchronize()
        del feed, own
        device.close()


def a_loader_from_end_to_end() -> None:
    """Every epoch of a loader, its state, and the pool that the next one finds."""
    from fastloop import ArrayDataset, DataLoader
    from fastloop.device.availability import has_uploads
    from fastloop.loader.route import fast_iterator

    data = ArrayDataset(*SOURCES)
    for workers, seed, device, accelerator in each_way_with_workers():
        loader: Any = DataLoader(data, 7, shuffle=True, num_workers=workers, pin_memory=True)
        loader.generator = torch.Generator().manual_seed(seed)
        expected: Any = DataLoader(data, 7, sampler=loader.sampler, path="torch")
        for epoch in range(3):
            state = loader.generator.get_state()
            loader.sampler.generator = torch.Generator()
            loader.sampler.generator.set_state(state)
            rows = [batch[1] // 7 for batch in expected]
            loader.sampler.generator.set_state(state)
            iterator: Any = fast_iterator(loader, "auto", loader._shared, accelerator)
            loader._shared.position.begin(iterator)
            assert iterator.is_on_device
            for k, picked in enumerate(rows[: 2 + epoch * 2]):
                device.compare(next(iterator), picked)
                assert loader.state_dict()["yielded"] == k + 1
                accelerator.is_capturing = True
                expect(RuntimeError, "capture", lambda iterator=iterator: next(iterator))
                accelerator.is_capturing = False
            if epoch == 2:
                assert next(iterator, None) is None
            device.synchronize()
            del iterator
        assert loader._shared.array_memory.device == 1
        loader.close()
        del loader, expected
    os.environ["FASTLOOP_DISABLE_CUDA"] = "1"
    assert not has_uploads(accelerator)
    accelerator.device = torch.device("cpu")
    assert not has_uploads(accelerator)


def sequences_from_end_to_end() -> None:
    """Each batch is what the collate makes of its samples; numbers stay numbers."""
    from fastloop import ArrayDataset, DataLoader, PackCollate, PadCollate, RaggedArray
    from fastloop.loader.route import fast_iterator

    ids = RaggedArray(torch.arange(400, dtype=torch.int32), [*range(0, 390, 10), 390, 400])
    data = ArrayDataset(input_ids=ids[:40], label=torch.arange(40))
    for collate in (PadCollate(3, "left", return_mask=True), PackCollate(max_tokens=32)):
        for workers, _, device, accelerator in each_way_with_workers():
            loader: Any = DataLoader(data, 8, num_workers=workers, collate_fn=collate)
            iterator: Any = fast_iterator(loader, "array", loader._shared, accelerator)
            loader._shared.position.begin(iterator)
            for k, batch in enumerate(iterator):
                wanted = collate([data[i] for i in range(8 * k, 8 * k + 8)])
                assert list(batch) == list(wanted)
                for key, expected in wanted.items():
                    tensor = batch[key]
                    if isinstance(expected, int):
                        assert tensor == expected and type(tensor) is int
                        continue
                    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
                    held = expected.numpy().tobytes()
                    fake.fake_launch_compare(device.stream, tensor.data_ptr(), held, len(held))
            assert k == 4
            device.synchronize()
            del iterator, batch, tensor
            loader.close()
            del loader


def epochs_are_read_ahead() -> None:
    for workers, seed, device, _ in each_way_with_workers():
        feed, draw = make_feed(device, workers), random.Random(seed)
        sampler = SimpleNamespace(batch_size=4, drop_last=seed == 1)
        epochs = [torch.tensor(draw.choices(range(40), k=18)) for _ in range(4)]
        for _ in range(2):  # what the last epoch has read ahead is dropped
            feed.restart(iter([epochs[0], 1, epochs[1]]), 0, sampler)
            for epoch in range(3):
                for rows in epochs[epoch].split(4)[: 4 if sampler.drop_last else 5]:
                    device.compare(next(feed), rows.tolist())
                assert epoch == 1 or next(feed, None) is None
                assert feed.enter_next(iter([epoch + 2, epochs[(epoch + 2) % 4]]))
            device.compare(next(feed), epochs[3][:4].tolist())
            assert not feed.enter_next(iter(()))
        device.synchronize()
        del feed
    assert fake.fake_compared() > 100


def memory_comes_back() -> None:
    for workers, seed in each_way():
        device = Device()
        todo = batches(seed)
        feed = make_feed(device, workers)
        device.left = 0
        feed.restart(iter(todo), 1, None)
        for k, rows in enumerate(todo):
            if k % 3 == 0:
                device.left = 0
                for _ in range(2):
                    device.synchronize()
                    try:
                        batch = next(feed)
                        break  # it had its block already
                    except torch.OutOfMemoryError:
                        device.left = 100
                        batch = next(feed)
                        break
            else:
                batch = next(feed)
            device.compare(batch, rows)
            del batch
        device.left = 0
        assert next(feed, None) is None
        device.synchronize()
        del feed
        device.close()


def an_interrupt_loses_no_batch() -> None:
    for workers, seed in each_way():
        device = Device()
        todo = batches(seed)
        feed = make_feed(device, workers)
        feed.restart(iter(todo), 1, None)
        done = interrupts = met = 0

        def interrupt() -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts % 3 == 0:
                raise KeyboardInterrupt

        device.hook = interrupt
        while done < len(todo):
            try:
                batch = next(feed)
            except KeyboardInterrupt:
                met += 1
                done += workers == 0  # without workers it is dropped, as by torch
                continue
            device.compare(batch, todo[done])
            done += 1
        device.hook = lambda: None
        assert met == interrupts // 3 > 0
        device.synchronize()
        del feed, batch
        device.close()


def slots_cannot_be_pinned() -> None:
    """An error in the batch's place, and the same batch again; what is pinned still serves."""
    todo = [[k, 3 * k] for k in range(12)]
    for workers, _ in each_way():
        device = Device()
        feed = make_feed(device, workers)
        fake.fake_refuse_pins(True)
        feed.restart(iter(todo), 1, None)
        refused = 0
        for rows in todo:
            fake.fake_refuse_pins(True)
            before = fake.fake_count_pins().registered
            try:
                batch = next(feed)
                assert fake.fake_count_pins().registered == before
            except torch.OutOfMemoryError:
                expect(torch.OutOfMemoryError, "cudaHostRegister", lambda feed=feed: next(feed))
                fake.fake_refuse_pins(False)
                batch = next(feed)
                refused += 1
            device.compare(batch, rows)
            device.synchronize()
        assert next(feed, None) is None
        assert 1 <= refused <= 2 * workers + 2, refused
        fake.fake_refuse_pins(False)
        device.synchronize()
        del feed, batch
        device.close()


def nothing_can_be_pinned() -> None:
    """torch uploads every batch, after one warning, and it is not tried again."""
    from fastloop import ArrayDataset, DataLoader
    from fastloop.loader.route import fast_iterator

    loader: Any = DataLoader(ArrayDataset(*SOURCES), 7, num_workers=2)
    expected: Any = DataLoader(ArrayDataset(*SOURCES), 7, path="torch")
    device = Device()
    accelerator: Any = FakeAccelerator(device)
    fake.fake_refuse_pins(True)
    memories = set()
    for told in (1, 0):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            iterator: Any = fast_iterator(loader, "auto", loader._shared, accelerator)
        assert [w.category for w in caught] == [RuntimeWarning] * told, caught
        assert not iterator.is_on_device
        for batch, other in zip(iterator, expected, strict=True):
            assert all(map(torch.equal, batch, other))
        memories.add(loader._shared.array_memory)
    assert len(memories) == 1  # it is not tried again, and memory stays for the next epoch
    assert (
        "memory of batches cannot be pinned for the device (cudaHostRegister" in loader.stats().why
    )
    fake.fake_refuse_pins(False)
    loader.close()
    del iterator, batch
    device.close()


def fail_call(n: int, workers: int, error: int, is_sticky: bool) -> bool:
    """With call n failing; false when there were fewer."""
    device = Device(1)
    stream = device.new_stream()
    device.use(stream)
    fake.fake_fail_at(n, error, is_sticky)
    errors: list[Exception] = []
    todo = [list(range(1 + k)) for k in range(6)]
    feed = batch = None
    done = lost = 0
    try:
        feed = make_feed(device, workers, maps=(np.arange(39, -1, -1),))
        feed.restart(iter(todo), 1, None)
        while done < len(todo) and len(errors) < 3:
            try:
                batch = next(feed)
            except RuntimeError as met:
                errors.append(met)
                if n % 2 == 0 and not is_sticky:
                    feed.restart(iter(todo), 1, None)
                    done = 0
                continue
            while len(batch[0]) != len(todo[done]):
                done, lost = done + 1, lost + 1
            device.compare(batch, [39 - row for row in todo[done]])
            done += 1
    except RuntimeError as met:
        errors.append(met)
    check_errors(errors, error)
    assert lost == 0 and (len(errors) <= 1 or is_sticky), (lost, errors)
    if not is_sticky:
        device.synchronize()
    del feed, batch
    errors.clear()
    gc.collect()
    was_met: bool = fake.fake_calls() >= n
    fake.fake_fail_at(0, 0, False)
    device.close()
    return was_met


def each_call_may_fail() -> None:
    for workers in (0, 2):
        for error, is_sticky in FAULTS:
            fake.fake_set_order(RANDOM, 1)
            n = 1
            while fail_call(n, workers, error, is_sticky):
                n += 1
            assert n > 40, n


def a_child_is_inert() -> None:
    for workers, seed in each_way():
        device = Device()
        todo = batches(seed)
        feed = make_feed(device, workers)
        feed.restart(iter(todo), 1, None)
        device.compare(next(feed), todo[0])
        device.synchronize()
        calls = -1
        while calls != fake.fake_calls():  # until all that is read ahead has been queued
            calls = fake.fake_calls()
            time.sleep(0.05)
        child = os.fork()
        if child == 0:
            calls = fake.fake_calls()
            try:
                next(feed)
            except RuntimeError as error:
                assert "parent" in str(error)
                feed.close()
                del feed
                gc.collect()
                os._exit(fake.fake_calls() != calls)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        for rows in todo[1:]:
            device.compare(next(feed), rows)
        device.synchronize()
        del feed
        device.close()


def a_batch_cannot_be_filled() -> None:
    rows, width = 64, 512
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npy"
        for workers, _ in each_way():
            array = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, width))
            array[:] = np.arange(rows, dtype=np.uint8)[:, None]
            address = array.__array_interface__["data"][0] - array.offset
            size = array.offset + 58 * width  # in the middle of a page
            device = Device()
            file = (str(path), address, lambda: path.stat().st_size)
            feed = core.ArrayLoader(
                core.Table(torch.Tensor, ((array, "a", file),)),
                core.BatchPool(1, device=0),
                ArrayConfig((None,), workers=workers, prefetch=2, destination=device),
            )
            os.truncate(path, size)
            # Row 60 lies in the last page, which reads as zeros, row 63 reaches beyond it.
            todo = [[k % 8, (60, 9, 63, 10)[k % 4]] for k in range(12)]
            feed.restart(iter(todo), 1, None)
            for k, picked in enumerate(todo):
                if k % 2 == 0:
                    expect(OSError, f"row {picked[1]}", lambda feed=feed: next(feed))
                    continue
                (tensor,) = next(feed)
                data = b"".join(bytes([row]) * width for row in picked)
                fake.fake_launch_compare(None, tensor.data_ptr(), data, len(data))
                del tensor
            device.synchronize()
            del feed, array
            device.close()


def arguments_are_checked() -> None:
    device = Device()
    for destination, kind, text in (
        (None, ValueError, "a pool for a device must come with a destination"),
        (SimpleNamespace(split=device.split), AttributeError, "allocate"),
        (SimpleNamespace(allocate=device.allocate), AttributeError, "split"),
    ):
        expect(kind, text, lambda d=destination: make_feed(device, destination=d))
    for block in (torch.zeros(16, dtype=torch.uint8), None, device.allocate(3)):
        feed = make_feed(
            device,
            destination=SimpleNamespace(allocate=lambda _, block=block: block, split=device.split),
        )
        feed.restart(iter([[1, 2]]), 1, None)
        for _ in range(2):
            expect(ValueError, "on CUDA device 0", lambda feed=feed: next(feed))
        del feed
    del block
    expect(RuntimeError, "no CUDA device 2", lambda: core.BatchPool(3, device=2), is_exact=True)
    expect(TypeError, "int64", lambda: make_feed(device, maps=(np.zeros(3),)))
    device.close()


def a_cycle_is_collected() -> None:
    device = Device()
    holder: list[Any] = []
    allocate = lambda count, holder=holder: device.allocate(count)  # noqa: E731
    feed = make_feed(device, destination=SimpleNamespace(allocate=allocate, split=device.split))
    feed.restart(iter([[1, 2], [3]]), 1, None)
    holder.append(feed)
    del feed, holder, allocate
    device.close()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
