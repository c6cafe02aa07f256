"""import fastloop: without torch, which only a name that needs it brings in."""

from pathlib import Path

from helpers import run_script


def test_import_does_not_import_torch(tmp_path: Path) -> None:
    out = run_script(
        tmp_path,
        """
import sys
before = set(sys.modules)
import fastloop
assert "torch" not in sys.modules
print(fastloop.__version__, fastloop.build_info(), dir(fastloop))
assert "torch" not in sys.modules
assert not hasattr(fastloop, "nothing")
assert "torch" not in sys.modules
assert fastloop.DataLoader.__name__ == "DataLoader"
assert "torch" in sys.modules
""",
        is_fresh=True,
    )
    assert "DataLoader" in out


def test_the_module_can_be_imported_twice_and_from_a_thread(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import sys, threading
threads = [threading.Thread(target=__import__, args=["fastloop"]) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
fastloop = __import__("fastloop")
fastloop.build_info()
first = sys.modules.pop("fastloop"), sys.modules.pop("fastloop._core")
import fastloop
assert fastloop.build_info() == first[0].build_info()
""",
        is_fresh=True,
    )


def test_the_environment_limits_the_instructions(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import os
import platform
os.environ["FASTLOOP_CPU"] = "avx"
import fastloop
try:
    fastloop.build_info()
except ValueError as error:
    choices = "plain or neon" if platform.machine() == "aarch64" else "plain, avx2 or avx512"
    assert str(error) == f"FASTLOOP_CPU=avx: it is {choices}, or not set"
else:
    raise AssertionError("loaded")
os.environ["FASTLOOP_CPU"] = "plain"
assert fastloop.build_info()["instructions"] == "plain"
import fastloop.__main__ as m
m.main(["doctor"])
""",
        is_fresh=True,
    )


def test_torchs_openmp_is_found_by_whoever_asks_first(tmp_path: Path) -> None:
    """torch sets OpenMP's number of threads when it is first asked for its own."""
    run_script(
        tmp_path,
        """
from fastloop.base.threads import on_this_thread, openmp
import torch
assert openmp() is not None
torch.set_num_threads(3)
with on_this_thread():
    assert torch.get_num_threads() == 1
assert torch.get_num_threads() == 3
""",
        is_fresh=True,
    )
