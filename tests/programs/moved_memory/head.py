"""What the programs over moved tensors share."""

import torch
import torch.multiprocessing as mp

ROWS, WIDTH = 4000, 2500  # 40 MB: glibc maps so much, and unmaps it


def numbered():
    return torch.arange(ROWS, dtype=torch.float32)[:, None].repeat(1, WIDTH)


def check_rows(batches, labels=None):
    count = 0
    for rows, labels in batches:
        assert bool((rows.flatten(1) == labels[:, None]).all()), (rows, labels)
        count += len(labels)
    return count


def take_one(*_):
    pass


def put(tensor):
    queue = mp.get_context("spawn").Queue()
    queue.put(tensor)
    queue.get()


def run_pool(tensor):
    with mp.get_context("spawn").Pool(1) as pool:
        pool.map(take_one, [tensor])


def share(tensor):
    tensor.share_memory_()


def spawn(tensor):
    mp.spawn(take_one, args=(tensor,), nprocs=1)


def poison(tensor):
    # What was freed and not unmapped is given out again.
    return [torch.full_like(tensor, -1) for _ in range(3)]


def check_moves(tensor, address):
    assert tensor.data_ptr() != address, "torch did not move it: the test shows nothing"
