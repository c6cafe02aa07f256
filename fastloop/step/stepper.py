"""Stepper: gradient accumulation with weights, clipping, loss scaling and a schedule.

The public face, the loop and the saved state. What happens to a micro-batch and to a window is
fastloop.step.accumulator's; docs/stepper.md has the whole."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fastloop.distributed.ranks import Place, find_ranks
from fastloop.step.accumulator import Accumulator, At
from fastloop.step.arguments import (
    as_schedulers,
    check_accum_dtype,
    check_max_norm,
    check_on_nonfinite,
    check_size,
    check_weight,
    enabled_scaler,
)
from fastloop.step.boundary import LossScale, Step
from fastloop.step.grad_list import parameters_of
from fastloop.step.lookahead import Lookahead
from fastloop.step.outcomes import Outcomes
from fastloop.step.stepper_checkpoint import VERSION, check_state
from fastloop.step.window import Window

Batch = TypeVar("Batch")


class Stepper:
    """Takes one optimizer step for every window of ``accumulate`` micro-batches.

    The step sees the gradient of Σ w_i·l_i / Σ w_i over a window's micro-batches with weights w_i
    and mean losses l_i, on all ranks: what one large batch would give, for short last windows,
    unequal micro-batches and token weights too. ::

        stepper = Stepper(optimizer, accumulate=4, scaler=scaler, max_norm=1.0, scheduler=scheduler)
        for x, y in stepper.iterate(loader):
            with stepper.micro(weight=len(x)):
                loss = loss_fn(model(x), y)
                stepper.backward(loss)

    Clipping, the optimizer, the scaler's update, the scheduler and zero_grad come at the end of a
    window alone.

    Args:
        optimizer: whose parameters are stepped. Where its step takes a ``grad_scale`` (torch's
            ``fused=True``), dividing and clipping is left to it.
        accumulate: micro-batches in a window, or a function that gives it for the number of
            windows stepped or skipped so far (the same on every rank).
        scaler: a fastloop or torch GradScaler. Do not call its step() or update().
        max_norm: clips the gradients' 2-norm as torch.nn.utils.clip_grad_norm_ does.
        scheduler: one or several learning rate schedulers, stepped after each step that was taken
            (at the next boundary if the host does not know yet: fused steps on an accelerator).
        model: the module or modules that run under DDP or FSDP, or contain what does.
        accum_dtype: torch.float32 or torch.float64: accumulate in buffers of that dtype (complex
            gradients: of the complex one), and round once into ``.grad``. Takes memory for one
            more set of gradients, and under DDP the stepper reduces these.
        on_nonfinite: if a gradient is inf or NaN: "window" takes no step, "micro" leaves that one
            micro-batch out (needs buffers as accum_dtype does; SYNC for each micro-batch), "ignore"
            takes the step. None: "window" with an enabled scaler, else "ignore".

    Raises:
        TypeError, ValueError: an argument is not one of the above; the message says which.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        accumulate: int | Callable[[int], int] = 1,
        *,
        scaler: torch.amp.GradScaler | None = None,
        max_norm: float | None = None,
        scheduler: LRScheduler | Iterable[LRScheduler] | None = None,
        model: Module | Iterable[Module] | None = None,
        accum_dtype: torch.dtype | None = None,
        on_nonfinite: str | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}, not a torch Optimizer")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("LBFGS calls a closure several times a step; Stepper has one gradient")
        self._optimizer = optimizer
        self._scaler = enabled_scaler(scaler)
        choice = check_on_nonfinite(on_nonfinite, self._scaler is not None)
        self._outcomes = Outcomes(as_schedulers(scheduler))
        ranks = find_ranks(model)
        if ranks is not None and ranks.has_shards and (accum_dtype or choice == "micro"):
            raise ValueError(
                "accum_dtype and on_nonfinite='micro' need whole gradients, which FSDP modules do "
                "not have; leave them out, or use MixedPrecisionPolicy(reduce_dtype=torch.float32)"
            )
        self._windows = Accumulator(
            optimizer,
            accumulate if callable(accumulate) else check_size(accumulate, "accumulate"),
            Step(optimizer, self._scaler, check_max_norm(max_norm), choice != "ignore"),
            None if self._scaler is None else LossScale(self._scaler),
            self._outcomes,
            ranks,
            accum_dtype=check_accum_dtype(accum_dtype),
            drops_micro=choice == "micro",
        )

    # ---- the loop

    def iterate(self, loader: Iterable[Batch]) -> _Batches[Batch]:
        """The loader's batches; the last one closes its window, however short.

        One micro() for each batch. A loader with a length, which len() tells, is counted; one
        without is read one batch ahead, where that is needed. A window left open at the end (a
        batch without micro()) is stepped as by flush(). Leaving the loop early discards the open
        window, with a warning.

        Raises:
            RuntimeError: ranks have unequal numbers of windows (on every rank, after the last
                window that all have); another loop of this stepper has begun inside this one.
        """
        return _Batches(loader, self._batches(loader))

    def _batches(self, loader: Iterable[Batch]) -> Generator[Batch]:
        windows = self._windows
        if windows.at is not At.OPEN:
            raise RuntimeError("iterate() inside micro(): make micro() the loop's body")
        feed = windows.feed = Lookahead(loader)
        is_over = False
        try:
            if windows.ranks is not None:
                windows.note_more(windows.tell(Place.BEGIN))
            while windows.unequal is None:
                try:
                    batch = [feed.take()]
                except StopIteration:
                    break
                yield batch.pop()  # not kept: its memory may be lent
                if windows.feed is not feed:
                    raise RuntimeError(
                        "another iterate() of this stepper has begun inside this loop; give the "
                        "inner loop a Stepper of its own, or none if it does not train"
                    )
            if windows.unequal is not None:
                raise RuntimeError(windows.unequal)
            if windows.window is not None or windows.has_announced:
                windows.flush()
            is_over = True
        finally:
            if windows.feed is feed:
                windows.feed = windows.unequal = None
                if not is_over:
                    windows.leave_loop()

    # ---- a micro-batch

    def micro(self, weight: float | Tensor = 1) -> _Micro:
        """A context for one micro-batch: its forward, and backward() once.

        Args:
            weight: what its mean loss counts: its number of samples, or of tokens. A number or a
                0-d tensor (SYNC if that is on a device), not negative, finite. With 0 nothing is
                contributed, and backward() runs nothing.

        Leaving it takes the optimizer's step if it closes the window. Left by an exception, or
        without backward(), the micro-batch is not counted; if backward() had begun, the whole
        window is discarded. Both with a warning.

        Raises:
            TypeError, ValueError: weight is something else.
            RuntimeError: on entering: inside another micro(), or the ranks of a DDP job are at
                different places.
        """
        return _Micro(self._windows, check_weight(weight))

    def backward(self, loss: Tensor) -> None:
        """Back-propagate a micro-batch's mean loss, scaled by its weight and the scaler's scale.

        Args:
            loss: one element, any real floating dtype.

        Raises:
            RuntimeError: outside micro(), or for the second time in one.
            TypeError, ValueError: loss is not a tensor of one real element.
        """
        self._windows.backward(loss)

    # ---- the boundary

    def flush(self) -> None:
        """Step an open window that is not full; nothing if none is open.

        For loops without iterate(). Under DDP every rank must call it: the stepper reduces the
        gradients, and ranks without an open window join.

        Raises:
            RuntimeError: inside micro(); ranks are at different places; an open window under FSDP.
        """
        self._refuse_inside_micro("flush")
        self._windows.flush()

    # ---- counts and states

    @property
    def is_boundary(self) -> bool:
        """Whether the micro-batch that runs, or ran last, closes its window."""
        return self._windows.is_boundary

    @property
    def last_norm(self) -> Tensor | None:
        """The gradients' 2-norm at the last boundary, unscaled and before clipping: 0-d float64.

        None before the first, and where nothing needed it (no max_norm, gradients not checked)."""
        return self._windows.last_norm

    @property
    def stepped(self) -> int:
        """Optimizer steps taken (SYNC if the last one's outcome is still on a device)."""
        return self._outcomes.read()[0]

    @property
    def skipped(self) -> int:
        """Windows without a step because a gradient was not finite (SYNC as `stepped`)."""
        return self._outcomes.read()[1]

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, also in the middle of a window (SYNC).

        Holds copies of an open window's gradients; under DDP each rank has its own. Save it beside
        the states of model, optimizer, scaler, scheduler and loader, between micro-batches.

        Raises:
            RuntimeError: inside micro(), or in the middle of a window under FSDP.
        """
        self._refuse_inside_micro("state_dict")
        windows = self._windows
        return {
            "version": VERSION,
            **self._outcomes.state_dict(),
            "mean_weight": windows.mean_weight,
            "is_buffered": windows.is_buffered,
            "window": None if windows.window is None else self._window_state(windows.window),
        }

    def _window_state(self, window: Window) -> dict[str, Any]:
        windows = self._windows
        if windows.ranks is not None and windows.ranks.has_shards:
            raise RuntimeError(
                "state_dict() in the middle of a window under FSDP, which keeps the gradients so "
                "far to itself; call it when stepper.is_boundary"
            )
        if windows.is_buffered:
            tensors = windows.own_buffers().tensors()
        else:
            tensors = [p.grad for p in parameters_of(self._optimizer)]
        return {
            **window.state_dict(),
            "scale": None if self._scaler is None else self._scaler.get_scale(),
            "tensors": [t if t is None else t.detach().clone() for t in tensors],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what state_dict() returned, in place of a window that is open here.

        Raises:
            TypeError, ValueError: it is no such state, or one of other parameters.
            RuntimeError: inside micro().
        """
        self._refuse_inside_micro("load_state_dict")
        windows = self._windows
        params = parameters_of(self._optimizer)
        window = check_state(state_dict, params, windows.is_buffered)
        windows.end_window()
        self._outcomes.load_state_dict(state_dict)
        windows.mean_weight = state_dict["mean_weight"]
        if window is None:
            return
        windows.window = Window.from_state(window)
        if windows.scale is not None:
            windows.scale.loaded = window["scale"]
        if windows.is_buffered:
            windows.own_buffers().load(window["tensors"])
            return
        for p, t in zip(params, window["tensors"], strict=True):
            p.grad = None if t is None else t.detach().to(p.device, p.dtype, copy=True)

    def _refuse_inside_micro(self, method: str) -> None:
        if self._windows.at is not At.OPEN:
            raise RuntimeError(f"{method}() inside micro(): call it after micro() was left")


class _Batches(Iterator[Batch]):
    """What iterate() returns: a generator, and the length of what it reads."""

    def __init__(self, loader: Iterable[Batch], batches: Generator[Batch]) -> None:
        self._loader: Any = loader
        self._batches = batches
        self.close = batches.close  # without a frame between, so that warnings name the caller

    def __len__(self) -> int:
        try:
            return len(self._loader)
        except (AttributeError, NotImplementedError) as error:  # of a sampler or dataset
            raise TypeError(str(error)) from error

    def __iter__(self) -> Iterator[Batch]:
        return self._batches  # a loop needs no more than the generator

    def __next__(self) -> Batch:
        return next(self._batches)


class _Micro:
    """What `with stepper.micro():` enters and leaves."""

    __slots__ = ("_weight", "_windows")

    def __init__(self, windows: Accumulator, weight: float) -> None:
        self._windows = windows
        self._weight = weight

    def __enter__(self) -> None:
        self._windows.enter(self._weight)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._windows.leave(kind is not None)
