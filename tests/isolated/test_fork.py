"""fork() with an open loader: the child's handles are inert, the parent does not notice."""

from pathlib import Path

from helpers import run_script

HEAD = """
import multiprocessing, os, sys
from pathlib import Path
import numpy as np
import torch
from fastloop import ArrayDataset, DataLoader
from helpers import outcome, slow_array
from torch.utils.data import DataLoader as TorchLoader, TensorDataset
from workers import in_child

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


def check(batches, first=0):
    for k, (rows, labels) in enumerate(batches, first):
        assert labels.tolist() == list(range(4 * k, 4 * k + 4)), labels
        assert torch.equal(rows, x[4 * k : 4 * k + 4])
"""


def test_a_child_drops_what_it_inherits_and_starts_anew(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1, 2):
    loader = DataLoader(dataset, 4, num_workers=workers, path="array")
    iterator = iter(loader)
    lent = [next(iterator) for _ in range(3)]
    unused = iter(loader)

    def child():
        global iterator, loader, unused
        lent[0][0].fill_(-1)
        lent.clear()
        for old in (iterator, unused):
            if workers == 0:  # goes on from where the parent's stands, as torch's does
                check(list(old), 3 * (old is iterator))
                continue
            for _ in range(2):
                kind, error, text = outcome(lambda: next(old))
                assert (kind, error) == ("raised", RuntimeError), error
                assert "parent process; call iter()" in text, text
        del iterator, old, unused
        for _ in range(2):
            check(list(loader))
            fresh = iter(loader)
            mine = [next(fresh) for _ in range(2)]
            check(mine)
        assert loader.stats().slots_lent == len(mine)
        in_child(grandchild)
        check(mine)
        check(list(fresh), 2)
        loader.close()
        check(list(loader))
        del loader

    def grandchild():
        check(list(loader))

    in_child(child)
    in_child(child, sys.exit)
    check(lent)
    more = [next(iterator) for _ in range(3)]
    check(more, 3)
    check(lent)
    assert loader.stats().slots_lent == 6, loader.stats()
    check(list(iterator), 6)
    check(list(unused))
    del lent, more
    assert loader.stats().slots_lent == 0
""",
    )


def test_an_iterator_without_workers_goes_on_in_a_child(tmp_path: Path) -> None:
    """With the batches and random numbers that torch's gives there, and in a child of the child."""
    run_script(
        tmp_path,
        HEAD
        + """
from torch.utils.data import BatchSampler, RandomSampler, Sampler

torch.set_num_threads(1)  # torch's own threads do not survive fork()

class Own(Sampler):
    def __iter__(self):
        for _ in range(20):
            yield int(torch.randint(40, ()))

    def __len__(self):
        return 20

CASES = {
    "sequential": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "short": {"batch_size": 7, "shuffle": True},
    "drop_last": {"batch_size": 7, "shuffle": True, "drop_last": True},
    "replacement": {"batch_size": 7, "sampler": RandomSampler(dataset, True, 90)},
    "own": {"batch_size": 4, "sampler": Own()},
    "singles": {"batch_size": None, "sampler": BatchSampler(Own(), 3, False)},
}

def follow(iterator, steps, depth):
    found = [labels.tolist() for _, labels in (next(iterator) for _ in range(steps))]
    if depth > 0:
        read, write = os.pipe()

        def child():
            with os.fdopen(write, "w") as pipe:
                pipe.write(repr(follow(iterator, 1, depth - 1)))

        in_child(child)
        os.close(write)
        with os.fdopen(read) as pipe:
            found.append(pipe.read())
    found += [labels.tolist() for _, labels in iterator]
    return found, torch.rand(1).item()

for name, given in CASES.items():
    for steps in (0, 1, 3):
        results = []
        for cls in (TorchLoader, DataLoader):
            torch.manual_seed(1)
            loader = cls(dataset, **given)
            iterator = iter(loader)
            results.append(follow(iterator, steps, 2))
        assert loader.stats().path == "array", name
        assert results[0] == results[1], (name, steps, results)
""",
    )


