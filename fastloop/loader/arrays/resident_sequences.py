"""Outputs of PadCollate and PackCollate that a device makes of sequences in its memory. The CPU
computes where each sequence of a batch goes, and sends that; one kernel writes all outputs."""

from __future__ import annotations

from functools import partial
from itertools import compress
from typing import Any

import torch

from fastloop._core import SequenceBatches, SequenceColumn
from fastloop.compat.tensors import DTYPES
from fastloop.data.samplers import Vector
from fastloop.device.accelerator import Accelerator


def send(accelerator: Accelerator, here: torch.Tensor) -> Any:
    """Copy a tensor to the device; work that the current stream does later sees it."""
    return accelerator.move(here if accelerator.device.type == "cpu" else here.pin_memory())


class Sequences:
    """The columns of sequences of one loader, whose values lie on the accelerator's device.

    Args:
        sources: of all columns.
    """

    def __init__(self, sources: tuple[Any, ...], accelerator: Accelerator) -> None:
        self._places = [isinstance(each, SequenceColumn) for each in sources]
        self._batches = SequenceBatches(torch.Tensor, tuple(compress(sources, self._places)))
        self._send = partial(send, accelerator)
        self._empties = {
            number: partial(torch.empty, dtype=dtype, device=accelerator.device)
            for number, dtype in DTYPES.items()
        }

    def gather(self, rows: Vector) -> list[Any]:
        """Return an output for each column of sequences, made on the current stream; None for
        others."""
        made = iter(self._batches.make(rows, self._send, self._empties))
        return [next(made) if is_sequence else None for is_sequence in self._places]
