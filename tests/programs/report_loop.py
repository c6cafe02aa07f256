"""A training loop of four steps that ends as its argument says."""

import sys


def main(what):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(8, 1)), 2)):
        optimizer.zero_grad()
        (parameter * x).sum().backward()
        optimizer.step()
        if number == 2 and what == "exit":
            sys.exit(3)
        if number == 2 and what == "raise":
            raise LookupError("wrong")


if sys.argv[1] != "without torch":
    main(sys.argv[1])
