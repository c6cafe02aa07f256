"""The parts of torch that fastloop uses and that torch does not promise to keep: one table.

Every other module takes torch's private names from here. ``difference(group)`` tells whether the
installed torch has the parts of a group in a form that fastloop knows. It compares once, when the
group is first used: a fraction of a millisecond, some ten of them where torch is newer. Where a
part differs, callers let torch's own code do the work, and one RuntimeWarning says so.
docs/torch.md says what fastloop does with each part.

A function is compared by two digests. That of its names costs microseconds and ignores numbers,
operators and their order; it covers the parameters and every name in the code. That of its syntax
is read from the source, and is compared only where torch is newer than the releases that fastloop
was tested with. Neither depends on comments, docstrings, messages, annotations or the version of
CPython.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.utils.data

from fastloop._core import GradListBase
from fastloop.base.requirements import NEWEST_TESTED, read_release

_DATALOADER = "torch.utils.data.dataloader:"
_LOADER = _DATALOADER + "DataLoader"
_BASE = _DATALOADER + "_BaseDataLoaderIter"
_SINGLE = _DATALOADER + "_SingleProcessDataLoaderIter"
_MULTI = _DATALOADER + "_MultiProcessingDataLoaderIter"
_WORKER = "torch.utils.data._utils.worker:"
_FETCH = "torch.utils.data._utils.fetch:"
_COLLATE = "torch.utils.data._utils.collate:"
_ERROR = "torch._utils:ExceptionWrapper"
_SCALERS = "torch.amp.grad_scaler:"
_SCALER = _SCALERS + "GradScaler"
_PIN = "torch.utils.data._utils.pin_memory:pin_memory"
_CLIP = "torch.nn.utils.clip_grad:"
_EXCHANGE = "torch:Tensor.__dlpack_c_exchange_api__"
_MODES = "torch._C:_len_torch_dispatch_stack"
_WRAPPED = "torch._C._functorch:is_functorch_wrapped_tensor"
_FUNCTION_MODES = "torch._C:_len_torch_function_stack"
_STORAGE = "torch:UntypedStorage."
_HOOKS = tuple(
    f"torch.nn.modules.module:_global_{name}"
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
)


class Part(NamedTuple):
    """One private part of torch.

    Attributes:
        path: ``module:qualified.name``.
        forms: digests of the names in the code, of all releases that fastloop knows, oldest first;
            empty: being there is enough.
        syntax: the digest of the code's syntax in the newest release that fastloop knows.
        sets: attributes that the code must use, because fastloop reads them.
    """

    path: str
    forms: str = ""
    syntax: str = ""
    sets: tuple[str, ...] = ()


# Arguments of torch.utils.data.DataLoader.
_ARGUMENTS = frozenset(
    "self dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory "
    "drop_last timeout worker_init_fn multiprocessing_context generator prefetch_factor "
    "persistent_workers pin_memory_device in_order".split()
)

# Groups by name, each with the groups it builds on. Digests are those of torch 2.10 to 2.15.
_NEEDS: dict[str, tuple[str, ...]] = {
    "array": ("loader", "tensors", "fetch", "collate"),
    "process": ("loader", "tensors", "workers"),
    "thread": ("loader", "tensors", "workers", "fetch"),
    "sync": ("loader", "single"),
    "torch": ("loader", "single", "multi"),
}
_LOADER_SETS = ("_dataset_kind", "_iterator", "_IterableDataset_len_called")
_PARTS: dict[str, tuple[Part, ...]] = {
    "tensors": (Part(_EXCHANGE),),
    "loader": (
        Part(
            _LOADER + ".__init__",
            sets=("_dataset_kind", "_iterator", "_IterableDataset_len_called"),
        ),
        Part(_LOADER + ".__iter__", "4b282e17", "69835b14"),
        Part(_LOADER + "._get_iterator", "981497f6", "37ea5b54"),
        Part(_LOADER + "._auto_collation"),
        Part(_LOADER + "._index_sampler"),
        Part(_DATALOADER + "_DatasetKind.Map"),
        Part(_DATALOADER + "_DatasetKind.create_fetcher"),
        Part(_BASE),
        Part(_BASE + ".__init__", "edbaf70b", "3b151efc"),
        Part(_BASE + "._reset", "c49d3830", "7d5a1ca7"),
        Part(_BASE + "._next_index", "f2cba40a", "fcc06585"),
        Part(_BASE + ".__next__", "840ba3a7", "b1333bb5"),
        Part(_ERROR + ".__init__", "c497adf4", "769d3b01"),
        Part(_ERROR + ".reraise", "ee5422e1", "c480f780"),
        Part(_PIN, "15735879", "e33b9942"),
    ),
    "single": (
        Part(_SINGLE + ".__init__", "af02001a", "bb21a8d5"),
        Part(_SINGLE + "._next_data", "1ec6f1aa", "1755ebaf"),
    ),
    "multi": (
        Part(_MULTI + "._try_get_data", "9b182778", "75034b84"),
        Part(_MULTI + "._shutdown_workers", "ccbea8da", "52648e10"),
        Part(_MULTI + "._reset", "7885a088", "e6038030"),
    ),
    # WorkerIter does what these do, so any change of them matters.
    "workers": (
        Part(_MULTI + ".__init__", "d33bec98 9c44ab88 15039bcc", "c88ca6d4"),
        Part(_MULTI + "._reset", "7885a088", "e6038030"),
        Part(_MULTI + "._get_data", "1998ca94", "1077afe3"),
        Part(_MULTI + "._next_data", "80046439", "99b28f4f"),
        Part(_MULTI + "._try_put_index", "fec06c83", "c0b452ba"),
        Part(_MULTI + "._process_data", "cbf63bc3", "311c2bb3"),
        Part(_MULTI + "._mark_worker_as_unavailable", "7770b535", "8cc9c102"),
        Part(_WORKER + "_worker_loop", "a45dc3c2 7147b1c5", "208d8dc9"),
        Part(_WORKER + "_IterableDatasetStopIteration"),
        Part(_WORKER + "_ResumeIteration"),
    ),
    "fetch": (
        Part(_FETCH + "_MapDatasetFetcher.fetch", "42786a59", "bd4ba3b5"),
        Part(_FETCH + "_IterableDatasetFetcher.fetch", "119eb86f", "15c4f388"),
    ),
    # C collates as these do.
    "collate": (
        Part(_COLLATE + "collate", "f837e324", "bcda648e"),
        Part(_COLLATE + "default_collate", "a380959a", "5a2aee65"),
        Part(_COLLATE + "default_convert", "db284ef3", "612b73c8"),
        Part(_COLLATE + "default_collate_fn_map"),
        Part(_COLLATE + "collate_tensor_fn", "38d9ce74", "94a4fe44"),
        Part(_COLLATE + "collate_numpy_array_fn", "cbaa6f43", "836b6477"),
        Part(_COLLATE + "collate_numpy_scalar_fn", "5f0655f0", "5baacdcb"),
        Part(_COLLATE + "collate_float_fn", "ebf4a55e", "7fe5bf05"),
        Part(_COLLATE + "collate_int_fn", "1d2cb71a", "59a3bf9c"),
        Part(_COLLATE + "collate_str_fn", "6f14bc62", "a310e13d"),
        Part(_FUNCTION_MODES),
        Part(_MODES),
    ),
    # Hooks of all modules, which operations of torchvision are.
    "hooks": tuple(map(Part, _HOOKS)),
    "scaler": (
        Part(_SCALER + ".__init__", "dcfe3bd6 596aa390", "707c5486"),
        Part(_SCALER + "._check_scale_growth_tracker", "e0fc937b ef4b6436", "d1cf671d"),
        Part(_SCALER + "._lazy_init_scale_growth_tracker", "6d301abe ebedef67", "0d48d104"),
        Part(_SCALER + ".scale", "a26cc599 a75ce996", "c279e0fe"),
        Part(_SCALER + ".unscale_", "4b43f0cf 39a13023", "24630bd0"),
        Part(_SCALER + "._unscale_grads_", "737ddf79 e3e0dec9", "673f12da"),
        Part(_SCALER + "._maybe_opt_step", "ac890ffa", "048f2d2f"),
        Part(_SCALER + ".step", "d95e6495 fb56d3c5", "fb368d62"),
        Part(_SCALER + ".update", "c14a2bcc 6853f75e", "c440e2e4"),
        Part(_SCALER + "._check_inf_per_device", "f9b3ab15", "77be309f"),
        Part(_SCALERS + "OptState.READY"),
        Part(_SCALERS + "_refresh_per_optimizer_state", "0fb087b3", "7fb39de3"),
    ),
    "clip": (
        Part(_CLIP + "_get_total_norm", "95759cb2", "cd131e53"),
        Part(_CLIP + "_clip_grads_with_norm_", "78fc7c64", "9801e828"),
        Part(_CLIP + "clip_grad_norm_", "becdda84", "aef2cf40"),
    ),
    "modes": (Part(_MODES),),
    "functorch": (Part(_WRAPPED),),
    "sparse": (Part("torch:Tensor._indices"), Part("torch:Tensor._values")),
    # The last two are called without the first, too.
    "moves": (
        Part(_STORAGE + "share_memory_"),
        Part(_STORAGE + "_share_filename_cpu_"),
        Part(_STORAGE + "_share_fd_cpu_"),
        Part(_STORAGE + "_cdata"),
    ),
    "profiler": (Part("torch.autograd.profiler:_is_profiler_enabled"),),
    "queue": (
        Part(_MULTI + ".__init__", syntax="c88ca6d4", sets=("_data_queue",)),
        Part(_MULTI + "._reset", syntax="e6038030", sets=("_task_info", "_tasks_outstanding")),
    ),
}
PATHS = tuple(_NEEDS)
GROUPS = (*_PARTS, *_NEEDS)


def parts_of(group: str) -> Iterator[Part]:
    """Yield the parts of a group and of those that it builds on."""
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
    if part.forms and names_digest(found) not in part.forms.split():
        return f"{name} has changed"
    # Of a torch newer than all that were tested, any change counts, not only other names.
    is_newer = read_release(str(torch.__version__)) > NEWEST_TESTED
    if is_newer and part.syntax and syntax_digest(found) != part.syntax:
        return f"{name} has changed"
    if part.sets:
        code = _code_of(found)
        missing = set(part.sets) - (_names_in(code) if code else set())
        if missing:
            return f"{name} no longer sets {', '.join(sorted(missing))}"
    return ""


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
    """Return a part; where it is gone, as `difference` says, the public one or an empty class."""
    try:
        return resolve(path)
    except (ImportError, AttributeError):
        return public or type("Missing", (), {})


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


# Calls a function of torch from a frame with the globals of torch's own caller: warnings that it
# gives with stacklevel=2 keep torch's module, by which users filter.
call_as_torch = types.FunctionType(
    _call.__code__, vars(sys.modules.get(_DATALOADER[:-1], sys.modules[__name__]))
)


@functools.cache
def new_arguments() -> dict[str, Any]:
    """Return the defaults of the DataLoader arguments that fastloop does not know, by name."""
    arguments = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values()
    return {a.name: a.default for a in arguments if a.name not in _ARGUMENTS}


def collate_functions() -> Any:
    """Return the module whose functions default_collate calls."""
    return importlib.import_module(_COLLATE[:-1])


def pin_memory(batch: Any, device: str | None = None) -> Any:
    """Return the batch in pinned memory, by the function that torch's module has now."""
    return resolve(_PIN)(batch, device)


