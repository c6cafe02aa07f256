"""Memory of batches that workers make: what the user keeps is the user's, all else stays within a
budget and goes back to the system."""

from pathlib import Path

import pytest
from helpers import run_script

HEAD = """
import gc, os, random, resource, signal, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from workers import *
from workers import Items, Sized, check_batches

MIB = 1 << 20


def settle(most):
    gc.collect()
    wait_until(lambda: arena_bytes() <= most, 60)
"""


def test_every_batch_may_be_kept(tmp_path: Path) -> None:
    """With few descriptors, none of them new, and whatever became of the others."""
    run_script(
        tmp_path,
        HEAD
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
loader = DataLoader(Items(4000, shape=(1000,)), 4, num_workers=2)
kept, fds = [], 0
for number, batch in enumerate(loader):
    kept.append(batch)
    if number == 10:
        fds = len(os.listdir("/proc/self/fd"))
assert len(os.listdir("/proc/self/fd")) <= fds
assert check_batches(kept) == 1000
views = [batch[1:3].t() for batch in kept[::2]]
views[0].zero_()
del kept[1::2], batch
kept += loader  # over memory that came back
assert check_batches(kept[500:]) == 1000
assert int(kept[0][3, 0]) == 3 and not kept[0][1:3].any()
assert all(int(kept[i][0, 0]) == 8 * i for i in range(1, 500))
del loader
gc.collect()
assert check_batches(kept[500:]) == 1000
kept, views = None, None
gc.collect()
assert not arena_files()
""",
    )


@pytest.mark.parametrize("mount", ["size=1m", "ro"])
def test_dev_shm_is_not_used(mount: str, tmp_path: Path) -> None:
    """Small or not writable, it does not matter."""
    run_script(
        tmp_path,
        HEAD
        + """
import ctypes, multiprocessing
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
    sys.exit(0)  # not ours to do
assert libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None) == 0  # MS_PRIVATE | MS_REC
options = sys.argv[1]
flags = 1 if options == "ro" else 0
text = b"" if options == "ro" else options.encode()
assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, text) == 0

class Mixed(Items):
    def __getitem__(self, i):
        return {"x": super().__getitem__(i), "text": str(i), "sparse": i}

def main():
    for method in ("fork", "spawn"):
        kept = list(DataLoader(Mixed(64, shape=(300_000,)), 4, num_workers=1,
                               multiprocessing_context=method))
        assert check_batches([batch["x"] for batch in kept]) == 16
        assert kept[3]["text"] == ["12", "13", "14", "15"]
        assert os.statvfs("/dev/shm").f_bfree == os.statvfs("/dev/shm").f_blocks

if __name__ == "__main__":
    main()
""",
        mount,
    )


def test_batches_of_any_size(tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD
            + """
random.seed(2)
small, large = [0, 1, 100, 5000, 70_000], [0, 3 * MIB, 9 * MIB + 17, 30 * MIB]
for budget in (None, 4 * MIB, 1):
    for persistent in (False, True):
        sizes = [random.choice(small if i % 7 else large) for i in range(40)]
        for kwargs in (dict(batch_size=None), dict(batch_size=3, collate_fn=list)):
            loader = DataLoader(Sized(sizes), num_workers=2, persistent_workers=persistent,
                                **kwargs)
            loader.memory_budget = budget
            for round in range(2):
                begin = time.monotonic()
                count = 0
                for batch in loader:
                    for item in batch if isinstance(batch, list) else [batch]:
                        assert item.shape == (sizes[count],) and item.dtype == torch.uint8
                        assert not item[1:].any() and (not len(item) or item[0] == count % 251)
                        count += 1
                assert count == 40
                for batch in loader:  # what is left over must not disturb the next epoch
                    break
            del batch, item
    print(f"budget {budget}: {time.monotonic() - begin:.2f} s an epoch")
assert check_batches(DataLoader(Items(0), 4, num_workers=2)) == 0
assert [b.shape for b in DataLoader(Items(9, shape=(0,)), 4, num_workers=2)] == [
    (4, 0), (4, 0), (1, 0)]
