"""Trials of uploads from worker processes: `python process_trials.py core.so trial`."""

import dataclasses
import gc
import itertools
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from process_loop import (
    LENGTH,
    CheckedLoop,
    ImageDataset,
    Pair,
    collate_ragged,
    each_stream_order,
    image,
    split,
)
from torch.utils.data import DistributedSampler, IterableDataset
from upload_device import (
    EAGER,
    FAULTS,
    LAZY,
    RANDOM,
    Device,
    check_errors,
    core,
    expect,
    fake,
    on_another_thread,
)
from workers import wait_until

from fastloop import DataLoader


def a_loader_from_end_to_end() -> None:
    for workers, seed in each_stream_order():
        device = Device(1)
        device.use(device.new_stream())
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(seed)).tolist()
        loader: Any = DataLoader(
            ImageDataset(), 7, sampler=order, num_workers=workers, pin_memory=True,
            persistent_workers=workers == 2, prefetch_factor=1 + seed,
        )  # fmt: skip
        loop = CheckedLoop(loader, device)
        for epoch in range(3):
            iterator = loop.begin()
            for k, indices in enumerate(split(order, 7)[: 2 + 2 * epoch]):
                loop.check(next(iterator), indices)
                assert loader.state_dict()["yielded"] == k + 1
                loop.accelerator.is_capturing = True
                expect(RuntimeError, "capture", lambda iterator=iterator: next(iterator))
                loop.accelerator.is_capturing = False
            if epoch == 2:
                assert next(iterator, None) is None
            del iterator
        device.synchronize()
        assert loader._shared.worker_memory.device == 1
        assert loader.stats().slots_lent == 0
        loader.close()
        del loader, loop
        device.close()
    assert fake.fake_compared() > 250


def epochs_are_read_ahead() -> None:
    for workers, _ in each_stream_order(2):
        device, sampler = Device(1), DistributedSampler(ImageDataset(), 1, 0)
        device.use(device.new_stream())
        loader: Any = DataLoader(
            ImageDataset(), 7, sampler=sampler, num_workers=workers, pin_memory=True,
            persistent_workers=True, epochs_ahead=1,
        )  # fmt: skip
        loop = CheckedLoop(loader, device)
        iterator = loop.begin()
        for epoch in (0, 1, 2, 5, 8):  # the third step is unlike the one before
            sampler.set_epoch(epoch)
            if epoch > 0:
                iterator._reset(loader)
            order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(epoch)).tolist()
            for indices in split(order, 7):
                loop.check(next(iterator), indices)
            assert next(iterator, None) is None
        stats = loader.stats()
        assert (stats.ahead_hits, stats.ahead_drops) == (3, 1)
        device.synchronize()
        loader.close()
        del loader, loop, iterator
        device.close()


def no_context_on_a_device_that_nobody_chose() -> None:
    """The consumer and the courier begin on device 0, where they have no business."""
    for workers, seed in each_stream_order(2):
        device = Device(1)
        device.use(device.new_stream())

        def consume(workers: int = workers, device: Device = device, reach: int = 2 + seed) -> None:
            loader: Any = DataLoader(ImageDataset(), 4, num_workers=workers)
            loop = CheckedLoop(loader, device)
            iterator = loop.begin()
            for indices in split(list(range(LENGTH)), 4)[:reach]:
                loop.check(next(iterator), indices)
            del iterator
            device.synchronize()
            loader.close()

        on_another_thread(consume)
        consume()
        device.close()
    assert fake.fake_has_context(1) and not fake.fake_has_context(0)


def batches_of_every_kind() -> None:
    """What a collate_fn of one's own makes: views, containers, numbers, sizes that change."""
    for workers, _ in each_stream_order(2):
        device = Device()
        indices = [[k % LENGTH, 3] for k in (5, 1, 30, 2, 39, 7, 7, 20, 21)]
        loader: Any = DataLoader(
            ImageDataset(), batch_sampler=indices, num_workers=workers, collate_fn=collate_ragged
        )
        loop = CheckedLoop(loader, device)
        iterator = loop.begin()
        for first, _ in indices:
            batch = next(iterator)
            assert type(batch) is Pair and batch.label == first
            rows = torch.arange(100.0, 100.0 + first * 100).reshape(first, 100)
            assert batch.image[1]["names"] == [f"{first}.png", "3.png"]
            loop.check_tensor(batch.image[0], rows)
        assert next(iterator, None) is None
        del iterator, batch
        del loader
        loop.close()