def run_worker_loop(*, dataset: Any, **arguments: Any) -> None:
    """Run torch's loop of a worker process. From 2.14 on it takes the dataset out of a list."""
    loop = resolve(_WORKER + "_worker_loop")
    if "dataset_holder" in _parameters_of(loop.__code__):
        loop(dataset_holder=[dataset], **arguments)
    else:
        loop(dataset=dataset, **arguments)


@functools.cache
def _global_hooks() -> tuple[Any, ...]:
    """Return torch's dicts of hooks; where one is gone, hooks that are always there."""
    is_there = is_known("hooks", "Operations that hooks may watch are left")
    return tuple(map(resolve, _HOOKS)) if is_there else (True,)


def has_global_hooks() -> bool:
    """Tell whether a hook watches all modules."""
    return any(_global_hooks())


class Methods:
    """Methods of torch whose work fastloop does itself. Where a tool or a user has replaced one,
    torch's code has to run, which calls the replacement.

    Args:
        methods: pairs of a class of torch and a name; a class need not have a method of that name.
    """

    def __init__(self, *methods: tuple[type, str]) -> None:
        self._methods: list[tuple[type, str, Any]] = []
        for cls, name in methods:
            method = vars(cls).get(name)
            names = getattr(sys.modules.get(cls.__module__), "__dict__", None)
            is_torchs = method is None or getattr(method, "__globals__", None) is names
            # A method that was replaced already equals nothing.
            self._methods.append((cls, name, method if is_torchs else object()))

    def find_replaced(self) -> str:
        """Return the name of one that is no longer torch's, or "".

        Methods of this package do not count: reports wrap torch's in theirs."""
        package = __file__.rpartition("base")[0]
        for cls, name, method in self._methods:
            found = vars(cls).get(name)
            file = getattr(getattr(found, "__code__", None), "co_filename", "")
            if found is not method and not file.startswith(package):
                return f"{cls.__name__}.{name}"
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
    ExceptionWrapper = _take(_ERROR)
    TorchScaler = _take(_SCALER, torch.amp.GradScaler)
    StreamEnd = _take(_WORKER + "_IterableDatasetStopIteration")
    Resume = _take(_WORKER + "_ResumeIteration")
    BaseIter = _take(_BASE)
    MultiIter = _take(_MULTI)
    SingleIter = _take(_SINGLE)

