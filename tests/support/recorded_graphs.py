"""A stand-in for torch.cuda over tensors of the CPU, with streams that are names and graphs that
behave as graphs do. A capture writes down torch's operations with the memory that each reads and
writes, and takes back what they have written. A replay runs them on the same memory: numbers are
constants, addresses are fixed. The replay then spoils what all other graphs of the pool have made,
because graphs of one pool may have the same memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


def tensors_of(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def address_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def bytes_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.made: dict[int, Tensor] = {}  # in the capture, by address
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # memory that the capture has written

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        for at, argument in enumerate(call._schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            if argument.alias_info and argument.alias_info.is_write:
                self.keep(tensors_of(value))
        known = set(map(address_of, tensors_of((args, kwargs))))
        results = call(*args, **kwargs)
        made = [(i, t) for i, t in enumerate(tensors_of(results)) if address_of(t) not in known]
        self.made.update((address_of(t), t) for _, t in made)
        self.calls.append((call, args, kwargs, made))
        return results

    def keep(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            at = address_of(tensor)
            if at not in self.made and at not in self.before:
                self.before[at] = bytes_of(tensor), bytes_of(tensor).clone()

    def take_back(self) -> None:
        for memory, value in self.before.values():
            memory.copy_(value)

    def run(self) -> None:
        for call, args, kwargs, made in self.calls:
            results = tensors_of(call(*args, **kwargs))
            for i, tensor in made:
                tensor.copy_(results[i])


class Stream:
    def __init__(self, rig: "Rig", name: str) -> None:
        self.rig, self.name, self.device = rig, name, torch.device("cpu")

    def wait_stream(self, other: Any) -> None:
        self.rig.events.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, rig: "Rig") -> None:
        self.rig, self.recorder = rig, Recorder()

    def replay(self) -> None:
        assert self.rig.capturing is None
        self.rig.events.append(f"replay on {self.rig.current.name}")
        with torch.no_grad():
            self.recorder.run()
            for graph in self.rig.graphs:
                for tensor in graph.recorder.made.values() if graph is not self else ():
                    bytes_of(tensor).fill_(255)  # NaN, or -1


class Rig:
    """Takes the place of torch.cuda."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.graphs: list[Graph] = []
        self.pools: list[object] = []
        self.main = self.current = Stream(self, "main")
        self.capturing: Graph | None = None
        self.CUDAGraph = lambda: Graph(self)
        self.Stream = lambda device: Stream(self, "side")
        self.current_stream = lambda device: self.current
        self.is_available = lambda: True
        self.graph_pool_handle = object

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(
        self, graph: Graph, *, pool: object, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.pools.append(pool)
        self.capturing, before, self.current = graph, self.current, stream
        try:
            with graph.recorder:
                yield
        finally:
            self.capturing = None
            with torch.no_grad():
                graph.recorder.take_back()
        self.events.append(f"captured on {stream.name}")
        self.graphs.append(graph)
        self.current = before  # which torch leaves out where the capture fails
