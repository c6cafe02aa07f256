"""Stepper: gradient accumulation with weights, clipping, loss scaling and a schedule.

A state machine over micro-batches and windows: what may follow what, which micro-batch closes a
window, what an exception leaves behind. docs/internals/stepper.md draws it and has the arithmetic.
It uses window.py (the window's weights), boundary.py (sums in buffers, the optimizer's step, counts
and schedulers) and ranks.py (the other ranks). Called on the thread that trains."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fastloop.base.checks import look_up, make_message, read_choice, read_int, read_number
from fastloop.base.shown import repr_of
from fastloop.compat.ranges import named
from fastloop.compat.torch_parts import TorchScaler
from fastloop.step.boundary import Boundary, GradBuffers, Outcomes
from fastloop.step.grad_list import parameters_of
from fastloop.step.ranks import Ranks, SyncPoint, Totals
from fastloop.step.window import Lookahead, WeightedBackward, Window

Batch = TypeVar("Batch")

_VERSION = 1
_KEYS = ("version", "boundaries", "stepped", "skipped", "open_micros", "mean_weight")
_UNEQUAL = (
    "{} of {} ranks have another window and the others have none: DistributedSampler pads "
    "its parts to equal lengths, drop_last=True cuts them"
)


class State(Enum):
    """The point of a micro-batch at which a Stepper is."""

    IDLE = 0  # outside of micro()
    ENTERED = 1  # in micro(), before backward()
    BACKWARD = 2  # inside backward()
    DONE = 3  # in micro(), after backward()


class Stepper:
    """Takes one optimizer step for every window of ``accumulate`` micro-batches.

    The step sees the gradient of Σ w_i·l_i / Σ w_i over a window's micro-batches with weights w_i
    and mean losses l_i, on all ranks: what one large batch would give, for short last windows,
    unequal micro-batches and token weights too.

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
        accumulate: micro-batches in a window, or a function that returns it, given the number of
            windows stepped or skipped so far (the same on every rank).
        scaler: a fastloop or torch GradScaler. Do not call its step() or update().
        max_norm: clips the gradients' 2-norm as torch.nn.utils.clip_grad_norm_ does.
        scheduler: one or several learning rate schedulers, stepped after each step that was taken
            (at the next boundary where only the device knows: fused steps on an accelerator).
        model: the module or modules that DDP or FSDP wraps, or that contain wrapped ones.
        accum_dtype: torch.float32 or torch.float64: add gradients up in buffers of that dtype (its
            complex counterpart for complex gradients) and round once into ``.grad``. Takes memory
            for one more set of gradients; under DDP the stepper reduces the buffers. Under FSDP2
            they are of a shard's size, and each micro-batch is reduced.
        on_nonfinite: if a gradient is inf or NaN: "window" takes no step, "micro" leaves that one
            micro-batch out (needs buffers as accum_dtype does; SYNC for each micro-batch; under
            FSDP2 on all ranks), "ignore" takes the step. None: "window" with an enabled scaler,
            else "ignore".

    Attributes:
        is_boundary: whether the micro-batch that runs, or ran last, closes its window.
        last_norm: the gradients' 2-norm at the last boundary, unscaled and before clipping: 0-d
            float64. None before the first, and where nothing needed it (no max_norm, gradients not
            checked).

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
            raise TypeError(make_message("optimizer", "a torch.optim.Optimizer", optimizer))
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("LBFGS calls a closure several times a step; Stepper has one gradient")
        if scaler is not None and not isinstance(scaler, TorchScaler):
            raise TypeError(make_message("scaler", "a torch or fastloop GradScaler", scaler))
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        choice = read_choice("on_nonfinite", on_nonfinite, (None, "window", "micro", "ignore"))
        choice = choice or ("ignore" if scaler is None else "window")
        if choice == "ignore" and scaler is not None:
            rule = "'window' or 'micro' with an enabled scaler"
            raise ValueError(make_message("on_nonfinite", rule, choice))
        accum_dtype = read_choice("accum_dtype", accum_dtype, (None, torch.float32, torch.float64))
        needs_buffers = accum_dtype is not None or choice == "micro"
        self._optimizer = optimizer
        self._outcomes = Outcomes(_read_schedulers(scheduler))
        self._ranks = Ranks(model)
        if self._ranks.has_shards and needs_buffers and not self._ranks.can_add_shards:
            raise ValueError(
                "accum_dtype and on_nonfinite='micro' under FSDP need FSDP2 (fully_shard) for all "
                "modules of the model; leave them out"
            )
        is_function = callable(accumulate)
        self._accumulate = accumulate if is_function else read_int("accumulate", accumulate, 1)
        if max_norm is not None:
            max_norm = read_number("max_norm", max_norm, 0, remedy="or None: no clipping")
        self._boundary = Boundary(optimizer, scaler, max_norm, checks=choice != "ignore")
        self._drops_micro = choice == "micro"
        # Owned, kept between windows; None: gradients add up in `.grad`.
        self._buffers = GradBuffers(optimizer, accum_dtype) if needs_buffers else None
        self._weighted_backward = WeightedBackward()
        self._state = State.IDLE
        self._loop: Lookahead | None = None  # of the iterate() that runs
        self._is_used = False  # micro() has been entered, or its absence has been warned of
        self._window: Window | None = None  # None: none is open
        self._weight = 0.0  # of the running micro-batch
        self._totals: Totals | None = None  # of the window, exchanged before its last backward
        self._mean_weight: float | None = None  # of the last window, over all ranks
        self._has_met = False  # the ranks have compared parameters and state
        self.is_boundary = False
        self.last_norm: Tensor | None = None

    def __repr__(self) -> str:
        every = self._accumulate if isinstance(self._accumulate, int) else "a function"
        kind, done = type(self._optimizer).__name__, self._outcomes.boundaries
        return repr_of(self, kind, f"accumulate={every}", f"{done:,} window{'s' * (done != 1)}")

    # ---- the loop

    def iterate(self, loader: Iterable[Batch]) -> _Batches[Batch]:
        """Yield the loader's batches; the last one closes its window, however short.

        Enter micro() once for each batch. The batches of a loader that has a len() are counted;
        any other loader is read one batch ahead where that is needed. A window still open at the
        end (the last batch was not in a micro()) is stepped as by flush(). Leaving the loop early
        discards the open window, with a warning.

        Raises:
            RuntimeError: ranks have unequal numbers of windows (on every rank, after the last
                window that all have); another loop of this stepper has begun inside this one.
        """
        return _Batches(loader, self._batches(loader))

    def _batches(self, loader: Iterable[Batch]) -> Generator[Batch]:
        self._refuse_inside_micro("iterate")
        loop = self._loop = Lookahead(loader)
        is_over, passed = False, 0
        try:
            if self._ranks.is_parallel:
                self._note_more(self._exchange(SyncPoint.BEGIN, Totals()))
            while not loop.unequal:
                try:
                    batch = [loop.take()]
                except StopIteration:
                    break
                yield batch.pop()  # not kept: its memory may be lent
                passed += 1
                if passed == 2:  # the first may be one that is left out
                    self._warn_unused(passed)
                if self._loop is not loop:
                    raise RuntimeError(
                        "another iterate() has begun inside this loop; give it its own Stepper"
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
        """Warn once if no micro() of this stepper has been entered: it cannot step then."""
        if batches and not self._is_used:
            self._is_used = True
            warnings.warn(
                f"iterate() has given {batches} batches and micro() was not entered: no step was "
                "taken; put `with stepper.micro():` around forward and stepper.backward(loss)",
                stacklevel=3,
            )

    def _leave_loop(self, loop: Lookahead) -> None:
        """End the loop before its loader has ended."""
        if loop.is_announced:
            self._ranks.send_leave_notice()
        if self._state is State.IDLE:
            self._discard("the loop of iterate() was left early")

    # ---- a micro-batch

    def micro(self, weight: float | Tensor = 1) -> _Micro:
        """Return a context for one micro-batch: its forward, and backward() once.

        Args:
            weight: its number of samples, or of tokens, by which its mean loss counts. A finite
                number >= 0 or a 0-d tensor (SYNC if that is on a device). With 0 the micro-batch
                contributes nothing, and backward() runs nothing (under FSDP: on 0 · loss).

        Leaving it takes the optimizer's step if it closes the window. Left by an exception, or
        without backward(), the micro-batch is not counted; if backward() had begun, the whole
        window is discarded. Both with a warning.

        Raises:
            TypeError, ValueError: weight is something else.
            RuntimeError: on entering: inside another micro(), or the ranks of a DDP job are at
                different places.
        """
        return _Micro(self, _read_weight(weight))

    def _enter(self, weight: float) -> None:
        if self._state is not State.IDLE:
            raise RuntimeError("micro() inside micro(): leave the first before entering the next")
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
            # Shards are reduced by a backward alone, before they are added up.
            sync = self._ranks.has_shards if has_buffers else self.is_boundary
            self._ranks.enter_micro(sync)
        elif self.is_boundary and window.count == 0 and weight > 0:
            window.expected = weight  # nothing to divide by
        self._weight = weight
        self._state = State.ENTERED

    def _open(self) -> Window:
        size = self._accumulate
        if callable(size):
            done = self._outcomes.boundaries
            size = read_int(f"accumulate({done})", size(done), 1)
        left = None if self._loop is None else self._loop.left
        if left is not None and not self._ranks.is_parallel:
            size = max(1, min(size, left + 1))
        mean = self._mean_weight
        self._window = Window(size, None if mean is None else size * mean)
        return self._window

    def backward(self, loss: Tensor) -> None:
        """Back-propagate a micro-batch's mean loss, scaled by its weight and the scaler's scale.

        Args:
            loss: one element, any real floating dtype.

        Raises:
            RuntimeError: outside micro(), or for the second time in one.
            TypeError, ValueError: loss is not a tensor of one real element.
        """
        if self._state is State.IDLE:
            raise RuntimeError("backward() outside micro(): call it inside `with stepper.micro():`")
        if self._state is not State.ENTERED:
            raise RuntimeError("backward() for the second time in one micro(): add the losses")
        _check_loss(loss)
        self._state = State.BACKWARD
        window, weight = self._window, self._weight
        assert window is not None
        reduces = self._ranks.is_parallel and self.is_boundary and self._buffers is None
        if reduces:
            own = Totals(window.weight + weight, window.counted + (weight > 0))
            self._totals = self._exchange(SyncPoint.BOUNDARY, own)
        if weight > 0 or self._ranks.has_shards:  # whose backward is a collective
            self._accumulate_gradients(loss, window, window.share(weight))
        elif reduces:
            self._ranks.backward_of_nothing(loss)
        self._state = State.DONE

    def _accumulate_gradients(self, loss: Tensor, window: Window, share: float) -> None:
        loss = self._boundary.scale_loss(loss)
        buffers = self._buffers
        if buffers is None:
            self._weighted_backward(loss, share)
            return
        # Shards are sums over the ranks: their weights come before, as near 1 as those of whole
        # gradients.
        before = share * window.size if self._ranks.has_shards else 1.0
        after = 1.0 / window.size if self._ranks.has_shards else share
        self._weighted_backward(loss, before)
        if not buffers.add(after, only_finite=self._drops_micro):
            self._weight = 0.0
            window.has_dropped = True
        if not self.is_boundary:  # the boundary writes into them
            self._optimizer.zero_grad(set_to_none=True)

    def _leave(self, has_failed: bool) -> None:
        state, self._state = self._state, State.IDLE
        self._ranks.leave_micro()
        if state is State.DONE and not has_failed:
            assert self._window is not None
            self._window.add(self._weight)
            if self.is_boundary:
                self._close(SyncPoint.BOUNDARY)
            return
        self._totals = None
        if state is State.ENTERED:
            reason = "an exception came before backward()" if has_failed else "without backward()"
            remedy = "" if has_failed else "; call stepper.backward(loss), not loss.backward()"
            warnings.warn(f"micro() was left, {reason}: not counted{remedy}", stacklevel=3)
        else:
            self._discard("micro() was left by an exception after backward()", has_begun=True)

    # ---- the boundary

    def flush(self) -> None:
        """Step an open window that is not full; nothing if none is open.

        For loops without iterate(). Every rank must call it: under DDP the stepper reduces the
        gradients, under FSDP2 torch does, and ranks without an open window join.

        Raises:
            RuntimeError: inside micro(); ranks are at different places; an open window under FSDP1.
        """
        self._refuse_inside_micro("flush")
        if self._window is not None and self._buffers is None and not self._ranks.can_flush():
            raise RuntimeError(
                "flush() of an open window under FSDP needs FSDP2 (fully_shard) alone and a torch "
                "that fastloop knows; use iterate(), which knows the last micro-batch"
            )
        if self._ranks.is_parallel and self._window is None:
            self._open()  # to join the others
        if self._window is not None:
            self._close(SyncPoint.FLUSH)

    def _close(self, point: SyncPoint) -> None:
        self._outcomes.settle()
        try:
            self._step(point)
        finally:
            self._end_window()
        self._ranks.finish_window()

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
                self._loop.is_announced = False  # the others raise too, and wait for nothing
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
        if self._ranks.has_shards:  # whose forward is a collective
            if point is SyncPoint.BEGIN and loop is not None:
                facts["batches"] = loop.left
            elif window is not None and point is SyncPoint.FIRST_WEIGHT:
                facts["micro-batches planned"] = window.size
            elif window is not None:
                facts["micro-batches"] = window.count + (self._state is not State.IDLE)
        return facts

    def _note_more(self, totals: Totals) -> None:
        """Note which ranks' loops have another window."""
        loop: Any = self._loop
        loop.is_announced = loop.has_more()
        if totals.has_more not in (0, self._ranks.size):
            loop.is_announced = False
            loop.unequal = _UNEQUAL.format(int(totals.has_more), self._ranks.size)

    # ---- counts and states

    @property
    def stepped(self) -> int:
        """Optimizer steps taken (SYNC if the last one's outcome is still on a device)."""
        return self._outcomes.read()[0]

    @property
    def skipped(self) -> int:
        """Windows without a step because a gradient was not finite (SYNC as `stepped`)."""
        return self._outcomes.read()[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and weights that a resumed run needs; numbers only (SYNC as `stepped`).

        Save it beside the states of model, optimizer, scaler, scheduler and loader, at a boundary:
        it does not hold the gradients of an open window.

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
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the result of state_dict(). A window that is open here is dropped, and one that
        was open there begins anew, with a RuntimeWarning.

        Raises:
            TypeError, ValueError: it is not such a state.
            RuntimeError: inside micro().
        """
        self._refuse_inside_micro("load_state_dict")
        state = _read_state(state_dict)
        self._end_window()
        counts = state["boundaries"], state["skipped"]
        self._outcomes = Outcomes(self._outcomes.schedulers, *counts)
        self._mean_weight = state["mean_weight"]
        self._has_met = False
        if count := state["open_micros"]:
            warnings.warn(
                f"the state was saved {count} micro-batches into a window, which are lost: the "
                "window begins anew; save when stepper.is_boundary",
                RuntimeWarning,
                stacklevel=2,
            )

    def _refuse_inside_micro(self, method: str) -> None:
        if self._state is not State.IDLE:
            raise RuntimeError(f"{method}() inside micro(): call it after micro() was left")


class _Batches(Iterator[Batch]):
    """The generator of iterate(), with the length of its loader."""

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
    """Read a finite number >= 0, or a tensor of one (SYNC on a device)."""
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = weight.item()
    remedy = "its number of samples or tokens; 0 leaves the micro-batch out"
    number = read_number("weight", weight, 0, remedy=remedy)
    if number == math.inf:
        raise ValueError(make_message("weight", "a finite number", number, remedy))
    return number


def _read_state(state: Any) -> dict[str, Any]:
    remedy = "pass the dict that state_dict() of a fastloop.Stepper returned, unchanged"
    if not isinstance(state, dict):
        raise TypeError(make_message("state", "a dict", state, remedy))
    for key in _KEYS:
        if key not in state:
            raise ValueError(f"state must have {key!r} ({remedy})")
    if state["version"] != _VERSION:
        raise ValueError(make_message("state['version']", str(_VERSION), state["version"], remedy))
    return state


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.is_complex():
        kind = look_up(loss, "dtype", type(loss).__name__)
        raise TypeError(f"loss must be a real tensor, got {kind}")
    if loss.numel() != 1:
        raise ValueError(f"loss must be one number, got shape {tuple(loss.shape)} (pass its mean)")


def _read_schedulers(scheduler: Any) -> list[LRScheduler]:
    if scheduler is None:
        return []
    several = list(scheduler) if isinstance(scheduler, Iterable) else [scheduler]
    for one in several:
        if isinstance(one, ReduceLROnPlateau):
            raise TypeError(
                "scheduler must not be ReduceLROnPlateau: call its step(metric) yourself"
            )
        if not callable(look_up(one, "step")):
            raise TypeError(make_message("scheduler", "one or several LRScheduler", one))
    return several
