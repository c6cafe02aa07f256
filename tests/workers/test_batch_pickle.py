"""What a collate_fn of the user's returns, sent to the parent: same objects, views, aliases and
strides as torch sends, the same refusals, and memory that is the user's own."""

import gc
import pickle
import random
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from collate_results import MAKES, RESULTS, Make, base, deep
from compare import LOADERS, FunctionDataset, Raised, assert_identical, collating_loader, results
from helpers import ListSampler, TorchLoader
from samples import Open, X, tensor_of

from fastloop import DataLoader

in_workers = pytest.mark.parametrize("workers", [1, 2])
pytestmark = pytest.mark.usefixtures("one_thread")  # for forks


# ---- results of every kind


@in_workers
def test_results_of_every_kind(workers: int) -> None:
    given = [
        results(collating_loader(cls, lambda k: MAKES[k](), len(MAKES), workers)) for cls in LOADERS
    ]
    for name, ours, theirs in zip(RESULTS, *given, strict=True):
        assert not isinstance(theirs, Raised), f"{name}: {theirs}"
        assert_identical(ours, theirs, name)


@in_workers
def test_a_quantized_tensor_comes_as_torch_sends_it(workers: int) -> None:
    make = lambda _: torch.quantize_per_tensor(base, 0.5, 3, torch.quint8)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (next(iter(collating_loader(cls, make, 1, workers))) for cls in LOADERS)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert bytes(ours.untyped_storage()) == bytes(theirs.untyped_storage())


# ---- views and aliases


def offsets(batch: list[torch.Tensor]) -> list[Any]:
    """Which tensors are one, and where others lie in relation to the first of their storage."""
    firsts: dict[int, int] = {}
    told: list[Any] = []
    for tensor in batch:
        same = [i for i, other in enumerate(batch) if other is tensor]
        if tensor.numel() == 0:  # may lie anywhere
            told.append(same)
            continue
        key, place = tensor.untyped_storage()._cdata, tensor.data_ptr()
        first = firsts.setdefault(key, place)
        told.append((list(firsts).index(key), place - first, same))
    return told


def random_views(seed: int) -> list[torch.Tensor]:
    """Views of a few storages, of any dtype, some twice, some empty, some at both ends."""
    rng = random.Random(seed)
    bases = [tensor_of(torch.uint8, rng.choice([0, 48, 96, 960, 9600])) for _ in range(3)]
    found: list[torch.Tensor] = []
    for _ in range(rng.randrange(1, 8)):
        dtype = rng.choice([torch.uint8, torch.int16, torch.float32, torch.complex128, torch.bool])
        whole = rng.choice(bases)
        if dtype is torch.bool:
            whole = whole.clone().fill_(1)
        view = whole.view(dtype)
        length = view.numel()
        begin, end = sorted(rng.randrange(length + 1) for _ in range(2))
        view = view[begin : end : rng.choice([1, 1, 2, 5])]
        if view.numel() % 2 == 0 and rng.random() < 0.4:
            view = view.view(2, -1).t() if view.numel() else view.view(0, 2).t()
        found.append(rng.choice(found) if found and rng.random() < 0.2 else view)
    return found


@in_workers
def test_views_and_aliases(workers: int) -> None:
    batches = [list(collating_loader(cls, random_views, 400, workers)) for cls in LOADERS]
    for seed, (ours, theirs) in enumerate(zip(*batches, strict=True)):
        assert_identical(ours, theirs, f"seed {seed}")
        assert offsets(ours) == offsets(theirs), f"seed {seed}"


def test_a_write_shows_in_every_view() -> None:
    make = lambda _: {"all": torch.arange(100), "rest": None}  # noqa: E731

    def collate(k: int) -> dict[str, Any]:
        batch: dict[str, Any] = make(k)
        batch["rest"] = [batch["all"], batch["all"][10:20], batch["all"][::2].view(5, 10)]
        return batch

    for cls in LOADERS:
        batch = next(iter(collating_loader(cls, collate, 1, 1)))
        batch["all"].zero_()
        assert batch["rest"][0] is batch["all"]
        assert not batch["rest"][1].any() and not batch["rest"][2].any()
        batch["rest"][1].fill_(7)
        assert batch["all"].sum() == 70 and batch["rest"][2][0, 5] == 7


