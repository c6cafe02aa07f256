"""Where batches lie on a machine of several nodes, over fake trees of /sys: what is chosen, and the
policy of loaders' memory. The machine of the tests may have one node."""

import os
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import assert_same

import fastloop
from fastloop import _core
from fastloop.base import machine
from fastloop.base.machine import choose_nodes
from fastloop.loader import shared

NODE = "sys/devices/system/node"
TWO = {f"{NODE}/node0/cpulist": "0-1,4\n", f"{NODE}/node1/cpulist": "2-3,5-7\n"}
ADDRESS = "0000:3b:00.0"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def device_at(node: str) -> dict[str, str]:
    return {f"sys/bus/pci/devices/{ADDRESS}/numa_node": node}


def have_device(monkeypatch: pytest.MonkeyPatch, **about: int) -> None:
    """Let torch tell this of every CUDA device."""
    tell = lambda device: SimpleNamespace(**about)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", tell)


def test_nodes_have_the_cpus_that_the_process_may_use(tmp_path: Path) -> None:
    assert machine.read_nodes(plant(tmp_path, TWO)) == {0: {0, 1, 4}, 1: {2, 3, 5, 6, 7}}


@pytest.mark.parametrize("allowed", [{0, 4}, {2}])
def test_a_process_on_one_node_has_nothing_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    have_device(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    root = plant(tmp_path, TWO | device_at("1"))
    assert len(machine.read_nodes(root)) == 1
    assert choose_nodes(-1, root) == choose_nodes(0, root) == 0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {f"{NODE}/node0/cpulist": "0-7\n"},
        TWO | {f"{NODE}/node1/cpulist": "\n"},  # memory without CPUs
        TWO | {f"{NODE}/node1/cpulist": "no list"},
        TWO | {f"{NODE}/node1/cpulist": "3-x"},
        {f"{NODE}/node{n}/cpulist": f"{n}" for n in (0, 64)},  # more nodes than the set has bits
    ],
)
def test_what_cannot_be_read_is_one_node(tmp_path: Path, files: dict[str, str]) -> None:
    assert choose_nodes(-1, plant(tmp_path, files)) == 0


def test_batches_for_no_device_lie_on_all_nodes_in_turn(tmp_path: Path) -> None:
    four = {f"{NODE}/node{n}/cpulist": f"{2 * n}-{2 * n + 1}" for n in range(4)}
    assert choose_nodes(-1, plant(tmp_path, four)) == 0b1111


@pytest.mark.parametrize(("told", "expected"), [("1\n", 0b10), ("0\n", 1), ("-1\n", 3), ("", 3)])
def test_batches_for_a_device_lie_at_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, expected: int
) -> None:
    have_device(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert choose_nodes(0, plant(tmp_path, TWO | device_at(told))) == expected


def test_a_torch_that_does_not_tell_the_address_costs_the_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_device(monkeypatch, multi_processor_count=1)
    assert choose_nodes(0, plant(tmp_path, TWO | device_at("1"))) == 3


# ---- loaders


class Pools:
    """Notes the nodes of each pool that loaders open."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def __call__(self, *args: Any, nodes: int = 0) -> Any:
        self.nodes.append(args[3] if len(args) > 3 else nodes)
        return _core.BatchPool(*args[:3], nodes=self.nodes[-1])


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pools:
    """A machine of two nodes."""
    choose = partial(choose_nodes, root=plant(tmp_path, TWO))
    monkeypatch.setattr(machine, "choose_nodes", choose)
    monkeypatch.setattr(shared, "BatchPool", pools := Pools())
    return pools


DATA = torch.utils.data.TensorDataset(torch.arange(4 << 20).reshape(16, -1))


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that workers make."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return DATA[index][0] + 0


def count_interleaved() -> int:
    """Return how many ranges of this process's memory lie on nodes in turn."""
    try:
        text = Path("/proc/self/numa_maps").read_text()
    except OSError:
        pytest.skip("this system does not tell policies")
    return len(re.findall(r"^\w+ interleave", text, re.MULTILINE))


def takes_policies() -> bool:
    """Return whether memory can have a policy here: containers may refuse."""
    before = count_interleaved()
    pool = _core.BatchPool(0, True, nodes=3)
    return pool.is_own() and count_interleaved() > before


@pytest.mark.parametrize(("dataset", "path"), [(DATA, "array"), (Items(), "process")])
@pytest.mark.parametrize(("numa", "expected"), [("auto", 3), ("off", 0)])
def test_loaders_place_their_memory(
    pools: Pools, dataset: Any, path: str, numa: str, expected: int
) -> None:
    is_placed, before = numa == "auto" and takes_policies(), count_interleaved()
    with fastloop.DataLoader(dataset, batch_size=8, num_workers=1, path=path, numa=numa) as loader:
        ours = list(loader)
        assert (count_interleaved() > before) == is_placed
    assert_same(ours, list(torch.utils.data.DataLoader(dataset, batch_size=8)))
    assert pools.nodes == [expected]


def test_numa_must_be_a_choice() -> None:
    with pytest.raises(ValueError, match=r"numa must be .*'auto'.*'off', got 'on'"):
        fastloop.DataLoader(DATA, numa="on")
