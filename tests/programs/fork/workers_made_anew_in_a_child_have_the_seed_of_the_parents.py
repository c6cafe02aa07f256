import torch
from torch.utils.data import TensorDataset
from workers import in_child

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


class Seeds:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.initial_seed()


torch.set_num_threads(1)
loader = DataLoader(Seeds(), 2, shuffle=True, num_workers=1, persistent_workers=True)
before = [batch.tolist() for batch in loader]


def child():
    for _ in range(2):
        found = [batch.tolist() for batch in loader]
        assert found == before, (found, before)


in_child(child)
