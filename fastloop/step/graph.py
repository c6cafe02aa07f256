"""A training step as CUDA graphs: captured once for each shape of a batch, then replayed for each
batch of that shape.

A step is called while its shape is new and while the warm-up lasts; docs/internals/resident.md has
the rules, and says who owns what a graph reads and writes."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fastloop.base.checks import check_callable, look_up, read_int
from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.compat.tensors import Slot, is_plain, slot_of
from fastloop.compat.torch_parts import TorchScaler, difference
from fastloop.device.accelerator import open_accelerator
from fastloop.device.upload import StaticBatch

cuda: Any = torch.cuda
_DEVICES = ("cuda",)
_FIXED = (int, float, str, bytes, type(None))  # leaves with a value that a graph keeps
_FEW_SHAPES = 1024  # without a graph; a number that differs in each batch makes each a new shape
_OPEN_WINDOW = (
    "a call must take the steps of the same optimizers as all other calls, and leave no gradients "
    "to a later call (pass accumulate= for windows of several batches)"
)


class _Shape(NamedTuple):
    """The facts that batches of one graph share: the layout of each tensor, and each number."""

    device: torch.device | None
    slots: tuple[tuple[Path, Slot], ...]
    numbers: tuple[tuple[Path, type, Any], ...]

    def __str__(self) -> str:
        return ", ".join(str(list(slot.shape)) for _, slot in self.slots)


def _describe(batch: Any, device: torch.device | None) -> tuple[_Shape, str]:
    """Return the batch's shape; and why no graph takes this batch, or "".

    Args:
        device: of all tensors, if it is known."""
    slots: list[tuple[Path, Slot]] = []
    numbers: list[tuple[Path, type, Any]] = []
    fault = ""
    for path, leaf in list_leaves(batch):
        is_tensor = isinstance(leaf, torch.Tensor) and is_plain(leaf)
        if is_tensor and leaf.device.type in _DEVICES and device in (None, leaf.device):
            device = leaf.device
            slots.append((path, slot_of(leaf)))
        elif isinstance(leaf, _FIXED):
            numbers.append((path, type(leaf), leaf))
        else:
            found = look_up(leaf, "device", type(leaf).__name__)
            rule = f"a dense tensor on {device or 'a CUDA device'} or a number"
            fault = fault or f"{describe_path(path)} must be {rule}, got {found}"
    fault = fault or ("" if slots else "a batch holds no tensor")
    return _Shape(device, tuple(slots), tuple(numbers)), fault


class _Graph(NamedTuple):
    """A captured step. The input is the graph's own; the result lies in the graphs' pool. ``told``
    is the graph's key in ``stats()``."""

    graph: Any
    static: StaticBatch
    result: Any
    told: str


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    return map_leaves(value, lambda _, x: change(x) if isinstance(x, torch.Tensor) else x)


def _objects_of(kind: type) -> Iterator[Any]:
    return (one for one in gc.get_objects() if issubclass(type(one), kind))


@contextmanager
def _stepped_optimizers(known: Container[int] | None = None) -> Iterator[dict[int, Optimizer]]:
    """Collect the optimizers that take a step within the block, by id. If an optimizer is not a
    known one, its step raises before it makes any state."""
    found: dict[int, Optimizer] = {}

    def note(optimizer: Optimizer, *_: Any) -> None:
        if known is not None and id(optimizer) not in known:
            raise ValueError(_OPEN_WINDOW)
        found[id(optimizer)] = optimizer

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


