from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np

version: str

@final
class Table:
    def __new__(
        cls,
        sources: tuple[Any, ...],
        tensor_type: type,
        names: tuple[str, ...],
        files: tuple[tuple[str, int, Callable[[], int] | None] | None, ...],
    ) -> Table: ...
    def read_row(self, row: int, outs: tuple[Any, ...], /) -> None: ...

@final
class Slots:
    fields: int
    def __new__(cls, fields: int) -> Slots: ...
    def count(self) -> dict[str, int]: ...
    def trim(self) -> None: ...
    def is_own(self) -> bool: ...

@final
class Feed:
    def __new__(
        cls,
        table: Table,
        slots: Slots,
        fetch: Any,
        keys: tuple[str, ...] | None,
        maps: tuple[Any, ...],
        workers: int,
        prefetch: int,
        in_order: bool,
        persistent: bool,
        timeout: float,
    ) -> Feed: ...
    def __iter__(self) -> Feed: ...
    def __next__(self) -> Any: ...
    def restart(self, source: Iterable[Any], kind: int, batch_sampler: Any, /) -> None: ...
    def is_own(self) -> bool: ...
    def use(self, table: Table, /) -> None: ...
    def close(self) -> None: ...

def int64_array(
    sequence: Sequence[Any], tensor_type: type, /
) -> np.ndarray[Any, np.dtype[np.int64]] | None: ...
def build_info() -> dict[str, str | int]: ...
