"""A user's function, run once in a closed world. The function's index is a symbol, and a stand-in
takes the place of each object and each name that the function reads. So the function can write,
print and draw nothing, and its result tells which elements of which arrays make a sample.
docs/internals/traced-datasets.md tells the rules. Reading an attribute for the function runs no
code of the program.
"""

from __future__ import annotations

import dis
import inspect
import operator
import threading
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Any

import numpy as np
import torch

from fastloop._core import find_other
from fastloop.compat.torch_parts import Methods
from fastloop.data.columns import NotCoveredError, leave_if

# ---- the code

# The instructions of CPython 3.10 to 3.14 that a function may have. No instruction in the list can
# catch an error, store an attribute or a global name, import, or make a generator.
_ALLOWED = frozenset(
    dis.opmap[name]
    for name in """
    CACHE NOP RESUME PRECALL PUSH_NULL KW_NAMES EXTENDED_ARG NOT_TAKEN POP_TOP POP_ITER COPY SWAP
    ROT_TWO ROT_THREE ROT_FOUR ROT_N DUP_TOP DUP_TOP_TWO LOAD_CONST LOAD_SMALL_INT LOAD_FAST
    LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW
    LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST
    LOAD_GLOBAL LOAD_ATTR LOAD_METHOD LOAD_CLOSURE MAKE_CELL COPY_FREE_VARS LOAD_DEREF STORE_DEREF
    MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE UNARY_NEGATIVE UNARY_NOT TO_BOOL BINARY_SUBSCR BINARY_SLICE
    BINARY_OP BINARY_ADD BINARY_SUBTRACT BINARY_MULTIPLY BINARY_FLOOR_DIVIDE BINARY_MODULO
    BINARY_TRUE_DIVIDE INPLACE_ADD INPLACE_SUBTRACT INPLACE_MULTIPLY COMPARE_OP IS_OP CONTAINS_OP
    STORE_SUBSCR BUILD_TUPLE BUILD_LIST BUILD_MAP BUILD_CONST_KEY_MAP BUILD_SLICE BUILD_STRING
    LIST_EXTEND LIST_TO_TUPLE LIST_APPEND MAP_ADD UNPACK_SEQUENCE FORMAT_VALUE FORMAT_SIMPLE
    FORMAT_WITH_SPEC CONVERT_VALUE CALL CALL_KW CALL_FUNCTION CALL_FUNCTION_KW CALL_METHOD GET_ITER
    FOR_ITER END_FOR JUMP_BACKWARD JUMP_ABSOLUTE JUMP_FORWARD JUMP_IF_FALSE_OR_POP
    JUMP_IF_TRUE_OR_POP POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE RAISE_VARARGS RERAISE LOAD_ASSERTION_ERROR LOAD_COMMON_CONSTANT
    RETURN_VALUE RETURN_CONST
    """.split()
    if name in dis.opmap
)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _find_endless(code: types.CodeType) -> str:
    """Return why code may not end, or compare what stand-ins do not have, or "". A loop must be
    over an iterable, which the loop cannot make longer."""
    found = list(dis.get_instructions(code))
    names = {step.offset: step.opname for step in found}
    has_loop = "FOR_ITER" in names.values()
    for before, step in zip(found[:1] + found, found, strict=False):
        is_back = step.opcode in _JUMPS and step.argval <= step.offset
        if is_back and names[step.argval] != "FOR_ITER":
            return "has a loop"
        is_in_place = step.opname.startswith("INPLACE") or (
            step.opname == "BINARY_OP" and step.argrepr.endswith("=")
        )
        if has_loop and (is_in_place or step.argval in ("append", "extend", "insert")):
            return "has a loop that changes something"
        is_none = before.argrepr == "None" and not step.is_jump_target
        if step.opname == "IS_OP" and not is_none:
            return "asks whether two objects are one"
    return ""


@lru_cache(256)
def find_obstacle(code: types.CodeType) -> str:
    """Return why code is not run in a closed world, or ""."""
    if unknown := set(code.co_code[::2]) - _ALLOWED:
        return f"has the instruction {dis.opname[min(unknown)]}"
    if code.co_flags & _ARGUMENTS or code.co_kwonlyargcount:
        return "has more arguments than an index"
    if any(name.startswith("__") for name in code.co_names):
        return "reads a special attribute"
    inner = [find_obstacle(each) for each in code.co_consts if type(each) is types.CodeType]
    return next(filter(None, inner), "") or _find_endless(code)


_TRIES, _MOST = 2, 256  # runs that are refused before a function is not run again; functions noted

# The reasons, by code and whether the loader has workers.
_refused: dict[tuple[types.CodeType, bool], list[str]] = {}


