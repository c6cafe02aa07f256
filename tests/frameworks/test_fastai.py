"""fastai: its own loader, a learner that trains with it, and lists of transforms."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from framework_trials import assert_same_patched
from torchvision_shim import torchvision_v2

torchvision_v2()  # which it imports
loads: Any = pytest.importorskip(
    "fastai.data.load", reason="fastai is not installed", exc_type=ImportError
)
from fastai.data.core import DataLoaders, TfmdDL
from fastai.learner import Learner


def samples(count: int = 22) -> list[Any]:
    return [(torch.full((3,), i / 9), i % 2) for i in range(count)]


class Skipping(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 17

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 3:
            raise loads.SkipItemException
        return torch.rand(2) + index, random.random()


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(13))


CASES: dict[str, Any] = {
    "shuffled": lambda n: loads.DataLoader(samples(), bs=4, shuffle=True, num_workers=n),
    "skipping": lambda n: loads.DataLoader(Skipping(), bs=4, num_workers=n, drop_last=True),
    "of samples": lambda n: loads.DataLoader(samples(), bs=None, num_workers=n),
    "stream": lambda n: loads.DataLoader(Endless(), bs=4, num_workers=n),
    "transforms": lambda n: TfmdDL(
        samples(),
        bs=4,
        num_workers=n,
        shuffle=True,
        after_item=[lambda x: x * 2],
        after_batch=[lambda x: x + torch.rand(1)],
    ),
    "persistent": lambda n: loads.DataLoader(
        samples(), bs=4, num_workers=n, persistent_workers=n > 0
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_loaders(name: str, workers: int) -> None:
    def program(_: Any) -> Any:
        loader = CASES[name](workers)
        return [list(loader), list(loader), loader.one_batch()]

    assert_same_patched(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_learner(workers: int) -> None:
    def program(_: Any) -> Any:
        training = loads.DataLoader(samples(), bs=4, shuffle=True, num_workers=workers)
        validation = training.new(samples(9), shuffle=False)
        data = DataLoaders(training, validation, device=torch.device("cpu"))
        model = torch.nn.Linear(3, 2)
        learner = Learner(data, model, loss_func=torch.nn.functional.cross_entropy)
        with learner.no_logging():
            learner.fit(2, 0.1)
        return list(map(list, learner.recorder.values)), list(model.state_dict().values())

    assert_same_patched(program)
