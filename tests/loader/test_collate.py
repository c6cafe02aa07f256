"""The collate in C against torch's default_collate: same batches, same refusals, in the same words;
and what it makes is the user's own."""

import collections
import gc
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_identical, result
from helpers import run_program
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import BATCHES, CONTAINERS, Open, Point, X, dtypes, tensor_of
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from fastloop.data.collate import is_default_collate, make_collate

Make = Callable[[], Any]


def assert_collates_alike(make: Make) -> None:
    ours, theirs = (result(lambda f=f: f(make())) for f in (make_collate(), default_collate))
    assert_identical(ours, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_torchs(make: Make) -> None:
    assert_collates_alike(make)


@pytest.mark.filterwarnings("ignore")
def test_one_collate_takes_all_batches_in_turn() -> None:
    fast = make_collate()
    kept = [(result(lambda m=m: fast(m())), m) for m in BATCHES.values()]
    for batch, make in kept:
        assert_identical(batch, result(lambda m=make: default_collate(m())))


def array_of(dtype: torch.dtype) -> Any:
    return tensor_of(dtype, 2, 3).numpy()


NUMPY_DTYPES = [
    getattr(torch, name)
    for name in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 complex64 complex128".split()
]
ODD = ("int", "uint", "bits", "complex", "bcomplex")
TABLE_LACKS = {d for d in dtypes() if str(d)[len("torch.") :].startswith(ODD)}
TABLE_LACKS -= set(NUMPY_DTYPES[1:9])
TABLE_LACKS |= {torch.float4_e2m1fn_x2}
# What C stacks by itself, without one call to torch's collate.
FAST: dict[str, Make] = {
    **{f"{d}": lambda d=d: [tensor_of(d, 2, 3)] * 3 for d in dtypes() if d not in TABLE_LACKS},
    **{f"{d} array": lambda d=d: [array_of(d)] * 3 for d in NUMPY_DTYPES},
    **{
        f"{d} scalar": lambda d=d: [array_of(d)[0, 0]] * 3
        for d in NUMPY_DTYPES
        if d is not torch.uint64
    },
    "ints": lambda: [1, 2],
    "floats": lambda: [1.5, 2.5],
    "bools": lambda: [True, False],
    "strings": lambda: ["a", "b"],
    "rows": lambda: [X[1, 2], X[0, 1]],
    "all at once": CONTAINERS["all at once"],
    "named tuple": CONTAINERS["named tuple"],
    "UserDict": CONTAINERS["UserDict"],
    "MutableMapping": CONTAINERS["MutableMapping"],
    "OrderedDict": CONTAINERS["OrderedDict"],
}


@pytest.mark.parametrize("make", FAST.values(), ids=FAST)
def test_plain_values_are_stacked_in_c(make: Make) -> None:
    fast = make_collate()
    fast(make())
    assert fast.fallbacks() == {}


def test_fallbacks_say_why() -> None:
    fast = make_collate()
    for batch in ([np.eye(2)[:, 0]] * 2, [1, 2.5], [np.ones(2), None]):
        result(lambda b=batch: fast(b))
    reasons = fast.fallbacks()
    assert sum(reasons.values()) == 3, reasons
    assert "not contiguous" in reasons


# ---- random samples

DTYPES = [d for d in NUMPY_DTYPES if d is not torch.bool] + [torch.bfloat16, torch.float8_e5m2]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw: Any) -> Make:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.sampled_from([1, 1, 2]))
    as_array = draw(st.booleans()) and dtype in NUMPY_DTYPES

    def make() -> Any:
        tensor = tensor_of(dtype, *(n * step for n in shape))
        tensor = tensor[tuple(slice(None, None, step) for _ in shape)].permute(order)
        return tensor.numpy() if as_array else tensor

    return make


scalars = st.one_of(
    st.integers(-(2**64), 2**64),
    st.integers(-9, 9),
    st.floats(),
    st.booleans(),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.sampled_from("bBhHiIlefdFD").flatmap(
        lambda code: st.integers(0, 100).map(np.dtype(code).type)
    ),
    st.sampled_from([None, 1j, np.True_, np.datetime64("2020"), frozenset()]),
).map(lambda value: lambda: value)


