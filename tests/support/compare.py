"""What the tests of collating and of worker processes share: a comparison that misses nothing, and
errors reduced to what both loaders must have in common."""

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from helpers import TorchLoader, bits
from samples import BATCHES
from time_limits import limit
from torch.utils.data import Dataset

from fastloop import DataLoader

# ---- equality


def _strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions where a stride means anything."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        *(tensor.dtype, tensor.device, tensor.layout, tensor.is_nested, tensor.is_quantized),
        *(tensor.requires_grad, tensor.is_leaf, tensor.is_inference(), tensor.is_pinned()),
        *(tensor.is_conj(), tensor.is_neg()),
    )


def _memory(tensor: torch.Tensor) -> bytes:
    """The bytes of all elements, of any dtype."""
    if tensor.is_meta or torch._is_zerotensor(tensor):
        return b""
    size = tensor.element_size()
    strides = [size * stride for stride in tensor.stride()]
    storage = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
    place = size * int(tensor.storage_offset())
    elements = storage.as_strided((*tensor.shape, size), (*strides, 1), place)
    return elements.reshape(-1).numpy().tobytes()


def assert_identical_tensors(ours: torch.Tensor, theirs: torch.Tensor, where: str) -> None:
    assert _traits(ours) == _traits(theirs), where
    if ours.is_nested:
        assert_identical(list(ours.detach().unbind()), list(theirs.detach().unbind()), where)
        return
    assert ours.shape == theirs.shape, where
    if ours.layout is torch.strided:
        assert _strides(ours) == _strides(theirs), where
        assert _memory(ours) == _memory(theirs), where
    else:
        assert bits(ours) == bits(theirs), where


def _assert_identical_arrays(ours: Any, theirs: Any, where: str) -> None:
    assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
    for flag in ("WRITEABLE", "OWNDATA", "ALIGNED"):
        assert ours.flags[flag] == theirs.flags[flag], f"{where}: {flag}"
    assert ours.tobytes() == theirs.tobytes(), where


def _assert_identical_parts(ours: Iterable[Any], theirs: Iterable[Any], where: str) -> None:
    a, b = list(ours), list(theirs)
    assert len(a) == len(b), where
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        assert_identical(x, y, f"{where}[{i}]")


def _has_state(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value)


def assert_identical(ours: Any, theirs: Any, where: str = "batch") -> None:
    """Same types all the way down, and of tensors and arrays everything a user can see."""
    assert type(ours) is type(theirs), f"{where}: {ours!r} is not like {theirs!r}"
    if isinstance(ours, torch.Tensor):
        assert_identical_tensors(ours, theirs, where)
        assert_identical(vars(ours), vars(theirs), f"{where}.__dict__")
    elif isinstance(ours, np.ndarray) and not ours.dtype.hasobject:
        _assert_identical_arrays(ours, theirs, where)
    elif isinstance(ours, torch.UntypedStorage):
        assert ours.tolist() == theirs.tolist(), where
    elif isinstance(ours, Mapping):
        assert list(ours) == list(theirs), where
        _assert_identical_parts(ours.values(), theirs.values(), where)
    elif isinstance(ours, (list, tuple, deque)):
        _assert_identical_parts(ours, theirs, where)
    elif _has_state(ours):
        assert_identical(vars(ours), vars(theirs), f"{where}.__dict__")
    else:
        assert repr(ours) == repr(theirs), where


# ---- errors


class Raised(tuple[type[BaseException], str]):
    """An exception by type and text."""

    __slots__ = ()


def raised(error: BaseException) -> Raised:
    """The text is without the frames of a worker's traceback and without what we add to it."""
    if isinstance(error, RecursionError):
        return Raised((RecursionError, "says where"))
    text = re.sub(r"\nThis happened in batch \d+ \(indices .*\)\.\s*$", "", str(error), flags=re.S)
    head, *rest = text.split("Traceback (most recent call last):\n")
    if rest:
        lines = [line for line in rest[-1].splitlines() if not line.startswith("  ")]
        text = "\n".join([head.splitlines()[0], *lines])
    return Raised((type(error), text.rstrip()))


