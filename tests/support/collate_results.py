"""What a collate_fn of the user's may return, of every kind; each entry makes it anew."""

import collections
import dataclasses
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from samples import Frozen, Open, Point, Record, Rows, Tagged, X, dtypes, tensor_of
from torch.nn.utils.rnn import pack_sequence

Make = Callable[[], Any]


class Encoding(collections.UserDict[str, Any]):
    """As transformers' BatchEncoding: a UserDict with more to it."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self._encodings = None
        self.n_sequences = 1

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            raise AttributeError
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Graph:
    """As a batch of PyG's: tensors in a store, and a way to be pickled of its own."""

    def __init__(self, **items: Any) -> None:
        self.__dict__["_store"] = items

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pickled": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    def __reduce__(self) -> Any:
        return Slotted, (self.x,)

    def __repr__(self) -> str:
        return f"Slotted({self.x!r})"


class Protocol:
    """Tells which protocol it was pickled with."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (f"protocol {protocol}",)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    rest: Any


def _tagged() -> torch.Tensor:
    tensor = torch.ones(3).as_subclass(Tagged)
    tensor.name_of_it = "tagged"  # type: ignore[attr-defined]
    return tensor


def _with_attribute() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.note = "lost"  # type: ignore[attr-defined]
    return tensor


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _complex() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 4j])


base = torch.arange(100.0)
OBJECTS: dict[str, Make] = {
    "None": lambda: None,
    "str": lambda: "x",
    "int": lambda: 5,
    "huge int": lambda: 1 << 4000,
    "huge str": lambda: "äx" * 3_000_000,
    "huge bytes": lambda: b"x" * 5_000_000,
    "tuple": lambda: (1, torch.ones(2)),
    "a tuple as of requests": lambda: (3, [1, 2]),
    "empty tuple": lambda: (),
    "class": lambda: Batch,
    "function": lambda: deep,
    "of torch": lambda: (torch.float16, torch.Size([2]), torch.device("cpu"), torch.channels_last),
    "SimpleNamespace": lambda: types.SimpleNamespace(x=X, n=3),
    "dataclass": lambda: Batch(X, [Record(X)]),
    "named tuple": lambda: Point(X, None),
    "containers": lambda: [collections.OrderedDict(a=X), collections.deque([X]), {1: {2, 3}}],
    "defaultdict": lambda: collections.defaultdict(list, a=X),
    "Mapping": lambda: (Frozen({"a": X}), Open({"b": X})),
    "BatchEncoding": lambda: Encoding({"input_ids": torch.arange(6).view(2, 3), "n": [1, 2]}),
    "PyG": lambda: Graph(x=X, edge_index=torch.arange(8).view(2, 4), ptr=None),
    "__reduce__": lambda: Slotted(X),
    "protocol": Protocol,
    "PackedSequence": lambda: pack_sequence([torch.ones(3), torch.ones(2)]),
    "PackedSequence, sorted": lambda: pack_sequence([torch.ones(1), X[0, 0]], False),
    "generator": lambda: torch.Generator().manual_seed(5).get_state(),
    "module": lambda: torch.nn.Linear(2, 1).requires_grad_(False).weight.fill_(2),
    "exception": lambda: ValueError("returned, not raised"),
    "random state": lambda: random.Random(3).getstate(),
    "object in itself": lambda: _object_in_itself(),
    "deep": lambda: deep(200),
}
TENSORS: dict[str, Make] = {
    **{f"{dtype}": lambda d=dtype: tensor_of(d, 2, 3) for dtype in dtypes()},
    **{f"{dtype} transposed": lambda d=dtype: tensor_of(d, 2, 3).t() for dtype in dtypes()},
    "0-d": lambda: torch.tensor(3),
    "large": lambda: torch.arange(300_000),
    "expanded": lambda: torch.tensor(3.0).expand(4, 5),
    "sliced": lambda: base[5:50:3],
    "overlapping": lambda: base.unfold(0, 10, 5),
    "empty": lambda: torch.zeros(0),
    "empty, of strides": lambda: [torch.zeros(3, 0).t(), torch.zeros(0, 3), torch.zeros(2, 0, 3)],
    "empty view before others": lambda: [base[50:60], base[0:0], base[100:100]],
    "empty view first": lambda: [base[100:100], base[0:0], base[50:60], base[7:7]],
    "channels last": lambda: X[None].contiguous(memory_format=torch.channels_last),
    "Parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "frozen Parameter": lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "Parameter of ints": lambda: torch.nn.Parameter(torch.arange(2), requires_grad=False),
    "Buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "detached": lambda: (torch.ones(2, requires_grad=True) * 2).detach(),
    "attributes": _with_attribute,
    "subclass": _tagged,
    "conjugate": lambda: _complex().conj(),
    "negative": lambda: _complex().conj().imag,
    "imaginary part": lambda: [_complex().imag, _complex().real],
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.zeros(2, 3, device="meta"),
    "storages": lambda: [base.untyped_storage(), torch.UntypedStorage(0)],
    "typed storages": lambda: [base._typed_storage().tolist(), torch.FloatStorage([1, 2]).tolist()],
    "double": lambda: base.double()[3:9].view(2, 3),
}
ARRAYS: dict[str, Make] = {
    **{f"array of {code}": lambda c=code: np.arange(6).astype(c) for code in "?bBhHiIlLefdFD"},
    "array of another byte order": lambda: np.arange(6, dtype=">i4"),
    "array that is read-only": lambda: _read_only(np.arange(6)),
    "arrays of any order": lambda: [np.ones((2, 3)).T, np.asfortranarray(np.ones((2, 3)))],
    "array with steps": lambda: np.arange(20)[::-3],
    "large array": lambda: np.arange(200_000),
    "subclass of ndarray": lambda: np.ones(3).view(Rows),
    "objects": lambda: np.array([1, "x", None], dtype=object),
    "structured": lambda: np.ones(2, [("a", "i1"), ("b", "f4")]),
    "strings": lambda: np.array(["a", "bc"]),
    "scalars of NumPy's": lambda: [
        np.float32(1.5),
        np.int8(3),
        np.datetime64("2020"),
        np.str_("a"),
    ],
    "the same array twice": lambda: [np.arange(3)] * 2,
}


def _object_in_itself() -> Any:
    loop = types.SimpleNamespace(x=1)
    loop.items = [loop.x]
    return loop


def deep(levels: int) -> Any:
    value: Any = torch.ones(1)
    for _ in range(levels):
        value = [value]
    return value


RESULTS = {**OBJECTS, **TENSORS, **ARRAYS}


MAKES = list(RESULTS.values())


def is_moved(dtype: torch.dtype) -> bool:
    try:
        tensor_of(dtype, 2, 3).t().clone()
    except NotImplementedError:
        return False
    return True


UNMOVED = [dtype for dtype in dtypes() if not is_moved(dtype)]  # torch has no copies of these
