import time

from head import ENDS, check_clean, check_text, warm_up
from time_limits import limit
from workers import CallAt, Items, Kill, check_batches, error_text

from fastloop import DataLoader

if __name__ == "__main__":
    before = warm_up()

for end in ENDS:
    for workers in (1, 3):
        loader = DataLoader(Items(hook=CallAt(22, Kill(end))), 4, num_workers=workers)
        iterator, got = iter(loader), []
        begin = time.monotonic()
        text = error_text(lambda: got.extend(iterator))  # noqa: F821
        seconds = time.monotonic() - begin
        assert check_batches(got) == loader.stats().slots_lent <= 5
        check_text(text, end, 5, [20, 21, 22, 23])
        assert seconds < limit(60), seconds
        del iterator, loader, got
        check_clean(before)
        print(f"{end!r} {workers} workers: {seconds * 1e3:.0f} ms")
