"""The parts of torch that fastloop uses and that torch does not promise to keep: one table.

Every other module takes torch's private names from here. ``difference(group)`` tells whether the
installed torch has the parts of a group in a form that fastloop knows. The comparison takes place
once, when the group is first used, and takes a fraction of a millisecond, or some ten if torch is
newer. If a part differs, callers let torch's own code do the work, and one RuntimeWarning says so.
docs/internals/torch.md says what fastloop does with each part.

A function is compared by two digests. The digest of names covers the parameters and every name in
the code, ignores numbers, operators and their order, and costs microseconds. The digest of syntax
is read from the source, and is compared only if torch is newer than the releases that fastloop was
tested with. Neither depends on comments, docstrings, messages, annotations or the version of
CPython.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import inspect
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.utils.data

from fastloop._core import GradListBase, find_other
from fastloop.compat.requirements import NEWEST_TESTED, read_release

_DATALOADER = "torch.utils.data.dataloader"
_COLLATE = "torch.utils.data._utils.collate"
_WORKER = "torch.utils.data._utils.worker"
_OWN = "fastloop"  # the name of this package
_EXCHANGE = "torch:Tensor.__dlpack_c_exchange_api__"


class Part(NamedTuple):
    """One private part of torch.

    Attributes:
        path: ``module:qualified.name``.
        forms: digests of the names in the code, one for each known release, oldest first;
            empty: being there is enough.
        syntax: the digest of the code's syntax in the newest release that fastloop knows.
        sets: attributes that the code must use, because fastloop reads them.
    """

    path: str
    forms: tuple[str, ...] = ()
    syntax: str = ""
    sets: tuple[str, ...] = ()


def _read_table() -> dict[str, tuple[Part, ...]]:
    """Read the parts of each group, one a line, from torch_parts.txt."""
    table: dict[str, tuple[Part, ...]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line and not line.startswith("#"):
            group, path, *fields = line.split()
            forms, syntax, sets = (() if f == "-" else tuple(f.split(",")) for f in fields)
            table[group] = (*table.get(group, ()), Part(path, forms, "".join(syntax), sets))
    return table


# Arguments of torch.utils.data.DataLoader.
_ARGUMENTS = frozenset(
    "self dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory "
    "drop_last timeout worker_init_fn multiprocessing_context generator prefetch_factor "
    "persistent_workers pin_memory_device in_order".split()
)
# Of torch's loop of a worker process, in their order; from 2.14 on the second is a list.
_LOOP_ARGUMENTS = (
    "dataset_kind dataset index_queue data_queue done_event auto_collation collate_fn drop_last "
    "base_seed init_fn worker_id num_workers persistent_workers shared_seed".split()
)
# The groups that the paths of loaders need.
_NEEDS: dict[str, tuple[str, ...]] = {
    "array": ("loader", "tensors", "fetch", "collate"),
    "process": ("loader", "tensors", "workers"),
    "thread": ("loader", "tensors", "workers", "fetch"),
    "sync": ("loader", "single"),
    "torch": ("loader", "single", "multi"),
}
_PARTS = _read_table()
PATHS = tuple(_NEEDS)
GROUPS = (*_PARTS, *_NEEDS)


def parts_of(group: str) -> Iterator[Part]:
    """Yield the parts of a group and of the groups below."""
    for name in (group, *_NEEDS.get(group, ())):
        yield from _PARTS.get(name, ())


def resolve(path: str) -> Any:
    """Return the object that `path` names now. Raises ImportError or AttributeError."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


