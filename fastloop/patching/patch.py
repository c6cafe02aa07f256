"""``patch()`` makes torch's own classes use fastloop, in this process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import torch

from fastloop._core import version
from fastloop.base.checks import check_value
from fastloop.base.shown import repr_html
from fastloop.compat import moves, seams
from fastloop.compat.counts import describe, take_counts
from fastloop.compat.requirements import read_check_interval
from fastloop.compat.seams import Seam, SeamStatus
from fastloop.patching import SEAMS


@dataclass(frozen=True)
class PatchState:
    """The functions of torch that fastloop has replaced. Prints as one line.

    Attributes:
        seams: the status of each seam, by name.
        replaced_for_good: methods of torch that a loader over tensors replaces process-wide,
            with or without ``patch()``, because threads read the memory that these methods move.
            ``unpatch()`` does not put them back.
    """

    seams: dict[str, SeamStatus]
    replaced_for_good: tuple[str, ...] = ()

    _repr_html_ = repr_html

    def __str__(self) -> str:
        found = [describe(name, seam) for name, seam in self.seams.items()]
        names = ", ".join(self.replaced_for_good)
        return "; ".join([*found, *[f"replaced for good: {names}"] * bool(names)])


def _check_names(what: str | Iterable[str]) -> list[str]:
    names = [what] if isinstance(what, str) else list(what)
    rule = f"one of {', '.join(map(repr, SEAMS))}"
    for name in names:
        check_value("what", name, name in SEAMS, rule)
    return names


def _open_seam(name: str) -> Seam:
    """Import the seams only now: they cost milliseconds at the start of a program."""
    if name not in seams.opened:
        from fastloop import adapters
        from fastloop.patching.loader_seam import LoaderSeam
        from fastloop.patching.step_seams import make_clip_seam, make_scaler_seam

        makers: dict[str, Callable[[bool], Seam]] = {
            "dataloader": LoaderSeam,
            "grad_scaler": make_scaler_seam,
            "clip_grad_norm": make_clip_seam,
        }
        make = makers.get(name) or partial(adapters.make_seam, name)
        seams.opened[name] = make(os.environ.get("FASTLOOP_STRICT") == "1")
    return seams.opened[name]


def patch(
    what: str | Iterable[str] = SEAMS,
    *,
    verbose: bool | None = None,
    cache: bool | str | None = None,
) -> PatchState:
    """Make torch's own classes use fastloop: nothing in a script has to change.

    Methods of torch's classes are replaced, so a framework may be imported before or after, and may
    know a class by any name. Batches, their order, random numbers, gradients,
    scales, state dicts and pickles stay torch's. Calls that fastloop cannot serve in the same way
    are left to torch and counted: ``patch_status()``. A second call changes nothing. Any thread may
    call it.

    Args:
        what: ``"dataloader"``: ``torch.utils.data.DataLoader``, every instance, and subclasses that
            do not make their own iterators. ``"grad_scaler"``: ``torch.amp.GradScaler``, likewise,
            unless they unscale by themselves. ``"clip_grad_norm"``: ``clip_grad_norm_`` and
            ``clip_grads_with_norm_`` of ``torch.nn.utils``. ``"transforms"``: ``Compose`` of
            torchvision, v1 and v2, ``ImageFilter.GaussianBlur``, ``Image.resize`` and affine
            ``Image.transform`` of Pillow, once imported.
            ``"texts"``: ``pad`` of transformers' tokenizers, once imported, and torch's
            ``pad_sequence``.
        verbose: whether to print what is on, a line on stderr. None: if FASTLOOP_VERBOSE is
            set and not 0, or if a seam could not be put in.
        cache: True, a size such as ``"8G"``, or a folder: JPEG files that torchvision's ImageFolder
            or the program opens by Pillow are decoded once and kept, as by
            ``fastloop.ImageFolder(cache="planes")``, also in processes that start later. False,
            None: nothing changes.

    Returns:
        The state of all seams. A seam that torch's version does not fit is off and says why. With
        ``FASTLOOP=0`` in the environment nothing is patched; with ``FASTLOOP_STRICT=1`` a call that
        would be left to torch raises RuntimeError; with ``FASTLOOP_CHECK=n`` one of n samples of
        torchvision is also made by torchvision, and compared.

    Raises:
        ValueError: ``what`` has an unknown name, or ``FASTLOOP_CHECK`` is not a number.
        ImportError, OSError, ValueError: the cache cannot be opened: ``fastloop.ImageFolder``.
    """
    names = _check_names(what)
    read_check_interval()  # a wrong number is an error now, not at the first image
    with seams.lock:
        if os.environ.get("FASTLOOP") == "0":
            return patch_status()
        if cache:
            from fastloop import adapters

            adapters.keep_images(cache)
        # Importing the seams would set off a collection of everything that torch has made, which
        # takes longer than the import.
        was_collecting = gc.isenabled()
        gc.disable()
        take_counts(seams.opened)  # they are of the time before
        try:
            are_on = [_open_seam(name).put_in() for name in names]
        finally:
            if was_collecting:
                gc.enable()
        state = patch_status()
    if verbose is None:
        verbose = os.environ.get("FASTLOOP_VERBOSE", "0") != "0" or not all(are_on)
    if verbose:
        with suppress(OSError, ValueError):  # a closed stderr, or a full disk
            print(_announce(state), file=sys.stderr)
    return state


def _announce(state: PatchState) -> str:
    on = [name for name, seam in state.seams.items() if seam.is_on]
    off = [describe(name, seam) for name, seam in state.seams.items() if not seam.is_on]
    told = f"on for {', '.join(on)} (torch {torch.__version__}); FASTLOOP=0 turns it off"
    return f"fastloop {version}: " + "; ".join([told] * bool(on) + off)


def unpatch(what: str | Iterable[str] = SEAMS) -> PatchState:
    """Take out the functions that ``patch()`` has put in. Running iterators go on unchanged.

    If a tool has wrapped one of the functions since, the function stays and passes every call on.

    Raises:
        ValueError: ``what`` has an unknown name.
    """
    names = _check_names(what)
    with seams.lock:
        for name in names:
            if name in seams.opened and seams.opened[name].is_on:
                seams.opened[name].take_out()
        return patch_status()


@contextmanager
def patched(what: str | Iterable[str] = SEAMS) -> Iterator[PatchState]:
    """``patch()`` for a block: its end takes out only the seams that the block has put in."""
    names = _check_names(what)
    with seams.lock:
        before = {name for name in names if name in seams.opened and seams.opened[name].is_on}
        state = patch(names)
    try:
        yield state
    finally:
        unpatch([name for name in names if name not in before])


def patch_status() -> PatchState:
    """Return the state of all seams: whether each is on, how many calls were served, and how many
    were left to torch. Calls of worker processes are counted when the workers have ended."""
    is_off = os.environ.get("FASTLOOP") == "0"
    why = "FASTLOOP=0 is set" if is_off else "patch() was not called for it"
    off = SeamStatus(False, why, 0, {})
    with seams.lock:
        take_counts(seams.opened)
        opened = {name: seam.status() for name, seam in seams.opened.items()}
    states = {name: opened.get(name, off) for name in SEAMS}
    return PatchState(states, tuple(moves.replaced))