def containers(children: st.SearchStrategy[Make]) -> st.SearchStrategy[Make]:
    many = st.lists(children, max_size=3)
    keys = st.lists(st.sampled_from(["a", "b", 3, None]), unique=True, max_size=3)

    def build(kind: Callable[[list[Any]], Any]) -> Callable[[list[Make]], Make]:
        return lambda makes: lambda: kind([make() for make in makes])

    kinds = [tuple, list, collections.UserList, collections.deque, lambda items: range(len(items))]
    sequences = st.sampled_from(kinds).flatmap(lambda kind: many.map(build(kind)))
    pairs = st.tuples(children, children).map(list).map(build(lambda items: Point(*items)))
    mappings = st.sampled_from([dict, collections.OrderedDict, collections.UserDict, Open])
    dicts = st.tuples(mappings, keys, st.lists(children, min_size=3, max_size=3)).map(
        lambda t: lambda: t[0]({k: m() for k, m in zip(t[1], t[2], strict=False)})
    )
    return st.one_of(sequences, pairs, dicts)


samples = st.recursive(st.one_of(tensors(), scalars), containers, max_leaves=6)


@pytest.mark.slowest
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None)
@given(samples, samples, st.integers(1, 4), st.sampled_from([0, 0, 0, 1, 2]), st.booleans())
def test_random_samples(one: Make, other: Make, size: int, odd: int, is_tuple: bool) -> None:
    def make() -> Any:
        batch = [other() if odd and i == size - odd else one() for i in range(size)]
        return tuple(batch) if is_tuple else batch

    assert_collates_alike(make)


@pytest.mark.parametrize("key", [None, (), (1, 2), "a"], ids=repr)
def test_the_error_of_a_missing_key_names_it(key: Any) -> None:
    assert_collates_alike(lambda: [{key: 0}, {"b": 0}])


# ---- what is no list of samples

ODD_BATCHES: dict[str, Make] = {
    "str": lambda: "ab",
    "array": lambda: np.arange(3),
    "tensor": lambda: torch.arange(3),
    "empty array": lambda: np.arange(0),
    "range": lambda: range(3),
    "dict": lambda: {0: 1, 1: 2},
    "deque": lambda: collections.deque([1, 2]),
    "generator": lambda: (i for i in range(3)),
    "None": lambda: None,
    "int": lambda: 3,
    "subclass of list": lambda: collections.UserList([torch.ones(2), torch.ones(2)]),
}


@pytest.mark.parametrize("make", ODD_BATCHES.values(), ids=ODD_BATCHES)
def test_a_batch_that_is_no_list(make: Make) -> None:
    assert_collates_alike(make)


@pytest.mark.parametrize("args", [(), ([1], [2]), ([1], None)])
def test_wrong_arguments(args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        make_collate()(*args)
    assert make_collate()(batch=[1, 2]).tolist() == [1, 2]


def test_strings_are_the_very_list() -> None:
    batch = ["a", "b"]
    assert make_collate()(batch) is batch
    batch = [("a",), ("b",)]  # type: ignore[list-item]
    assert make_collate()(batch) == [("a", "b")]


# ---- modes of torch


class Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.stack, torch.tensor, torch.as_tensor) else out


PLAIN: list[list[Any]] = [[1, 2], [1.5], [True], [np.ones(2)], [np.float32(1)], [X, X]]


@pytest.mark.parametrize("batch", PLAIN, ids=map(str, range(6)))
def test_a_default_device_is_honoured(batch: list[Any]) -> None:
    torch.set_default_device("meta")
    try:
        assert_collates_alike(lambda: batch)
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        assert make_collate()([1, 2]).is_meta
    assert not make_collate()([1, 2]).is_meta


@pytest.mark.parametrize("batch", PLAIN, ids=map(str, range(6)))
def test_modes_see_what_torch_would_do(batch: list[Any]) -> None:
    seen = []
    for function in (make_collate(), default_collate):
        with Notes() as notes:
            function(batch)
        seen.append(notes.calls)
        with FakeTensorMode(allow_non_fake_inputs=True):
            seen.append(type(function(batch)))  # type: ignore[arg-type]
        with Doubles():
            seen.append(function(batch).tolist())
    assert seen[:3] == seen[3:]


def test_a_mode_of_inference_marks_the_batch() -> None:
    with torch.inference_mode():
        for batch in PLAIN:
            assert_collates_alike(lambda b=batch: b)


# ---- the registry


def test_an_extended_registry_is_honoured_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = make_collate()
    changes: list[tuple[Any, Any]] = [
        (torch.Tensor, lambda batch, *, collate_fn_map=None: "tensors"),
        (int, lambda batch, *, collate_fn_map=None: sum(batch)),
        (set, lambda batch, *, collate_fn_map=None: sorted(batch[0])),
        (dict, lambda batch, *, collate_fn_map=None: batch[-1]),
    ]
    batch = [{"x": X, "n": 3}, {"x": X, "n": 4}]
    for key, function in changes:
        with monkeypatch.context() as patch:
            patch.setitem(collate.default_collate_fn_map, key, function)
            assert not is_default_collate(default_collate)
            assert_identical(fast(batch), default_collate(batch))
            assert_identical(fast([{3}]) if key is set else 0, [3] if key is set else 0)
    with monkeypatch.context() as patch:
        patch.delitem(collate.default_collate_fn_map, bytes)
        assert_identical(result(lambda: fast([b"a"])), result(lambda: default_collate([b"a"])))
    before = fast.fallbacks()
    assert before == {"default_collate_fn_map was changed": 6}
    assert_identical(fast(batch), default_collate(batch))
    assert fast.fallbacks() == before


