import torch
from head import ROWS, check_rows, numbered
from torch.utils.data import TensorDataset, default_collate

from fastloop import DataLoader


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
