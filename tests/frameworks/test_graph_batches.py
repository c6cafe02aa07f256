"""torch_geometric: graphs are put together by its collate and its samplers, in its loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from framework_trials import assert_same_patched

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import (
    DataListLoader,
    DataLoader,
    DynamicBatchSampler,
    ImbalancedSampler,
)

from fastloop.loader.shared import SyncIter
from fastloop.loader.workers.processes import ProcessIter


def graph(index: int) -> Data:
    nodes = index % 4 + 2
    edges = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    return Data(
        x=torch.rand(nodes, 3, generator=torch.Generator().manual_seed(index)),
        edge_index=edges,
        y=torch.tensor([index % 3]),
        name=f"graph {index}",
    )


def of_two_kinds(index: int) -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.full((index % 3 + 1, 2), float(index))
    data["author"].x = torch.full((2, 1), float(index))
    data["author", "writes", "paper"].edge_index = torch.zeros(2, 2, dtype=torch.long)
    return data


def plain(batch: Any) -> Any:
    """A batch as what assert_identical compares."""
    if isinstance(batch, list):
        return [plain(item) for item in batch]
    return type(batch).__name__, batch.to_dict(), getattr(batch, "num_graphs", 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [graph, of_two_kinds])
def test_batches_of_graphs(make: Any, workers: int) -> None:
    def program(_: Any) -> Any:
        graphs = [make(i) for i in range(13)]
        loader = DataLoader(
            graphs, batch_size=4, shuffle=True, num_workers=workers, follow_batch=["x"]
        )
        return [plain(batch) for _ in range(2) for batch in loader]

    assert_same_patched(program, ProcessIter if workers else SyncIter)


def test_samplers_and_lists() -> None:
    def program(_: Any) -> Any:
        graphs = [graph(i) for i in range(13)]
        loaders = [
            DataListLoader(graphs, batch_size=4, shuffle=True),
            DataLoader(graphs, batch_sampler=DynamicBatchSampler(graphs, 12, shuffle=True)),
            DataLoader(graphs, sampler=ImbalancedSampler(torch.tensor([g.y for g in graphs]))),
        ]
        return [plain(batch) for loader in loaders for batch in loader]

    assert_same_patched(program)


def test_training_on_graphs() -> None:
    def program(_: Any) -> Any:
        from torch_geometric.nn import GCNConv, global_mean_pool

        layer, head = GCNConv(3, 4), torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], 0.1)
        losses = []
        for batch in DataLoader([graph(i) for i in range(13)], batch_size=4, shuffle=True):
            out = head(global_mean_pool(layer(batch.x, batch.edge_index).relu(), batch.batch))
            loss = torch.nn.functional.cross_entropy(out, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, list(head.state_dict().values())

    assert_same_patched(program)
