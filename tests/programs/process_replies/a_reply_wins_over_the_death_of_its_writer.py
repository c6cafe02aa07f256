from head import published, released, start, take
from workers import error_text, wait_until

from fastloop.loader.workers.processes import ProcessIter


def await_last_words(iterator, counts, dead):
    wait_until(lambda: published[: len(counts)].tolist() == counts)
    wait_until(lambda: not any(iterator._workers[w].is_alive() for w in dead))


large = 100_000
iterator = start([large, ValueError("mine"), large, -3, 1, 1], {1})
wait_until(lambda: published[0] == 2)
released[1] = 1
await_last_words(iterator, [2, 1], [1])
assert take(iterator) == 0
assert take(iterator) == "ValueError"
text = error_text(lambda: [None for _ in iterator])
assert "exited unexpectedly with exit code 3; it was to make batch 3 (indices [3])" in text, text

# One that has nothing to deliver is no reason to wait for others.
iterator = start([1, 1, -3, 1, 1, 1], {0}, 3)
await_last_words(iterator, [0, 2, 0], [2])
text = error_text(lambda: next(iterator))
assert "exit code 3; it was to make batch 2 (indices [2])" in text, text
released.fill_(1)

# Batch 0 is made when the parent has met both of the dead three times.
seen = []


def find_dead(iterator, find=ProcessIter._find_dead):
    found = find(iterator)
    seen.extend(found)
    if len(seen) >= 6:
        released.fill_(1)
    return found


ProcessIter._find_dead = find_dead

for in_order in (True, False):
    seen.clear()
    iterator = start([1, ValueError("mine"), 1, 1, -3, -3], {0}, 3, in_order=in_order)
    await_last_words(iterator, [0, 1, 1], [1, 2])
    if in_order:
        for expected in (0, "ValueError", 2):
            assert take(iterator) == expected
    else:  # batch 0 has not to come first
        assert {take(iterator), take(iterator)} == {"ValueError", 2}
    text = error_text(lambda: [None for _ in iterator])
    assert text.count("exited unexpectedly with exit code 3") == 2, text
    released.fill_(1)
