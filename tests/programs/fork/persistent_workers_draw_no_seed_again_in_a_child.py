import os

import torch
from torch.utils.data import TensorDataset
from workers import in_child

from fastloop import ArrayDataset, DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


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