class _HostState:
    """The host's state before a capture: a captured step changes it, though no kernel runs."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._gradients = [
            (each, each.grad, None if each.grad is None else each.grad._version)
            for each in [*parameters, *_objects_of(torch.nn.Parameter)]
        ]
        self._attributes = [(each, set(vars(each))) for each in _objects_of(Optimizer)]

    def leaves_gradients(self) -> bool:
        """Tell whether gradients were made, or added up, that are still there."""
        return any(
            each.grad is not None
            and (grad is None or (each.grad is grad and grad._version != version))
            for each, grad, version in self._gradients
        )

    def restore(self) -> None:
        for each, grad, _ in self._gradients:
            each.grad = grad
        for optimizer, names in self._attributes:  # a scaler adds some while a fused one steps
            for name in vars(optimizer).keys() - names:
                delattr(optimizer, name)
        for scaler in _objects_of(TorchScaler):  # disabled ones lack the attribute
            getattr(scaler, "_per_optimizer_states", {}).clear()


class GraphStep:
    """The results of a step for each batch of a loader; ``graph_step()`` makes it.

    Attributes:
        reason: why steps are plain calls; "": steps are replayed, or will be.
        replays: the number of steps that were replays of a graph.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        loader: Iterable[Any],
        warmup: int,
        max_graphs: int,
        accumulate: int,
    ) -> None:
        self.reason, self.replays = "", 0
        self._step, self._loader, self._warmup = step, loader, warmup
        self._max_graphs, self._accumulate = max_graphs, accumulate
        self._ran: Counter[str] = Counter()
        self._device: Any = None  # the first batch's
        self._seen: set[_Shape] = set()  # called, without a graph
        self._graphs: dict[_Shape, _Graph] = {}
        self._optimizers: Any = None  # that every call steps, by id
        self._numbers: dict[Any, Any] = {}  # in the optimizers' groups, at the first capture

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader if self._accumulate == 1 else self._windows():
            yield self._run(batch)

    def __len__(self) -> int:
        return -(-len(self._loader) // self._accumulate)  # type: ignore[arg-type]

    def stats(self) -> dict[str, int]:
        """Return the number of steps by how they have run: "replayed for" and the sizes of the
        tensors, or "called: " and why. No sync."""
        return dict(self._ran)

    def _windows(self) -> Iterator[list[Any]]:
        batches = iter(self._loader)
        while window := list(islice(batches, self._accumulate)):
            yield window

    def _run(self, batch: Any) -> Any:
        if self.reason:
            return self._call(batch)
        shape, fault = _describe(batch, self._device)
        # After a capture that fails, the scaler's state is reset: its private parts must be known.
        if fault := fault or difference("scaler"):
            return self._call_from_now_on(batch, fault)
        if self._device is None:
            self._open(shape.device)
        if shape not in self._graphs and (why := self._why_not_yet(shape)):
            return self._call_aside(batch, why)
        if fault := self._why_changed() or self._fill(shape, batch):
            return self._call_from_now_on(batch, fault)
        graph = self._graphs[shape]
        graph.graph.replay()
        self.replays += 1
        self._ran[graph.told] += 1
        return _map_tensors(graph.result, torch.Tensor.clone)

    def _open(self, device: Any) -> None:
        """Make what all graphs share. They never run at once, and none reads what another wrote, so
        one pool of memory is enough; torch asks for one stream of captures with it."""
        self._device, self._side = device, cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()

    def _why_not_yet(self, shape: _Shape) -> str:
        """Return why the step is called for a batch of a shape without a graph; "": capture it."""
        is_new = shape not in self._seen
        if len(self._seen) == _FEW_SHAPES:
            self._seen.clear()
        self._seen.add(shape)
        if self._warmup > 0:
            return "warm-up"
        if is_new:
            return "the first batch of its shape"
        full = len(self._graphs) >= self._max_graphs
        return f"max_graphs={self._max_graphs} shapes have a graph" if full else ""

    def _call(self, batch: Any, why: str = "") -> Any:
        self._ran[f"called: {why or self.reason}"] += 1
        return self._step(batch)

    def _call_from_now_on(self, batch: Any, reason: str) -> Any:
        self._give_up(reason)
        return self._call(batch)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._graphs.clear()
        if cuda.is_available():
            text = f"graph_step() calls the step for each batch, without a graph: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _call_aside(self, batch: Any, why: str) -> Any:
        """Run the step on the stream of captures, as torch asks for before the first capture."""
        current = cuda.current_stream(self._device)
        self._side.wait_stream(current)
        try:
            with cuda.stream(self._side), _stepped_optimizers() as found:
                result = self._call(batch, why)
        finally:
            current.wait_stream(self._side)
        self._warmup -= self._warmup > 0
        if self._optimizers is None:
            self._optimizers = found
        elif found.keys() != self._optimizers.keys():
            self._give_up(_OPEN_WINDOW)
        return result

    def _read_groups(self) -> tuple[list[torch.Tensor], dict[Any, Any]]:
        """Return the optimizers' parameters, and the numbers in their groups. A graph keeps such a
        number as a constant; a tensor is read at each replay."""
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        pairs = [((i, name), group[name]) for i, group in enumerate(groups) for name in group]
        numbers = {
            k: v for k, v in pairs if isinstance(v, Hashable) and not isinstance(v, torch.Tensor)
        }
        return [each for group in groups for each in group["params"]], numbers

    def _why_changed(self) -> str:
        """Say which number of the optimizers' groups differs from the graphs'; "": none does."""
        numbers = self._read_groups()[1]
        self._numbers = self._numbers or numbers
        for (_, name), value in numbers.items() - self._numbers.items():
            return f"an optimizer's {name} has become {value} (pass a tensor)"
        return ""

    def _fill(self, shape: _Shape, batch: Any) -> str:
        """Copy the batch into the memory of its graph, and capture the step if there is no graph;
        return why that is impossible, or ""."""
        if graph := self._graphs.get(shape):
            graph.static.fill(batch)
            return ""
        return self._capture(shape, batch)

    def _capture(self, shape: _Shape, batch: Any) -> str:
        """Capture the step without running the step; return why that is impossible, or "". SYNC."""
        graph, static = cuda.CUDAGraph(), StaticBatch(open_accelerator(self._device))
        before = _HostState(self._read_groups()[0])
        batch = static.fill(batch)
        how = {"pool": self._pool, "stream": self._side, "capture_error_mode": "thread_local"}
        try:
            # If a capture fails, torch leaves its stream the current stream.
            back = cuda.stream(cuda.current_stream(self._device))
            with back, cuda.graph(graph, **how), _stepped_optimizers(self._optimizers) as found:
                result = self._step(batch)
                if len(found) < len(self._optimizers) or (not found and before.leaves_gradients()):
                    raise ValueError(_OPEN_WINDOW)
        except BaseException as error:
            before.restore()  # the step's gradients were never computed
            if not isinstance(error, Exception):
                raise
            return f"the step cannot be captured: {type(error).__name__}: {error}"
        result = _map_tensors(result, torch.Tensor.detach)
        self._graphs[shape] = _Graph(graph, static, result, f"replayed for {shape}")
        return ""


def graph_step(
    step: Callable[[Any], Any],
    loader: Iterable[Any],
    *,
    warmup: int = 3,
    max_graphs: int = 16,
    accumulate: int = 1,
) -> GraphStep:
    """Return an iterable over the results of ``step(batch)`` for each batch of a loader. The step
    is captured as a CUDA graph, once for each shape of a batch, and replayed: the host then
    launches one graph a batch.

    Args:
        step: a whole training step (``zero_grad``, forward, loss, backward, clipping, optimizer)
            that returns the loss, or tensors; you may keep them. The step must not wait for the
            device (``.item()``), nor branch on the host by a batch's values.
        loader: gives batches on a CUDA device, for example ``DataLoader(..., device="cuda")``
            without ``static_buffers``.
        warmup: the number of first steps that are plain calls, on their own stream. torch needs 11
            under DDP.
        max_graphs: the number of shapes that get a graph. Each graph keeps memory for one batch;
            all share the rest of their memory.
        accumulate: the number of batches of one step. With 2 and more, ``step`` takes a list of so
            many batches (the last list of an epoch may be shorter), calls ``backward`` for each,
            and the optimizer once.

    Each batch is trained on once. The first batch of a shape, for example a short last batch or a
    new padded length, is a plain call; at the second the step is captured. If ``max_graphs`` shapes
    have a graph, batches of any other shape stay plain calls. ``stats()`` says how steps have run.
    If the step cannot be captured, every step is a plain call, and the result's ``reason`` says
    why; with a CUDA device, a RuntimeWarning says so as well.

    An optimizer needs ``capturable=True`` if it has that argument. A learning rate that changes
    must be a tensor. If a plain number in the optimizer's groups changes, all graphs are given up.
    All other numbers, ``train()`` and ``eval()`` keep their values from the capture.

    Experimental: graph_step() has run on a simulated device only, not on a GPU yet.
    """
    check_callable("step", step, "a function of a batch")
    read_int("warmup", warmup, 1, remedy="torch asks for plain steps before a capture")
    read_int("max_graphs", max_graphs, 1, remedy="without a graph, call the step in a loop")
    read_int("accumulate", accumulate, 1, remedy="1: each batch is a step")
    return GraphStep(step, loader, warmup, max_graphs, accumulate)