@functools.cache
def _compare(part: Part) -> str:
    """Say how `part` differs from the forms that fastloop knows; "" if it does not."""
    name = part.path.replace(":", ".")
    try:
        found = resolve(part.path)
    except (ImportError, AttributeError):
        return f"{name} is gone"
    if part.path == _EXCHANGE:
        try:
            GradListBase(torch.Tensor, print, print)
        except Exception as error:
            return f"{name}: {error}"
    if getattr(found, "__module__", "torch").partition(".")[0] != "torch":
        return ""  # a tool has wrapped torch's function; its form says nothing about torch
    has_changed = bool(part.forms) and names_digest(found) not in part.forms
    # Of a torch newer than all that were tested, any change counts, not only other names.
    is_newer = read_release(str(torch.__version__)) > NEWEST_TESTED
    if has_changed or (is_newer and part.syntax and syntax_digest(found) != part.syntax):
        return f"{name} has changed"
    code = code_of(found) if part.sets else None
    missing = set(part.sets) - (names_in(code) if code else set())
    return f"{name} no longer sets {', '.join(sorted(missing))}" if missing else ""


@functools.cache
def difference(group: str) -> str:
    """Say how the parts of `group` differ from those that fastloop knows; "" if they do not.

    Compares when `group` is first asked for (0.2 ms)."""
    found = [text for text in map(_compare, parts_of(group)) if text]
    if not found:
        return ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"torch {torch.__version__}: {found[0]}{more}"


@functools.cache
def is_known(group: str, left: str) -> bool:
    """Tell whether `group` can be used. If not, warn once.

    Args:
        left: begins the warning: what is left to torch ("The loader's iterators are left").
    """
    if found := difference(group):
        warnings.warn(
            f"{left} to torch's own code, because fastloop does not know this torch: {found}. "
            "Results are torch's; install a newer fastloop for its speed",
            RuntimeWarning,
            stacklevel=3,
        )
    return not found


def _take(path: str, public: Any = None) -> Any:
    """Return a part; if the part is gone, as `difference` says, `public` or an empty class."""
    try:
        return resolve(path)
    except (ImportError, AttributeError):
        return public or type("Missing", (), {})


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@functools.cache
def _make_call(caller: str, name: str) -> Callable[..., Any]:
    """Return `_call` with the globals, the file and the line of the place where a function of torch
    calls one of this name."""
    code, ours = code_of(_take(f"{_DATALOADER}:{caller}")), _call.__code__
    if code is not None:
        at = next((s.offset for s in dis.get_instructions(code) if s.argval == name), 0)
        line = next(line for _, end, line in code.co_lines() if at < end and line)
        place: Any = {"co_filename": code.co_filename, "co_name": code.co_name}
        ours = ours.replace(co_firstlineno=line - 1, **place)
    return types.FunctionType(ours, vars(sys.modules.get(_DATALOADER, sys.modules[__name__])))


def call_as_torch(
    caller: str, function: Callable[..., Any], *args: Any, may_warn: bool = True
) -> Any:
    """Call a function as `caller` in torch's module of loaders does: warnings that it gives with
    stacklevel=2 name torch's module, by which users filter, and the place that torch names. To find
    the place takes a millisecond, once."""
    if not may_warn:
        return function(*args)
    return _make_call(caller, function.__name__)(function, *args)


@functools.cache
def strided_shard() -> Any:
    """Return the placement of tensors that FSDP shards after tensor parallelism."""
    return _take("torch.distributed.tensor.placement_types:_StridedShard")


