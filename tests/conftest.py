"""Puts support/ on the path: pytest's importlib mode does not, and spawned workers need it. Ends
the run if a test hangs. Knows which tests are quick."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from multiprocessing import resource_sharer
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "support"))
# Threads of torch that spin while they wait take the CPUs from the tests beside them. OpenMP reads
# this as torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["FASTLOOP_CACHE"] = "0"  # what one test finds out is no other test's knowledge

from huge_pages import collapse_memory
from time_limits import limit

HANGS_S = float(os.environ.get("TEST_HANGS_S") or 600)  # far more than any test takes
TERMINAL = os.dup(2)  # what pytest captures does not show when the process ends


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "one case of each test, and none that is marked slow"
    parser.addoption("--quick", action="store_true", help=text)
    methods = ["fork", "forkserver", "spawn"]
    parser.addoption("--start-method", choices=methods, help="of processes, in place of fork")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Importing torch and all tests makes a million objects, and no garbage to look for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    method = config.getoption("--start-method") or "fork"
    for item in items:
        mark = item.get_closest_marker("needs_fork")
        if mark is not None and method != "fork":
            item.add_marker(pytest.mark.skip(f"needs forked workers, not {method}: {mark.args[0]}"))
    # Files with many slow tests begin first: at the end such a file would keep one process busy,
    # and the others would wait.
    slowest = Counter(item.path for item in items if item.get_closest_marker("slowest"))
    items.sort(key=lambda item: -slowest[item.path])
    if not config.getoption("--quick"):
        return
    kept: dict[str, pytest.Item] = {}
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "slowest"))):
            kept.setdefault(item.nodeid.partition("[")[0], item)
    is_kept = set(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in is_kept])
    items[:] = kept.values()


def pytest_configure(config: pytest.Config) -> None:
    # A shell has its jobs in the background ignore Ctrl-C, and so would all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers of a fork server then share one import of torch, of two seconds.
    multiprocessing.set_forkserver_preload(["torch.utils.data"])
    if method := config.getoption("--start-method"):
        multiprocessing.set_start_method(method)
    if method not in (None, "fork"):
        from by_value import send_by_value

        # Workers import test modules by the names that pytest gives them, which begin here.
        sys.path.append(str(config.rootpath))
        send_by_value()
    # torch's warning where there are fewer CPUs than workers.
    config.addinivalue_line("filterwarnings", "ignore:This DataLoader will create")


@pytest.fixture(autouse=True, scope="module")
def garbage_is_looked_for_in_new_objects_alone() -> None:
    """Torch and thousands of tests are a million objects, and many tests call gc.collect()."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    collapse_memory()


@pytest.fixture(autouse=True, scope="module")
def no_thread_serves_what_other_files_have_sent() -> None:
    """The thread with which multiprocessing sends tensors lives on, and fastloop compares unknown
    code only while a process has no other thread."""
    resource_sharer.stop()


@pytest.fixture(autouse=True)
def ended_if_it_hangs() -> Iterator[None]:
    faulthandler.dump_traceback_later(limit(HANGS_S), exit=True, file=TERMINAL)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A forked worker must not find OpenMP's threads missing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
