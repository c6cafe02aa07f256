"""Everything that training steps change, kept aside and put back in place.

Objects stay the objects they are: tensors get their numbers back, dicts and lists their contents,
so that whoever holds one (an optimizer its parameters, a CUDA graph its addresses) goes on with it.
Copies lie in host memory, to leave a device what it has."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fastloop.base.torch_parts import TorchScaler, difference

_PLAIN = (bool, int, float, str, bytes, type(None))


class Snapshot:
    """The state of objects and of all random generators, as it is now.

    Of modules: parameters, their gradients, buffers, extra state, and attributes that are numbers
    or strings. Of optimizers: groups, state, and the parameters they step. Of torch.Generators:
    their state. Of anything else what its ``state_dict()`` says. And the generators of Python,
    NumPy, and torch on the CPU and on every accelerator. SYNC: copies wait for devices.

    Raises:
        TypeError: an object has no state that can be kept.
        ValueError: a lazy module that has not seen a batch.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._restores: list[Callable[[], object]] = []
        # What loads a state may reach into optimizers and parameters, which come after it.
        for one in sorted(objects, key=_rank):
            self._restores.append(_keep(one))
        self._restores.append(keep_random_state())

    def restore(self) -> None:
        """Put everything back. May be called more than once. SYNC."""
        with torch.no_grad():
            for restore in self._restores:
                restore()


def _rank(one: Any) -> int:
    return 2 if isinstance(one, Module) else 1 if isinstance(one, Optimizer) else 0


def _keep(one: Any) -> Callable[[], object]:
    if isinstance(one, Module):
        return _keep_module(one)
    if isinstance(one, Optimizer):
        return _keep_optimizer(one)
    if isinstance(one, torch.Generator):
        state = one.get_state()
        return lambda: one.set_state(state)
    if not all(callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict")):
        raise TypeError(
            f"state holds a {type(one).__name__}, which has no state_dict() and load_state_dict(); "
            "pass modules, optimizers, scalers, schedulers and torch.Generators"
        )
    saved = copy.deepcopy(one.state_dict())
    restore_stages = _keep_stages(one) if isinstance(one, TorchScaler) else None

    def restore() -> None:
        one.load_state_dict(copy.deepcopy(saved))
        if restore_stages is not None:
            restore_stages()

    return restore


def _keep_stages(scaler: TorchScaler) -> Callable[[], object]:
    """Which optimizers it has unscaled since its last update(), which its state does not say."""
    if difference("scaler") or not scaler.is_enabled():
        return lambda: None
    restore = _keep_value(scaler._per_optimizer_states)
    return lambda: setattr(scaler, "_per_optimizer_states", restore())


def _keep_module(module: Module) -> Callable[[], object]:
    restores = [_keep_parameter(name, p) for name, p in module.named_parameters()]
    for part in module.modules():
        restores.append(_keep_value(part._buffers))
        restores.append(_keep_attributes(part))
        if type(part).get_extra_state is not Module.get_extra_state:
            restores.append(_keep_extra_state(part))
    return lambda: [restore() for restore in restores]


def _keep_parameter(name: str, parameter: Tensor) -> Callable[[], object]:
    if is_lazy(parameter):
        raise ValueError(f"parameter {name!r} has no shape yet: run the model on one batch first")
    restore, grad = _keep_value(parameter), parameter.grad
    restore_grad = _keep_value(grad)

    def restore_both() -> None:
        restore()
        parameter.grad = restore_grad()

    return restore_both


def _keep_attributes(module: Module) -> Callable[[], object]:
    plain = {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    return lambda: vars(module).update(plain)


def _keep_extra_state(module: Module) -> Callable[[], object]:
    state = copy.deepcopy(module.get_extra_state())
    return lambda: module.set_extra_state(copy.deepcopy(state))


def _keep_optimizer(optimizer: Optimizer) -> Callable[[], object]:
    restores: list[Callable[[], object]] = []
    for at, group in enumerate(optimizer.param_groups):
        names = (f"{i} of group {at} of the optimizer" for i in range(len(group["params"])))
        restores += map(_keep_parameter, names, group["params"])
        options = {name: _keep_value(v) for name, v in group.items() if name != "params"}
        restores.append(lambda g=group, o=options: g.update({k: put() for k, put in o.items()}))  # type: ignore[misc]
    restores.append(_keep_value(optimizer.state))
    return lambda: [restore() for restore in restores]


def _keep_value(value: Any) -> Callable[[], Any]:
    """A function that puts a tensor's numbers, or a container's contents, back and returns it."""
    if isinstance(value, Tensor):
        saved = value.detach().to("cpu", copy=True)
        return lambda: _fill(value, saved)
    if isinstance(value, dict):
        entries = {key: _keep_value(entry) for key, entry in value.items()}
        return lambda: _refill(value, {key: put() for key, put in entries.items()})
    if isinstance(value, list):
        items = [_keep_value(item) for item in value]
        return lambda: _refill(value, [put() for put in items])
    return lambda: value


def _fill(tensor: Tensor, saved: Tensor) -> Tensor:
    tensor.detach().copy_(saved)
    return tensor


def _refill(container: Any, contents: Any) -> Any:
    container.clear()
    (container.update if isinstance(container, dict) else container.extend)(contents)
    return container


def keep_random_state() -> Callable[[], object]:
    """Puts the generators of Python, NumPy, and torch each device back as they are now. SYNC."""
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    module: Any = None if accelerator is None else torch.get_device_module(accelerator)
    has_devices = hasattr(module, "get_rng_state_all")
    of_devices = module.get_rng_state_all() if has_devices else None

    def restore() -> None:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if has_devices:
            module.set_rng_state_all(of_devices)

    return restore
