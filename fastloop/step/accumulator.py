"""The windows of one optimizer, one after the other: from micro-batches to steps.

A state machine (docs/stepper.md, "A window") that the public Stepper drives: what may follow what,
which micro-batch closes a window, what an exception leaves behind. The arithmetic and the buffers
are window.py's, the optimizer's step is boundary.py's, the network is distributed/ranks.py's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.distributed.ranks import Place, Ranks, Reduced
from fastloop.step.arguments import check_loss, check_size
from fastloop.step.boundary import LossScale, Step
from fastloop.step.grad_list import GradList
from fastloop.step.lookahead import Lookahead
from fastloop.step.outcomes import Outcomes
from fastloop.step.window import Buffers, Window

_UNEQUAL = (
    "{} of {} ranks have another window and the others have none. Give every rank the same number "
    "of windows: DistributedSampler pads its parts to equal lengths, drop_last=True cuts them"
)


class At(Enum):
    """Where the machine stands."""

    OPEN = 0
    ENTERED = 1
    RUNNING = 2  # inside backward
    DONE = 3


class Accumulator:
    """The open window, and everything that becomes of it."""

    def __init__(
        self,
        optimizer: Optimizer,
        accumulate: int | Callable[[int], int],
        step: Step,
        scale: LossScale | None,
        outcomes: Outcomes,
        ranks: Ranks | None,
        accum_dtype: torch.dtype | None,
        drops_micro: bool,
    ) -> None:
        self._optimizer = optimizer
        self._accumulate = accumulate
        self._step = step
        self.scale = scale
        self._outcomes = outcomes
        self.ranks = ranks
        self._accum_dtype = accum_dtype
        self._drops_micro = drops_micro
        self.is_buffered = accum_dtype is not None or drops_micro
        self._grads = GradList()  # of one micro-batch, on its way into the buffers
        self._buffers: Buffers | None = None  # owned, kept between windows
        self.window: Window | None = None  # None: none is open
        self.mean_weight: float | None = None  # of the last window, over all ranks
        self._seed = torch.ones(())  # the gradient of a loss that counts _seed_share
        self._seed_share = 1.0
        self.at = At.OPEN
        self._weight = 0.0  # of the micro-batch that runs
        self._told: Reduced | None = None  # what the ranks said before its backward
        self.feed: Lookahead | None = None  # of the loop that runs
        self.has_announced = False  # that this rank's loop has another window
        self.unequal: str | None = None  # an error that every rank's loop is to raise
        self.last_norm: Tensor | None = None
        self.is_boundary = False

    # ---- a micro-batch

    def enter(self, weight: float) -> None:
        if self.at is not At.OPEN:
            raise RuntimeError("micro() inside micro(): leave the first before entering the next")
        window = self.window or self._open()
        is_full = window.count + 1 >= window.size
        self.is_boundary = is_full or (self.feed is not None and not self.feed.has_more())
        if self.ranks is not None:
            self._enter_ranks(window, weight)
        elif self.is_boundary and window.count == 0 and weight > 0:
            window.expected = weight  # nothing to divide by
        self._weight = weight
        self.at = At.ENTERED

    def _enter_ranks(self, window: Window, weight: float) -> None:
        """What must be known before the forward: w_ref, and whether this backward reduces."""
        assert self.ranks is not None
        if window.expected is None:
            told = self.tell(Place.FIRST_WEIGHT, weight=weight, counted=int(weight > 0))
            window.expect(told.weight / told.counted if told.counted else 1.0)
        self.ranks.enter(self.is_boundary and not self.is_buffered)

    def backward(self, loss: Tensor) -> None:
        if self.at is not At.ENTERED:
            self._refuse_backward()
        check_loss(loss)
        self.at = At.RUNNING
        window, weight = self.window, self._weight
        assert window is not None
        reduces = self.ranks is not None and self.is_boundary and not self.is_buffered
        if reduces:
            self._told = self.tell(
                Place.BOUNDARY,
                weight=window.weight + weight,
                counted=window.counted + int(weight > 0),
            )
        if weight > 0:
            share = window.share(weight)
            self._backward(loss, 1.0 if self.is_buffered else share)
            if self.is_buffered and not self._buffer(share):
                self._weight = 0.0
                window.has_dropped = True
        elif reduces:
            assert self.ranks is not None
            self.ranks.backward_of_nothing(loss)
        self.at = At.DONE

    def _refuse_backward(self) -> None:
        if self.at is At.OPEN:
            raise RuntimeError("backward() outside micro(): call it inside `with stepper.micro():`")
        raise RuntimeError(
            "backward() for the second time in one micro(): add the losses and call it once, or "
            "give each its own micro()"
        )

    def _backward(self, loss: Tensor, share: float) -> None:
        if self.scale is not None:
            loss = self.scale(loss)
        if share == 1.0:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        # As (loss * share).backward(), without a node in the graph and its two kernels.
        seed = self._seed
        if share != self._seed_share or seed.dtype != loss.dtype or seed.shape != loss.shape:
            seed = self._seed = torch.full_like(loss, share, requires_grad=False)
            self._seed_share = share
        elif seed.device != loss.device:
            seed = self._seed = seed.to(loss.device)
        loss.backward(seed)  # type: ignore[no-untyped-call]

    def _buffer(self, share: float) -> bool:
        """Moves a micro-batch's gradients into the buffers; whether they were finite."""
        buffers = self.own_buffers()
        grads = self._grads.collect_grads(self._optimizer)
        is_kept = buffers.add(grads, share, only_finite=self._drops_micro)
        grads.release()
        if not self.is_boundary:  # the boundary writes into them
            self._optimizer.zero_grad(set_to_none=True)
        return is_kept

    def leave(self, has_failed: bool) -> None:
        at, self.at = self.at, At.OPEN
        if self.ranks is not None:
            self.ranks.leave()
        if at is At.DONE and not has_failed:
            assert self.window is not None
            self.window.add(self._weight)
            if self.is_boundary:
                self._close(Place.BOUNDARY)
            return
        self._told = None
        if at is At.ENTERED:
            reason = "an exception came before backward()" if has_failed else "without backward()"
            warnings.warn(f"micro() was left, {reason}: not counted", stacklevel=3)
        else:
            self.discard(
                "micro() was left by an exception after backward() had begun", has_begun=True
            )

    # ---- the boundary

    def flush(self) -> None:
        if self.ranks is None:
            if self.window is not None:
                self._close(Place.FLUSH)
        elif not self.ranks.has_shards:
            if self.window is None:
                self._open()
            self._close(Place.FLUSH)
        elif self.window is not None:
            raise RuntimeError(
                "flush() of an open window under FSDP: its gradients have not been reduced, and "
                "only a backward can; use iterate(), which knows the last micro-batch"
            )

    def _close(self, place: Place) -> None:
        self._outcomes.settle()
        try:
            self._finish(place)
        finally:
            self.end_window()
        if self.ranks is not None:
            self.ranks.finish_window()

    def _finish(self, place: Place) -> None:
        window, ranks, buffers, size = self.window, self.ranks, self._buffers, 1
        assert window is not None
        weight, counted, has_dropped = window.weight, window.counted, window.has_dropped
        if ranks is not None:
            told = self._told or self.tell(
                place, weight=weight, counted=counted, has_dropped=has_dropped
            )
            if self.feed is not None:
                self.note_more(told)
            weight, counted, size = told.weight, int(told.counted), ranks.size
            has_dropped = told.has_dropped > 0
            if counted and (self.is_buffered or place is Place.FLUSH):
                buffers = self._reduced()
        if counted:
            outcome = self._step(window.divisor(weight, size), buffers, has_dropped)
            self.mean_weight = weight / counted
            self.last_norm = outcome.norm
            self._outcomes.add(outcome.found_inf)
        elif has_dropped:
            self._step.back_off()
            self._outcomes.add(True)

    def own_buffers(self) -> Buffers:
        buffers = self._buffers
        if buffers is None or not buffers.fits(self._optimizer):
            if buffers is not None and not buffers.is_empty:
                raise RuntimeError(
                    "a parameter group was added in the middle of a window; add it between windows"
                )
            self._buffers = Buffers(self._optimizer, self._accum_dtype)
            return self._buffers
        return buffers

    def _reduced(self) -> Buffers:
        """The window's gradients, reduced by the stepper itself."""
        assert self.ranks is not None
        if self.is_buffered:
            buffers = self.own_buffers()
        else:
            buffers = Buffers(self._optimizer, None)
            buffers.add(self._grads.collect_grads(self._optimizer), 1.0)
            self._grads.release()
        buffers.reduce(self.ranks)
        return buffers

    # ---- windows

    def _open(self) -> Window:
        size = self._accumulate
        if callable(size):
            done = self._outcomes.boundaries
            size = check_size(size(done), f"accumulate({done})")
        expected = None
        if self.ranks is None and self.feed is not None and self.feed.left is not None:
            size = max(1, min(size, self.feed.left + 1))
        if self.mean_weight is not None:
            expected = size * self.mean_weight
        self.window = Window(size, expected)
        return self.window

    def end_window(self) -> None:
        self.window = self._told = None
        if self.scale is not None:
            self.scale.forget()
        if self._buffers is not None:
            self._buffers.clear()
        self._optimizer.zero_grad(set_to_none=True)

    def discard(self, reason: str, *, has_begun: bool = False) -> None:
        if self.ranks is not None:
            self.ranks.drop_window()
        window = self.window
        if window is None:
            return
        self.end_window()
        if window.count == 0 and not has_begun:
            return
        warnings.warn(
            f"{reason}: the open window is discarded ({window.count} complete micro-batches), "
            "gradients are zeroed",
            stacklevel=4,
        )

    def leave_loop(self) -> None:
        """The loop has ended before its loader."""
        has_announced, self.has_announced = self.has_announced, False
        if self.ranks is not None and has_announced:
            self.ranks.say_left()
        if self.at is At.OPEN:
            self.discard("the loop of iterate() was left early")

    # ---- ranks

    def _has_more(self) -> bool:
        return self.feed is not None and self.feed.has_more()

    def tell(self, place: Place, **facts: Any) -> Reduced:
        assert self.ranks is not None
        try:
            return self.ranks.tell(place, has_more=self._has_more(), **facts)
        except BaseException:
            self.has_announced = False  # the others raise too, and wait for nothing
            self.discard("the ranks do not agree")
            raise

    def note_more(self, told: Reduced) -> None:
        assert self.ranks is not None
        self.has_announced = self._has_more()
        if told.has_more not in (0, self.ranks.size):
            self.has_announced = False
            self.unequal = _UNEQUAL.format(int(told.has_more), self.ranks.size)
