"""What the programs of this folder share."""

from pathlib import Path

from helpers import slow_array

from fastloop import ArrayDataset, DataLoader

array = slow_array(Path.cwd(), 8)


def loader_of(workers, rows):
    slow = [i % 8 for i in range(rows)]  # 25 ms a row
    return DataLoader(
        ArrayDataset(array),
        batch_sampler=[[3], slow, [4], [5]],
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        path="array",
    )
