"""on_worker_death="restart": whenever and however a worker dies, the loop gets what it would have
got, and nothing is left behind."""

from pathlib import Path

import pytest
from helpers import run_script
from restart_trials import HEAD

# torch's handlers in a worker write a line of their own to its stderr.
NOISE = "encountered in worker"


@pytest.mark.slowest
def test_a_death_at_every_place(tmp_path: Path) -> None:
    """Before the first batch, in the first, between two, in the last, in the collate, and in
    worker_init_fn; by signals and by an exit."""
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data import default_collate

class Collate:
    def __init__(self, once):
        self.once = once
    def __call__(self, samples):
        self.once(int(samples[0][0]))
        return default_collate(samples)

begin()
for end in ENDS:
    for workers, in_order in ((1, True), (2, True), (3, False)):
        kwargs = dict(num_workers=workers, in_order=in_order)
        for at in (0, 22, 63):  # the first item of all, one in the middle of a batch, the last
            log = Log(64)
            loader = restarting(Items(hook=Both(log, Once(at, Kill(end)))), **kwargs)
            with deaths() as texts:
                batches = sorted(loader, key=lambda batch: int(batch[0, 0]))
            assert check_batches(batches) == 16
            assert len(texts) == loader.stats().restarts == 1, texts
            check_death(texts[0], end, at // 4)
            again = log.counts - 1
            assert again.sum() == at % 4 + 1 and again[at // 4 * 4:at + 1].all(), log.counts
            if in_order:
                assert check_batches(loader) == 16  # nobody dies now
            del loader, batches
        loader = restarting(Items(), collate_fn=Collate(Once(20, Kill(end))), **kwargs)
        with deaths() as texts:
            batches = sorted(loader, key=lambda batch: int(batch[0, 0]))
        assert check_batches(batches) == 16
        check_death(texts[0], end, 5)
        loader = restarting(Items(), worker_init_fn=OnceInit(0, Kill(end)), **kwargs)
        with deaths() as texts:
            batches = sorted(loader, key=lambda batch: int(batch[0, 0]))
        assert check_batches(batches) == 16 and len(texts) == 1
        check_death(texts[0], end)
        del loader, batches, log
check_clean()
""",
        stderr=NOISE,
    )


def test_a_death_while_the_iterator_starts(tmp_path: Path) -> None:
    """All workers die before torch's iterator knows of them; its handler of SIGCHLD says nothing,
    and is_alive() and pids are the workers' own afterwards."""
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data._utils import signal_handling

add = signal_handling._set_worker_pids
def late_add(key, pids):
    add(key, pids)
    wait_until(lambda: all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                           for pid in set(children())), 60)
    os.kill(os.getpid(), signal.SIGCHLD)

begin()  # the handler is set
signal_handling._set_worker_pids = late_add
loader = restarting(Items(), worker_init_fn=OnceInit(0, Kill(15)), num_workers=1)
with deaths() as texts:
    iterator = iter(loader)
    assert os.getpid() not in pids(iterator)
    assert check_batches(iterator) == 16
assert len(texts) == 1, texts
check_death(texts[0], 15)
loader = DataLoader(Items(), 4, num_workers=1, worker_init_fn=OnceInit(0, Kill(15)))
text = error_text(lambda: list(loader))
assert "SIGTERM" in text, text  # torch's says: Terminated
del loader, iterator
check_clean()
""",
    )


@pytest.mark.slow
def test_seeds_and_order_are_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Worker numbers, seeds and the shuffle: equal to torch's own run without a death, where random
    numbers are drawn from generators as they are at a worker's start."""
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data import Dataset, get_worker_info

class Seeds(Dataset):
    def __init__(self, hook):
        self.hook = hook
    def __len__(self):
        return 32
    def __getitem__(self, i):
        self.hook(i)
        info = get_worker_info()
        return i, info.id, info.seed, torch.initial_seed(), info.num_workers

def run(cls, hook, **kwargs):
    torch.manual_seed(7)
    loader = cls(Seeds(hook), 4, shuffle=True, num_workers=2, **kwargs)
    return [torch.stack(batch) for epoch in range(2) for batch in loader], torch.get_rng_state()

nothing = Once(-1, int)
theirs, state = run(torch.utils.data.DataLoader, nothing)
for persistent in (False, True):
    theirs, state = run(torch.utils.data.DataLoader, nothing, persistent_workers=persistent)
    for at in (0, 13, 31):
        with deaths() as texts:
            ours, our_state = run(DataLoader, Once(at, Kill(9)), on_worker_death="restart",
                                  persistent_workers=persistent)
        assert len(texts) == 1 and len(ours) == len(theirs) == 16
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
        assert torch.equal(our_state, state)

# Generators begin as at a worker's start: a successor's first batch draws what a first one does.
class Draws(Seeds):
    def __getitem__(self, i):
        self.hook(i)
        return i, torch.rand(()), random.random(), np.random.rand()

def draw(at):
    torch.manual_seed(7)
    kwargs = dict(num_workers=1, on_worker_death="restart")
    return list(DataLoader(Draws(Once(at, Kill(9))), 4, **kwargs))

whole = draw(-1)
with deaths():
    cut = draw(12)  # the first of its batch
for a, b in zip(cut[:3], whole[:3]):
    assert all(torch.equal(x, y) for x, y in zip(a, b))
for a, b in zip(cut[3:], whole):
    assert all(torch.equal(x, y) for x, y in zip(a[1:], b[1:]))
""",
    )


@pytest.mark.slowest
@pytest.mark.slow
def test_what_has_killed_two_workers_raises(tmp_path: Path) -> None:
    """A batch that kills is loaded twice, and not again; batches that were only queued behind it do
    not count. Then the loader can be iterated anew."""
    run_script(
        tmp_path,
        HEAD
        + """
begin()
for end in ENDS:
    log, gate = Log(64), Gate()
    dies = CallAt(21, gate), Once(21, Kill(end), 2)
    loader = restarting(Items(hook=Both(log, *dies)), prefetch_factor=4)
    got = []
    def take():
        for batch in loader:
            got.append(batch)
            if len(got) == 5:  # the other worker might still be at one of these
                gate.open()
    with deaths() as texts:
        text = error_text(take)
    assert check_batches(got) == 5 and len(texts) == 1, texts
    check_death(text, end, 5)
    assert "two workers have died while they loaded batch 5" in text, text
    assert "[20, 21, 22, 23]" in text, text
    assert log.counts[21] == 2 and loader.stats().restarts == 1
    assert check_batches(loader) == 16
    # Another batch may have its own two deaths' worth.
    hooks = [Once(i, Kill(end)) for i in (8, 17, 18, 40)]
    loader = restarting(Items(hook=Both(*hooks[:2], hooks[3])), prefetch_factor=4)
    with deaths() as texts:
        assert check_batches(loader) == 16
    assert len(texts) == 3
    del loader, got, hooks, log, dies, gate
check_clean()
""",
        stderr=NOISE,
    )


@pytest.mark.slowest
def test_workers_that_cannot_start_do_not_start_for_ever(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
class Odd:
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        os._exit(3)

def fail():
    raise MemoryError("no room")

def main():
    begin()
    for end, times in ((0, 2), (signal.SIGKILL, 10)):
        loader = restarting(Items(), worker_init_fn=OnceInit(1, Kill(end), 1000))
        with deaths() as texts:
            text = error_text(lambda: list(loader))
        assert len(texts) == times - 1, texts
        check_death(text, end)
        wanted = f"worker 1 has died {times} times in a row before it could begin a batch"
        assert wanted in text, text
    # MemoryError is an exception like others.
    loader = restarting(Items(hook=CallAt(22, fail)))
    with deaths() as texts:
        assert "no room" in error_text(lambda: list(loader), MemoryError)
    assert not texts and loader.stats().restarts == 0
    del loader
    check_clean()
    loader = restarting(Items(hook=Odd()), num_workers=1, multiprocessing_context="spawn")
    with deaths() as texts:
        text = error_text(lambda: list(loader))
    assert len(texts) == 1 and "2 times in a row" in text, text

if __name__ == "__main__":
    main()
""",
    )


