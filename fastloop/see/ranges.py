"""Ranges: names for what a report watches, in others' pictures: Nsight Systems' (NVTX, domain
"fastloop", through the package nvtx, if it is there) and torch's profiler's.

Where neither listens a range is two looks at a flag. Only the threads of open reports come here.
"""

from __future__ import annotations

from typing import Any

import torch.autograd.profiler as profiler

Range = tuple[Any, Any]  # of NVTX, and of torch


def find_domain() -> Any:
    """NVTX's; None without the package. Without a tool it does nothing."""
    try:
        import nvtx  # type: ignore[import-not-found, unused-ignore]

        return nvtx.get_domain("fastloop")
    except Exception:  # a report does without what others have installed
        return None


class Ranges:
    """Args: domain: has ``start_range(message=)``, which gives what ``end_range()`` takes."""

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._optimizers: dict[int, Any] = {}

    def begin(self, name: str) -> Range | None:
        """None: nobody listens."""
        if self._domain is None and not profiler._is_profiler_enabled:
            return None
        record = None
        if profiler._is_profiler_enabled:
            record = profiler.record_function(f"fastloop.{name}")
            record.__enter__()  # type: ignore[no-untyped-call]
        return self._domain and self._domain.start_range(message=name), record

    def end(self, begun: Range | None) -> None:
        if begun is None:
            return
        of_nvtx, record = begun
        if record is not None:
            record.__exit__(None, None, None)
        if self._domain is not None:
            self._domain.end_range(of_nvtx)

    def begin_step(self, optimizer: int) -> None:
        """For NVTX alone: torch's profiler has a name for it already."""
        if self._domain is not None:
            self.end_step(optimizer)  # its last one has raised
            self._optimizers[optimizer] = self._domain.start_range(message="optimizer.step")

    def end_step(self, optimizer: int) -> None:
        if optimizer in self._optimizers:
            self._domain.end_range(self._optimizers.pop(optimizer))
