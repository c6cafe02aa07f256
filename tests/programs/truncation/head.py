"""What the programs of this folder share."""

import os

import numpy as np
import torch

from fastloop import ArrayDataset

PAGE = os.sysconf("SC_PAGE_SIZE")
path = os.path.abspath("data.bin")


class Table:
    def __init__(self, row_bytes, rows):
        self.row_bytes, self.rows = row_bytes, rows
        data = np.arange(rows * row_bytes, dtype=np.uint64).astype(np.uint8)
        self.data = data.reshape(rows, row_bytes)
        self.write()
        self.mapped = np.memmap(path, np.uint8, "r", shape=self.data.shape)
        self.truth = torch.from_numpy(self.data)
        self.dataset = ArrayDataset(index=torch.arange(rows), data=self.mapped)

    def write(self):
        with open(path, "r+b" if os.path.exists(path) else "wb") as file:
            file.write(self.data.tobytes())

    def check(self, batch):
        assert torch.equal(batch["data"], self.truth[batch["index"]])


def fails(call, row=None):
    try:
        call()
    except OSError as error:
        text = str(error)
        assert "field 'data'" in text and error.filename == path and path in text, text
        assert "become shorter" in text, text
        found = int(text.split("row ")[1].split()[0])
        assert row is None or found == row, (found, row)
        return found
    raise AssertionError("no error")