def a_batch_comes_in_the_middle_of_a_step() -> None:
    """It is copied although nobody asks for it, and the take has only to wait for it."""
    fake.fake_set_order(EAGER, 0)
    for in_order in (True, False):
        device = Device()
        loader: Any = DataLoader(
            ImageDataset(0.02), 4, num_workers=1, prefetch_factor=1, in_order=in_order
        )
        loop = CheckedLoop(loader, device)
        iterator = loop.begin()
        fake.fake_forget_copies()
        for k, indices in enumerate(split(list(range(LENGTH)), 4)):
            loop.check(next(iterator), indices)
            if k == 0:  # how much room a batch takes is known now
                continue
            wait_until(lambda k=k: fake.fake_copies() == min(k + 2, LENGTH // 4))
        del iterator
        del loader
        loop.close()


def the_current_stream_may_change() -> None:
    lent = 0
    for workers, _ in each_stream_order(2):
        device = Device()
        streams = [device.new_stream() for _ in range(3)]
        loader: Any = DataLoader(ImageDataset(), 2, num_workers=workers)
        loop = CheckedLoop(loader, device)
        iterator = loop.begin()
        for k, indices in enumerate(split(list(range(LENGTH)), 2)):
            device.use(streams[k % 3])
            loop.check(next(iterator), indices)
            time.sleep(0.002)  # the next one may come meanwhile
        lent += len(loop.accelerator.recorded)
        del iterator, loader
        loop.close()
    assert lent > 0


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return iter(range(info.id, 5 + 9 * info.id, info.num_workers))


def order_is_torchs() -> None:
    """Streams that end early, and batches in the order of arrival."""
    for workers, _ in each_stream_order():
        device = Device()
        loader: Any = DataLoader(Numbers(), 2, num_workers=workers)
        expected = [batch.tolist() for batch in DataLoader(Numbers(), 2, num_workers=workers)]
        loop = CheckedLoop(loader, device)
        count = 0
        for batch in loop.begin():
            loop.check_tensor(batch, torch.tensor(expected[count]))
            count += 1
        assert count == len(expected)
        unordered: Any = DataLoader(ImageDataset(), 4, num_workers=workers, in_order=False)
        loop = CheckedLoop(unordered, device)
        seen = []
        for batch in loop.begin():
            first = int(batch["name"][0].removesuffix(".png"))
            seen.append(first)
            loop.check(batch, list(range(first, first + 4)))
        assert sorted(seen) == list(range(0, LENGTH, 4))
        del batch
        device.synchronize()
        loader.close()
        unordered.close()
        del loader, unordered, loop
        device.close()


def a_loop_is_left_early() -> None:
    for workers, seed in each_stream_order():
        for is_persistent in (False, True):
            device = Device()
            loader: Any = DataLoader(
                ImageDataset(), 4, num_workers=workers, persistent_workers=is_persistent
            )
            loop = CheckedLoop(loader, device)
            iterator = loop.begin()
            for taken in (0, 1, 4):
                if is_persistent:
                    iterator._reset(loader)
                else:
                    iterator = loop.begin()
                for indices in split(list(range(LENGTH)), 4)[:taken]:
                    loop.check(next(iterator), indices)
            time.sleep(0.01 * seed)  # some have arrived by now
            del iterator
            gc.collect()
            own = device.allocate(4096)  # a block that was dropped is somebody else's now
            fake.fake_launch_fill(None, own.data_ptr(), 7, 4096)
            loader.close()
            device.synchronize()
            fake.fake_launch_compare(None, own.data_ptr(), b"\7" * 4096, 4096)
            device.synchronize()
            del own, loader, loop
            device.close()


def memory_comes_back() -> None:
    for workers, _ in each_stream_order(2):
        device = Device()
        loader: Any = DataLoader(ImageDataset(), 4, num_workers=workers)
        loop = CheckedLoop(loader, device)
        device.left = 0
        iterator = loop.begin()
        for k, indices in enumerate(split(list(range(LENGTH)), 4)):
            if k % 3 == 0:
                device.left = 0
            try:
                batch = next(iterator)
            except torch.OutOfMemoryError:
                expect(torch.OutOfMemoryError, "", lambda iterator=iterator: next(iterator))
                device.left = 100
                batch = next(iterator)
            loop.check(batch, indices)
            del batch
        assert next(iterator, None) is None
        del iterator
        del loader
        loop.close()


def memory_cannot_be_pinned() -> None:
    """From the start: then batches stay on the CPU. Later: an error, and the same batch again."""
    fake.fake_set_order(LAZY, 0)
    device = Device()
    loader: Any = DataLoader(ImageDataset(), 4, num_workers=1)
    loop = CheckedLoop(loader, device)
    fake.fake_refuse_pins(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = loop.begin(is_on_device=False)
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "torch uploads batches in place of fastloop on cuda:0" in str(caught[0].message)
    assert "cannot be pinned for the device (cudaHostRegister" in loader.stats().why
    slots = loader._shared.worker_memory
    assert slots.device == -1
    assert next(iterator)["label"].tolist() == [0, 1, 2, 3]
    fake.fake_refuse_pins(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        iterator = loop.begin(is_on_device=False)
    assert loader._shared.worker_memory is slots  # nor is it tried again
    loop.loader = loader = DataLoader(ImageDataset(), 4, num_workers=1)
    iterator = loop.begin()
    fake.fake_refuse_pins(True)
    for k, indices in enumerate(split(list(range(LENGTH)), 4)):
        try:
            batch = next(iterator)
        except torch.OutOfMemoryError:
            fake.fake_refuse_pins(False)
            batch = next(iterator)
            fake.fake_refuse_pins(k < 5)
        loop.check(batch, indices)
    fake.fake_refuse_pins(False)
    del iterator, batch
    del loader
    loop.close()


def fail_call(n: int, error: int, is_sticky: bool) -> bool:
    """With call n failing; false when there were fewer."""
    device = Device(1)
    device.use(device.new_stream())
    loader: Any = DataLoader(ImageDataset(), 8, num_workers=2)
    loop = CheckedLoop(loader, device)
    fake.fake_fail_at(n, error, is_sticky)
    errors: list[Exception] = []
    iterator: Any = None
    batch: Any = None
    done = 0
    todo = split(list(range(LENGTH)), 8)
    try:
        iterator = loop.iterate()
        while iterator.is_on_device and done < len(todo) and len(errors) < 3:
            try:
                batch = next(iterator)
            except RuntimeError as met:
                errors.append(met)
                continue
            loop.check(batch, todo[done])
            done += 1
        assert not iterator.is_on_device or done == len(todo) or is_sticky
    except RuntimeError as met:
        errors.append(met)
    check_errors(errors, error)
    assert len(errors) <= 1 or is_sticky, errors
    errors.clear()  # and the frames in their tracebacks
    del iterator, batch
    gc.collect()
    loader.close()
    if not is_sticky:
        device.synchronize()
    del loader, loop
    gc.collect()
    was_met: bool = fake.fake_calls() >= n
    fake.fake_fail_at(0, 0, False)
    device.close()
    return was_met


def each_call_may_fail() -> None:
    """Each call fails in one way; in upload_trials, whose loaders have no workers, in every way."""
    n = 1
    for error, is_sticky in itertools.cycle(FAULTS):
        fake.fake_set_order(RANDOM, 1)
        if not fail_call(n, error, is_sticky):
            break
        n += 1
    assert n > 20, n


def a_child_is_inert() -> None:
    fake.fake_set_order(LAZY, 0)
    device = Device()
    loader: Any = DataLoader(ImageDataset(), 4, num_workers=2)
    loop = CheckedLoop(loader, device)
    iterator = loop.begin()
    for indices in split(list(range(LENGTH)), 4)[:3]:
        loop.check(next(iterator), indices)
    calls = -1
    while calls != fake.fake_calls():  # until all that is there has been queued
        calls = fake.fake_calls()
        time.sleep(0.1)
    child = os.fork()
    if child == 0:
        calls = fake.fake_calls()
        try:
            next(iterator)
        except Exception:
            del iterator, loader, loop.loader
            gc.collect()
            os._exit(fake.fake_calls() != calls)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    for indices in split(list(range(LENGTH)), 4)[3:]:
        loop.check(next(iterator), indices)
    del iterator
    del loader
    loop.close()


class Deadly(ImageDataset):
    def __getitem__(self, index: int) -> Any:
        if index == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 33:
            raise KeyError("no such image")
        return super().__getitem__(index)


def a_worker_dies() -> None:
    for workers, _ in each_stream_order(2):
        for order in (range(LENGTH), range(22, LENGTH)):
            device = Device()
            loader: Any = DataLoader(Deadly(), 4, sampler=order, num_workers=workers)
            loop = CheckedLoop(loader, device)
            iterator = loop.begin()
            done = 0
            try:
                for indices in split(list(order), 4):
                    loop.check(next(iterator), indices)
                    done += 1
            except RuntimeError as error:
                assert "DataLoader worker (pid" in str(error) and 0 < done <= 5
            except KeyError as error:
                assert "no such image" in str(error) and done == 2
                loop.check(next(iterator), list(range(34, 38)))  # it goes on
            else:
                raise AssertionError("no error")
            del iterator
            del loader
            loop.close()


class DeadlyOnce(ImageDataset):
    """A worker is killed the first time that an item is asked for, of one in five."""

    def __init__(self) -> None:
        super().__init__(0.001)
        self.is_over = torch.zeros(LENGTH, dtype=torch.bool).share_memory_()

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 3 and not self.is_over[index]:
            self.is_over[index] = True
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def workers_come_back() -> None:
    """While their batches are copied ahead, in order and as they come; over several epochs."""
    for workers, _ in each_stream_order(2):
        for in_order in (True, False):
            device = Device()
            loader: Any = DataLoader(
                DeadlyOnce(), 4, num_workers=workers, in_order=in_order,
                persistent_workers=in_order, on_worker_death="restart",
            )  # fmt: skip
            loop = CheckedLoop(loader, device)
            for _ in range(2):
                iterator = loop.begin()
                left = split(list(range(LENGTH)), 4)
                for batch in iterator:
                    indices = [int(name.split(".")[0]) for name in batch["name"]]
                    loop.check(batch, indices)
                    assert not in_order or indices == left[0]
                    left.remove(indices)
                assert not left
                del iterator, batch
            assert loader.stats().restarts == LENGTH // 5
            loader.close()
            device.synchronize()
            assert loader.stats().slots_lent == 0
            del loader
            loop.close()


@dataclasses.dataclass
class Opaque:
    image: torch.Tensor


class Hidden:
    def __init__(self, samples: list[Any]) -> None:
        self.image = torch.stack([sample["image"] for sample in samples])


def what_hides_tensors_goes_another_way() -> None:
    """Objects keep theirs on the host, as with torch; dataclasses are containers here."""
    fake.fake_set_order(EAGER, 0)
    kinds: tuple[Callable[[list[Any]], Any], ...] = (
        Hidden,
        lambda samples: Opaque(torch.stack([sample["image"] for sample in samples])),
        lambda samples: [sample["name"] for sample in samples],
        lambda samples: None,
    )
    for kind, collate_fn in enumerate(kinds):
        device = Device()
        loader: Any = DataLoader(ImageDataset(), 4, num_workers=1, collate_fn=collate_fn)
        loop = CheckedLoop(loader, device)
        for k, batch in enumerate(loop.begin()):
            expected = torch.stack([image(4 * k + i) for i in range(4)])
            if kind == 0:
                assert torch.equal(batch.image, expected)
            elif kind == 1:
                loop.check_tensor(batch.image, expected)
            elif kind == 2:
                assert batch == [f"{4 * k + i}.png" for i in range(4)]
            else:
                assert batch is None
        del batch
        del loader
        loop.close()


def a_transform_runs_on_what_has_arrived() -> None:
    from fastloop.loader.device_iter import DeviceIter

    for workers, _ in each_stream_order(2):
        device = Device()
        loader: Any = DataLoader(ImageDataset(), 4, num_workers=workers)
        loop = CheckedLoop(loader, device)
        calls: list[list[str]] = []

        def transform(batch: Any, calls: list[list[str]] = calls) -> Any:
            calls.append(batch.pop("name"))  # from a dict of its own, each time
            if len(calls) == 3:
                raise OSError("not now")
            return batch["label"], batch["image"]

        iterator: Any = DeviceIter(loop.begin(), loop.accelerator, transform, False)
        for k, indices in enumerate(split(list(range(LENGTH)), 4)):
            if k == 2:
                expect(OSError, "not now", lambda iterator=iterator: next(iterator))
            assert len(calls) == k + (k > 2) + (k == 2)  # as many as the loop has asked for
            labels, images = next(iterator)
            loop.check({"image": images, "label": labels, "name": calls[-1]}, indices)
            assert loader.state_dict()["yielded"] == k + 1
        assert next(iterator, None) is None
        del iterator, labels, images
        del loader
        loop.close()


def arguments_are_checked() -> None:
    device = Device()
    pool = core.BatchPool(0, True, 0)
    sizes: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.zeros(size, dtype=torch.uint8)  # in host memory

    destination = SimpleNamespace(allocate=allocate, split=device.split)
    make = partial(core.ParentEnd, pool, torch.Tensor, 1, 4, 1 << 20)
    expect(ValueError, "must come with a destination", make)
    expect(AttributeError, "allocate", partial(make, SimpleNamespace()))
    parent_end = make(destination)
    parent_end.run_ahead(0)
    assert parent_end.has_destination and not sizes  # it does not know how large batches are
    worker_end = core.WorkerEnd(torch.Tensor, *parent_end.address(), 0)
    parent_end.submit(0, b"task", (0, None))
    worker_end.receive(1.0)
    source = torch.zeros(400, dtype=torch.uint8)
    worker_end.copy(source.data_ptr(), 400)
    assert worker_end.answer(b"", 1, False)
    _, reply = parent_end.receive(1.0)
    expect(ValueError, "on CUDA device 0", lambda reply=reply: reply.deliver())
    parent_end.run_ahead(1)  # fails likewise, and leaves that to who needs the buffer
    assert sizes == [400, 400]
    expect(TypeError, "int", lambda p=parent_end: p.run_ahead("0"))
    parent_end.release()
    del parent_end, worker_end, reply, pool, destination, make
    host = core.ParentEnd(core.BatchPool(0, True), torch.Tensor, 1, 4, 1 << 20)
    assert not host.has_destination
    host.run_ahead(0)
    del host
    device.close()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
