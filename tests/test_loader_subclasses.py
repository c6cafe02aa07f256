"""Subclasses as people write them: with an __init__ of their own, with iterators that never end."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers import (
    TorchLoader,
    assert_same,
    epoch,
    run_script,
    small_dataset,
)

from fastloop import DataLoader


class Bare(DataLoader[Any]):
    """Does not call our __init__, as torchdata's StatefulDataLoader does not call torch's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        TorchLoader.__init__(self, *args, **kwargs)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, list])
def test_a_subclass_need_not_call_our_init(workers: int, collate: Any) -> None:
    args: tuple[Any, ...] = (small_dataset(), 7, True)
    kwargs: dict[str, Any] = {"num_workers": workers, "collate_fn": collate}
    loader = Bare(*args, **kwargs)
    assert set(vars(loader)) == set(vars(TorchLoader(*args, **kwargs)))
    for how in (copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))):
        assert len(list(how(loader))) == 8  # before its first use
    assert loader.stats().batches == 0
    loader.close()
    with loader:
        assert_same(epoch(loader), epoch(TorchLoader(*args, **kwargs)))
    assert loader.stats().batches == 8
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 8  # and after it
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    twin = Bare(*args, **kwargs)
    twin.load_state_dict(state)
    assert_same(list(twin), rest)
    assert (loader.device, loader.path) == (None, "auto")
    assert (loader.device_transform, loader.static_buffers) == (None, False)


TORCHDATA = """
import pickle
import warnings
import torch.utils.data
import fastloop

warnings.simplefilter("ignore")  # set_vital is deprecated
torch.utils.data.DataLoader = fastloop.DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

assert issubclass(StatefulDataLoader, fastloop.DataLoader)
dataset = torch.utils.data.TensorDataset(torch.arange(6))
for workers in (0, 1):
    with StatefulDataLoader(dataset, 2, num_workers=workers) as loader:
        print(loader.stats().batches, len(pickle.loads(pickle.dumps(loader))))
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    del iterator
    loader = StatefulDataLoader(dataset, 2, num_workers=workers)
    loader.load_state_dict(state)
    print([batch.tolist() for [batch] in loader])
    loader.close()
"""


def test_torchdatas_loader_over_ours(tmp_path: Path) -> None:
    assert run_script(tmp_path, TORCHDATA) == "0 3\n[[2, 3], [4, 5]]\n" * 2
