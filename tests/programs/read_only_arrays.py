"""Collates read-only arrays, and prints the warnings: `read_only_arrays.py ours|theirs`."""

import sys
import warnings

import numpy as np
from torch.utils.data import default_collate

from fastloop.data.collate import make_collate

collate = make_collate() if sys.argv[1] == "ours" else default_collate
a = np.zeros(3)
a.flags.writeable = False
b = np.memmap("mapped", np.uint8, "w+", shape=4)
b = np.memmap("mapped", np.uint8, "r")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for batch in ([np.zeros(3)] * 2, [np.zeros(3), a], [a, a], [b, b], [a[::-1]], [a.T]):
        try:
            print(collate(batch).tolist(), len(caught))
        except ValueError as error:
            print(error)
for warning in caught:
    print(warning.category, warning.message)
