"""on_worker_death="restart" where something else ends meanwhile, or where it does not apply: other
start methods, Ctrl-C, close(), no process to be had, streams, paths without workers."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TorchLoader, run_script, small_dataset
from restart_trials import HEAD

from fastloop import DataLoader


@pytest.mark.slowest
def test_spawned_workers_and_those_of_a_fork_server(tmp_path: Path) -> None:
    """The successor gets the dataset, its large arrays from the same file; nothing grows by it."""
    run_script(
        tmp_path,
        HEAD
        + """
class Large(Items):
    def __init__(self, hook):
        super().__init__(hook=hook)
        self.array = np.arange(1 << 20)
    def __getitem__(self, i):
        assert self.array[i] == i and self.array.flags.writeable
        self.array[i] = i  # private
        return super().__getitem__(i)

def main():
    for method in ("spawn", "forkserver"):
        loader = restarting(Large(Once(10, Kill(9))), num_workers=1,
                            multiprocessing_context=method, persistent_workers=True)
        iterator = iter(loader)
        first = next(iterator)
        sizes = sorted(file.st_size for file in arena_files())
        assert sizes[0] >= 8 << 20, sizes
        with deaths() as texts:
            rest = list(iterator)
        assert check_batches([first, *rest]) == 16 and len(texts) == 1, texts
        assert sorted(file.st_size for file in arena_files()) == sizes
        assert check_batches(loader) == 16
        loader.close()
        del iterator, loader, rest, first
        gc.collect()
        assert not arena_files()
    wait_until(lambda: len(children()) <= 2, 60)  # forkserver and resource tracker

if __name__ == "__main__":
    main()
""",
    )


@pytest.mark.slowest
@pytest.mark.slow
def test_a_worker_whose_end_nobody_knows_is_not_replaced(tmp_path: Path) -> None:
    """Its server has died, and multiprocessing takes it for dead, while it may go on writing."""
    run_script(
        tmp_path,
        HEAD
        + """
from multiprocessing import forkserver

def main():
    asleep, gate = SleepAt(6, 0), Gate()
    hook = Both(asleep, CallAt(6, gate))
    loader = restarting(Items(hook=hook), num_workers=1, multiprocessing_context="forkserver")
    iterator = iter(loader)
    got = [next(iterator)]
    wait_until(lambda: bool(asleep.is_there))
    worker = pids(iterator)[0]
    kill(forkserver._forkserver._forkserver_pid)
    with deaths() as texts:
        text = error_text(lambda: got.extend(iterator))
    assert not texts and "may not have ended" in text and is_running(worker), text
    assert check_batches(got) == 1
    gate.open()
    wait_until(lambda: not is_running(worker))

if __name__ == "__main__":
    main()
""",
    )


@pytest.mark.slow
def test_interrupts_during_a_restart(tmp_path: Path) -> None:
    """Ctrl-C while the successor starts is raised when it has; nothing is lost by it."""
    run_script(
        tmp_path,
        HEAD
        + """
from fastloop.loader.workers import lifecycle