OptState: Any = _take(_SCALERS + "OptState")
MapFetcher: Any = _take(_FETCH + "_MapDatasetFetcher")
DatasetKind: Any = _take(_DATALOADER + "_DatasetKind")
# Users put functions of their own in place of the public names.
default_collate: Any = _take(_COLLATE + "default_collate", torch.utils.data.default_collate)
default_convert: Any = _take(_COLLATE + "default_convert", torch.utils.data.default_convert)
# Where these are gone, a mode may be on, and a tensor may be wrapped.
count_dispatch_modes: Any = _take(
    _MODES, lambda: not is_known("modes", "What modes may watch is left")
)
count_function_modes: Any = _take(
    _FUNCTION_MODES, lambda: not is_known("collate", "What modes may watch is left")
)
is_functorch_wrapped: Any = _take(
    _WRAPPED, lambda tensor: not is_known("functorch", "Tensors of samples are left")
)
refresh_optimizer_state: Any = _take(_SCALERS + "_refresh_per_optimizer_state")
clip_module: Any = _take("torch.nn.utils:clip_grad")
torch_clip_grad_norm_: Any = _take(_CLIP + "clip_grad_norm_", torch.nn.utils.clip_grad_norm_)


# ---- the form of a function

# Fields of syntax nodes that change nothing that runs.
_SILENT = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}


