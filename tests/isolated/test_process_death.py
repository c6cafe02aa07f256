"""A worker that dies: the error comes at once, says how and over which samples, and all that the
iterator had is gone with it."""

from pathlib import Path

import pytest
from helpers import run_script

HEAD = """
import gc, multiprocessing, os, random, re, resource, signal, sys, time, warnings
from pathlib import Path
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from workers import *
from workers import Items, check_batches

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


def check_text(text, end, batch=None, indices=None):
    assert "DataLoader worker (pid" in text, text
    assert (f"{signal.Signals(end).name}" if end else "exit code 3") in text, text
    if batch is not None:
        assert f"batch {batch} " in text, (batch, text)
    if indices is not None:
        assert f"(indices {indices})" in text, (indices, text)
    if end == signal.SIGKILL:
        assert re.search(r"[0-9.]+ of [0-9.]+ GiB of memory", text), text


def timed(iterator, kill=lambda: None):
    # The error's text; the time counts from the death or from the wait for the batch.
    kill()
    begin = time.monotonic()
    text = error_text(lambda: [None for _ in iterator])
    return text, time.monotonic() - begin


def check_clean():
    gc.collect()
    wait_until(lambda: resources() == before, 60)


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()
"""
# torch's handlers in a worker write a line of their own to its stderr.
NOISE = {"stderr": "encountered in worker"}


def test_death_in_getitem(tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD
            + """
for end in ENDS:
    for workers in (1, 3):
        loader = DataLoader(Items(hook=CallAt(22, Kill(end))), 4, num_workers=workers)
        iterator, got = iter(loader), []
        begin = time.monotonic()
        text = error_text(lambda: got.extend(iterator))
        seconds = time.monotonic() - begin
        assert check_batches(got) == loader.stats().slots_lent <= 5
        check_text(text, end, 5, [20, 21, 22, 23])
        assert seconds < 60, seconds
        del iterator, loader, got
        check_clean()
        print(f"{end!r} {workers} workers: {seconds * 1e3:.0f} ms")
""",
            **NOISE,  # type: ignore[arg-type]
        )
    )


def test_death_while_idle(tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD
            + """
made = torch.zeros(64).share_memory_()
before = resources()

def are_idle():
    # All that was asked for is made: the first batch, and two ahead of each worker.
    return made.sum() == 5 * 4 and all(state(child) == "S" for child in children())

for end in ENDS[:4]:
    made.zero_()
    loader = DataLoader(Items(hook=lambda i: made[i].fill_(1)), 4, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    first = next(iterator)
    wait_until(are_idle)
    assert len(children()) == 2
    victim = children()[0]
    text, seconds = timed(iterator, lambda: os.kill(victim, end))
    check_text(text, end)
    assert f"(pid {victim})" in text, text
    assert re.search("batch [0-9]+ .indices .[0-9, ]+.[)]", text), text
    assert seconds < 60, seconds
    del iterator, loader, first
    check_clean()
    print(f"{end!r}: {seconds * 1e3:.0f} ms")
""",
            **NOISE,  # type: ignore[arg-type]
        )
    )


def test_death_while_a_slot_is_written(tmp_path: Path) -> None:
    """At any depth: a mapped file that becomes shorter is met by SIGBUS inside the C collate, an
    object dies while the pickler has copied half of a batch, and a kill from outside comes when
    the slot has some of its pages."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
import numpy as np
from torch.utils.data import Dataset, default_collate

class Mapped(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if i != 22:
            return np.zeros(1 << 20, np.uint8)
        mapped = np.memmap("data.bin", np.uint8, "r+", shape=(1 << 20,))
        os.truncate("data.bin", 4096)
        return mapped

class Dies:
    def __init__(self, end):
        self.end = end
    def __reduce__(self):
        Kill(self.end)()

class Collate:
    def __init__(self, end):
        self.end = end
    def __call__(self, samples):
        batch = default_collate(samples)
        return [batch, Dies(self.end) if samples[-1][0] == 23 else 0, batch + 1]

Path("data.bin").write_bytes(bytes(1 << 20))
text, seconds = timed(iter(DataLoader(Mapped(), 4, num_workers=2)))
check_text(text, signal.SIGBUS, 5, [20, 21, 22, 23])
check_clean()

for end in ENDS:
    loader = DataLoader(Items(hook=None), 4, num_workers=2, collate_fn=Collate(end))
    text, seconds = timed(iter(loader))
    check_text(text, end, 5, [20, 21, 22, 23])
    del loader
    check_clean()

for wanted in (1 << 20, 20 << 20, 30 << 20, 50 << 20):
    loader = DataLoader(Items(8, shape=(14 << 20,)), 1, num_workers=1, prefetch_factor=1)
    loader.memory_budget = 8 << 30
    iterator = iter(loader)
    while arena_bytes() < wanted:
        pass
    text, seconds = timed(iterator, lambda: os.kill(children()[0], signal.SIGKILL))
    check_text(text, signal.SIGKILL, 0, [0])
    loader.close()
    assert arena_bytes() < 1 << 20, arena_bytes()
    del iterator, loader
    check_clean()
    print(f"killed at {wanted >> 20} MiB: {seconds * 1e3:.0f} ms")
""",
            **NOISE,  # type: ignore[arg-type]
        )
    )