begin()
start = lifecycle.WorkerProcess._start
for moment in ("before", "after"):
    loader = restarting(Items(hook=Once(22, Kill(9))), persistent_workers=True)
    iterator = iter(loader)
    got = [next(iterator)]
    around_next_start(**{moment: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with deaths() as texts:
        error_text(lambda: got.extend(iterator), KeyboardInterrupt)
    assert check_batches(got) <= 5 and lifecycle.WorkerProcess._start is start
    assert all(map(is_running, pids(iterator)))  # it was for the parent alone
    with deaths() as texts:
        got += list(iterator)
    assert check_batches(got) == 16 and not texts
    del got
    with deaths() as texts:
        assert check_batches(loader) == 16
    assert not texts
    del loader, iterator
check_clean()
""",
    )


@pytest.mark.slow
def test_close_during_a_restart(tmp_path: Path) -> None:
    """From a signal handler inside the start of the successor, and from another thread: no process
    is left, and whoever waits for a batch gets an error."""
    run_script(
        tmp_path,
        HEAD
        + """
import threading

begin()
for how in ("handler before", "handler after", "thread", "before"):
    loader = restarting(Items(hook=Once(22, Kill(9))))
    iterator = iter(loader)
    got = [next(iterator)]
    threads = []

    def close(*_):
        threads.append(threading.Thread(target=loader.close))
        threads[0].start()
        time.sleep(0.05)

    def send():
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    if how == "before":
        replace = iterator._replace_process
        def replace_late(*args):
            loader.close()
            return replace(*args)
        iterator._replace_process = replace_late
    elif how == "thread":
        around_next_start(before=close)
    elif how == "handler before":
        around_next_start(before=send)
    else:
        around_next_start(after=send)
    with deaths():  # the thread may come too late
        text = error_text(lambda: got.extend(iterator))
    assert "the loader of this iterator was closed" in text, (how, text)
    for thread in threads:
        thread.join()
    wait_until(lambda: not children())
    assert check_batches(loader) == 16
    del loader, iterator, got
del replace
check_clean()
""",
    )


@pytest.mark.slow
def test_no_process_can_be_started(tmp_path: Path) -> None:
    """The error of the death says so; the loader works again when processes can be had."""
    run_script(
        tmp_path,
        HEAD
        + """
from fastloop.loader.workers import lifecycle

begin()
start = lifecycle.WorkerProcess._start
def fail(self):
    raise BlockingIOError(11, "Resource temporarily unavailable")
for persistent in (False, True):
    loader = restarting(Items(hook=Once(22, Kill(9))), persistent_workers=persistent)
    iterator = iter(loader)
    got = [next(iterator)]
    lifecycle.WorkerProcess._start = fail
    with deaths() as texts:
        text = error_text(lambda: got.extend(iterator))
    check_death(text, 9, 5)
    assert "no process could be started (BlockingIOError: " in text and not texts, text
    # The other worker may still be at batch 4 when the death is seen.
    assert check_batches(got) in (4, 5)
    lifecycle.WorkerProcess._start = start
    assert check_batches(loader) == 16
    del loader, iterator, got
check_clean()
""",
    )


@pytest.mark.slow
def test_a_fork_of_the_program_has_no_part_in_it(tmp_path: Path) -> None:
    """A child has neither the parent's iterator nor its workers; the parent goes on replacing."""
    run_script(
        tmp_path,
        HEAD
        + """
begin()
loader = restarting(Items(hook=Once(22, Kill(9))), persistent_workers=True)
iterator = iter(loader)
got = [next(iterator)]
child = os.fork()
if child == 0:
    code = 1
    try:
        assert "belongs to the parent" in error_text(lambda: next(iterator))
        with deaths() as texts:
            assert check_batches(loader) == 16  # workers of its own
        code = 0
    finally:
        os._exit(code)
with deaths() as texts:
    got += list(iterator)
assert check_batches(got) == 16
assert os.waitpid(child, 0)[1] == 0
del loader, iterator, got
check_clean()
""",
    )


@pytest.mark.slow
def test_streams_raise_and_say_why(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
begin()
for end in (9, 0):
    loader = restarting(Stream(hook=CallAt(22, Kill(end))), num_workers=1)
    with deaths() as texts:
        text = error_text(lambda: list(loader))
    check_death(text, end)
    assert "It is not replaced: its samples come from an IterableDataset" in text and not texts
    assert "map-style dataset" in text, text
del loader
loader = restarting(Stream(8), num_workers=1, persistent_workers=True)
assert len(list(loader)) == 2
kill(pids(loader._iterator)[0])
assert len(list(loader)) == 2  # between epochs nothing is lost
del loader
check_clean()
""",
    )


def test_values_are_checked() -> None:
    dataset = small_dataset()
    with pytest.raises(
        ValueError, match=r"on_worker_death must be one of 'raise', 'restart', got 'res"
    ):
        DataLoader(dataset, on_worker_death="resume")
    with pytest.raises(ValueError, match="use path='auto'"):
        DataLoader(dataset, on_worker_death="restart", path="torch")
    with pytest.raises(TypeError):
        TorchLoader(dataset, on_worker_death="restart")  # type: ignore[call-arg]
    loader = DataLoader(dataset, path="torch")
    loader.on_worker_death = "restart"
    with pytest.raises(ValueError, match="path='torch'"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_without_worker_processes_it_changes_nothing(workers: int) -> None:
    kwargs: dict[str, Any] = {"num_workers": workers, "batch_size": 3}
    loader = DataLoader(small_dataset(), on_worker_death="restart", **kwargs)
    assert loader.stats().path == "array"
    ours = [tuple(batch) for batch in loader]
    theirs = [tuple(batch) for batch in TorchLoader(small_dataset(), **kwargs)]
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert pickle.loads(pickle.dumps(loader)).on_worker_death == "restart"
    assert DataLoader(range(4), on_worker_death="restart").stats().path == "array"  # type: ignore[arg-type, var-annotated]


@pytest.mark.slow
def test_a_death_behind_the_batches_of_others(tmp_path: Path) -> None:
    """With in_order=False there always is a batch; the dead worker is replaced all the same."""
    run_script(
        tmp_path,
        HEAD
        + """
begin()
loader = restarting(Items(40000), in_order=False)
iterator = iter(loader)
left = 10000
with deaths() as texts:
    for batch in iterator:
        left -= 1
        if left == 9990:
            kill(pids(iterator)[0])
        if loader.stats().restarts:
            break
        time.sleep(0.002)
assert left > 100 and len(texts) == 1, left
del loader, iterator, batch
check_clean()
""",
    )


@pytest.mark.slow
def test_memory_kept_for_a_dead_worker_goes_to_the_others(tmp_path: Path) -> None:
    """Without a successor: batches before the dead worker's are delivered, though they wait for
    memory, and then its death is told."""
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data import Dataset

made = torch.zeros(60).share_memory_()

class Uneven(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        made[i] = 1
        return torch.full((1 << 20 if i // 2 % 5 in (2, 3) else 10,), i, dtype=torch.int32)

loader = DataLoader(Uneven(), 2, num_workers=2, collate_fn=torch.cat, prefetch_factor=8)
loader.memory_budget = 3 << 20
iterator = iter(loader)
got = [int(next(iterator)[0])]
# All that was asked for is made: the first batch, and eight ahead of each worker.
wait_until(lambda: made.sum() == 17 * 2 and all(state(pid) == "S" for pid in pids(iterator)))
kill(pids(iterator)[1])
text = error_text(lambda: got.extend(int(batch[0]) for batch in iterator))
assert got == [0, 2, 4] and "batch 3 (indices [6, 7])" in text, (got, text)
""",
    )