def test_of_a_large_storage_only_what_is_looked_at_is_sent() -> None:
    large = torch.arange(3_000_000)
    makes: list[Callable[[], list[torch.Tensor]]] = [
        lambda: [large[1_000_000:1_000_010]],
        lambda: [large[5:10], large[100:200:3], large[7]],
        lambda: list(large[:6000].view(100, 60)[5:10]),
        lambda: [large[2_999_999:], large[3_000_000:]],
    ]
    for make, batch in zip(
        makes, collating_loader(DataLoader, lambda k: makes[k](), 4, 1), strict=True
    ):
        assert_identical(batch, make())
        assert sum(tensor.untyped_storage().nbytes() for tensor in batch[:1]) < 5000


def test_all_of_a_storage_is_sent_where_it_is_in_the_batch() -> None:
    collate = lambda k: [base[40:50], base.untyped_storage()][:: 1 - 2 * k]  # noqa: E731
    for k, batch in enumerate(collating_loader(DataLoader, collate, 2, 1)):
        tensor, storage = batch[:: 1 - 2 * k]
        assert storage.nbytes() == 400
        assert tensor.untyped_storage()._cdata == storage._cdata
        assert_identical(tensor, base[40:50])


class Remembers(Open):
    """A mapping that keeps something of what is put into it."""

    kinds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # noqa: RUF012
        "itself": lambda tensor: tensor,
        "the rest": lambda tensor: tensor[1:],
        "the beginning": lambda tensor: tensor[:1],
        "alias": lambda tensor: tensor.view_as(tensor),
        "transposed": lambda tensor: tensor.t(),
        "detached": lambda tensor: tensor.detach(),
    }

    def __init__(self, items: dict[str, Any], kind: str) -> None:
        super().__init__(items)
        self.kind = kind

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.kept = self.kinds[self.kind](self.items_["x"])


@pytest.mark.parametrize("size", [3, 30_000])
@pytest.mark.parametrize("kind", Remembers.kinds)
def test_containers_that_alias_what_collate_made(kind: str, size: int) -> None:
    def sample(i: int) -> Remembers:
        return Remembers({"x": torch.full((size,), i), "large": torch.ones(40_000)}, kind)

    for cls in LOADERS:
        for batch in cls(FunctionDataset(sample, 4), 2, num_workers=1):
            assert (batch.kept is batch["x"]) == (kind == "itself"), cls
            batch["x"].fill_(-1)
            assert (batch.kept == -1).all(), cls
            assert (batch["large"] == 1).all()


def test_tensors_are_aligned() -> None:
    sample = {name: torch.ones(70_001, dtype=torch.uint8) for name in "xyz"}
    (batch,) = DataLoader([sample], num_workers=1)
    (views,) = collating_loader(DataLoader, lambda _: list(sample.values()), 1, 1)
    for tensor in (*batch.values(), *views):
        assert tensor.data_ptr() % 64 == 0


# ---- refusals


def _hooked() -> torch.Tensor:
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(identity_hook)
    return tensor


def identity_hook(gradient: torch.Tensor) -> torch.Tensor:
    return gradient


class Refuses:
    def __reduce__(self) -> Any:
        raise KeyError("not me")


class Local:
    pass


Local.__qualname__ = "nowhere.Local"
REFUSED: dict[str, tuple[Make, type[BaseException], str]] = {
    "lambda": (lambda: lambda: 1, AttributeError, " local object '"),  # CPython words it anew
    "generator": (lambda: (i for i in "ab"), TypeError, "cannot pickle 'generator' object"),
    "lock": (threading.Lock, TypeError, "cannot pickle '_thread.lock' object"),
    "module": (lambda: [np], TypeError, "cannot pickle 'module' object"),
    "class not found": (Local, pickle.PicklingError, "nowhere.Local"),
    "weak reference": (lambda: weakref.ref(Local), TypeError, "cannot pickle 'weakref"),
    "no leaf": (lambda: torch.ones(2, requires_grad=True) * 2, RuntimeError, "Cowardly refusing"),
    "refuses": (Refuses, KeyError, "not me"),
    "after tensors": (lambda: [torch.ones(99_999), X, Refuses()], KeyError, "not me"),
    "too deep": (lambda: deep(100_000), RecursionError, "maximum recursion depth exceeded"),
}
REFUSALS = list(REFUSED.values())


