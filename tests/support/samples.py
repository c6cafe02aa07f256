"""Batches of every kind for default_collate: what it takes, promotes or refuses. Each entry makes
its samples anew, in whichever process asks."""

import collections
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

Make = Callable[[], Any]


class Tagged(torch.Tensor):
    pass


class Rows(np.ndarray):
    pass


class Count(int):
    pass


class Ratio(float):
    pass


class Wide(np.float64):
    pass


class Name(str):
    __slots__ = ()


class MyList(list[Any]):
    pass


class MyDict(dict[str, Any]):
    pass


class MyTuple(tuple[Any, ...]):
    __slots__ = ()


class Color(enum.IntEnum):
    RED = 1
    BLUE = 7


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any


class Frozen(Mapping[str, Any]):
    """A mapping that can be made of a dict, but not changed."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Unbuilt(Frozen):
    """One that cannot be made of a dict: torch gives a dict instead."""

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__({"a": a, "b": b})


class Open(Frozen, MutableMapping[str, Any]):
    """One with more about it than its items."""

    extra = "as given"

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]


class Series(Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


# ---- tensors


def dtypes() -> list[torch.dtype]:
    """All of torch's that have memory of whole bytes."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((d for d in found if "q" not in str(d).split(".")[1]), key=str)


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = int(np.prod(shape)) * dtype.itemsize
    values = torch.arange(count, dtype=torch.int64).remainder(97).to(torch.uint8)
    if dtype is torch.bool:
        values = values % 2
    return values.view(dtype).reshape(shape)


def _pair(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor, tensor.clone() if tensor.numel() else tensor]


def _complex() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 4j])


X = torch.arange(24.0).reshape(2, 3, 4)

