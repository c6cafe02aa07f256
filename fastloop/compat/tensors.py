"""Tensors as memory: dtypes by number, slots in a buffer, and which tensors are plain.

A *slot* is the part of a buffer that holds a tensor. `_core` uses the same tuple.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from fastloop.compat.torch_parts import difference, is_functorch_wrapped

P = ParamSpec("P")
T = TypeVar("T")

# A dtype's number is DLPack's code * 256 + bits.
DTYPES: dict[int, torch.dtype] = {
    code * 256 + dtype.itemsize * 8: dtype
    for code, dtypes in {
        0: (torch.int8, torch.int16, torch.int32, torch.int64),
        1: (torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        2: (torch.float16, torch.float32, torch.float64),
        4: (torch.bfloat16,),
        5: (torch.complex32, torch.complex64, torch.complex128),
        6: (torch.bool,),
        10: (torch.float8_e4m3fn,),
        11: (torch.float8_e4m3fnuz,),
        12: (torch.float8_e5m2,),
        13: (torch.float8_e5m2fnuz,),
        14: (torch.float8_e8m0fnu,),
    }.items()
    for dtype in dtypes
}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
BYTE = _NUMBERS[torch.uint8]

_ALIGNMENT = 64  # bytes


class Slot(NamedTuple):
    offset: int  # in bytes, a multiple of the size of an element
    dtype: int  # by number
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None  # in elements; None: contiguous


@functools.cache
def _others() -> tuple[torch.dtype, ...]:
    """Return the dtypes that DLPack does not have, in the same order in each process. Their numbers
    are below 0, which `_core` never gives. Few programs need these dtypes, and to look through all
    names of torch takes half a millisecond."""
    values = [*vars(torch).values()]  # a copy: other threads may import modules into torch
    found = {each for each in values if type(each) is torch.dtype}
    return tuple(sorted(found - _NUMBERS.keys(), key=str))


def dtype_of(number: int) -> torch.dtype:
    """Return the dtype of a slot by its number."""
    return DTYPES[number] if number >= 0 else _others()[-1 - number]


def _number_of(dtype: torch.dtype) -> int:
    return _NUMBERS[dtype] if dtype in _NUMBERS else -1 - _others().index(dtype)


def slot_of(tensor: torch.Tensor) -> Slot:
    """Return a tensor's slot at offset 0, with the strides that ``tensor.to(device)`` gives."""
    strides = tensor.stride()
    if not tensor.is_contiguous():
        strides = torch.empty_like(tensor, device="meta").stride()
    return Slot(0, _number_of(tensor.dtype), tuple(tensor.shape), strides)


def pad(size: int) -> int:
    """Round up to a multiple of 64 bytes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def lay_out(slots: Sequence[Slot]) -> tuple[list[Slot], int]:
    """Put slots one after the other into a buffer. Returns the slots, and the size of the buffer in
    bytes."""
    sizes = (pad(math.prod(slot.shape) * dtype_of(slot.dtype).itemsize) for slot in slots)
    *offsets, size = accumulate(sizes, initial=0)
    return [slot._replace(offset=at) for slot, at in zip(slots, offsets, strict=True)], size


def outside_inference_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Leave inference mode for a function that makes tensors, so that all may use them.
    Costs less than torch's decorator if that mode is off."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return call


@outside_inference_mode
def split_buffer(buffer: torch.Tensor, slots: Iterable[Sequence[Any]]) -> list[torch.Tensor]:
    """Return the tensors in these slots of a buffer, which begins at the first byte of its storage.

    Each has a version counter of its own. Views would share one, so writing to one view would spoil
    graphs that have saved a second view.
    """
    storage, device = buffer.untyped_storage(), buffer.device
    tensors = []
    for offset, number, *layout in slots:
        dtype = dtype_of(number)
        tensor = torch.empty(0, dtype=dtype, device=device)
        tensors.append(tensor.set_(storage, offset // dtype.itemsize, *layout).data)
    return tensors


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is its numbers and nothing more: copied numbers are a copied tensor."""
    return not (
        type(tensor) is not torch.Tensor
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_neg()
        or tensor.is_conj()
        or getattr(tensor, "has_names", bool)()  # gone in torch 2.13
        or is_functorch_wrapped(tensor)
    )


def pin_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias whose storage cannot be resized, so that threads may read the tensor.

    If torch shares a storage with NumPy, torch marks the storage as not resizable, for good.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return tensor.detach()


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices and elements of a COO tensor, repeated ones as well. They are added up if
    only torch's public methods are known."""
    if not difference("sparse"):
        return tensor._indices(), tensor._values()
    tensor = tensor.coalesce()
    return tensor.indices(), tensor.values()


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of bytes in the storage from the tensor's first to its last element."""
    size, begin = tensor.element_size(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    end = begin + sum((int(length) - 1) * int(stride) for length, stride in steps) + 1
    return begin * size, end * size