def _digest(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def _code_of(function: Any) -> types.CodeType | None:
    # Unwrapped: patch() and reports put wrappers around torch's functions.
    return getattr(inspect.unwrap(function), "__code__", None)


def _names_in(code: types.CodeType) -> set[str]:
    """Return all identifiers in a function and the functions inside it."""
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _names_in(inner)
    return {name for name in names if name.isidentifier()}


def _parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of a function's parameters, ``*args`` and ``**kwargs`` included."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def names_digest(function: Any) -> str:
    """Return the digest of the parameters and of the names in the code; "" without Python code."""
    code = _code_of(function)
    if code is None:
        return ""
    return _digest(" ".join(_parameters_of(code)) + "|" + " ".join(sorted(_names_in(code))))


def syntax_digest(function: Any) -> str:
    """Return the digest of a function's syntax; "" without source. Takes about a millisecond."""
    try:
        source = inspect.getsource(inspect.unwrap(function))
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, SyntaxError, TypeError):
        return ""
    return _digest(" ".join(_words(tree.body)))


def _words(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        yield f"[{len(node)}]"
        for item in node:
            yield from _words(item)
    elif isinstance(node, ast.Constant):
        yield "text" if isinstance(node.value, str) else repr(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "text"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = [line for line in value if not _is_docstring(line)]
            if name not in _SILENT:
                yield from _words(value)
    else:
        yield str(node)


def _is_docstring(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]