def note_refusal(cls: type, workers: int, reason: str) -> None:
    """Note why samples of a class are not made of columns."""
    if len(_refused) > _MOST:
        _refused.clear()
    code = method_of(cls, "__getitem__").__code__
    _refused.setdefault((code, workers > 0), []).append(reason)


def find_refusal(cls: type, workers: int) -> str:
    """Return why ``__getitem__`` of a class is not run in a closed world, or ""."""
    function = method_of(cls, "__getitem__")
    if function is None or str(function.__module__).startswith(("torch.", "fastloop.")):
        return "belongs to a library, or is not a plain function"
    reasons = _refused.get((function.__code__, workers > 0), [])
    return reasons[-1] if len(reasons) >= _TRIES else find_obstacle(function.__code__)


# ---- stand-ins

_thread = threading.local()  # .made: the elements that a function has made in this thread


def _refusing(reason: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_named: Any) -> Any:
        raise NotCoveredError(reason)

    return refuse


_branches = _refusing("branches on the index or the data")
_computes = _refusing("does more than index")


class StandIn:
    """Stands for an object. A use that no subclass defines is refused."""

    __slots__ = ("_state",)

    def __init__(self, *state: Any) -> None:
        self._state = state

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _branches
    __hash__ = __contains__ = _branches
    __getattribute__ = __getitem__ = __iter__ = __call__ = _computes
    __repr__ = __str__ = __format__ = _computes


_STATE: Any = vars(StandIn)["_state"]


def state_of(value: Any) -> Any:
    """Return what a stand-in was made of: any attribute of a stand-in is the function's."""
    return _STATE.__get__(value)


