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
from fastloop.compat.tensors import is_plain, place_of
from fastloop.compat.torch_parts import TorchScaler, difference
from fastloop.device.accelerator import open_accelerator
from fastloop.device.prefetch import StaticBatch

cuda: Any = torch.cuda
_DEVICES = ("cuda",)
_FIXED = (int, float, str, bytes, type(None))  # leaves that a graph holds


def _describe(batch: Any) -> tuple[dict[Path, Any], str]:
    """Return what a batch that is replayed must share; and why no graph takes this one, or ""."""
    facts: dict[Path, Any] = {}
    for path, leaf in list_leaves(batch):
        if isinstance(leaf, torch.Tensor) and is_plain(leaf) and leaf.device.type in _DEVICES:
            facts[path] = leaf.device, place_of(leaf)
        elif isinstance(leaf, _FIXED):
            facts[path] = leaf
        else:
            found = look_up(leaf, "device", type(leaf).__name__)
            rule = "a dense tensor on a CUDA device or a number"
            return facts, f"{describe_path(path)} must be {rule}, got one of {found}"
    has_tensor = any(isinstance(fact, tuple) for fact in facts.values())
    return facts, "" if has_tensor else "a batch holds no tensor"


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    return map_leaves(value, lambda _, x: change(x) if isinstance(x, torch.Tensor) else x)


class GraphStep:
    """The results of a step for each batch of a loader; ``graph_step()`` makes it.

    Attributes:
        reason: why steps are plain calls; "": they are replayed, or will be.
        replays: how many steps were replays of the graph.
    """

    def __init__(self, step: Callable[[Any], Any], loader: Iterable[Any], warmup: int) -> None:
        self.reason, self.replays = "", 0
        self._step, self._loader, self._left = step, loader, warmup
        self._facts: Any = None  # of the first batch
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
        if fault := fault or difference("scaler"):  # a capture that fails leaves it half way
            return self._run_plain(batch, fault)
        if self._facts is None:
            self._facts = facts
            device = next(fact[0] for fact in facts.values() if isinstance(fact, tuple))
            self._static, self._side = StaticBatch(open_accelerator(device)), cuda.Stream(device)
        if facts != self._facts or self._left > 0:  # the last batch may be shorter
            self._left -= facts == self._facts
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
        """Run the step on the stream of captures, as torch asks for before the first one."""
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
        """Return the parameters of all optimizers, and the numbers of their groups, which a graph
        holds unless they are tensors."""
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        pairs = [((i, name), group[name]) for i, group in enumerate(groups) for name in group]
        numbers = {k: v for k, v in pairs if not isinstance(v, (list, torch.Tensor))}
        return [each for group in groups for each in group["params"]], numbers

    def _capture(self, batch: Any) -> str:
        """Capture the step, which does not run now; return why that cannot be, or "". SYNC."""
        graph, (parameters, self._numbers) = cuda.CUDAGraph(), self._read_groups()
        grads = [parameter.grad for parameter in parameters]
        batch = self._static.fill(batch)
        try:
            # torch leaves the stream of a capture that fails the current one.
            back = cuda.stream(cuda.current_stream(self._side.device))
            with back, cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"):
                result = self._step(batch)
        except Exception as error:
            # What the step has changed on the host: its gradients were never computed.
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            for one in gc.get_objects():
                if issubclass(type(one), TorchScaler):
                    getattr(one, "_per_optimizer_states", {}).clear()  # disabled ones lack it
            return f"it cannot be captured: {type(error).__name__}: {error}"
        self._graph, self._result = graph, _map_tensors(result, torch.Tensor.detach)
        return ""

    def _fill(self, batch: Any) -> str:
        """Copy the batch to where the graph reads it; return why it must not run, or ""."""
        changed = self._read_groups()[1].items() - self._numbers.items()
        for (_, name), value in changed:
            return f"{name} of an optimizer has become {value}; pass it as a tensor"
        self._static.fill(batch)
        return ""


def graph_step(step: Callable[[Any], Any], loader: Iterable[Any], *, warmup: int = 3) -> GraphStep:
    """Return an iterable over the results of ``step(batch)`` for each batch of a loader, captured
    once as a CUDA graph and replayed: the host then launches one graph a batch.

    Args:
        step: all of a training step (``zero_grad``, forward, loss, backward, clipping, optimizer);
            it returns the loss, or tensors, which may be kept. It must not wait for the device
            (``.item()``), nor decide on the host by what the batch holds.
        loader: gives batches on a CUDA device, such as ``DataLoader(..., device="cuda")`` without
            ``static_buffers``.
        warmup: so many steps are plain calls, on a stream of their own. torch needs 11 under DDP.

    Each batch is trained on once. Batches unlike the first one, such as a short last one, are plain
    calls. Where nothing can be captured, all are, and ``reason`` of the result says why, as does a
    RuntimeWarning where there is a CUDA device. An optimizer needs ``capturable=True``
    if it has that argument, and a learning rate that changes must be a tensor; if another number of
    its groups changes, the graph is given up. Other numbers, ``train()`` and ``eval()`` stay what
    they were in the capture.

    Experimental: it has run on a simulated device only, not on a GPU yet.
    """
    check_callable("step", step, "a function of a batch")
    read_int("warmup", warmup, 1, remedy="torch asks for it before a capture")
    return GraphStep(step, loader, warmup)
