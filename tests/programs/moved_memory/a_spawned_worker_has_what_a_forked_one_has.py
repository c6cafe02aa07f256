import torch
from helpers import assert_same
from torch.utils.data import DataLoader as TorchLoader

from fastloop import DataLoader


class Writes(torch.utils.data.Dataset):
    def __init__(self):
        self.large = torch.arange(600_000.0)
        self.view = self.large[1000:2000].view(torch.int32)
        self.small = torch.zeros(8)
        self.alias = self.small[2:4]
        self.empty = torch.empty(0)
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.tied = self.weight.detach()
        self.shared = torch.zeros(4).share_memory_()

    def own(self):
        return [self.large, self.small, self.weight]

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.large[1000] = -5
        self.small[2] = 7
        self.weight.data[0] = 9
        self.shared[i] = 3
        return [
            self.view[:2].clone(),
            self.alias.clone(),
            self.empty.numel(),
            self.tied.clone(),
            self.weight.requires_grad,
        ]


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        dataset = Writes()
        addresses = [each.data_ptr() for each in dataset.own()]
        args = dict(batch_size=2, num_workers=2, multiprocessing_context=method)
        ours = list(DataLoader(dataset, **args))
        assert dataset.shared.tolist() == [3, 3, 3, 3]
        assert addresses == [each.data_ptr() for each in dataset.own()]
        assert dataset.large[1000] == 1000 and dataset.small.sum() == 0 and dataset.weight[0] == 1
        assert_same(ours, list(TorchLoader(dataset, **args)))