def new_replica(local: torch.Tensor, mesh: Any, spec: Any = None) -> tuple[Any, Any]:
    """Make a DTensor of a tensor that all processes of a mesh have. Returns the DTensor and its
    spec, which makes the next DTensor of its kind in a twentieth of the time."""
    from torch.distributed.tensor import DTensor, Replicate

    if spec is None:
        made = DTensor.from_local(local, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return made, made._spec
    make: Any = DTensor.__new__  # its __init__ does nothing, and takes longer
    return make(DTensor, local, spec, requires_grad=False), spec


@functools.cache
def new_arguments() -> dict[str, Any]:
    """Return the defaults of the DataLoader arguments that fastloop does not know, by name."""
    arguments = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values()
    return {a.name: a.default for a in arguments if a.name not in _ARGUMENTS}


def collate_functions() -> Any:
    """Return the module whose functions default_collate calls."""
    return importlib.import_module(_COLLATE)


def pin_memory(batch: Any, device: str | None = None) -> Any:
    """Return the batch in pinned memory, by the function that torch's module has now."""
    return resolve("torch.utils.data._utils.pin_memory:pin_memory")(batch, device)


def run_worker_loop(arguments: dict[str, Any]) -> None:
    """Run torch's loop of a worker process, or what a tool has put in its place: its arguments are
    given by position, as by torch. From 2.14 on the loop takes the dataset out of a list."""
    starter = code_of(MultiIter.__init__)
    if starter is not None and "dataset_holder" in names_in(starter):
        arguments["dataset"] = [arguments["dataset"]]
    resolve(f"{_WORKER}:_worker_loop")(*map(arguments.__getitem__, _LOOP_ARGUMENTS))


@functools.cache
def _global_hooks() -> tuple[Any, ...]:
    """Return torch's dicts of hooks; if a dict is gone, hooks that are always there."""
    is_there = is_known("hooks", "Operations that hooks may watch are left")
    return tuple(resolve(part.path) for part in parts_of("hooks")) if is_there else (True,)


def has_global_hooks() -> bool:
    """Tell whether a hook watches all modules."""
    return any(_global_hooks())


def _home_of(function: Any) -> str:
    """Return the package whose code a function is; "builtins" for one that is not Python's."""
    function = function.__func__ if type(function) in (staticmethod, classmethod) else function
    if type(function) is types.FunctionType:
        return str(function.__globals__.get("__name__")).partition(".")[0]
    return type(function).__module__.partition(".")[0]


def is_of(package: str, function: Any) -> bool:
    """Tell whether a function is a package's own, apart from what fastloop has put around it."""
    return _home_of(_inside(function)) == package


def _inside(function: Any) -> Any:
    """Return what the functions of this package around a function call in the end."""
    while _home_of(function) == _OWN and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


class Methods:
    """Functions of torch and of other libraries whose work fastloop does itself. If a tool or a
    user has replaced a function, the library's code has to run, which calls the replacement.

    Args:
        methods: pairs of a class or module and a name; there need not be anything of that name.
    """

    def __init__(self, *methods: tuple[Any, str]) -> None:
        self._noted: tuple[Any, ...] = ()  # owner, name and function of each in turn
        for owner, name in methods:
            found = _inside(vars(owner).get(name))
            home = getattr(owner, "__module__", owner.__name__).partition(".")[0]
            # Stands for a function that was replaced before, and equals no function.
            is_theirs = _home_of(found) in (home, "builtins")
            self._noted += owner, name, found if is_theirs else object()
        self._seen = self._noted  # with the functions that this package has put in

    def find_replaced(self) -> str:
        """Return the name of one that is no longer the library's, or "".

        Functions of this package do not count: patch() and reports wrap functions."""
        if find_other(self._seen) < 0:
            return ""
        seen: tuple[Any, ...] = ()
        for owner, name, noted in zip(*[iter(self._noted)] * 3, strict=True):
            found = vars(owner).get(name)
            inside = _inside(found)
            if inside is not noted and _home_of(inside) != _OWN:
                return f"{owner.__name__}.{name}"
            seen += owner, name, found
        self._seen = seen
        return ""


if TYPE_CHECKING:
    from torch._utils import ExceptionWrapper as ExceptionWrapper
    from torch.utils.data import dataloader as _loaders
    from torch.utils.data._utils import worker as _workers

    TorchScaler = torch.amp.GradScaler
    StreamEnd = _workers._IterableDatasetStopIteration
    Resume = _workers._ResumeIteration
    BaseIter = _loaders._BaseDataLoaderIter
    MultiIter = _loaders._MultiProcessingDataLoaderIter
    SingleIter = _loaders._SingleProcessDataLoaderIter
else:
    ExceptionWrapper = _take("torch._utils:ExceptionWrapper")
    TorchScaler = _take("torch.amp.grad_scaler:GradScaler", torch.amp.GradScaler)
    StreamEnd = _take(f"{_WORKER}:_IterableDatasetStopIteration")
    Resume = _take(f"{_WORKER}:_ResumeIteration")
    BaseIter = _take(f"{_DATALOADER}:_BaseDataLoaderIter")
    MultiIter = _take(f"{_DATALOADER}:_MultiProcessingDataLoaderIter")
    SingleIter = _take(f"{_DATALOADER}:_SingleProcessDataLoaderIter")

OptState: Any = _take("torch.amp.grad_scaler:OptState")
MapFetcher: Any = _take("torch.utils.data._utils.fetch:_MapDatasetFetcher")
DatasetKind: Any = _take(f"{_DATALOADER}:_DatasetKind")
# Users put functions of their own in place of the public names.
default_collate: Any = _take(f"{_COLLATE}:default_collate", torch.utils.data.default_collate)
default_convert: Any = _take(f"{_COLLATE}:default_convert", torch.utils.data.default_convert)
# Without these, fastloop assumes that a mode is on, and that each tensor is wrapped.
count_dispatch_modes: Any = _take(
    "torch._C:_len_torch_dispatch_stack",
    lambda: not is_known("modes", "Work that modes may watch is left"),
)
count_function_modes: Any = _take(
    "torch._C:_len_torch_function_stack",
    lambda: not is_known("collate", "What modes may watch is left"),
)
is_functorch_wrapped: Any = _take(
    "torch._C._functorch:is_functorch_wrapped_tensor",
    lambda tensor: not is_known("functorch", "Tensors of samples are left"),
)
is_tracing: Any = _take("torch.jit:is_tracing", lambda: True)
without_subclass_functions: Any = _take("torch._C:DisableTorchFunctionSubclass", nullcontext)
clip_module: Any = _take("torch.nn.utils:clip_grad")
torch_clip_grad_norm_: Any = _take(
    "torch.nn.utils.clip_grad:clip_grad_norm_", torch.nn.utils.clip_grad_norm_
)


# ---- the form of a function

# Fields of syntax nodes that change nothing that runs.
SILENT = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx", "is_lazy"}


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def code_of(function: Any) -> types.CodeType | None:
    # Unwrapped: patch() and reports put wrappers around torch's functions.
    return getattr(inspect.unwrap(function), "__code__", None)


def names_in(code: types.CodeType) -> set[str]:
    """Return all identifiers in a function and the functions inside it."""
    # From CPython 3.14 on the annotations of an inner function have code with its own parameter.
    own = () if code.co_name == "__annotate__" else code.co_varnames
    names = {*code.co_names, *own, *code.co_freevars, *code.co_cellvars}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= names_in(inner)
    return {name for name in names if name.isidentifier()}


def _parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of a function's parameters, ``*args`` and ``**kwargs`` included."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def names_digest(function: Any) -> str:
    """Return the digest of the parameters and of the names in the code; "" without Python code."""
    code = code_of(function)
    if code is None:
        return ""
    return _digest(" ".join(_parameters_of(code)) + "|" + " ".join(sorted(names_in(code))))


# Forms of other libraries' functions, by what identifies their code (statements.py). A spawned
# worker begins with the forms of its parent: to compute them takes longer than a short epoch.
forms_of: dict[str, str] = {}
before_workers: list[Callable[[], object]] = []  # called before a worker process starts


def syntax_digest(function: Any) -> str:
    """Return the digest of a function's syntax; "" without source. Takes about a millisecond."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, SyntaxError, TypeError):
        return ""
    return _digest(" ".join(words_of(tree.body)))


def words_of(node: Any, has_texts: bool = False) -> Iterator[str]:
    """Yield the words of a syntax tree.

    Args:
        has_texts: whether texts count, other than docstrings.
    """
    if isinstance(node, list):
        yield f"[{len(node)}]"
        for item in node:
            yield from words_of(item, has_texts)
    elif isinstance(node, ast.Constant):
        yield "text" if isinstance(node.value, str) and not has_texts else repr(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "text"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = [line for line in value if not is_docstring(line)]
            if name not in SILENT:
                yield from words_of(value, has_texts)
    else:
        yield str(node)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
