import torch
import torch.multiprocessing as mp
from torch.utils.data import TensorDataset

from fastloop import DataLoader

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


def spawn(tensor):
    mp.spawn(take_one, args=(tensor,), nprocs=1)


from torch.utils.data import default_collate


def collate(samples):
    return default_collate(samples)


if __name__ == "__main__":
    x = numbered()
    dataset = TensorDataset(x, torch.arange(ROWS))
    addresses = [each.data_ptr() for each in dataset.tensors]
    loader = DataLoader(
        dataset, 100, num_workers=2, collate_fn=collate, multiprocessing_context="spawn"
    )
    assert check_rows(loader) == ROWS
    assert addresses == [each.data_ptr() for each in dataset.tensors]
    assert not any(each.is_shared() for each in dataset.tensors)