def result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return raised(error)


def results(loader: Iterable[Any], limit: int = 1000) -> list[Any]:
    """What each next() gives until the end: batches and errors."""
    iterator, given = iter(loader), []
    end = object()
    for _ in range(limit):
        item = result(lambda: next(iterator, end))
        if item is end:
            return given
        given.append(item)
    raise AssertionError(f"no end after {limit} batches")


# ---- all kinds of batches as a dataset, importable where workers are spawned

# Lists in themselves end at another depth of Python's stack in a worker.
NAMES = [name for name in BATCHES if "in itself" not in name]


class BatchKinds(Dataset[Any]):
    """Index k is the k-th kind of batch: as its samples, or as one sample."""

    def __getitems__(self, indices: list[int]) -> Any:
        return self[indices[0]]

    def __getitem__(self, index: int) -> Any:
        return BATCHES[NAMES[index]]()

    def __len__(self) -> int:
        return len(NAMES)


# ---- what a loader does from its making to its end

Fetch = Callable[[Any], Any]
LOADERS = (DataLoader, TorchLoader)


def identity(value: Any) -> Any:
    return value


class FunctionDataset(Dataset[Any]):
    """Sample i is what a function makes of i."""

    def __init__(self, function: Fetch = identity, length: int = 10) -> None:
        self.function, self.length = function, length

    def __getitem__(self, index: Any) -> Any:
        return self.function(index)

    def __len__(self) -> int:
        return self.length


def record_run(cls: Any, dataset: Any, epochs: int = 1, **kwargs: Any) -> list[Any]:
    """What a loader gives, says and warns, with torch's random state after every next()."""
    kwargs = {"batch_size": 2, "timeout": limit(300) if kwargs.get("num_workers") else 0, **kwargs}
    if "batch_sampler" in kwargs:
        del kwargs["batch_size"]
    if isinstance(kwargs.get("generator"), int):
        kwargs["generator"] = torch.Generator().manual_seed(kwargs["generator"])
    torch.manual_seed(3)
    record: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = cls(dataset() if isinstance(dataset, type) else dataset, **kwargs)
        if cls is DataLoader:
            other = "process" if loader.num_workers else "sync"
            is_pipe = isinstance(loader.dataset, torch.utils.data.IterDataPipe)
            assert loader.stats().path == ("torch" if is_pipe else other)
        for _ in range(epochs):
            iterator = result(lambda: iter(loader))
            if isinstance(iterator, Raised):
                return [*record, iterator]
            record += [bits(torch.get_rng_state()), *_epoch(iterator)]
    texts = [(warning.category, str(warning.message)) for warning in caught]
    # CPython's, since 3.12, of a fork beside threads: a loader whose workers are threads has none.
    texts = [text for text in texts if "use of fork() may lead to deadlocks" not in text[1]]
    return [*record, [text for text in texts if "will create" not in text[1]]]


def _epoch(iterator: Iterator[Any]) -> Iterator[Any]:
    end = object()
    for _ in range(1000):
        item = result(lambda: next(iterator, end))
        yield bits(torch.get_rng_state())
        if item is end:
            return
        yield item


def assert_same_run(dataset: Any, **kwargs: Any) -> list[Any]:
    ours, theirs = (record_run(cls, dataset, **kwargs) for cls in LOADERS)
    assert_identical(ours, theirs)
    return ours


def collating_loader(
    cls: Any, make: Callable[[Any], Any], count: int, workers: int, **kwargs: Any
) -> Any:
    """What a loader gives whose collate_fn is called with 0, 1, ..."""
    return cls(
        FunctionDataset(length=count),
        1,
        num_workers=workers,
        collate_fn=lambda batch: make(batch[0]),
        timeout=limit(300),  # that of a test that hangs: spawned workers may take a minute to start
        **kwargs,
    )