@pytest.mark.slow
def test_workers_that_die_while_idle_at_once_and_between_epochs(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
made = torch.zeros(64).share_memory_()
begin()
for persistent in (False, True):
    for all_at_once in (False, True):
        made.zero_()
        loader = restarting(Items(hook=lambda i: made[i].fill_(1)), prefetch_factor=2,
                            persistent_workers=persistent, in_order=persistent)
        iterator = iter(loader)
        got = [next(iterator)]
        wait_until(lambda: made.sum() == 20 and all(state(p) == "S" for p in pids(iterator)))
        victims = pids(iterator)[:1 + all_at_once]
        for victim in victims:
            kill(victim)
        wait_until(lambda: not any(map(is_running, victims)))
        with deaths() as texts:
            got += list(iterator)
        got.sort(key=lambda batch: int(batch[0, 0]))
        assert check_batches(got) == 16 and len(texts) == len(victims)
        if persistent:
            seeds = loader._iterator._base_seed
            before_epoch = pids(iterator)
            victims = before_epoch[1 - all_at_once:]
            for victim in victims:
                kill(victim)
            wait_until(lambda: not any(map(is_running, victims)))
            state_before = torch.get_rng_state()
            with deaths() as texts:
                assert check_batches(loader) == 16
            assert len(texts) == 1 + all_at_once and loader._iterator is iterator
            assert torch.equal(torch.get_rng_state(), state_before)
            assert iterator._base_seed == seeds
            assert all_at_once or pids(iterator)[0] == before_epoch[0]
            # An epoch that is left, and what was asked for in it.
            with deaths() as texts:
                for epoch in range(3):
                    first = next(iter(loader))
                    kill(pids(iterator)[epoch % 2])
                assert check_batches(loader) == 16
            assert len(texts) == 3
            del first
        del loader, iterator, got
        check_clean()
""",
    )


@pytest.mark.slowest
def test_death_of_a_process_that_just_takes_its_place(tmp_path: Path) -> None:
    """Killed at any moment of its start, again and again, it is replaced."""
    run_script(
        tmp_path,
        HEAD
        + """
from fastloop.loader.workers import lifecycle

is_held = torch.zeros(1).share_memory_()
begin()
start, kills = lifecycle.WorkerProcess.start, 0
random.seed(3)

def hold(i):  # or the worker would get on, on a machine that is busy
    wait_until(lambda: not is_held)
    time.sleep(0.02)

def start_and_kill(self):
    global kills
    is_held.fill_(len(seen) and kills < 8)
    start(self)
    if is_held:
        kills += 1
        time.sleep(random.random() * 0.01)
        kill(self.pid)
        is_held.zero_()

lifecycle.WorkerProcess.start = start_and_kill
for round in range(3):
    seen, kills = [], 0
    loader = restarting(Items(hook=hold))
    iterator = iter(loader)
    seen.append(next(iterator))
    kill(pids(iterator)[round % 2])
    is_whole = True
    with deaths() as texts:
        try:
            seen += list(iterator)
        except RuntimeError as error:  # it had begun the same batch both times
            assert "loaded twice" in str(error), error
            is_whole = False
    if is_whole:
        assert check_batches(seen) == 16 and len(texts) == 9, texts
    del loader, iterator
    seen = []
check_clean()
""",
    )
