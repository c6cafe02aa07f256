import os
import signal
import sys

from workers import Items, check_batches

from fastloop import DataLoader


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
