import gc
import signal
import time

from head import check_text
from workers import CallAt, Items, Kill, check_batches, error_text, resources, wait_until

from fastloop import DataLoader

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


def check_clean():
    gc.collect()
    wait_until(lambda: resources() == before, 60)


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()

for end in ENDS:
    for workers in (1, 3):
        loader = DataLoader(Items(hook=CallAt(22, Kill(end))), 4, num_workers=workers)
        iterator, got = iter(loader), []
        begin = time.monotonic()
        text = error_text(lambda: got.extend(iterator))  # noqa: F821
        seconds = time.monotonic() - begin
        assert check_batches(got) == loader.stats().slots_lent <= 5
        check_text(text, end, 5, [20, 21, 22, 23])
        assert seconds < 60, seconds
        del iterator, loader, got
        check_clean()
        print(f"{end!r} {workers} workers: {seconds * 1e3:.0f} ms")