def test_death_at_any_moment(tmp_path: Path) -> None:
    """The others go on to the end of what they have, no wait outlasts the death, and a batch that
    arrives is whole."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
random.seed(1)
late = []
for round in range(20):
    loader = DataLoader(Items(256, shape=(4000,)), 4, num_workers=3, in_order=round % 2 == 0)
    iterator = iter(loader)
    victim = children()[round % 3]
    seen, at, killed = set(), random.randrange(1, 48), 0.0
    try:
        for batch in iterator:
            assert bool((batch == batch[:, :1]).all())
            first = int(batch[0, 0])
            assert first not in seen and first % 4 == 0
            seen.add(first)
            if len(seen) == at:
                time.sleep(random.random() * 0.002)
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
        raise AssertionError("nobody died")
    except RuntimeError as error:
        late.append(time.monotonic() - killed)
        check_text(str(error), signal.SIGKILL)
    del iterator, loader, batch
check_clean()
assert max(late) < 60, late
print(f"the latest death was met after {max(late) * 1e3:.0f} ms")
""",
        )
    )


def test_death_of_spawned_workers_and_of_streams(tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD
            + """
def main():
    killed, left = (Items, signal.SIGKILL), (Stream, 0)
    for method, ends in (("fork", (killed, left)), ("spawn", (killed,)), ("forkserver", (left,))):
        for data, end in ends:
            loader = DataLoader(data(hook=CallAt(22, Kill(end))), 4, num_workers=1,
                                multiprocessing_context=method)
            begin = time.monotonic()
            check_text(error_text(lambda: list(loader)), end, 5, None if data is Stream
                       else [20, 21, 22, 23])
            print(f"{method} {data.__name__} {end!r}: {time.monotonic() - begin:.1f} s")
    wait_until(lambda: len(children()) <= 2, 60)  # forkserver and resource tracker

if __name__ == "__main__":
    main()
""",
        )
    )


def test_a_fork_server_that_is_slow_to_tell_an_exit_code(tmp_path: Path) -> None:
    """It has waited for the dead worker, so the process is gone before the code is known."""
    (tmp_path / "slow_server.py").write_text(
        """
import time
from multiprocessing import forkserver

def write_late(fd, number, write=forkserver.write_signed):
    if number < 256:  # no process number
        time.sleep(0.5)
    write(fd, number)

forkserver.write_signed = write_late
"""
    )
    run_script(
        tmp_path,
        HEAD
        + """
def main():
    multiprocessing.set_forkserver_preload(["slow_server"])
    for on_death in ("raise", "restart"):
        loader = DataLoader(Items(hook=CallAt(22, Kill(0))), 4, num_workers=1,
                            multiprocessing_context="forkserver", on_worker_death=on_death)
        with warnings.catch_warnings(record=True) as caught:
            check_text(error_text(lambda: list(loader)), 0, 5, [20, 21, 22, 23])
        for warning in caught:
            check_text(str(warning.message), 0, 5)
        assert len(caught) == (on_death == "restart")

if __name__ == "__main__":
    main()
""",
    )


def test_dead_persistent_workers_are_replaced(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
loader = DataLoader(Items(), 4, num_workers=2, persistent_workers=True)
for round in range(4):
    assert check_batches(loader) == 16
    victims = children()
    assert len(victims) == 2
    if round == 0:
        os.kill(victims[0], signal.SIGKILL)
        wait_until(lambda: not is_running(victims[0]))
    if round == 1:
        iterator = iter(loader)
        os.kill(victims[1], signal.SIGKILL)
        check_text(error_text(lambda: list(iterator)), signal.SIGKILL)
        del iterator
    if round == 2:  # still dying when the next epoch begins
        os.kill(victims[0], signal.SIGKILL)
del loader
check_clean()
""",
    )


def test_death_when_the_program_reaps_all_children(tmp_path: Path) -> None:
    """Somebody else has waited for the worker, and its exit code is lost."""
    run_script(
        tmp_path,
        HEAD
        + """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
iterator = iter(DataLoader(Items(hook=CallAt(22, Kill(signal.SIGKILL))), 4, num_workers=2))
begin = time.monotonic()
text = error_text(lambda: list(iterator))
assert "DataLoader worker (pid" in text and "batch 5 (indices [20, 21, 22, 23])" in text, text
del iterator
assert time.monotonic() - begin < 60  # ended, not waited for
assert not children()
""",
        timeout=300,
    )


def test_the_ring_is_left_out_of_core_dumps(tmp_path: Path) -> None:
    """It is terabytes of address space: a dump would take minutes before the death is seen."""
    run_script(
        tmp_path,
        HEAD
        + """
def flags():
    text = Path("/proc/self/smaps").read_text()
    parts = text.split("memfd:fastloop")[1:]
    assert parts
    return all(" dd" in part.split("VmFlags:")[1].split("\\n")[0] for part in parts)

class Checks(Items):
    def __getitem__(self, i):
        assert flags()
        return super().__getitem__(i)

def main():
    for method in ("fork", "spawn"):
        loader = DataLoader(Checks(8), 4, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            assert flags()

if __name__ == "__main__":
    main()
""",
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_is_named(method: str, tmp_path: Path) -> None:
    text = f"""
from fastloop import DataLoader
from workers import Items
list(DataLoader(Items(8), 4, num_workers=1, multiprocessing_context={method!r}))
"""
    said = (
        f"with start method {method!r} it imports {tmp_path / 'script.py'} anew, where a loop must "
        "stand below if __name__ == '__main__'"
    )
    run_script(tmp_path, text, returncode=1, stderr=said)


def test_a_program_that_spawned_workers_cannot_import_is_named(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
    class Here(torch.utils.data.Dataset):
        __len__ = lambda self: 8
        __getitem__ = lambda self, i: i
    loader = DataLoader(Here(), 4, num_workers=1, multiprocessing_context="spawn")
    text = error_text(lambda: list(loader))
    assert "script.py anew, " in text and "stderr says which error it met" in text, text
    loader = DataLoader(Items(hook=CallAt(2, Kill(0))), 4, num_workers=1,
                        multiprocessing_context="spawn")
    assert "script.py" not in error_text(lambda: list(loader))
""",
        stderr="Can't get attribute 'Here'",
    )
