import multiprocessing
import signal
import warnings

from head import check_text
from workers import CallAt, Items, Kill, error_text, resources

from fastloop import DataLoader

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()


def main():
    multiprocessing.set_forkserver_preload(["slow_server"])
    for on_death in ("raise", "restart"):
        loader = DataLoader(
            Items(hook=CallAt(22, Kill(0))),
            4,
            num_workers=1,
            multiprocessing_context="forkserver",
            on_worker_death=on_death,
        )
        with warnings.catch_warnings(record=True) as caught:
            check_text(error_text(lambda: list(loader)), 0, 5, [20, 21, 22, 23])
        for warning in caught:
            check_text(str(warning.message), 0, 5)
        assert len(caught) == (on_death == "restart")


if __name__ == "__main__":
    main()