TENSORS: dict[str, Make] = {
    "one": lambda: [X],
    "0-d": lambda: [torch.tensor(2.5), torch.tensor(-1.0)],
    "0-d ints": lambda: [torch.tensor(2), torch.tensor(-1)],
    "empty": lambda: [torch.zeros(0), torch.zeros(0)],
    "empty matrix": lambda: [torch.zeros(3, 0, 2)] * 3,
    "the same twice": lambda: [X, X],
    "large": lambda: [torch.arange(5000), torch.arange(5000) * 2],
    "expanded": lambda: [torch.arange(3.0).reshape(3, 1).expand(3, 4), torch.ones(3, 4)],
    "transposed": lambda: [X.transpose(0, 2), X.transpose(0, 2) + 1],
    "transposed, one not": lambda: [X[0].t(), torch.ones(4, 3)],
    "HWC to CHW": lambda: [X.permute(2, 0, 1), X.permute(2, 0, 1)],
    "channels last": lambda: [X[None].contiguous(memory_format=torch.channels_last)] * 2,
    "sliced": lambda: [torch.arange(20)[::3], torch.arange(20)[1:8]],
    "row of a matrix": lambda: [X[1, 2], X[0, 1]],
    "column of a matrix": lambda: [X[1, :, 2], X[0, :, 1]],
    "overlapping": lambda: [torch.arange(6).unfold(0, 3, 1)] * 2,
    "a length of 1 with any stride": lambda: [torch.arange(4.0).as_strided((1, 4), (9, 1))] * 2,
    "64 dimensions": lambda: [torch.zeros((1,) * 64)] * 2,
    "63 dimensions": lambda: [torch.zeros((1,) * 63)] * 2,
    "different shapes": lambda: [torch.zeros(2), torch.zeros(3)],
    "different dimensions": lambda: [torch.zeros(2), torch.zeros(2, 1)],
    "a later shape": lambda: [torch.zeros(2)] * 4 + [torch.zeros(1)],
    "float then int": lambda: [torch.ones(2), torch.ones(2, dtype=torch.int64)],
    "int then float": lambda: [torch.ones(2, dtype=torch.int64), torch.ones(2)],
    "int32 then int64": lambda: [torch.ones(2, dtype=torch.int32), torch.ones(2).long()],
    "half then bfloat16": lambda: [torch.ones(2).half(), torch.ones(2).bfloat16()],
    "uint1 then uint8": lambda: [tensor_of(torch.uint1, 2), tensor_of(torch.uint8, 2)],
    "uint8 then uint1": lambda: [tensor_of(torch.uint8, 2), tensor_of(torch.uint1, 2)],
    "not numbers": lambda: [torch.tensor([float("nan"), -float("inf")]), torch.tensor([-0.0, 0.0])],
    "NaN with a payload": lambda: [torch.tensor([0x7FA00001], dtype=torch.int32).view(torch.float)],
    "conjugate": lambda: _pair(_complex().conj()),
    "plain then conjugate": lambda: [_complex(), _complex().conj()],
    "negative": lambda: _pair(_complex().conj().imag),
    "negative, contiguous": lambda: [torch._neg_view(torch.ones(3))] * 2,
    "plain then negative": lambda: [torch.ones(2), _complex().conj().imag],
    "imaginary parts": lambda: _pair(_complex().imag),
    "zero": lambda: [torch._efficientzerotensor(3)] * 2,
    "quantized": lambda: [torch.quantize_per_tensor(X, 0.5, 3, torch.quint8)] * 2,
    "sparse": lambda: [torch.eye(2).to_sparse()] * 2,
    "csr": lambda: [torch.eye(2).to_sparse_csr()] * 2,
    "nested": lambda: [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2,
    "meta": lambda: [torch.zeros(2, device="meta")] * 2,
    "plain then meta": lambda: [torch.zeros(2), torch.zeros(2, device="meta")],
    "requires grad": lambda: [torch.ones(2, requires_grad=True)] * 2,
    "plain then requires grad": lambda: [torch.ones(2), torch.ones(2, requires_grad=True)],
    "no leaf": lambda: [torch.ones(2, requires_grad=True) * 2] * 2,
    "parameter": lambda: [torch.nn.Parameter(torch.ones(2), requires_grad=False)] * 2,
    "plain then parameter": lambda: [torch.ones(2), torch.nn.Parameter(torch.ones(2), False)],
    "buffer": lambda: [torch.nn.Buffer(torch.ones(2))] * 2,
    "subclass": lambda: [torch.ones(2).as_subclass(Tagged)] * 2,
    "plain then subclass": lambda: [torch.ones(2), torch.ones(2).as_subclass(Tagged)],
    "tensor then array": lambda: [torch.ones(2), np.ones(2)],
    "tensor then number": lambda: [torch.tensor(1), 2],
    "tensor then None": lambda: [torch.tensor(1), None],
}


def _typed(dtype: torch.dtype) -> dict[str, Make]:
    make = lambda *shape: tensor_of(dtype, *shape)  # noqa: E731
    return {
        f"{dtype}": lambda: [make(2, 3), make(2, 3)],
        f"{dtype} 0-d": lambda: [make(1)[0], make(1)[0]],
        f"{dtype} empty": lambda: [make(0), make(0)],
        f"{dtype} transposed": lambda: [make(2, 3).t(), make(2, 3).t()],
        f"{dtype} then float32": lambda: [make(2), torch.ones(2)],
        f"float32 then {dtype}": lambda: [torch.ones(2), make(2)],
    }


for _dtype in dtypes():
    TENSORS.update(_typed(_dtype))

# ---- arrays and NumPy's scalars


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _structured() -> Any:
    return np.ones(4, [("a", "i1"), ("b", "f4"), ("c", "i1", 2)])


ARRAYS: dict[str, Make] = {
    "0-d": lambda: [np.array(3), np.array(4)],
    "empty": lambda: [np.zeros((0, 3))] * 2,
    "large": lambda: [np.arange(5000), np.arange(5000)],
    "transposed": lambda: [np.arange(6).reshape(2, 3).T] * 2,
    "Fortran": lambda: [np.asfortranarray(np.ones((2, 3)))] * 2,
    "HWC to CHW": lambda: [np.arange(24).reshape(2, 4, 3).transpose(2, 0, 1)] * 2,
    "sliced": lambda: [np.arange(20)[::3]] * 2,
    "broadcast": lambda: [np.broadcast_to(np.arange(3), (2, 3)).copy(), np.ones((2, 3), int)],
    "new axis": lambda: [np.arange(3.0)[:, None], np.arange(3.0)[:, None]],
    "backwards": lambda: [np.arange(4)[::-1]] * 2,
    "backwards, of one": lambda: [np.arange(4)[::-1][:1]] * 2,
    "backwards, of none": lambda: [np.arange(4)[::-1][:0]] * 2,
    "forwards then backwards": lambda: [np.arange(4), np.arange(4)[::-1]],
    "unaligned": lambda: [np.frombuffer(bytearray(33), np.uint8)[1:33].view(np.float64)] * 2,
    "odd strides": lambda: [_structured()["b"]] * 2,
    "odd strides, of one": lambda: [_structured()["b"][:1]] * 2,
    "odd strides, of none": lambda: [_structured()["b"][:0]] * 2,
    "structured": lambda: [_structured()] * 2,
    "objects": lambda: [np.array([1, None])] * 2,
    "strings": lambda: [np.array(["a", "bc"])] * 2,
    "bytes": lambda: [np.array([b"a", b"bc"])] * 2,
    "dates": lambda: [np.array(["2020-01-01"], "M8[D]")] * 2,
    "differences of dates": lambda: [np.array([3], "m8[D]")] * 2,
    "records": lambda: [np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)])] * 2,
    "subclass": lambda: [np.ones(3).view(Rows)] * 2,
    "plain then subclass": lambda: [np.ones(3), np.ones(3).view(Rows)],
    "matrix": lambda: [np.matrix([[1, 2]])] * 2,
    "masked": lambda: [np.ma.array([1, 2], mask=[0, 1])] * 2,
    "mapped": lambda: [np.memmap(sys.executable, np.uint8, "c", shape=9)] * 2,
    "different shapes": lambda: [np.ones(2), np.ones(3)],
    "different dtypes": lambda: [np.ones(2, np.float32), np.ones(2, np.int64)],
    "array then tensor": lambda: [np.ones(2), torch.ones(2)],
    "array then number": lambda: [np.array(1), 2],
    "array then None": lambda: [np.ones(2), None],
}


