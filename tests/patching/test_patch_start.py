"""What patch() costs at the start: what it leaves to be imported later, and to the garbage
collector."""

from pathlib import Path

from helpers import run_script


def test_what_workers_need_is_imported_before_the_first_one_starts(tmp_path: Path) -> None:
    """Not by patch(), nor by a loader without workers; and by no worker."""
    run_script(
        tmp_path,
        """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import fastloop
from workers import Items

LATE = "numpy.random", "fastloop.loader.workers.processes", "fastloop.loader.workers.threads"
imported = lambda: [name for name in LATE if name in sys.modules]
before = imported()
fastloop.patch()
list(DataLoader(TensorDataset(torch.arange(8)), 2))
assert imported() == before, imported()
forks = []
os.register_at_fork(before=lambda: forks.append("numpy.random" in sys.modules))
assert len(list(DataLoader(Items(8), 4, num_workers=2))) == 2
assert forks == [True, True], forks
""",
        is_fresh=True,
    )


def test_ctrl_c_does_not_leave_half_of_an_import(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import os, signal, sys
from fastloop import DataLoader
from workers import Items, check_batches

class Interrupts:
    seen = 0
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.random.mtrand" and not self.seen:
            self.seen = 1
            os.kill(os.getpid(), signal.SIGINT)

if "numpy.random" in sys.modules:
    sys.exit()  # NumPy 1 imports it itself
sys.meta_path.insert(0, finder := Interrupts())
loader = DataLoader(Items(), 4, num_workers=1)
try:
    iter(loader)
    raise AssertionError("no KeyboardInterrupt")
except KeyboardInterrupt:
    assert finder.seen
assert sys.modules["numpy.random"].rand
assert check_batches(loader) == 16
""",
        is_fresh=True,
    )


def test_imports_set_off_no_collection(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import gc
import torch
from torch.utils.data import DataLoader
import fastloop.patching.patch as patching

seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
gc.collect()
gc.set_threshold(200, 1, 1)
seen.clear()
patching.patch()
assert gc.isenabled() and len(seen) <= 4, seen  # each comes twice
patching.unpatch()
gc.disable()
patching.patch()
assert not gc.isenabled()
""",
        is_fresh=True,
    )
