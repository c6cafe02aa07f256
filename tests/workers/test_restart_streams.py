"""on_worker_death="restart" of streams that say where they stand: a successor goes on behind what
has come of the dead worker, in whatever epoch, and the loop gets what it would have got."""

from pathlib import Path

import pytest
from helpers import run_script
from restart_trials import HEAD

STREAMS = (
    HEAD
    + """
from itertools import islice
from torch.utils.data import get_worker_info
from streams import OfBoth, OfDataset, OfIterator, OwnIterator
from time_limits import limit

LENGTHS = [13, 9]

class Collate:
    '''Worker 1 dies at its batch number `at`, once.'''
    def __init__(self, at):
        self.count, self.once = 0, Once(at, Kill(9))
    def __call__(self, samples):
        if get_worker_info().id == 1:
            self.count += 1
            self.once(self.count)
        return samples

def same(samples):
    return samples

class Dies:
    '''Worker 1 dies at the n-th call of iter() or state_dict(), once.'''
    def __init__(self, lengths, what="", n=0):
        super().__init__(lengths)
        self.counts, self.what, self.once = {"iter": 0, "state": 0}, what, Once(n, Kill(9))
    def step(self, what):
        self.counts[what] += 1
        if what == self.what and get_worker_info().id == 1:
            self.once(self.counts[what])
    def __iter__(self):
        self.step("iter")
        return super().__iter__()
    def state_dict(self):
        self.step("state")
        return super().state_dict()

def kill_first(loader):
    '''After the first epoch.'''
    if loader.stats().restarts == 0:
        worker = loader._iterator._workers[1]
        kill(worker.pid)
        worker.join(limit(60))

def epochs(loader, in_order=True, between=callable):
    found = []
    for _ in range(3):
        batches = list(loader)
        state = str(loader.state_dict()["_snapshot"])
        found.append((batches if in_order else sorted(batches), state))
        between(loader)
    return found
"""
)


@pytest.mark.slowest
@pytest.mark.slow
def test_a_death_between_any_two_batches(tmp_path: Path) -> None:
    """Batches, their order, the epochs that follow, and states, with states behind every batch,
    some or none."""
    run_script(
        tmp_path,
        STREAMS
        + """
begin()
for kind, persistent, every, in_order, size in (
    (OfDataset, False, 1, True, 2), (OfDataset, True, 3, True, 2), (OwnIterator, True, 1, True, 2),
    (OfIterator, True, 1, True, None), (OfBoth, True, 0, False, 3),
):
    kwargs = dict(persistent_workers=persistent, in_order=in_order)
    kwargs.update(snapshot_every_n_steps=every)
    def run(at):
        torch.manual_seed(1)
        return epochs(restarting(kind(LENGTHS), size, collate_fn=Collate(at), **kwargs), in_order)
    wanted = run(-1)
    for at in (1, 2, 3):
        with deaths() as texts:
            got = run(at)
        assert len(texts) == 1, texts
        check_death(texts[0], 9)
        if in_order:
            assert got == wanted, (kind, at, got, wanted)
        else:
            assert [batches for batches, _ in got] == [batches for batches, _ in wanted]
check_clean()
""",
    )


@pytest.mark.slowest
def test_a_death_at_the_ends_of_epochs(tmp_path: Path) -> None:
    """In iter() of any epoch, at any state, and between epochs."""
    run_script(
        tmp_path,
        STREAMS
        + """
begin()
for kind in (OfDataset, OfBoth, OwnIterator):
    Dying = type("Dying", (Dies, kind), {})
    def run(*at, between=callable):
        torch.manual_seed(1)
        dataset = Dying(LENGTHS, *at)
        loader = restarting(dataset, 2, collate_fn=same, persistent_workers=True)
        return epochs(loader, between=between)
    wanted = run()
    for _ in range(3):  # its successor may start before or after others have begun the epoch
        with deaths() as texts:
            assert run(between=kill_first) == wanted, kind
        assert len(texts) == 1
    for at in (("iter", 1), ("iter", 2), ("state", 1), ("state", 2), ("state", 7), ("state", 8)):
        with deaths() as texts:
            assert run(*at) == wanted, (kind, at)
        assert len(texts) == 1
check_clean()
""",
    )


@pytest.mark.slow
def test_what_is_left_in_an_old_epoch_is_no_death_of_the_new_one(tmp_path: Path) -> None:
    """A worker dies at a batch of an epoch that was left, once the next one begins, and its
    successor at the batch of that number there: each once."""
    run_script(
        tmp_path,
        HEAD
        + """
begin()
once, gate = Once(12, Kill(9), times=2), Gate()  # item 12 is in batch 3, which is read ahead
class Batches(list):
    def __iter__(self):
        if int(once.count) == 0 and len(seen):
            gate.open()
        return super().__iter__()
seen = []
batches = Batches(list(range(i, i + 4)) for i in range(0, 64, 4))
loader = DataLoader(Items(hook=Both(CallAt(12, gate), once)), batch_sampler=batches, num_workers=1,
                    on_worker_death="restart", persistent_workers=True, prefetch_factor=4)
with deaths() as texts:
    iterator = iter(loader)
    seen += [next(iterator) for _ in range(3)]
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 64, 4))
assert len(texts) == 2, texts
del loader, iterator, once, gate, seen
check_clean()
""",
    )


@pytest.mark.slow
def test_a_state_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        STREAMS
        + """
class Secret(OfDataset):
    def state_dict(self):
        raise ValueError("it is secret")

begin()
loader = restarting(Secret(LENGTHS), 2, collate_fn=Collate(2))
text = error_text(lambda: list(loader))
assert "It is not replaced: its position is unknown (ValueError" in text, text
assert "it is secret" in text, text
del loader
check_clean()
""",
    )


@pytest.mark.slowest
def test_started_otherwise(tmp_path: Path) -> None:
    """The state travels to the successor with the dataset."""
    run_script(
        tmp_path,
        HEAD
        + """
from streams import OfDataset

def main():
    loader = restarting(OfDataset([12]), 2, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(2)]
    with deaths() as texts:
        kill(pids(iterator)[0])
        batches += iterator
    assert [samples.tolist() for samples, _ in batches] == [[i, i + 1] for i in range(0, 12, 2)]
    assert len(texts) == 1, texts

if __name__ == "__main__":
    main()
""",
    )
