import signal

from head import interrupt, loader_of
from helpers import outcome

for workers in (0, 1):
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(outcome(lambda: next(iterator))))
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    interrupt()
    (batch,) = next(iterator)
    assert batch[:, 9].tolist() == list(range(8)) * 10
    assert len(seen) == 1 and seen[0][1] is RuntimeError, seen
    assert "already in use" in seen[0][2], seen
    assert [int(batch[0, 7]) for (batch,) in iterator] == [4, 5]