def _kinds(code: str) -> dict[str, Make]:
    dtype = np.dtype(code)
    array = lambda: np.arange(6).astype(dtype).reshape(2, 3)  # noqa: E731
    swapped = lambda: array().astype(dtype.newbyteorder())  # noqa: E731
    made = {
        f"{code} array": lambda: [array(), array()],
        f"{code} 0-d array": lambda: [np.array(array()[0, 1]), np.array(array()[0, 2])],
        f"{code} transposed": lambda: [array().T, array().T],
        f"{code} of another byte order": lambda: [swapped(), swapped()],
        f"{code} native then not": lambda: [array(), swapped()],
        f"{code} scalar": lambda: [array()[0, 1], array()[0, 2]],
        f"{code} scalar then int": lambda: [array()[0, 1], 2],
        f"{code} scalar then float": lambda: [array()[0, 1], 2.5],
        f"int then {code} scalar": lambda: [2, array()[0, 1]],
        f"{code} scalar then None": lambda: [array()[0, 1], None],
    }
    if dtype.kind in "iu":
        made[f"{code} limits"] = lambda: [dtype.type(getattr(np.iinfo(code), m)) for m in LIMITS]
    if dtype.kind in "fc":
        made[f"{code} no number"] = lambda: [
            dtype.type("nan"),
            dtype.type("-inf"),
            dtype.type(-0.0),
        ]
    return made


LIMITS = ("min", "max")
for _code in "?bBhHiIlLqQnNpPefdgFDG":
    ARRAYS.update(_kinds(_code))