assert list(DataLoader([[]] * 6, 2, num_workers=2)) == [[]] * 3
""",
        )
    )


def test_a_batch_of_more_than_2_gib(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
from fastloop.base.machine import available_bytes
if available_bytes() < 14 << 30:
    sys.exit(0)
size = 1_200_000_000
loader = DataLoader(Sized([size, size, 5, 5]), 2, num_workers=1, prefetch_factor=1)
first, second = loader
assert first.shape == (2, size) and first[:, 0].tolist() == [0, 1]
assert not first[1, -1000:].any() and not first[0, 1 << 30 :: 4096].any()
assert second[:, 0].tolist() == [2, 3]
assert arena_bytes() > 2 * size
del first, second
loader.close()
settle(0)
""",
    )


def test_the_ring_stays_within_its_budget(tmp_path: Path) -> None:
    """However far behind the user is, and whatever was kept and dropped before."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
def peak_of(loader, pause, keep=0):
    most, kept, running = [0], [], [True]
    def watch():
        while running[0]:
            most[0] = max(most[0], arena_bytes())
            time.sleep(0.002)
    thread = threading.Thread(target=watch)
    thread.start()
    for batch in loader:
        time.sleep(pause)
        kept = [*kept, batch][-keep:] if keep else []
    running[0] = False
    thread.join()
    return most[0]

MARGIN = 3 * MIB
for workers, prefetch in ((1, 2), (4, 8)):
    loader = DataLoader(Items(160, shape=(MIB // 4,)), 4, num_workers=workers,
                        prefetch_factor=prefetch)  # 4 MiB a batch
    for budget in (24 * MIB, 64 * MIB):
        loader.memory_budget = budget
        peak = peak_of(loader, 0.002)
        print(f"{workers} workers x {prefetch}, budget {budget >> 20}: {peak >> 20} MiB")
        assert peak <= budget + 4 * MIB + MARGIN, (workers, prefetch, budget, peak)
        kept = list(loader)
        assert arena_bytes() >= 160 * MIB
        kept = None
        settle(budget + MARGIN)
    loader.close()
    settle(0)

# Kept batches come on top, and no more than these.
loader.memory_budget = 24 * MIB
peak = peak_of(loader, 0.002, keep=20)
print(f"20 kept: {peak >> 20} MiB")
assert peak <= (20 + 2) * 4 * MIB + 24 * MIB + MARGIN, peak
""",
        )
    )


def test_one_large_batch_does_not_stay(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
sizes = [200 * MIB if i == 8 else MIB for i in range(64)]
loader = DataLoader(Sized(sizes), None, num_workers=2)
loader.memory_budget = 32 * MIB
for number, batch in enumerate(loader):
    pass
del batch
settle(40 * MIB)
""",
    )


def test_labels_do_not_keep_their_images(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
class Pairs(Items):
    def __getitem__(self, i):
        return super().__getitem__(i), i

def pairs(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.tensor([y for _, y in samples])}

for collate in (None, pairs):
    loader = DataLoader(Pairs(256, shape=(MIB // 4,)), 4, num_workers=2, collate_fn=collate)
    loader.memory_budget = 32 * MIB
    labels = [batch[1 if collate is None else "y"] for batch in loader]
    assert torch.cat(labels).tolist() == list(range(256))
    settle(40 * MIB)
""",
    )


def test_a_left_epoch_leaves_no_large_batch_behind(tmp_path: Path) -> None:
    """Batches that wait for more memory when the loop is left, with workers that persist."""
    run_script(
        tmp_path,
        HEAD
        + """
sizes = [int(1.15**i * 300_000) if i < 32 else 5 for i in range(64)]
loader = DataLoader(Sized(sizes), None, num_workers=2, persistent_workers=True, prefetch_factor=4)
loader.memory_budget = 400_000_000
for round in range(30):
    workers = children()
    for number, batch in enumerate(loader):
        assert len(batch) == sizes[number], (round, number, len(batch))
        if number == round:
            break
    assert round == 0 or children() == workers
assert [len(batch) for batch in loader] == sizes
""",
    )