# ---- warnings


def test_read_only_arrays_warn_once_as_torch_does(tmp_path: Path) -> None:
    ours, theirs = (
        run_program(tmp_path, "read_only_arrays", whose) for whose in ("ours", "theirs")
    )
    assert ours == theirs
    assert ours.count("not writable") == 1


def test_nothing_else_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in FAST.values():
            make_collate()(make())


# ---- the batch is the user's own

OWN: dict[str, list[Any]] = {
    "small": [torch.arange(3)] * 2,
    "large": [torch.arange(40_000)] * 2,
    "array": [np.arange(40_000)] * 2,
    "ints": [1, 2, 3],
    "many floats": [1.5] * 5000,
}


@pytest.mark.parametrize("samples_", OWN.values(), ids=OWN)
def test_a_batch_is_an_ordinary_tensor(samples_: list[Any]) -> None:
    fast = make_collate()
    batch, other, expected = fast(samples_), fast(samples_), default_collate(samples_)
    batch.mul_(3).add_(1)
    assert torch.equal(batch, expected * 3 + 1)
    assert torch.equal(other, expected)
    assert torch.equal(default_collate(samples_), expected)
    other.numpy()[:] = 7
    assert (other == 7).all()
    assert_identical(pickle.loads(pickle.dumps(batch)), batch)
    assert batch.clone().share_memory_().is_shared()
    batch.share_memory_()
    assert torch.equal(batch, expected * 3 + 1)
    assert batch.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert batch.data_ptr() % 64 == 0
    assert batch._version == 2 and batch.grad_fn is None


def test_kept_batches_keep_their_values() -> None:
    fast = make_collate()
    kept = [fast([torch.full((3000,), i), torch.full((3000,), -i)]) for i in range(40)]
    del fast
    gc.collect()
    for i, batch in enumerate(kept):
        assert batch[0].unique().tolist() == [i] and batch[1].unique().tolist() == [-i]


def test_two_batches_of_two_threads_do_not_mix() -> None:
    fast, wrong = make_collate(), []

    def collate_many(number: int) -> None:
        sample = {"x": torch.full((50_000,), number), "n": number}
        for _ in range(50):
            batch = fast([sample, sample])
            if not bool((batch["x"] == number).all() and (batch["n"] == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=collate_many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- samples that change while they are collated


class Spoils(Sequence[Any]):
    """Empties everything it knows of when it is looked at."""

    def __init__(self, victims: list[Any]) -> None:
        self.victims = victims

    def __len__(self) -> int:
        for victim in self.victims:
            victim.clear()
        gc.collect()
        return 1

    def __getitem__(self, index: int) -> Any:
        return [1][index]

    def __iter__(self) -> Iterator[Any]:
        return iter([len(self)])


class Key:
    """A key of a dict that empties the dict when it is compared."""

    victim: dict[Any, Any] = {}  # noqa: RUF012

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        self.victim.clear()
        return True


@pytest.mark.slowest
def test_samples_that_change_meanwhile_are_no_crash() -> None:
    for wrap in (list, lambda items: dict(enumerate(items))):
        victims: list[Any] = []
        rows = [wrap([Spoils(victims), torch.arange(1000), X[0]]) for _ in range(3)]
        victims += rows
        given = result(lambda rows=rows: make_collate()(rows))
        assert isinstance(given, (list, dict, tuple))
    batch: list[Any] = [Spoils([]), torch.ones(1)]
    batch[0].victims.append(batch)
    result(lambda: make_collate()(batch))
    assert batch == []
    first: dict[Any, Any] = {Key(): torch.arange(1000), "b": 1}
    Key.victim = {Key(): torch.arange(1000)}
    result(lambda: make_collate()([first, Key.victim]))
    assert Key.victim == {}


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("resize_at", [1, 2])
def test_a_finalizer_may_resize_what_is_being_stacked(
    tmp_path: Path, resize_at: int, spare: int
) -> None:
    """Python's collector runs where objects are made, and the stack is one."""
    run_program(tmp_path, "resize_while_stacking", resize_at, spare)


def test_errors_leave_no_trace() -> None:
    fast = make_collate()
    for make in BATCHES.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result(lambda m=make: fast(m()))
    assert fast([1, 2]).tolist() == [1, 2]