# ---- numbers, text and what is none of it

SINGLES: dict[str, Any] = {
    "complex": 3j,
    "subclass of int": Count(3),
    "subclass of float": Ratio(1.5),
    "subclass of float64": Wide(1.5),
    "enum": Color.BLUE,
    "str": "ab",
    "str of NumPy's": np.str_("ab"),
    "bytes of NumPy's": np.bytes_(b"ab"),
    "void": np.void(b"abc"),
    "date": np.datetime64("2020"),
    "difference": np.timedelta64(3),
    "subclass of str": Name("ab"),
    "bytes": b"ab",
    "bytearray": bytearray(b"ab"),
    "memoryview": memoryview(b"ab"),
    "None": None,
    "Ellipsis": ...,
    "set": {1},
    "frozenset": frozenset([1]),
    "object": Record(1),
    "class": Record,
    "slice": slice(2),
}

NUMBERS: dict[str, Make] = {
    **{name: lambda value=value: [value, value] for name, value in SINGLES.items()},
    "ints": lambda: [1, -2, 3],
    "limits": lambda: [2**63 - 1, -(2**63)],
    "too large": lambda: [1, 2**63],
    "too large first": lambda: [2**63, 1],
    "far too large": lambda: [2**100],
    "far too small": lambda: [-(2**64)],
    "float then too large": lambda: [1.5, 2**70],
    "float then far too large": lambda: [1.5, 10**400],
    "floats": lambda: [1.5, float("nan"), -float("inf"), -0.0, 5e-324],
    "bools": lambda: [True, False],
    "int then float": lambda: [1, 2.5],
    "float then int": lambda: [2.5, 1],
    "int then bool": lambda: [2, True],
    "bool then int": lambda: [True, 2],
    "bool then float": lambda: [True, 2.5],
    "float then bool": lambda: [2.5, True],
    "int then complex": lambda: [1, 2j],
    "int then tensor": lambda: [1, torch.tensor(2)],
    "float then tensor": lambda: [1.5, torch.tensor(2.5)],
    "float then array": lambda: [1.5, np.array(2.5)],
    "int then str": lambda: [1, "a"],
    "float then str": lambda: [1.5, "a"],
    "int then None": lambda: [1, None],
    "float then None": lambda: [1.5, None],
    "None then int": lambda: [None, 1],
    "int then list": lambda: [1, [2]],
    "int then subclass": lambda: [1, Count(2)],
    "str then int": lambda: ["a", 1],
    "str then bytes": lambda: ["a", b"b"],
    "str then None": lambda: ["a", None],
    "a huge str": lambda: ["x" * 3_000_000, "y"],
    "scalars of two kinds": lambda: [np.float32(1), np.int64(2)],
    "bool of NumPy's": lambda: [np.True_, np.False_],
}

# ---- containers


def _loops(kind: type) -> Any:
    loop: Any = kind()
    if kind is dict:
        loop["loop"] = loop
    else:
        loop.append(loop)
    return [loop, loop]


def _sample(i: int) -> dict[str, Any]:
    return {"x": X + i, "n": i, "f": i / 2, "s": str(i), "t": (i, [np.float32(i)]), "b": i > 0}


def _two(make: Callable[[int], Any]) -> Make:
    return lambda: [make(1), make(2)]


