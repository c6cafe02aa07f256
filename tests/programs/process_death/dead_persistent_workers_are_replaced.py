import os
import signal

from head import check_clean, check_text, warm_up
from workers import Items, check_batches, children, error_text, is_running, wait_until

from fastloop import DataLoader

if __name__ == "__main__":
    before = warm_up()

loader = DataLoader(Items(), 4, num_workers=2, persistent_workers=True)
for round in range(4):
    assert check_batches(loader) == 16
    victims = children()
    assert len(victims) == 2
    if round == 0:
        os.kill(victims[0], signal.SIGKILL)
        wait_until(lambda: not is_running(victims[0]))
    if round == 1:
        iterator = iter(loader)
        os.kill(victims[1], signal.SIGKILL)
        check_text(error_text(lambda: list(iterator)), signal.SIGKILL)
        del iterator
    if round == 2:  # still dying when the next epoch begins
        os.kill(victims[0], signal.SIGKILL)
del loader
check_clean(before)
