import signal
import time

from head import check_text, warm_up
from workers import CallAt, Items, Kill, Stream, children, error_text, wait_until

from fastloop import DataLoader

if __name__ == "__main__":
    warm_up()


def main():
    killed, left = (Items, signal.SIGKILL), (Stream, 0)
    for method, ends in (("fork", (killed, left)), ("spawn", (killed,)), ("forkserver", (left,))):
        for data, end in ends:
            loader = DataLoader(
                data(hook=CallAt(22, Kill(end))), 4, num_workers=1, multiprocessing_context=method
            )
            begin = time.monotonic()
            check_text(
                error_text(lambda: list(loader)),
                end,
                5,
                None if data is Stream else [20, 21, 22, 23],
            )
            print(f"{method} {data.__name__} {end!r}: {time.monotonic() - begin:.1f} s")
    wait_until(lambda: len(children()) <= 2, 60)  # forkserver and resource tracker


if __name__ == "__main__":
    main()