@pytest.mark.needs_fork("a class that no process can import cannot be sent there")
@in_workers
def test_what_cannot_be_pickled_is_an_error(workers: int) -> None:
    """torch prints it, and hangs."""
    loader = collating_loader(
        DataLoader, lambda k: X + k if k % 2 else REFUSALS[k // 2][0](), 2 * len(REFUSED), workers
    )
    iterator = iter(loader)
    for k, (_, error, text) in enumerate(REFUSALS):
        with pytest.raises(error) as caught:
            next(iterator)
        told = str(caught.value)
        assert text in told
        assert f"in DataLoader worker process {2 * k % workers}" in told
        assert f"This happened in batch {2 * k} (indices [{2 * k}])" in told
        assert_identical(next(iterator), X + 2 * k + 1)
    assert next(iterator, None) is None


def test_hooks_are_warned_of() -> None:
    def collate(k: int) -> torch.Tensor:
        warnings.simplefilter("ignore" if k == 0 else "error")
        return _hooked()

    for cls in LOADERS:
        (tensor,) = collating_loader(cls, collate, 1, 1)
        assert tensor.requires_grad and tensor._backward_hooks is None
    _, (kind, text) = results(collating_loader(DataLoader, collate, 2, 1))
    assert kind is UserWarning and "backward hook" in text


# ---- memory


def some_batch(k: int) -> dict[str, Any]:
    """Of a size of its own: small and large leaves, views, an array, text."""
    rng = random.Random(k)
    large = torch.full((rng.choice([10, 5000, 200_000]),), k)
    return {
        "large": large,
        "view": large[: rng.randrange(1, 10)],
        "small": torch.full((3,), -k),
        "array": np.full(rng.choice([3, 30_000]), k),
        "text": str(k) * rng.randrange(1000),
    }


def default_batch(k: int) -> dict[str, Any]:
    batch = some_batch(k)
    del batch["view"], batch["text"]
    return batch


@in_workers
@pytest.mark.parametrize("kind", ["collate_fn", "default"])
def test_kept_batches_keep_their_values(workers: int, kind: str) -> None:
    """Over several epochs, while others come and go, and after the loader is gone."""
    if kind == "collate_fn":
        loader, make = collating_loader(DataLoader, some_batch, 40, workers), some_batch
    else:
        loader = DataLoader(FunctionDataset(default_batch, 40), 1, num_workers=workers)
        make = default_batch
    kept = []
    for _ in range(3):
        for k, batch in enumerate(loader):
            if k % 3 == 0:
                kept.append((k, batch))
    del loader, batch
    gc.collect()
    for k, batch in kept:
        expected = make(k)
        for name, value in batch.items():
            wanted = torch.as_tensor(expected[name]) if name != "text" else expected[name]
            if isinstance(value, torch.Tensor) and kind == "default":
                assert torch.equal(value[0], wanted), (k, name)
            elif name == "text":
                assert value == wanted
            else:
                assert torch.equal(torch.as_tensor(value), wanted), (k, name)


def _is_resizable(tensor: torch.Tensor) -> bool:
    try:
        tensor.resize_(tensor.numel() + 1000)
    except RuntimeError:
        return False
    return True


@in_workers
@pytest.mark.parametrize("length", [3, 100_000])
def test_batches_are_ordinary_tensors(workers: int, length: int) -> None:
    dataset = FunctionDataset(lambda i: (torch.full((length,), i), i), 8)
    for collate_fn in (None, identity_of_first):
        ours, theirs = (
            list(cls(dataset, 2, num_workers=workers, collate_fn=collate_fn)) for cls in LOADERS
        )
        for k, ((x, n), (y, m)) in enumerate(zip(ours, theirs, strict=True)):
            x.mul_(2).add_(k)
            x.numpy()[..., 0] = -1
            y.mul_(2).add_(k)
            y[..., 0] = -1
            assert_identical((x, n), (y, m))
            assert x.is_contiguous() and x.grad_fn is None
        assert_identical(ours, theirs)
        x = ours[-1][0]
        assert_identical(pickle.loads(pickle.dumps(x)), x)
        x.share_memory_()
        assert x.is_shared()
        assert_identical(ours[-1][0], theirs[-1][0])
        assert _is_resizable(ours[0][0]) == _is_resizable(theirs[0][0])


def identity_of_first(batch: list[Any]) -> Any:
    return batch[0]


@pytest.mark.slow
def test_batches_of_any_size_in_any_order() -> None:
    """Larger than what was sent before, by much, and smaller again."""
    sizes = [1, 3_000_000, 10, 100_000, 2, 6_000_000, 0, 5_000_000, 1]
    dataset = FunctionDataset(
        lambda i: {"n": i, "x": torch.full((sizes[i],), i), "y": (i, np.ones(9) * i)}
    )
    for workers in (1, 2):
        for collate_fn in (None, identity_of_first):
            kwargs: dict[str, Any] = {
                "sampler": ListSampler(range(len(sizes))),
                "num_workers": workers,
            }
            ours = DataLoader(dataset, collate_fn=collate_fn, **kwargs)
            theirs = TorchLoader(dataset, collate_fn=collate_fn, sampler=kwargs["sampler"])
            assert_identical(list(ours), list(theirs))
