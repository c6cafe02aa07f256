"""Stepper: gradient accumulation with weights, clipping, loss scaling and a schedule.

A state machine over micro-batches and windows: which call may follow which, which micro-batch
closes a window, and the state after an exception. docs/internals/stepper.md draws the machine and
derives the arithmetic. The Stepper uses window.py (the window's weights), boundary.py (sums in
buffers, the optimizer's step, counts and schedulers) and ranks.py (the other ranks). It is called
on the thread that trains."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fastloop.base.checks import (
    check_state,
    look_up,
    make_message,
    read_choice,
    read_int,
    read_number,
)
from fastloop.base.shown import repr_of
from fastloop.compat.ranges import named
from fastloop.compat.torch_parts import TorchScaler
from fastloop.step.boundary import Boundary, GradBuffers, Outcomes, read_schedulers
from fastloop.step.grad_list import parameters_of
from fastloop.step.norm_guard import NormGuard
from fastloop.step.ranks import Ranks, SyncPoint, Totals
from fastloop.step.window import Batch, Batches, Lookahead, WeightedBackward, Window

_VERSION = 1
_COUNTS = ("version", "boundaries", "stepped", "skipped", "open_micros")
_STATE = {**dict.fromkeys(_COUNTS, 0), "mean_weight": None}  # "norms" came later
_REMEDY = "pass the dict that state_dict() of a fastloop.Stepper returned, unchanged"
_UNEQUAL = (
    "{} of {} ranks have a further window and the rest have none (give every rank equally many "
    "batches: DistributedSampler pads its parts to equal lengths, drop_last=True truncates them)"
)


class Phase(Enum):
    """The point of a micro-batch that a Stepper has reached."""

    IDLE = 0  # outside of micro()
    ENTERED = 1  # in micro(), before backward()
    BACKWARD = 2  # inside backward()
    DONE = 3  # in micro(), after backward()


class Stepper:
    """Takes one optimizer step for every window of ``accumulate`` micro-batches.

    The step sees the gradient of Σ w_i·l_i / Σ w_i over a window's micro-batches with weights w_i
    and mean losses l_i, on all ranks. One large batch would give the same gradient, also for a
    short last window, unequal micro-batches and weights that count tokens. For example:

        stepper = Stepper(optimizer, accumulate=4, scaler=scaler, max_norm=1.0, scheduler=scheduler)
        for x, y in stepper.iterate(loader):
            with stepper.micro(weight=len(x)):
                loss = loss_fn(model(x), y)
                stepper.backward(loss)

    Clipping, the optimizer, the scaler's update, the scheduler and zero_grad run at the end of a
    window only.

    Args:
        optimizer: the optimizer to step. If its step takes a ``grad_scale`` (torch's
            ``fused=True``), the optimizer divides and clips.
        accumulate: the number of micro-batches in a window, or a function that returns this number
            for the number of windows stepped or skipped so far (the same on every rank).
        scaler: a fastloop or torch GradScaler. Do not call its step() or update().
        max_norm: clips the gradients' 2-norm as torch.nn.utils.clip_grad_norm_ does.
        scheduler: one or several learning rate schedulers, stepped after each optimizer step that
            was taken. If only the device knows the outcome (fused steps on an accelerator), the
            schedulers follow at the next boundary.
        model: the module or modules that DDP or FSDP wraps, or that contain wrapped modules.
        accum_dtype: torch.float32 or torch.float64: add gradients up in buffers of that dtype (its
            complex counterpart for complex gradients) and round once into ``.grad``. The buffers
            take memory for one more set of gradients. Under DDP the stepper reduces the buffers.
            Under FSDP2 a buffer has a shard's size, and each micro-batch is reduced.
        on_nonfinite: if a gradient is inf or NaN: "window" takes no step, "micro" leaves only that
            micro-batch out (needs the buffers of accum_dtype; SYNC for each micro-batch; under
            FSDP2 on all ranks), "ignore" takes the step. None: "window" with an enabled scaler or
            max_norm_spike, else "ignore".
        max_norm_spike: a window is a spike if its 2-norm is above this number (>= 1) times the
            median of the last 128 norms, of which 16 must be there. A warning names its batches.
        on_spike: "skip" takes no step at a spike and leaves the scale alone (SYNC on a device
            unless the optimizer is fused), "clip" takes the step with the norm clipped to that
            limit.

    Attributes:
        is_boundary: whether the micro-batch that runs, or ran last, closes its window.
        last_norm: the gradients' 2-norm at the last boundary, unscaled and before clipping: 0-d
            float64. None before the first boundary, and if no pass computed the norm (no max_norm,
            gradients not checked).

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
        max_norm_spike: float | None = None,
        on_spike: str = "skip",
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(make_message("optimizer", "a torch.optim.Optimizer", optimizer))
        if isinstance(optimizer, torch.optim.LBFGS):
            text = "optimizer must take one gradient a step, got LBFGS"
            raise TypeError(f"{text} (use LBFGS without a Stepper)")
        if scaler is not None and not isinstance(scaler, TorchScaler):
            raise TypeError(make_message("scaler", "a torch or fastloop GradScaler", scaler))
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        choice = read_choice("on_nonfinite", on_nonfinite, (None, "window", "micro", "ignore"))
        clips = read_choice("on_spike", on_spike, ("skip", "clip")) == "clip"
        guard = None
        if max_norm_spike is not None:
            remedy = "10, for example; None: no guard"
            factor = read_number("max_norm_spike", max_norm_spike, 1, remedy=remedy)
            guard = NormGuard(factor, clips)
        choice = choice or ("ignore" if scaler is None and guard is None else "window")
        if choice == "ignore" and scaler is not None:
            rule = "'window' or 'micro' with an enabled scaler"
            raise ValueError(make_message("on_nonfinite", rule, choice))
        accum_dtype = read_choice("accum_dtype", accum_dtype, (None, torch.float32, torch.float64))
        needs_buffers = accum_dtype is not None or choice == "micro"
        self._optimizer = optimizer
        self._outcomes = Outcomes(read_schedulers(scheduler))
        self._ranks = Ranks(model)
        self._ranks.check_needs(needs_buffers, max_norm is not None or guard is not None)
        is_function = callable(accumulate)
        self._accumulate = accumulate if is_function else read_int("accumulate", accumulate, 1)
        if max_norm is not None:
            max_norm = read_number("max_norm", max_norm, 0, remedy="or None: no clipping")
        self._boundary = Boundary(optimizer, scaler, max_norm, choice != "ignore", guard)
        self._guard = guard
        self._drops_micro = choice == "micro"
        # Owned, kept between windows; None: gradients add up in `.grad`.
        self._buffers = GradBuffers(optimizer, accum_dtype) if needs_buffers else None
        self._weighted_backward = WeightedBackward()
        self._phase = Phase.IDLE
        self._loop: Lookahead | None = None  # the iterate() that runs
        self._is_used = False  # micro() has been entered, or a warning has said that it was not
        self._window: Window | None = None  # None: no window is open
        self._weight = 0.0  # the running micro-batch's weight
        self._totals: Totals | None = None  # the window's, exchanged before its last backward
        self._mean_weight: float | None = None  # the last window's, over all ranks
        self._has_met = False  # the ranks have compared parameters and state
        self.is_boundary = False
        self.last_norm: Tensor | None = None

    def __repr__(self) -> str:
        every = self._accumulate if isinstance(self._accumulate, int) else "a function"
        kind, done = type(self._optimizer).__name__, self._outcomes.boundaries
        return repr_of(self, kind, f"accumulate={every}", f"{done:,} window{'s' * (done != 1)}")

    # ---- the loop

    def iterate(self, loader: Iterable[Batch]) -> Batches[Batch]:
        """Yield the loader's batches; the last one closes its window, however short.

        Enter micro() once for each batch. If the loader has a len(), its batches are counted; any
        other loader is read one batch ahead of a full window's end. If a window is still open at
        the end (the last batch was not in a micro()), it is stepped as by flush(). If you leave the
        loop early, the open window is discarded, with a warning.

        Raises:
            RuntimeError: ranks have unequal numbers of windows (on every rank, after the last
                window that every rank has); a second loop of this stepper has begun inside.
        """
        return Batches(loader, self._batches(loader))

    def _batches(self, loader: Iterable[Batch]) -> Generator[Batch]:
        self._refuse_inside_micro("iterate")
        loop = self._loop = Lookahead(loader, self._guard is not None)
        is_over, passed = False, 0
        try:
            if self._ranks.is_parallel:
                self._note_more(self._exchange(SyncPoint.BEGIN, Totals()))
            while not loop.unequal:
                try:
                    batch = [loop.take()]
                except StopIteration:
                    break
                yield batch.pop()  # not kept here, because its memory may be lent
                passed += 1
                if passed == 2:  # a loop may skip its first batch
                    self._warn_unused(passed)
                if self._loop is not loop:
                    raise RuntimeError(
                        "a second iterate() has begun inside this loop; give each loop a Stepper"
                    )
            if loop.unequal:
                raise RuntimeError(loop.unequal)
            self._warn_unused(passed)
            if self._window is not None or loop.is_announced:
                self.flush()
            is_over = True
        finally:
            if self._loop is loop:
                self._loop = None
                if not is_over:
                    self._leave_loop(loop)

    def _warn_unused(self, batches: int) -> None:
        """Warn once if no micro() of this stepper has been entered: no step is taken then."""
        if batches and not self._is_used:
            self._is_used = True
            warnings.warn(
                f"iterate() has given {batches} batches and micro() was not entered: no step was "
                "taken (put `with stepper.micro():` around forward and stepper.backward(loss))",
                stacklevel=3,
            )

    def _leave_loop(self, loop: Lookahead) -> None:
        """End the loop before its loader has ended."""
        if loop.is_announced:
            self._ranks.send_leave_notice()
        if self._phase is Phase.IDLE:
            self._discard("the loop of iterate() was left early")

    # ---- a micro-batch

    def micro(self, weight: float | Tensor = 1) -> _Micro:
        """Return a context for one micro-batch: its forward, and backward() once.

        Args:
            weight: the weight of the mean loss: the micro-batch's number of samples, or of tokens.
                A finite number >= 0 or a 0-d tensor (SYNC if the tensor is on a device). With 0 the
                micro-batch contributes nothing, and backward() runs nothing (under FSDP: 0 · loss).

        If the micro-batch closes its window, the end of the context takes the optimizer's step. If
        an exception comes before backward(), or backward() is never called, the micro-batch is not
        counted; if backward() had begun, the whole window is discarded. Both give a warning.

        Raises:
            TypeError, ValueError: weight is not such a number.
            RuntimeError: on entering: inside a micro(), or the ranks of a DDP job are at different
                points of their loops.
        """
        return _Micro(self, _read_weight(weight))

    def _enter(self, weight: float) -> None:
        self._refuse_inside_micro("micro")
        self._is_used = True
        window = self._window or self._open()
        is_full = window.count + 1 >= window.size
        self.is_boundary = is_full or (self._loop is not None and not self._loop.has_more())
        if self._ranks.is_parallel:
            if window.expected is None or not self._has_met:
                own = Totals(weight, counted=weight > 0)
                totals = self._exchange(SyncPoint.FIRST_WEIGHT, own)
            if window.expected is None:
                mean = totals.weight / totals.counted if totals.counted else 1.0
                window.expected = window.size * mean
            has_buffers = self._buffers is not None
            # Only a backward reduces shards, and buffers add shards up after that.
            sync = self._ranks.has_shards if has_buffers else self.is_boundary
            self._ranks.enter_micro(sync)
        elif self.is_boundary and window.count == 0 and weight > 0:
            window.expected = weight  # the loss's factor and the divisor are then exactly 1
        self._weight = weight
        self._phase = Phase.ENTERED

    def _open(self) -> Window:
        size = self._accumulate
        if callable(size):
            done = self._outcomes.boundaries
            size = read_int(f"accumulate({done})", size(done), 1)
        remaining = None if self._loop is None else self._loop.remaining
        if remaining is not None and not self._ranks.is_parallel:
            size = max(1, min(size, remaining + 1))
        mean = self._mean_weight
        first = 0 if self._loop is None else self._loop.taken - 1
        self._window = Window(size, None if mean is None else size * mean, first)
        return self._window

    def _name_window(self) -> Callable[[], str]:
        """Return a function that names this window and, inside iterate(), its batches."""
        name, loop = f"window {self._outcomes.boundaries}", self._loop
        if loop is None or self._window is None:
            return lambda: name
        batches = range(self._window.first, loop.taken)
        return lambda: f"{name} ({loop.describe(batches)})"

    def backward(self, loss: Tensor) -> None:
        """Back-propagate a micro-batch's mean loss, scaled by its weight and the scaler's scale.

        Args:
            loss: a tensor of one element, of any real floating dtype.

        Raises:
            RuntimeError: outside micro(), or for the second time in one micro().
            TypeError, ValueError: loss is not a tensor of one real element.
        """
        if self._phase is Phase.IDLE:
            raise RuntimeError("backward() outside micro(); use `with stepper.micro():`")
        if self._phase is not Phase.ENTERED:
            raise RuntimeError("backward() for the second time in one micro(); add the losses")
        _check_loss(loss)
        self._phase = Phase.BACKWARD
        window, weight = self._window, self._weight
        assert window is not None
        reduces = self._ranks.is_parallel and self.is_boundary and self._buffers is None
        if reduces:
            own = Totals(window.weight + weight, window.counted + (weight > 0))
            self._totals = self._exchange(SyncPoint.BOUNDARY, own)
        if weight > 0 or self._ranks.has_shards:  # a backward over shards is a collective
            self._accumulate_gradients(loss, window, window.share(weight))
        elif reduces:
            self._ranks.backward_of_nothing(loss)
        self._phase = Phase.DONE

    def _accumulate_gradients(self, loss: Tensor, window: Window, share: float) -> None:
        loss = self._boundary.scale_loss(loss)
        buffers = self._buffers
        if buffers is None:
            self._weighted_backward(loss, share)
            return
        # A backward sums shards over the ranks, so a micro-batch's weight has to come before it.
        # Times the window's size, the weight is as near 1 as the factor of whole gradients.
        before = share * window.size if self._ranks.has_shards else 1.0
        after = 1.0 / window.size if self._ranks.has_shards else share
        self._weighted_backward(loss, before)
        if not buffers.add(after, only_finite=self._drops_micro):
            self._weight = 0.0
            window.has_dropped = True
        if not self.is_boundary:  # at a boundary, `.grad` is memory for the sum
            self._optimizer.zero_grad(set_to_none=True)

    def _leave(self, has_failed: bool) -> None:
        phase, self._phase = self._phase, Phase.IDLE
        self._ranks.leave_micro()
        if phase is Phase.DONE and not has_failed:
            assert self._window is not None
            self._window.add(self._weight)
            if self.is_boundary:
                self._close(SyncPoint.BOUNDARY)
            return
        self._totals = None
        if phase is Phase.ENTERED:
            reason = "an exception came before backward()" if has_failed else "without backward()"
            remedy = "" if has_failed else " (call stepper.backward(loss), not loss.backward())"
            warnings.warn(f"micro() was left, {reason}: not counted{remedy}", stacklevel=3)
        else:
            self._discard("micro() was left by an exception after backward()", has_begun=True)

    # ---- the boundary

    def flush(self) -> None:
        """Step an open window that is not full; do nothing if no window is open.

        For loops without iterate(). Every rank must call flush(): under DDP the stepper reduces the
        gradients, under FSDP2 torch does, and ranks without an open window join.

        Raises:
            RuntimeError: inside micro(); ranks are at different points of their loops; an open
                window under FSDP1.
        """
        self._refuse_inside_micro("flush")
        if self._window is not None and self._buffers is None and not self._ranks.can_flush():
            raise RuntimeError(
                "flush() of an open window under FSDP needs FSDP2 (fully_shard) alone and a torch "
                "that fastloop knows; use iterate(), which knows the last micro-batch"
            )
        if self._ranks.is_parallel and self._window is None:
            self._open()  # to join the other ranks
        if self._window is not None:
            self._close(SyncPoint.FLUSH)

    def _close(self, point: SyncPoint) -> None:
        self._outcomes.settle()
        try:
            self._step(point)
        finally:
            self._end_window()
        self._ranks.finish_window()
        if self._guard is not None:
            self._guard.settle()  # last, because a warning may be an error

    def _step(self, point: SyncPoint) -> None:
        window, buffers = self._window, self._buffers
        assert window is not None
        totals = Totals(window.weight, window.counted, has_dropped=window.has_dropped)
        if self._ranks.is_parallel:
            totals = self._totals or self._exchange(point, totals)
            if self._loop is not None:
                self._note_more(totals)
            if self._ranks.has_shards:
                if totals.counted and buffers is None and point is SyncPoint.FLUSH:
                    self._ranks.reduce_shards()
            elif totals.counted and (buffers is not None or point is SyncPoint.FLUSH):
                if buffers is None:
                    buffers = GradBuffers(self._optimizer, None)
                    buffers.add(1.0)
                buffers.reduce(self._ranks)
        if totals.counted:
            divisor = window.divisor(totals.weight, self._ranks.size)
            step = named("step", self._boundary.step)
            if self._guard is not None:
                self._guard.name = self._name_window()
            self.last_norm, found_inf = step(divisor, buffers, totals.has_dropped > 0)
            self._mean_weight = totals.weight / totals.counted
            self._outcomes.add(found_inf)
        elif totals.has_dropped:
            self._boundary.back_off()
            self._outcomes.add(True)

    def _end_window(self) -> None:
        self._window = self._totals = None
        self._boundary.seen_scale = None
        if self._buffers is not None:
            self._buffers.clear()
        self._optimizer.zero_grad(set_to_none=True)

    def _discard(self, reason: str, *, has_begun: bool = False) -> None:
        self._ranks.drop_window()
        window = self._window
        if window is None:
            return
        self._end_window()
        if window.count > 0 or has_begun:
            warnings.warn(
                f"{reason}: the open window is discarded ({window.count} complete "
                "micro-batches), gradients are zeroed",
                stacklevel=4,
            )

    # ---- the other ranks

    def _exchange(self, point: SyncPoint, own: Totals) -> Totals:
        has_more = self._loop is not None and self._loop.has_more()
        try:
            own = own._replace(has_more=has_more)
            totals = self._ranks.exchange(point, own, self._facts(point))
            self._has_met = True
            return totals
        except BaseException:
            if self._loop is not None:
                self._loop.is_announced = False  # every rank raises, and no rank waits
            self._discard("the ranks do not agree")
            raise

    def _facts(self, point: SyncPoint) -> dict[str, Any]:
        """Return the facts that all ranks must have in common at this point."""
        loop, window = self._loop, self._window
        facts: dict[str, Any] = {"windows so far": self._outcomes.boundaries}
        if not self._has_met:
            params = parameters_of(self._optimizer)
            facts |= {"mean weight": self._mean_weight, "parameters": len(params)}
            if self._ranks.has_whole_parameters:
                facts["elements"] = sum(p.numel() for p in params)
        if self._ranks.has_shards:  # a forward over shards is a collective
            if point is SyncPoint.BEGIN and loop is not None:
                facts["batches"] = loop.remaining
            elif window is not None and point is SyncPoint.FIRST_WEIGHT:
                facts["micro-batches planned"] = window.size
            elif window is not None:
                facts["micro-batches"] = window.count + (self._phase is not Phase.IDLE)
        return facts

    def _note_more(self, totals: Totals) -> None:
        """Note which ranks' loops have a further window."""
        loop: Any = self._loop
        loop.is_announced = loop.has_more()
        if totals.has_more not in (0, self._ranks.size):
            loop.is_announced = False
            loop.unequal = _UNEQUAL.format(int(totals.has_more), self._ranks.size)

    # ---- counts and states

    @property
    def stepped(self) -> int:
        """The number of optimizer steps taken (SYNC if the last outcome is still on a device)."""
        return self._outcomes.read()[0]

    @property
    def skipped(self) -> int:
        """The number of windows without a step: a gradient was not finite (SYNC as `stepped`)."""
        return self._outcomes.read()[1]

    @property
    def spikes(self) -> int:
        """The number of spikes, of max_norm_spike (SYNC if the last norm is still on a device)."""
        if self._guard is None:
            return 0
        self._guard.settle(waits=True)
        return self._guard.spikes

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, weights and norms that a resumed run needs; numbers only (SYNC as
        `stepped`).

        Save this state together with the states of model, optimizer, scaler, scheduler and loader,
        at a boundary: the gradients of an open window are not part of it.

        Raises:
            RuntimeError: inside micro().
        """
        self._refuse_inside_micro("state_dict")
        stepped, skipped = self._outcomes.read()
        return {
            "version": _VERSION,
            "boundaries": stepped + skipped,
            "stepped": stepped,
            "skipped": skipped,
            "mean_weight": self._mean_weight,
            "open_micros": 0 if self._window is None else self._window.count,
            "norms": None if self._guard is None else self._guard.state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the result of state_dict(). If a window is open now, it is dropped. If a window
        was open when the state was saved, it begins anew, with a RuntimeWarning.

        Raises:
            TypeError, ValueError: state_dict is not such a state.
            RuntimeError: inside micro().
        """
        self._refuse_inside_micro("load_state_dict")
        check_state("state", state_dict, _STATE, _REMEDY)
        state, version = state_dict, state_dict["version"]
        if version != _VERSION:
            raise ValueError(make_message("state['version']", str(_VERSION), version, _REMEDY))
        self._end_window()
        counts = state["boundaries"], state["skipped"]
        self._outcomes = Outcomes(self._outcomes.schedulers, *counts)
        self._mean_weight = state["mean_weight"]
        if self._guard is not None:
            self._guard.load(state.get("norms"))
        self._has_met = False
        if count := state["open_micros"]:
            warnings.warn(
                f"the state was saved {count} micro-batches into a window, and these are lost: the "
                "window begins anew (save when stepper.is_boundary)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _refuse_inside_micro(self, method: str) -> None:
        if self._phase is not Phase.IDLE:
            raise RuntimeError(f"{method}() inside micro(); call {method}() after micro() ends")


class _Micro:
    """The context that micro() returns."""

    __slots__ = ("_stepper", "_weight")

    def __init__(self, stepper: Stepper, weight: float) -> None:
        self._stepper = stepper
        self._weight = weight

    def __enter__(self) -> None:
        self._stepper._enter(self._weight)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stepper._leave(kind is not None)


# ---- arguments


def _read_weight(weight: Any) -> float:
    """Return a finite number >= 0, given as a number or as a tensor (SYNC on a device)."""
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = weight.item()
    remedy = "the number of samples or tokens; 0 leaves the micro-batch out"
    number = read_number("weight", weight, 0, remedy=remedy)
    if number == math.inf:
        raise ValueError(make_message("weight", "a finite number", number, remedy))
    return number


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.is_complex():
        kind = look_up(loss, "dtype", type(loss).__name__)
        raise TypeError(f"loss must be a real tensor, got {kind}")
    if loss.numel() != 1:
        raise ValueError(f"loss must be one number, got shape {tuple(loss.shape)} (pass its mean)")