class Index(StandIn):
    """`scale` * i + `offset`, for the index i of a sample in [0, `count`)."""

    __slots__ = ()

    def __add__(self, other: Any) -> Index:
        scale, offset, count = state_of(self)
        if type(other) is Index:
            more, other, _ = state_of(other)
            scale += more
        leave_if(type(other) is not int, "adds something to the index")
        return Index(scale, offset + other, count)

    def __mul__(self, other: Any) -> Index:
        scale, offset, count = state_of(self)
        leave_if(type(other) is not int, "multiplies the index by something")
        return Index(scale * other, offset * other, count)

    def __sub__(self, other: Any) -> Index:
        return Index.__add__(self, other * -1)

    def __rsub__(self, other: Any) -> Index:
        return Index.__add__(Index.__mul__(self, -1), other)

    __radd__, __rmul__ = __add__, __mul__

    def _compare(self, other: Any, compare: Callable[[int, int], bool]) -> bool:
        """Compare the index with a number, if the answer is one for all samples."""
        scale, offset, count = state_of(self)
        leave_if(type(other) is not int, "compares the index")
        ends = {compare(offset, other), compare(offset + scale * (count - 1), other)}
        leave_if(len(ends) > 1, "branches on the index")
        return ends.pop()

    def __lt__(self, other: Any) -> bool:
        return Index._compare(self, other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return Index._compare(self, other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return Index._compare(self, other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return Index._compare(self, other, operator.ge)


class Element(StandIn):
    """A source, or what a function makes of elements: (function, arguments, named arguments). A
    source is an array, a tensor or a list: (None, source, its name)."""

    __slots__ = ()

    def __init__(self, *state: Any) -> None:
        super().__init__(*state)
        _thread.made.append(self)

    def __getitem__(self, key: Any) -> Any:
        parts = key if type(key) is tuple else (key,)
        leave_if(not all(map(_is_key, parts)), "indexes by something else than ints")
        function, value, _ = state_of(self)
        is_list = function is None and type(value) in (list, tuple)
        leave_if(is_list and not has_index(key), "reads a fixed item of a list")
        return Element(operator.getitem, (self, key), {})

    def __getattribute__(self, name: str) -> Any:
        function, value, _ = state_of(self)
        if function is None and name == "shape" and type(value) in ARRAYS:
            return tuple(value.shape)
        if function is None and name == "size" and type(value) is torch.Tensor:
            return tuple(value.shape).__getitem__
        takes = _is_count if name in SHAPES else _is_dtype if name in CASTS else None
        if takes is None:
            raise NotCoveredError(f"uses {name} of its data")

        def call(*args: Any, **named: Any) -> Element:
            return _call(call_method, self, (name, *args), named, takes)

        return call


def call_method(value: Any, name: str, *args: Any, **named: Any) -> Any:
    """Call a method of an element."""
    return getattr(value, name)(*args, **named)


def _is_key(part: Any) -> bool:
    if type(part) is not slice:
        return type(part) in (int, Index)
    ends = part.start, part.stop, part.step
    return all(type(end) in (int, Index, type(None)) for end in ends)


def has_index(value: Any) -> bool:
    """Tell whether the index of the sample takes part in a value."""
    if type(value) is slice:
        value = value.start, value.stop, value.step
    if type(value) is Element:
        function, value, _ = state_of(value)
        return function is not None and has_index(value)
    return type(value) is Index or (type(value) is tuple and any(map(has_index, value)))


def _is_count(value: Any) -> bool:
    return all(type(each) is int for each in (value if type(value) is tuple else (value,)))


def _is_dtype(value: Any) -> bool:
    return type(value) in (torch.dtype, Function, bool) or (type(value) is str and value in _NUMPYS)


def _call(
    function: Any, value: Any, args: Any, named: Any, takes: Callable[[Any], bool] = _is_dtype
) -> Element:
    given = (*(args[1:] if function is call_method else args), *named.values())
    is_simple = has_index(value) and named.keys() <= {"dtype", "copy"} and all(map(takes, given))
    leave_if(not is_simple, "does more than index")
    return Element(function, (value, *args), named)


class Function(StandIn):
    """One of the functions that make a tensor, an array or a number of one element."""

    __slots__ = ()

    def __call__(self, *args: Any, **named: Any) -> Any:
        (function,) = state_of(self)
        leave_if(not args, "does more than index")
        value, *more = args
        if function is torch.is_tensor and type(value) is Index:
            return False
        if function is int and type(value) is Index:
            return value
        return _call(function, value, tuple(more), named)


class Length(StandIn):
    """The function ``len``: (world,)."""

    __slots__ = ()

    def __call__(self, value: Any) -> int:
        (world,) = state_of(self)
        if type(value) in (tuple, list, dict, str):
            return len(value)
        if type(value) is Object:
            _, thing, count = state_of(value)
            return int(world.length_of(thing) if count is None else count)
        is_source = type(value) is Dict or (type(value) is Element and state_of(value)[0] is None)
        leave_if(not is_source, "measures something")
        values = state_of(value)[1]
        world.lengths.append((values, len(values)))
        return len(values)


class Object(StandIn):
    """An object whose attributes are read: (world, object, length or None)."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        world, thing, _ = state_of(self)
        return world.read_attribute(thing, name)


class Dict(StandIn):
    """A dict of the program's with plain keys: (world, dict)."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        world, values = state_of(self)
        leave_if(type(key) not in (str, int) or key not in values, "reads a key that is missing")
        return world.read(values, key)

    def __getattribute__(self, name: str) -> Any:
        world, values = state_of(self)
        leave_if(name not in ("items", "keys", "values"), f"calls {name} of a dict")
        world.keys.append((values, tuple(values)))
        world.lengths.append((values, len(values)))
        items = [(key, world.read(values, key)) for key in values]
        found = {"items": items, "keys": [*values], "values": [value for _, value in items]}
        return lambda: tuple(found[name])


class Module(StandIn):
    """The module torch or NumPy, which gives known functions and dtypes only: (module,)."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        (module,) = state_of(self)
        value = vars(module).get(name)
        is_known = type(value) is torch.dtype or id(value) in _FUNCTIONS
        leave_if(not is_known, f"calls {module.__name__}.{name}")
        return _FUNCTIONS.get(id(value), value)


# ---- what is known

PLAIN = (int, float, bool, str, type(None), torch.dtype)
ARRAYS = (torch.Tensor, np.ndarray, np.memmap)
_TORCHS = ("tensor", "as_tensor", "from_numpy", "LongTensor", "FloatTensor", "is_tensor")
_NUMPYS = ("array", "asarray", "int32", "int64", "float32", "float64")
CASTS = frozenset(
    """long int float double half bool to type astype item numpy clone copy contiguous
    detach""".split()
)
SHAPES = ("unsqueeze", "squeeze", "reshape", "view", "flatten", "ravel")
_MADE = [*(getattr(torch, n) for n in _TORCHS), *(getattr(np, n) for n in _NUMPYS), int, float]
_FUNCTIONS = {id(function): Function(function) for function in _MADE}
# These make containers of stand-ins, or numbers of plain numbers; stand-ins refuse anything else.
_BUILTINS = {id(each): each for each in (dict, tuple, list, slice, min, max, abs)}
_REPLACED = Methods(
    *((torch, name) for name in _TORCHS if not name.endswith("Tensor")),
    *((np, name) for name in _NUMPYS),
    *((torch.Tensor, name) for name in ("__getitem__", *CASTS, *SHAPES)),
)
_PLAIN_CLASSES = type, ABCMeta  # classes of classes
_CALLABLES = types.FunctionType, types.MethodType, types.BuiltinFunctionType
_MISSING = object()
# Methods by which a class decides what an attribute or a sample is, or what a worker process gets.
_OWN = {"__getattribute__", "__getattr__", "__getitems__", "__reduce__", "__reduce_ex__"}
_OWN |= {"__getstate__", "__setstate__"}


def is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Tell whether `kinds` has a class. ``in`` would call ``__eq__`` of the class's metaclass."""
    return any(kind is each for each in kinds)


def method_of(cls: type, name: str) -> Any:
    """Return a method that a class defines or inherits as a plain function, or None. No code of the
    class runs."""
    if not is_one_of(type(cls), _PLAIN_CLASSES):
        return None
    found = next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), None)
    return found if type(found) is types.FunctionType else None


def mark_of(array: Any) -> Any:
    """Return what an array is, without its elements."""
    kind = type(array)
    if kind is torch.Tensor:
        grad = array.requires_grad
        return kind, array.data_ptr(), array.shape, array.stride(), array.dtype, grad
    if kind in ARRAYS:
        return kind, array.shape, array.strides, array.dtype, array.flags.writeable
    return kind


class _Names(dict[str, Any]):
    """The global names of a function in a closed world."""

    def __init__(self, world: World, function: Any) -> None:
        super().__init__(__builtins__={})
        self._world, self._places = world, (function.__globals__, function.__builtins__)

    def __missing__(self, name: str) -> Any:
        for place in self._places:
            if name in place:
                return self._world.read(place, name)
            self._world.noted.append((place, name, _MISSING))
        raise NotCoveredError(f"reads {name}")


def _noted_of(value: Any, found: Any) -> Any:
    """Return what is noted of a value: objects are held weakly, because they may hold a dataset."""
    return weakref.ref(value) if type(found) is Object else value


def _is_noted(value: Any, noted: Any) -> bool:
    if type(noted) is weakref.ref:
        return value is not None and noted() is value
    return value is noted


class _Thing:
    """An object whose attributes are read, held weakly. An attribute is an entry of the object's
    ``__dict__``, and no class of the object may have an attribute of its name."""

    def __init__(self, thing: Any) -> None:
        self.cls = type(thing)
        self.find, self.names = weakref.ref(thing), {*_OWN}
        self.seen: dict[str, Any] = {}
        leave_if(not is_one_of(type(self.cls), _PLAIN_CLASSES), "reads an object of an odd class")
        places = [vars(each).get("__dict__") for each in self.cls.__mro__]
        is_plain = {types.GetSetDescriptorType, type(None)} >= set(map(type, places))
        leave_if(
            not is_plain or find_other(self.noted()) >= 0, "belongs to a class of its own kind"
        )

    def noted(self) -> tuple[Any, ...]:
        """Return what ``find_other`` finds if a class has one of the names."""
        pairs = product(self.cls.__mro__[:-1], self.names)
        return tuple(chain.from_iterable((cls, name, None) for cls, name in pairs))

    def read(self, name: str) -> Any:
        self.names.add(name)
        leave_if(find_other(self.noted()) >= 0, f"reads {name}, which its class defines")
        values = object.__getattribute__(self.find(), "__dict__")
        leave_if(type(values) is not dict, "reads an object whose __dict__ has a class of its own")
        leave_if(name not in values, f"reads {name}, an attribute that the object does not have")
        return values[name]


class World:
    """Notes what functions have read in a closed world. Objects of the program are not kept alive,
    but their arrays and lists are.

    Attributes:
        noted: the values that were read: the dict, the key and the value of each.
        keys: the dicts whose keys were read, with their keys.
        lengths: the lists and dicts whose lengths were read, with their lengths.
        containers: the lists and dicts that the world keeps alive.
        outer: the elements that no other element is made of; a sample may leave some out.
    """

    def __init__(self) -> None:
        self.noted: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self.keys: list[tuple[dict[Any, Any], tuple[Any, ...]]] = []
        self.lengths: list[tuple[Any, int]] = []
        self.containers: list[Any] = []
        self._arrays: dict[int, tuple[Any, Any]] = {}  # with their marks
        self._things: dict[int, _Thing] = {}
        self._functions: list[tuple[type, str]] = []
        self._codes: list[tuple[Any, types.CodeType]] = []
        self._mros: list[tuple[type, tuple[type, ...]]] = []

    def read(self, values: Mapping[Any, Any], key: Any) -> Any:
        """Return what stands for a value in a dict, and note the value."""
        found = self._stand_for(values[key], str(key))
        self.noted.append((values, key, _noted_of(values[key], found)))
        return found

    def read_attribute(self, thing: Any, name: str) -> Any:
        """Return what stands for an attribute of an object, and note the attribute."""
        entered = self._enter(thing)
        value = entered.read(name)
        found = self._stand_for(value, name)
        entered.seen[name] = _noted_of(value, found)
        return found

    def _enter(self, thing: Any) -> _Thing:
        if id(thing) not in self._things:
            self._things[id(thing)] = _Thing(thing)
            self._mros.append((type(thing), type(thing).__mro__))
        return self._things[id(thing)]

    def _stand_for(self, value: Any, name: str) -> Any:
        kind = type(value)
        if is_one_of(kind, PLAIN) or id(value) in _BUILTINS:
            return value
        if id(value) in _FUNCTIONS or value is len:
            return Length(self) if value is len else _FUNCTIONS[id(value)]
        self.containers += [value] if is_one_of(kind, (list, tuple, dict)) else []
        if is_one_of(kind, (*ARRAYS, list, tuple)):
            self._arrays[id(value)] = value, mark_of(value)
            return Element(None, value, name)
        if kind is dict:
            is_plain = all(is_one_of(type(key), (str, int)) for key in value)
            leave_if(not is_plain, f"reads {name}, whose keys are odd")
            return Dict(self, value)
        if value is torch or value is np:
            return Module(value)
        leave_if(issubclass(kind, (type, types.ModuleType, *_CALLABLES)), f"uses {name}")
        return Object(self, value, None)

    def _run(self, thing: Any, name: str, *args: Any) -> Any:
        cls = self._enter(thing).cls
        function = method_of(cls, name)
        leave_if(function is None, f"has no plain {name}")
        code = function.__code__
        leave_if(code.co_freevars or code.co_argcount != len(args), "has other arguments")
        leave_if(why := find_obstacle(code), why)
        self._functions.append((cls, name))
        self._codes.append((function, code))
        try:
            return types.FunctionType(code, _Names(self, function), code.co_name)(*args)
        except NotCoveredError:
            raise
        except Exception as error:
            raise NotCoveredError(f"does more than index ({type(error).__name__})") from error

    def length_of(self, thing: Any) -> int:
        """Return what ``__len__`` of an object returns. Raises NotCoveredError."""
        count = self._run(thing, "__len__", Object(self, thing, None))
        leave_if(type(count) is not int or count < 1, "has no samples")
        return int(count)

    def trace(self, thing: Any) -> tuple[Any, int]:
        """Return what ``__getitem__`` of an object makes of an index, and the number of samples.
        Raises NotCoveredError."""
        leave_if(why := _REPLACED.find_replaced(), f"calls {why}, which was replaced")
        made: list[Any] = []
        _thread.made = made
        try:
            count = self.length_of(thing)
            sample = self._run(thing, "__getitem__", Object(self, thing, count), Index(1, 0, count))
        finally:
            _thread.made = []
        inner = {id(arg) for each in made if state_of(each)[0] for arg in state_of(each)[1]}
        self.outer = [each for each in made if state_of(each)[0] and id(each) not in inner]
        return sample, count

    @property
    def key(self) -> str:
        """The functions that ran."""
        return str([hash(code) for _, code in self._codes])

    @cached_property
    def _of_classes(self) -> tuple[Any, ...]:
        """Return for ``find_other`` the methods that ran, and names that no class may have."""
        noted: list[Any] = []
        for cls, name in self._functions:
            for each in cls.__mro__:
                noted += each, name, vars(each).get(name)
                if name in vars(each):
                    break
        return (*noted, *chain.from_iterable(each.noted() for each in self._things.values()))

    def is_same(self) -> bool:
        """Tell whether the functions would read the same now, but for elements of arrays and
        lists."""
        for each in self._things.values():
            if type(thing := each.find()) is not each.cls:
                return False
            values = object.__getattribute__(thing, "__dict__")
            if type(values) is not dict or "__getitems__" in values:
                return False
            for name, value in each.seen.items():
                if not _is_noted(values.get(name, _MISSING), value):
                    return False
        for array, mark in self._arrays.values():
            if mark_of(array) != mark:
                return False
        for values, key, value in self.noted:
            if not _is_noted(values.get(key, _MISSING), value):
                return False
        return (
            all(code is function.__code__ for function, code in self._codes)
            and all(cls.__mro__ is mro for cls, mro in self._mros)
            and all(len(values) == length for values, length in self.lengths)
            and all(all(map(operator.is_, values, keys)) for values, keys in self.keys)
            and find_other(self._of_classes) < 0
            and not _REPLACED.find_replaced()
        )
