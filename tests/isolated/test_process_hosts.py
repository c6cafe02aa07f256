"""Workers and programs that do what programs do: fork, start others, close descriptors, change
directory and limits, use threads."""

from pathlib import Path

from helpers import run_script

HEAD = """
import gc, os, resource, signal, subprocess, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from helpers import outcome
from workers import *
from workers import Items, Stream, check_batches
"""


def test_a_fork_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for persistent in (False, True):
    loader = DataLoader(Items(shape=(30_000,)), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(5)]

    def drop():
        global kept, iterator
        assert check_batches(kept) == 5
        kept = iterator = None
        gc.collect()

    def anew():
        global kept
        for _ in range(2):
            assert check_batches(loader) == 16
        kept = None
        for batch in loader:
            break
        assert check_batches(DataLoader(Items(), 4, num_workers=1)) == 16

    def go_on():
        assert outcome(lambda: next(iterator))[1] in (RuntimeError, ValueError)
        loader.close()

    for work in (drop, anew, go_on, lambda: gc.collect()):
        in_child(work)
        assert check_batches(kept) == 5
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # with all that a program does when it ends
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len([child for child in children() if is_running(child)]) == 2
    kept += iterator
    assert check_batches(kept) == 16
    assert check_batches(loader) == 16
    del loader, iterator, kept
    gc.collect()
    assert not children()
""",
    )


def test_workers_that_fork_and_start_programs(tmp_path: Path) -> None:
    """A process that a worker leaves behind must not hold the end of the loop up."""
    run_script(
        tmp_path,
        HEAD
        + """
def start(i):
    assert subprocess.run(["true"]).returncode == 0
    assert subprocess.check_output(["echo", str(i)], text=True) == f"{i}\\n"
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def leave(i):
    if i == 5:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        left[0] = pid
    if i == 6:
        left[1] = subprocess.Popen(["sleep", "600"], close_fds=False).pid

left = torch.zeros(2, dtype=torch.int32).share_memory_()
for hook, count in ((start, 16), (leave, 64)):
    assert check_batches(DataLoader(Items(count, hook), 4, num_workers=2)) == count // 4
    assert not children()
for pid in left.tolist():
    assert is_running(pid)  # still
    os.kill(pid, signal.SIGKILL)

class Threads(Items):
    def __getitem__(self, i):
        found = []
        thread = threading.Thread(target=lambda: found.append(super(Threads, self).__getitem__(i)))
        thread.start()
        thread.join()
        return found[0]
assert check_batches(DataLoader(Threads(), 4, num_workers=2)) == 16
""",
    )


def test_workers_that_close_descriptors_or_limit_themselves(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
def close_all(*_):
    os.closerange(3, 4096)

def close_again(i):
    os.closerange(3, 4096)
    [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]

def wander(number):
    os.chdir("/")

def limit(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

def drop_root(number):
    os.setgroups([]), os.setgid(65534), os.setuid(65534)

def check(init, hook=None):
    for persistent in (False, True):
        loader = DataLoader(Items(64, hook, (50_000,)), 4, num_workers=2, worker_init_fn=init,
                            persistent_workers=persistent)
        assert check_batches(loader) == check_batches(loader) == 16
        begin = time.monotonic()
        del loader
        gc.collect()
        assert not children()
        assert time.monotonic() - begin < 60  # ended, not waited for

for init in (close_all, wander, limit, *([drop_root] if os.getuid() == 0 else [])):
    check(init)
check(None, close_again)

# Such a worker that is busy is ended like any other, and one that dies is seen.
sleep = SleepAt(14, 600)
iterator = iter(DataLoader(Items(hook=sleep), 4, num_workers=2, worker_init_fn=close_all))
next(iterator)
wait_until(lambda: sleep.is_there)
begin = time.monotonic()
del iterator
assert time.monotonic() - begin < 60 and not children()
text = error_text(lambda: list(DataLoader(Items(hook=CallAt(22, Kill(9))), 4, num_workers=2,
                                     worker_init_fn=close_all)))
assert "SIGKILL" in text, text

def little(number):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
class Hungry(Items):
    def __getitem__(self, i):
        if i == 22:
            bytearray(1 << 30)
        return super().__getitem__(i)
kind, error, text = outcome(lambda: list(DataLoader(Hungry(), 4, num_workers=2,
                                                    worker_init_fn=little)))
assert error is MemoryError and "batch 5" in text, (error, text)
""",
    )


