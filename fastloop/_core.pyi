from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, final

import numpy as np
from typing_extensions import Self

version: str

@final
class Table:
    outputs: int
    @property
    def sources(self) -> tuple[Any, ...]: ...
    def __new__(
        cls,
        sources: tuple[Any, ...],
        tensor_type: type,
        names: tuple[str, ...],
        files: tuple[tuple[str, int, Callable[[], int] | None] | None, ...],
        plans: tuple[ImagePlan | None, ...] | None = None,
        casts: tuple[str | None, ...] | None = None,
    ) -> Table: ...
    def cut(self) -> Table: ...
    def read_row(self, row: int, outs: tuple[Any, ...], /) -> None: ...

@final
class SequenceColumn:
    @property
    def sources(self) -> tuple[Any, ...]: ...
    def __new__(
        cls,
        tensor_type: type,
        output: str,
        offsets: Any,
        values: Any = None,
        *,
        main: Any = None,
        leader: int = 0,
        is_left: bool = False,
        multiple: int = 1,
        max_length: int = 9223372036854775807,
        max_tokens: int = 0,
        is_int64: bool = False,
        is_label: bool = False,
        padding: bytes = b"",
        name: str = "",
        main_name: str = "",
    ) -> SequenceColumn: ...

@final
class ImagePlan:
    @property
    def out_shape(self) -> tuple[int, int, int]: ...
    @property
    def uncut(self) -> str: ...
    def __new__(
        cls,
        ops: tuple[dict[str, Any], ...],
        *,
        height: int,
        width: int,
        channels: int,
        layout: str,
        out_dtype: str,
        out_layout: str,
        tables: bytes | None,
        linear: tuple[float, ...] | None,
        seed: int,
    ) -> ImagePlan: ...
    def draw(
        self, index: int, epoch: int, view: int, height: int, width: int, /
    ) -> list[dict[str, Any]]: ...
    def apply(self, image: Any, out: Any, index: int, epoch: int, view: int, /) -> None: ...

@final
class Windows:
    @property
    def counts(self) -> tuple[int, ...]: ...
    @property
    def io(self) -> tuple[str, ...]: ...
    @property
    def sources(self) -> tuple[Any, ...]: ...
    def __new__(
        cls,
        files: tuple[tuple[Any, ...], ...],
        descriptors: list[int],
        *,
        seq_len: int,
        stride: int,
        mode: str,
        targets: str | None,
        out_dtype: str,
        eos_id: int | None,
        return_docs: bool,
        vocab_size: int | None,
        io: str,
        seed: int,
    ) -> Windows: ...
    def __len__(self) -> int: ...
    def read_one(self, index: int, epoch: int, /) -> tuple[Any, ...]: ...
    def read_batch(self, indices: Any, epoch: int, /) -> tuple[Any, ...]: ...
    def locate(self, index: int, epoch: int, /) -> tuple[int, int]: ...

@final
class Permutation:
    def __new__(cls, n: int, seed: int, epoch: int) -> Permutation: ...
    def block(self, first: int, count: int, step: int = 1) -> np.ndarray[Any, Any]: ...

@final
class BatchPool:
    fields: int
    device: int
    def __new__(cls, fields: int, is_shared: bool = False, device: int = -1) -> BatchPool: ...
    def count(self) -> dict[str, int]: ...
    def trim(self) -> None: ...
    def is_own(self) -> bool: ...

@final
class ArrayLoader:
    def __new__(
        cls,
        table: Table,
        pool: BatchPool,
        fetch: Any,
        structure: Any,
        maps: tuple[Any, ...],
        workers: int,
        prefetch: int,
        in_order: bool,
        persistent: bool,
        timeout: float,
        destination: Any = None,
        budget: int = 9223372036854775807,
    ) -> ArrayLoader: ...
    def __iter__(self) -> ArrayLoader: ...
    def __next__(self) -> Any: ...
    def restart(
        self, source: Iterable[Any], kind: int, batch_sampler: Any, epoch: int = 0, /
    ) -> None: ...
    def is_own(self) -> bool: ...
    def rest(self) -> tuple[Any, Any, int, int, Any]: ...
    def close(self) -> None: ...

@final
class Collate:
    def __new__(
        cls,
        torch: Any,
        memmap_type: type,
        registry: dict[Any, Any],
        others: Callable[[Collate, Any], Any],
        fallback: Callable[[Any], Any],
        worker_end: WorkerEnd | None = None,
        thread_pool: ThreadPool | None = None,
    ) -> Collate: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def begin(self) -> bool: ...
    def stack(self, batch: Any, /) -> Any: ...
    def block(self, like: Any, count: int, /) -> Any: ...
    def pad(
        self,
        values: list[Any],
        fill: Callable[[int], bytes],
        is_widened: bool,
        is_left: bool,
        multiple: int,
        max_length: int,
        has_mask: bool,
        has_lengths: bool,
        float_bits: int,
        /,
    ) -> Any: ...
    def pack(
        self,
        values: list[Any],
        starts: list[int],
        lengths: list[int],
        rows: int,
        width: int,
        fill: Callable[[int], bytes],
        is_widened: bool,
        is_label: bool,
        float_bits: int,
        /,
    ) -> Any: ...
    def segments(
        self, bounds: list[int], rows: int, width: int, copies: int, has_positions: bool, /
    ) -> tuple[list[Any], Any]: ...
    def fallbacks(self) -> dict[str, int]: ...

