"""Batches of worker processes that arrive on a device, copied by C when they are there.

What has no place in that copy (a batch whose tensors hide in objects, say) is sent as any other
batch is.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from fastloop import _core
from fastloop._device import Link
from fastloop._pack import unpack
from fastloop._upload import Uploader

# By DLPack's code and bits.
_DTYPES = {
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


class _Block:
    """Memory on a device that holds a batch."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._storage = memory.untyped_storage()
        self._device = memory.device

    def tensor(self, place: tuple[int, ...]) -> torch.Tensor:
        """At a place as of ``Parcel.tensor``, with a version of its own: writing to one spoils no
        graph that saved another."""
        offset, code, *shape = place
        dtype = _DTYPES[code]
        tensor = torch.empty(0, dtype=dtype, device=self._device)
        begin = offset // dtype.itemsize
        tensor.set_(self._storage, begin, shape)  # type: ignore[call-overload]
        return tensor


class Landing:
    """Where the parcels of one iterator land. If a call raises, it may be made again."""

    def __init__(self, hub: _core.Hub, link: Link) -> None:
        self._hub = hub
        self._link = link
        self._uploader = Uploader(link, None)
        self._late: Any = None  # what the iterator gave and could not be handed out yet
        self.check = link.check  # raises where no batch can be taken

    @property
    def is_behind(self) -> bool:
        return self._late is not None

    def put(self, data: Any) -> None:
        """What is to be handed out next: a parcel, or a batch that came some other way."""
        self._late = data

    @torch.inference_mode(False)  # tensors of that mode could not be used outside of it
    def take(self) -> Any:
        """The batch, for the current stream."""
        parcel = self._late
        if type(parcel) is not _core.Parcel or parcel.upload == 0:
            return self._send()
        memory, is_elsewhere = parcel.land(self._link.empty)
        self._late = None
        if is_elsewhere:
            self._link.lend(memory)
        return unpack(parcel, _Block(memory).tensor)

    def _send(self) -> Any:
        if type(self._late) is _core.Parcel:
            parcel, self._late = self._late, None
            self._late = unpack(parcel)
        sent = self._uploader.send(self._late)
        self._late = None
        return self._uploader.hand_out(sent)

    @torch.inference_mode(False)
    def look_ahead(self, first: int) -> None:
        """Batches from number `first` on (-1: whichever come first) are copied when they come, as
        far as there is memory for them."""
        with suppress(Exception):
            for _ in range(self._hub.expect(first)):
                self._hub.supply(self._link.empty(self._hub.room))

    def drop(self) -> None:
        """SYNC if a copy still reads memory of the user's."""
        self._late = None
        self._uploader.finish()