def test_the_parent_is_watched_by_workers_without_descriptors(tmp_path: Path) -> None:
    """They end soon after it, and no sooner."""
    (tmp_path / "inner.py").write_text(
        HEAD
        + """
has_closed = torch.zeros(2).share_memory_()

def close_all(*_):
    os.closerange(3, 4096)

def stay(i):
    if i >= 40:
        close_all()
        has_closed[torch.utils.data.get_worker_info().id] = 1
        time.sleep(600)

loader = DataLoader(Items(64, stay), 4, num_workers=2, worker_init_fn=close_all)
iterator = iter(loader)
for _ in range(8):
    next(iterator)
wait_until(has_closed.all)
print(*children(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    run_script(
        tmp_path,
        """
import subprocess, sys
from workers import PROGRAM, is_running, wait_until
inner = subprocess.Popen([*PROGRAM, "inner.py"], stdout=subprocess.PIPE, text=True)
pids = [int(pid) for pid in inner.stdout.readline().split()]
assert inner.wait(60) == -9 and len(pids) == 2
wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
""",
    )


def test_threads_and_iterators_side_by_side(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
loader = DataLoader(Items(shape=(20_000,)), 4, num_workers=2)
pairs = list(zip(loader, loader, strict=True))
assert check_batches(a for a, _ in pairs) == check_batches(b for _, b in pairs) == 16
del pairs

first, second = iter(loader), iter(loader)
kept = [next(first), next(second), next(first)]
del first
assert check_batches(kept[:1]) == 1 and int(kept[2][0, 0]) == 4
assert check_batches([kept[1], *second]) == 16
del second

errors, count = [], []
def work(loader):
    try:
        for _ in range(3):
            count.append(check_batches(loader))
    except BaseException as error:
        errors.append(error)
own = [DataLoader(Items(), 4, num_workers=1, persistent_workers=True) for _ in range(2)]
threads = [threading.Thread(target=work, args=[each]) for each in (loader, loader, *own)]
[thread.start() for thread in threads]
[thread.join(300) for thread in threads]
assert not errors and count == [16] * 12, (errors, count)
del own, kept
gc.collect()

iterator = iter(loader)  # made here, used there, and dropped in a third place
got = []
thread = threading.Thread(target=lambda: got.extend(iterator))
thread.start()
thread.join(300)
assert check_batches(got) == 16
def nested():
    for outer, batch in enumerate(loader):
        assert check_batches(loader) == 16 and int(batch[0, 0]) == 4 * outer
        if outer == 3:
            break
nested()
gc.collect()
wait_until(lambda: not children(), 60)
""",
    )


def test_persistent_workers_and_loops_left_early(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for data, whole in ((Items(shape=(20_000,)), 16), (Stream(64), 32)):
    loader = DataLoader(data, 4, num_workers=2, persistent_workers=True)
    pids = set()
    for stop in (1, 7, 0, 15, 3):
        number = 0
        for number, batch in enumerate(loader):
            if isinstance(data, Items):
                assert batch[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
            if number == stop:
                break
        pids |= set(children())
        assert len(pids) == 2
    assert len(list(loader)) == whole
    del loader
    gc.collect()
    assert not children()
""",
    )


def test_little_address_space(tmp_path: Path) -> None:
    """As under ulimit -v; what does not fit is an error that says so."""
    run_script(
        tmp_path,
        HEAD
        + """
def main():
    for gib, method in ((8, "fork"), (3, "fork"), (3, "spawn")):
        resource.setrlimit(resource.RLIMIT_AS, (gib << 30, resource.RLIM_INFINITY))
        loader = DataLoader(Items(shape=(100_000,)), 4, num_workers=2 if method == "fork" else 1,
                            multiprocessing_context=method)
        assert check_batches(list(loader)) == 16
        del loader
    gc.collect()
    loader = DataLoader(Items(4, shape=(300 << 20,)), 1, num_workers=1, prefetch_factor=1)
    loader.memory_budget = 1 << 20
    kind, error, text = outcome(lambda: list(loader))
    assert error in (MemoryError, RuntimeError), (error, text)
    assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16

if __name__ == "__main__":
    main()
""",
    )