@final
class WorkerEnd:
    def __new__(
        cls,
        tensor_type: type,
        fd: int,
        bytes: int,
        offset: int,
        workers: int,
        depth: int,
        base: int,
        worker: int,
    ) -> WorkerEnd: ...
    def receive(self, timeout: float, /) -> bytes | int | None: ...
    def number(self) -> int: ...
    def find(self, object: Any, /) -> tuple[int, int, tuple[int, ...]] | Literal[False] | None: ...
    def copy(self, address: int, bytes: int, /) -> int: ...
    def rewind(self) -> None: ...
    def answer(self, head: bytes, kind: int, host_only: bool, /) -> bool: ...
    def write(self, batch: Any, kind: int, /) -> bool | None: ...
    def is_closed(self) -> bool: ...
    def watch(self, pid: int, /) -> None: ...

@final
class Reply:
    kind: int
    upload: int
    def open(self) -> bytes: ...
    def deliver(self) -> None: ...
    def load(self) -> Any: ...
    def split(self, places: list[Any], /) -> list[Any]: ...

@final
class ParentEnd:
    is_overwritten: bool
    has_destination: bool
    def __new__(
        cls,
        pool: BatchPool,
        tensor_type: type,
        workers: int,
        depth: int,
        budget: int,
        destination: Any = None,
        keeps_tasks: bool = False,
    ) -> ParentEnd: ...
    def submit(self, worker: int, payload: bytes, task: Any, /) -> None: ...
    def receive(self, timeout: float, /) -> tuple[Any, Reply] | None: ...
    def start_epoch(self) -> None: ...
    def cancel(self, worker: int, is_gone: bool) -> None: ...
    def owes(self, worker: int, /) -> bool: ...
    def is_idle(self) -> bool: ...
    def first_task(self, worker: int, /) -> tuple[int, Any] | None: ...
    def run_ahead(self, first: int, /) -> None: ...
    def release_buffers(self) -> None: ...
    def release(self) -> None: ...
    def has_replies(self, worker: int, /) -> bool: ...
    def begun(self, worker: int, /) -> tuple[int, Any]: ...
    def restart(self, worker: int, /) -> bool: ...
    def end(self, worker: int, /) -> None: ...
    def close(self) -> None: ...
    def is_closed(self) -> bool: ...
    def address(self) -> tuple[int, int, int, int, int, int]: ...
    def count(self) -> tuple[tuple[tuple[int, int, int], ...], dict[str, int]]: ...

class FinalizerBase:
    def __del__(self) -> None: ...

@final
class ThreadPool:
    def __new__(cls, threads: int, uses_openmp: bool = False) -> ThreadPool: ...

class GradListBase:
    tensors: list[Any]
    is_plain: bool
    @property
    def dtypes(self) -> set[Any]: ...
    def __new__(
        cls,
        tensor_type: type | None,
        written: Callable[[list[Any]], None],
        new_number: Callable[[Any], Any],
        new_scratch: Callable[[Any, int], Any] | None = None,
    ) -> Self: ...
    def collect_groups(self, param_groups: Iterable[Any], /) -> bool: ...
    def collect_parameters(self, parameters: Iterable[Any], /) -> bool: ...
    def collect_tensors(self, tensors: Iterable[Any], /) -> bool: ...
    def release(self) -> None: ...
    def run_norm_check(
        self, pool: ThreadPool, norm_type: float, scale: Any, divisor: float, found_inf: Any, /
    ) -> Any: ...
    def find_clip_factor(
        self, norm: Any, max_norm: float, found_inf: Any, scale: Any, divisor: float, /
    ) -> Any: ...
    def run_scale(self, pool: ThreadPool, factor: Any, /) -> None: ...
    def run_unscale(self, pool: ThreadPool, inv_scale: Any, found_inf: Any, /) -> None: ...
    def run_combine(
        self,
        pool: ThreadPool,
        source: GradListBase,
        alpha: float,
        factor: Any,
        beta: float,
        found_inf: Any,
        /,
    ) -> bool: ...
    def update_scale(
        self,
        found_inf: Any,
        rule: tuple[float, float, int, int, float, float],
        scale: Any,
        tracker: Any,
        misses: Any,
        /,
    ) -> None: ...
    def unscale_and_clip(
        self,
        pool: ThreadPool,
        param_groups: Iterable[Any],
        scale: Any,
        found_inf: Any,
        clip: tuple[float, float, bool] | None,
        /,
    ) -> Any: ...
    def clip_parameters(
        self,
        pool: ThreadPool,
        parameters: Iterable[Any],
        max_norm: float,
        norm_type: float,
        error_if_nonfinite: bool,
        /,
    ) -> Any: ...

def is_small_part(bytes: int, batch_bytes: int) -> bool: ...
def int64_array(
    sequence: Sequence[Any], tensor_type: type, /
) -> np.ndarray[Any, np.dtype[np.int64]] | None: ...
def check_cuda(device: int, /) -> None: ...
def expect_fork() -> int: ...
def fork_expected() -> None: ...
def fork_ended(worker: int, /) -> None: ...
def keep_heap() -> None: ...
def move(
    keepers: tuple[Table | Windows, ...],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any: ...
def lock_wait() -> int: ...
def token_header(
    head: bytes, file_bytes: int, format: str, dtype: str, /
) -> tuple[str, int, int]: ...
def token_index(
    index: bytes, file_bytes: int, format: str, dtype: str, /
) -> tuple[tuple[str, int, int], np.ndarray[Any, np.dtype[np.int64]]]: ...
def build_info() -> dict[str, str | int]: ...
