"""Random sequences of calls to a GradScaler over two optimizers, the same for any class of scaler,
and all that is to be the same after each of them.

Not among the sequences: torch's fused SGD with momentum, whose momentum buffer is not initialised
(`torch.empty_like`) when its first step is skipped, so that torch does not equal itself; a scale
that torch lets become inf; a fused optimizer whose step raises."""

import copy
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch

TorchScaler = torch.amp.GradScaler
CALLS = 150  # of a sequence
SHAPES = ((3, 5), (7,), (), (0,), (2, 1, 4))


class Side:
    """A scaler and two optimizers, of which the first unscales by itself."""

    def __init__(self, cls: type[TorchScaler], seed: int) -> None:
        self.scaler = cls("cpu", init_scale=2.0**10, growth_interval=2)
        generator = torch.Generator().manual_seed(seed)
        self.params = [
            [torch.randn(s, generator=generator).requires_grad_() for s in SHAPES] for _ in range(2)
        ]
        fused = random.Random(seed).choice([torch.optim.Adam, torch.optim.AdamW])
        self.optimizers: list[torch.optim.Optimizer] = [
            fused(self.params[0], lr=0.01, fused=True),
            torch.optim.SGD(self.params[1], lr=0.01, momentum=0.9),
        ]
        self.saved: dict[str, Any] | None = None

    def loss(self, k: int) -> torch.Tensor:
        return sum((p * p).sum() for p in self.params[k])  # type: ignore[return-value]

    def trace(self) -> Any:
        """All that is to be the same on both sides."""
        scaler: Any = self.scaler
        states = [scaler._per_optimizer_states.get(id(o), {}) for o in self.optimizers]
        return [
            scaler._scale,
            scaler._growth_tracker,
            scaler.get_scale(),
            [str(state.get("stage")) for state in states],
            [
                {
                    str(device): flag
                    for device, flag in state.get("found_inf_per_device", {}).items()
                }
                for state in states
            ],
            [[p.detach() for p in params] for params in self.params],
            [[p.grad for p in params] for params in self.params],
            [[dict(o.state[p]) for p in o.param_groups[0]["params"]] for o in self.optimizers],
            [sorted(vars(o).keys() & {"grad_scale", "found_inf"}) for o in self.optimizers],
        ]


Call = Callable[[Side], Any]


def backward(rng: random.Random) -> Call:
    def call(side: Side) -> Any:
        zero, first, second = side.loss(0), side.loss(0) + side.loss(1), side.loss(1)
        outputs = rng_shape(zero * 0, first, second)
        scaled = side.scaler.scale(outputs)
        flat = flatten(scaled)
        torch.stack(flat).sum().backward()
        return [t.detach() for t in flat]

    rng_shape = rng.choice(
        [
            lambda a, b, c: b,
            lambda a, b, c: [a, b, c],
            lambda a, b, c: (a, [b, (c,)]),
            lambda a, b, c: (t for t in (b, c)),
            lambda a, b, c: {b: 1},
        ]
    )
    return call


def flatten(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [t for part in outputs for t in flatten(part)]


def spoil(rng: random.Random) -> Call:
    """Make one element of one gradient inf or NaN."""
    k, i, value = rng.randrange(2), rng.choice([0, 1, 2, 4]), rng.choice([math.inf, math.nan])

    def call(side: Side) -> None:
        grad = side.params[k][i].grad
        if grad is not None:
            grad.view(-1)[0] = value

    return call


def zero_grad(rng: random.Random) -> Call:
    k, to_none = rng.randrange(2), rng.random() < 0.7
    return lambda side: side.optimizers[k].zero_grad(set_to_none=to_none)


def step(rng: random.Random) -> Call:
    k = rng.randrange(2)
    how = rng.choice(["", "", "", "", "none", "closure", "keyword"])

    def call(side: Side) -> Any:
        optimizer, scaler = side.optimizers[k], side.scaler
        if how == "none":
            return scaler.step(optimizer, None)
        if how == "closure":
            return scaler.step(optimizer, lambda: 17.0)
        if how == "keyword":
            return scaler.step(optimizer, closure=None)
        return scaler.step(optimizer)

    return call


def set_grad_scale(rng: random.Random) -> Call:
    """As of a user who scales gradients by hand beside the scaler."""
    return lambda side: setattr(side.optimizers[0], "grad_scale", torch.tensor(2.0))


def update(rng: random.Random) -> Call:
    new: Any = rng.choice(
        [None] * 8 + [512.0, torch.tensor(256.0), torch.tensor([128.0]), 64, torch.ones(2)]
    )
    return lambda side: side.scaler.update(new) if new is not None else side.scaler.update()


def set_something(rng: random.Random) -> Call:
    name, value = rng.choice(
        [
            ("set_growth_factor", rng.choice([1.5, 2.0, 4.0])),
            ("set_backoff_factor", rng.choice([0.5, 0.25])),
            ("set_growth_interval", rng.choice([1, 2, 3])),
        ]
    )
    return lambda side: getattr(side.scaler, name)(value)


def checkpoint(rng: random.Random) -> Call:
    how = rng.choice(["save", "load", "pickle", "copy", "empty"])

    def call(side: Side) -> Any:
        if how == "save":
            side.saved = side.scaler.state_dict()
            return {key: side.saved[key] for key in FIVE}
        if how == "load" and side.saved is not None:
            side.scaler.load_state_dict(side.saved)
        if how == "pickle":
            side.scaler = pickle.loads(pickle.dumps(side.scaler))
        if how == "copy":
            side.scaler = copy.deepcopy(side.scaler)
        if how == "empty":
            side.scaler.load_state_dict({})
        return None

    return call


FIVE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def inspect(rng: random.Random) -> Call:
    k, name = rng.randrange(2), rng.choice(["_check_inf_per_device", "_found_inf_per_device"])
    return lambda side: {
        str(device): flag for device, flag in getattr(side.scaler, name)(side.optimizers[k]).items()
    }


def unscale(rng: random.Random) -> Call:
    k = rng.randrange(2)
    return lambda side: side.scaler.unscale_(side.optimizers[k])


def refused(rng: random.Random) -> Call:
    return lambda side: side.scaler.scale(3)  # type: ignore[call-overload]


KINDS: dict[Callable[[random.Random], Call], int] = {
    backward: 30,
    spoil: 6,
    zero_grad: 8,
    unscale: 12,
    step: 40,
    update: 30,
    set_something: 4,
    set_grad_scale: 2,
    checkpoint: 6,
    inspect: 3,
    refused: 1,
}


def draw(rng: random.Random) -> tuple[str, Call]:
    """The next call, by name."""
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    return kind.__name__, kind(rng)
