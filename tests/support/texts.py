"""Datasets of sequences, which worker processes can import."""

from typing import Any

import numpy as np
from torch.utils.data import Dataset


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> Any:
        return {"input_ids": list(range(i % 7)), "x": np.arange(i % 7) / 2, "label": i}


class Ids(Dataset[Any]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> Any:
        return list(range(i % 7))