def test_a_fork_inside_the_sampler_loses_no_batch_in_silence(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
class Forking:
    def __len__(self):
        return 3

    def __iter__(self):
        for i in range(3):
            self.pid = os.fork() if i == 1 else -1
            yield [2 * i, 2 * i + 1]

sampler = Forking()
found = outcome(lambda: [y.tolist() for _, y in DataLoader(dataset, batch_sampler=sampler)])
if sampler.pid == 0:
    os._exit(0 if found[1] is RuntimeError else 1)
assert os.wait()[1] == 0
""",
    )


def test_persistent_workers_draw_no_seed_again_in_a_child(tmp_path: Path) -> None:
    """Their first one stays, so the child's epochs have the order that the parent's have."""
    run_script(
        tmp_path,
        HEAD
        + """
for data in (dataset, ArrayDataset(x)):
    for path in ("auto", "process"):
        torch.manual_seed(1)
        loader = DataLoader(
            data, 4, shuffle=True, num_workers=1, persistent_workers=True, path=path
        )
        list(loader)
        read, write = os.pipe()

        def two_epochs():
            return repr([[batch[0][:, 0].tolist() for batch in loader] for _ in range(2)])

        def child():
            with os.fdopen(write, "w") as pipe:
                pipe.write(two_epochs() + repr(torch.rand(1)))

        in_child(child)
        os.close(write)
        with os.fdopen(read) as pipe:
            childs = pipe.read()
        assert childs == two_epochs() + repr(torch.rand(1)), path
""",
    )


def test_workers_made_anew_in_a_child_have_the_seed_of_the_parents(tmp_path: Path) -> None:
    """The next number of the generator is the one that the order is drawn from."""
    run_script(
        tmp_path,
        HEAD
        + """
class Seeds:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.initial_seed()

torch.set_num_threads(1)
loader = DataLoader(Seeds(), 2, shuffle=True, num_workers=1, persistent_workers=True)
before = [batch.tolist() for batch in loader]

def child():
    for _ in range(2):
        found = [batch.tolist() for batch in loader]
        assert found == before, (found, before)

in_child(child)
""",
    )


def test_the_rest_of_an_epoch_is_for_a_child(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1):
    iterator = iter(DataLoader(dataset, 4, num_workers=workers, path="array"))
    first = [next(iterator)]
    for _ in range(2):
        kind, error, text = outcome(iterator._array_loader.rest)
        assert error is RuntimeError and "in a forked child" in text, (kind, text)
    check(first + list(iterator))
""",
    )


def test_persistent_workers_in_a_child(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
loader = DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
iterator = iter(loader)
lent = [next(iterator)]

def child():
    assert outcome(lambda: next(iterator))[1] is RuntimeError
    for _ in range(2):
        check(list(loader))

in_child(child)
check(lent)
check(list(iterator), 1)
check(list(loader))
""",
    )


def test_fork_while_threads_copy_and_wait(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
import threading
from workers import is_thread_in, wait_until
array = slow_array(Path.cwd(), 6)
for workers in (0, 1, 2):
    batches = [[0, 1, 2, 3, 4] * 3] * 3
    loader = DataLoader(ArrayDataset(array), batch_sampler=batches, num_workers=workers)
    iterator = iter(loader)
    got = []
    thread = threading.Thread(target=lambda: got.extend(iterator))
    thread.start()
    for _ in range(2):
        wait_until(lambda: is_thread_in("__next__", thread.ident) or not thread.is_alive())

        def child():
            assert outcome(lambda: next(iterator))[1] is RuntimeError
            small = DataLoader(ArrayDataset(array), batch_sampler=[[5]], num_workers=workers)
            assert [int(batch[0, 0]) for (batch,) in small] == [5]
            loader.close()
            os.environ.clear()

        in_child(child)
        in_child(lambda: None, sys.exit)
    thread.join()
    assert [batch[:, 0].tolist() for (batch,) in got] == batches
""",
    )


def test_pools_and_torchs_workers_beside_an_open_loader(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
torch.set_num_threads(1)
loader = DataLoader(dataset, 4, num_workers=2)
iterator = iter(loader)
lent = [next(iterator) for _ in range(2)]


def total(k):
    if k % 2:
        lent.clear()
    return sum(int(labels.sum()) for _, labels in loader) + k


with multiprocessing.get_context("fork").Pool(2) as pool:
    check([next(iterator)], 2)
    assert pool.map(total, range(6)) == [780 + k for k in range(6)]
    check(list(iterator), 3)
check(lent)

iterator = iter(loader)
first = next(iterator)
theirs = TorchLoader(dataset, 4, num_workers=2)
mixed = [batch for pair in zip(iterator, theirs) for batch in pair]
assert len(mixed) == 18
check([first] + mixed[::2])
check(mixed[1::2])
ours_in_workers = TorchLoader([DataLoader(dataset, 40)], None, collate_fn=list, num_workers=1)
((batch,),) = list(ours_in_workers)
assert torch.equal(batch[0], x)
""",
    )


def test_a_child_clips_on_threads_of_its_own(tmp_path: Path) -> None:
    """OpenMP's are not there, and libgomp would wait for them as torch's operations do."""
    run_script(
        tmp_path,
        HEAD
        + """
from fastloop import clip_grad_norm_

torch.set_num_threads(2)
p = torch.zeros(1 << 20, requires_grad=True)
p.grad = torch.ones(1 << 20)
assert clip_grad_norm_([p], 1e9) > 1


def clip():
    assert clip_grad_norm_([p], 1.0) == 1024.0
    assert abs(p.grad[5].item() * 1024 - 1) < 1e-6


in_child(clip)
p.grad.fill_(1.0)
clip()
""",
    )
