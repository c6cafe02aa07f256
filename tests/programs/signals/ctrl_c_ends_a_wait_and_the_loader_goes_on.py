import time

import head
from head import interrupt, loader_of

for workers in (0, 1, 2):
    loader = loader_of(workers, 400)
    for _ in range(2):
        got = []
        try:
            for (batch,) in loader:
                got.append(int(batch[0, 0]))
                interrupt()
        except KeyboardInterrupt:
            assert time.process_time() - head.sent < 2
        else:
            raise AssertionError("no KeyboardInterrupt")
        assert got == [3]
    del loader.batch_sampler[1]
    assert [int(batch[0, 7]) for (batch,) in loader] == [3, 4, 5]
    assert loader.stats().slots_lent <= 1
