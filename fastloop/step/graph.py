"""A training step as one CUDA graph: captured once, replayed for each batch of a loader."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fastloop.base.checks import check_callable, look_up, read_int
from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.compat.tensors import is_plain, slot_of
from fastloop.compat.torch_parts import TorchScaler, difference
from fastloop.device.accelerator import open_accelerator
from fastloop.device.upload import StaticBatch

cuda: Any = torch.cuda
_DEVICES = ("cuda",)
_FIXED = (int, float, str, bytes, type(None))  # leaves with a value that a graph keeps


def _describe(batch: Any) -> tuple[dict[Path, Any], str]:
    """Return the facts that replayed batches must share; and why no graph takes this batch, or
    ""."""
    facts: dict[Path, Any] = {}
    for path, leaf in list_leaves(batch):
        if isinstance(leaf, torch.Tensor) and is_plain(leaf) and leaf.device.type in _DEVICES:
            facts[path] = leaf.device, slot_of(leaf)
        elif isinstance(leaf, _FIXED):
            facts[path] = leaf
        else:
            found = look_up(leaf, "device", type(leaf).__name__)
            rule = "a dense tensor on a CUDA device or a number"
            return facts, f"{describe_path(path)} must be {rule}, got {found}"
    has_tensor = any(isinstance(fact, tuple) for fact in facts.values())
    return facts, "" if has_tensor else "a batch holds no tensor"


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    return map_leaves(value, lambda _, x: change(x) if isinstance(x, torch.Tensor) else x)


class GraphStep:
    """The results of a step for each batch of a loader; ``graph_step()`` makes it.

    Attributes:
        reason: why steps are plain calls; "": steps are replayed, or will be.
        replays: the number of steps that were replays of the graph.
    """

    def __init__(self, step: Callable[[Any], Any], loader: Iterable[Any], warmup: int) -> None:
        self.reason, self.replays = "", 0
        self._step, self._loader, self._warmup = step, loader, warmup
        self._facts: Any = None  # the first batch's
        self._graph: Any = None
        self._optimizers: dict[int, Optimizer] = {}  # that took a step, by id

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield self._run(batch)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def _run(self, batch: Any) -> Any:
        if self.reason:
            return self._step(batch)
        facts, fault = _describe(batch)
        # After a capture that fails, the scaler's state is reset: its private parts must be known.
        if fault := fault or difference("scaler"):
            return self._run_plain(batch, fault)
        if self._facts is None:
            self._facts = facts
            device = next(fact[0] for fact in facts.values() if isinstance(fact, tuple))
            self._static, self._side = StaticBatch(open_accelerator(device)), cuda.Stream(device)
        if facts != self._facts or self._warmup > 0:  # the last batch may be shorter
            self._warmup -= facts == self._facts
            return self._run_aside(batch)
        if fault := self._capture(batch) if self._graph is None else self._fill(batch):
            return self._run_plain(batch, fault)
        self._graph.replay()
        self.replays += 1
        return _map_tensors(self._result, torch.Tensor.clone)

    def _run_plain(self, batch: Any, reason: str) -> Any:
        self.reason, self._graph = reason, None
        if cuda.is_available():
            text = f"graph_step() calls the step for each batch, without a graph: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return self._step(batch)

    def _run_aside(self, batch: Any) -> Any:
        """Run the step on the stream of captures, as torch asks for before the first capture."""
        current = cuda.current_stream(self._side.device)
        self._side.wait_stream(current)
        note = lambda optimizer, *_: self._optimizers.update({id(optimizer): optimizer})  # noqa: E731
        handle = register_optimizer_step_post_hook(note)
        try:
            with cuda.stream(self._side):
                result = self._step(batch)
        finally:
            handle.remove()
            current.wait_stream(self._side)
        return result

    def _read_groups(self) -> tuple[list[torch.Tensor], dict[Any, Any]]:
        """Return the optimizers' parameters, and the numbers in their groups. A graph keeps such a
        number as a constant; a tensor is read at each replay."""
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        pairs = [((i, name), group[name]) for i, group in enumerate(groups) for name in group]
        numbers = {k: v for k, v in pairs if not isinstance(v, (list, torch.Tensor))}
        return [each for group in groups for each in group["params"]], numbers

    def _capture(self, batch: Any) -> str:
        """Capture the step without running the step; return why that is impossible, or "". SYNC."""
        graph, (parameters, self._numbers) = cuda.CUDAGraph(), self._read_groups()
        grads = [parameter.grad for parameter in parameters]
        batch = self._static.fill(batch)
        try:
            # If a capture fails, torch leaves its stream the current stream.
            back = cuda.stream(cuda.current_stream(self._side.device))
            with back, cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"):
                result = self._step(batch)
        except Exception as error:
            # Undo the step's changes on the host, because its gradients were never computed.
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            for one in gc.get_objects():
                if issubclass(type(one), TorchScaler):  # disabled scalers lack the attribute
                    getattr(one, "_per_optimizer_states", {}).clear()
            return f"the step cannot be captured: {type(error).__name__}: {error}"
        self._graph, self._result = graph, _map_tensors(result, torch.Tensor.detach)
        return ""

    def _fill(self, batch: Any) -> str:
        """Copy the batch into the graph's memory; return why the graph must not run, or ""."""
        changed = self._read_groups()[1].items() - self._numbers.items()
        for (_, name), value in changed:
            return f"an optimizer's {name} has become {value} (pass a tensor)"
        self._static.fill(batch)
        return ""


def graph_step(step: Callable[[Any], Any], loader: Iterable[Any], *, warmup: int = 3) -> GraphStep:
    """Return an iterable over the results of ``step(batch)`` for each batch of a loader. The step
    is captured once as a CUDA graph and replayed: the host then launches one graph a batch.

    Args:
        step: a whole training step (``zero_grad``, forward, loss, backward, clipping, optimizer)
            that returns the loss, or tensors; you may keep them. The step must not wait for the
            device (``.item()``), nor branch on the host by a batch's values.
        loader: gives batches on a CUDA device, for example ``DataLoader(..., device="cuda")``
            without ``static_buffers``.
        warmup: the number of first steps that are plain calls, on their own stream. torch needs 11
            under DDP.

    Each batch is trained on once. If a batch is unlike the first batch, for example a short last
    batch, its step is a plain call. If the step cannot be captured, every step is a plain call, and
    the result's ``reason`` says why; with a CUDA device, a RuntimeWarning says so as well.

    An optimizer needs ``capturable=True`` if it has that argument. A learning rate that changes
    must be a tensor. If a plain number in the optimizer's groups changes, the graph is given up.
    All other numbers, ``train()`` and ``eval()`` keep their values from the capture.

    Experimental: graph_step() has run on a simulated device only, not on a GPU yet.
    """
    check_callable("step", step, "a function of a batch")
    read_int("warmup", warmup, 1, remedy="torch asks for plain steps before a capture")
    return GraphStep(step, loader, warmup)
