"""A worker is killed every 100 ms: every batch comes once, and nothing is left behind.

`FASTLOOP_STORM_SECONDS` says how long, 8 by default.
"""

import os
from pathlib import Path

import pytest
from helpers import run_script
from restart_trials import HEAD

SECONDS = float(os.environ.get("FASTLOOP_STORM_SECONDS", "8"))

STORM = """
import threading
from torch.utils.data import Dataset, get_worker_info

seconds = float(sys.argv[1])


class Announced(Dataset):
    # A worker that begins its second batch writes its process number: the first is the one that its
    # predecessor may have died at, and a batch that dies twice is an error.
    def __init__(self, workers):
        self.ready = torch.zeros(workers, dtype=torch.int64).share_memory_()
        self.batches = (0, 0)

    def __getitem__(self, i):
        if i % 4 == 0:
            pid, count = self.batches
            self.batches = os.getpid(), (count + 1 if pid == os.getpid() else 1)
            if self.batches[1] >= 2:
                self.ready[get_worker_info().id] = os.getpid()
        time.sleep(0.001)
        return torch.full((4096,), i)


class Until:
    # Batches until it is over. Workers must not end while they may be killed.
    def __init__(self, end):
        self.end, self.count = end, 0

    def __iter__(self):
        while time.monotonic() < self.end:
            yield list(range(4 * self.count, 4 * self.count + 4))
            self.count += 1
        killer.join()


def kill_at_random():
    global kills
    draw = random.Random(5)
    while time.monotonic() < batches.end - 0.2:
        time.sleep(0.1)
        victims = dataset.ready.nonzero().flatten().tolist()
        if victims:
            victim = draw.choice(victims)
            pid = int(dataset.ready[victim])
            kill(pid, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            kills += 1
            wait_until(lambda: not is_running(pid))
            if dataset.ready[victim] == pid:
                dataset.ready[victim] = 0


for in_order in (True, False):
    dataset = Announced(3)
    begin()
    kills, batches = 0, Until(time.monotonic() + seconds / 2)
    killer = threading.Thread(target=kill_at_random)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=3, in_order=in_order,
                        persistent_workers=in_order, on_worker_death="restart")
    killer.start()
    seen, total = [], 0
    with deaths() as texts:
        for batch in loader:
            first = int(batch[0, 0])
            assert (batch == torch.arange(first, first + 4)[:, None]).all()
            seen.append(first)
            total += int(batch.sum())
    wanted = list(range(0, 4 * batches.count, 4))
    assert (seen if in_order else sorted(seen)) == wanted
    assert total == 4096 * sum(range(4 * batches.count))
    restarts = loader.stats().restarts
    print(f"{batches.count} batches, {kills} kills, {restarts} restarts")
    assert len(texts) == restarts and kills - 3 <= restarts <= kills
    assert kills > seconds / 4, kills
    loader.close()
    assert arena_bytes() < 16 << 20, arena_bytes()
    del loader, batch
    check_clean()
    assert not arena_files()
"""


@pytest.mark.slow
@pytest.mark.slowest
def test_a_storm(tmp_path: Path) -> None:
    print(run_script(tmp_path, HEAD + STORM, SECONDS, timeout=600 + 10 * SECONDS))