CONTAINERS: dict[str, Make] = {
    "tuple": _two(lambda i: (i, X + i)),
    "list": _two(lambda i: [i, X + i]),
    "dict": _two(lambda i: {"a": i, 3: X + i}),
    "all at once": _two(_sample),
    "strings in a tuple": _two(lambda i: (str(i), b"b")),
    "strings in a list of dicts": _two(lambda i: [{"a": str(i)}]),
    "deep": _two(lambda i: [[[[[{"a": ({"b": i},)}]]]]]),
    "named tuple": _two(lambda i: Point(i, X + i)),
    "named tuple in a dict": _two(lambda i: {"p": Point([i], {"q": 1.5})}),
    "OrderedDict": _two(lambda i: collections.OrderedDict(b=i, a=X)),
    "defaultdict": _two(lambda i: collections.defaultdict(list, a=i)),
    "Counter": _two(lambda i: collections.Counter(a=i)),
    "ChainMap": _two(lambda i: collections.ChainMap({"a": i}, {"b": X})),
    "UserDict": _two(lambda i: collections.UserDict(a=i, b=[X])),
    "UserList": _two(lambda i: collections.UserList([i, X])),
    "deque": _two(lambda i: collections.deque([i, 2.5])),
    "Mapping": _two(lambda i: Frozen({"a": i, "b": (X, "s")})),
    "Mapping that cannot be made": _two(lambda i: Unbuilt(i, X)),
    "MutableMapping": _two(lambda i: Open({"a": i})),
    "Sequence": _two(lambda i: Series([i, X])),
    "range": _two(lambda i: range(i, i + 3)),
    "subclass of list": _two(lambda i: MyList([i, X])),
    "subclass of dict": _two(lambda i: MyDict(a=i, b=X)),
    "subclass of tuple": _two(lambda i: MyTuple([i, X])),
    "dataclass": _two(Record),
    "dataclass in a list": _two(lambda i: [Record(i)]),
    "empty lists": lambda: [[], []],
    "empty tuples": lambda: [(), ()],
    "empty dicts": lambda: [{}, {}],
    "empty dict, then not": lambda: [{}, {"a": 1}],
    "a key too few": lambda: [{"a": 1, "b": 2}, {"a": 1}],
    "a key too many": lambda: [{"a": 1}, {"a": 1, "b": 2}],
    "keys in another order": lambda: [{"a": 1, "b": 2}, {"b": 3, "a": 4}],
    "keys of all kinds": _two(lambda i: {1: i, None: i, (1, 2): i, "s": i, 1.5: i}),
    "key of an object": lambda: [{Color.RED: 1}, {Color.RED: 2}],
    "dict then list": lambda: [{0: 1}, [5]],
    "dict then default dict": lambda: [{"a": 1}, collections.defaultdict(int)],
    "dict then None": lambda: [{0: 1}, None],
    "ragged lists": lambda: [[1, 2], [1]],
    "ragged tuples": lambda: [(1,), (1, 2)],
    "ragged inside": lambda: [{"a": [1, 2]}, {"a": [3]}],
    "list then tuple": lambda: [[1, 2], (3, 4)],
    "tuple then list": lambda: [(1, 2), [3, 4]],
    "list then range": lambda: [[1, 2], range(2)],
    "list then str": lambda: [["a", "b"], "cd"],
    "list then tensor": lambda: [[1, 2], torch.tensor([3, 4])],
    "list then dict": lambda: [[1, 2], {3: 4, 5: 6}],
    "list then None": lambda: [[1], None],
    "list then int": lambda: [[1], 2],
    "None in a tuple": lambda: [(1, None), (2, None)],
    "named tuple then tuple": lambda: [Point(1, 2), (3, 4)],
    "named tuples, ragged": lambda: [Point(1, 2), (3,)],
    "shapes that differ inside": lambda: [{"a": torch.ones(2)}, {"a": torch.ones(3)}],
    "a tuple of samples": lambda: tuple({"a": (i, "s")} for i in range(3)),
    "a tuple of strings": lambda: ("a", "b"),
    "no samples": list,
    "no samples in a tuple": tuple,
    "a list in itself": lambda: _loops(list),
    "a dict in itself": lambda: _loops(dict),
}

BATCHES: dict[str, Make] = {
    f"{kind}: {name}": make
    for kind, makes in {
        "tensors": TENSORS,
        "arrays": ARRAYS,
        "numbers": NUMBERS,
        "containers": CONTAINERS,
    }.items()
    for name, make in makes.items()
}
