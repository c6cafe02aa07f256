"""The parts of torch that fastloop uses and that torch does not promise to keep: one table.

Every private name of torch that another module needs is taken from here. ``difference(group)`` says
whether the torch that is installed has the parts of a group in a form that fastloop knows; it
compares once, when the group is first used: a fraction of a millisecond, some ten of them where
torch is newer. Where a part differs, callers leave the work to torch's
own code, and one RuntimeWarning says so. docs/torch.md explains the groups.

A function is compared by the names in its code (``code_forms.py``), and by its whole syntax where
torch is newer than the releases that fastloop was tested with.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.utils.data

from fastloop._core import GradListBase
from fastloop.base.code_forms import (
    code_of,
    names_digest,
    names_in,
    parameters_of,
    syntax_digest,
)
from fastloop.base.requirements import NEWEST_TESTED, read_release

__all__ = [
    "GROUPS",
    "PATHS",
    "BaseIter",
    "DatasetKind",
    "ExceptionWrapper",
    "MapFetcher",
    "Methods",
    "MultiIter",
    "OptState",
    "Part",
    "Resume",
    "SingleIter",
    "StreamEnd",
    "TorchScaler",
    "call_as_torch",
    "clip_module",
    "collate_functions",
    "count_dispatch_modes",
    "default_collate",
    "default_convert",
    "difference",
    "is_functorch_wrapped",
    "is_known",
    "new_arguments",
    "parts_of",
    "pin_memory",
    "refresh_optimizer_state",
    "resolve",
    "run_worker_loop",
    "torch_clip_grad_norm_",
]

_LOADER = "torch.utils.data.dataloader:"
_BASE = _LOADER + "_BaseDataLoaderIter"
_SINGLE = _LOADER + "_SingleProcessDataLoaderIter"
_MULTI = _LOADER + "_MultiProcessingDataLoaderIter"
_WORKER = "torch.utils.data._utils.worker:"
_FETCH = "torch.utils.data._utils.fetch:"
_COLLATE = "torch.utils.data._utils.collate:"
_SCALER = "torch.amp.grad_scaler:"
_PIN = "torch.utils.data._utils.pin_memory:pin_memory"
_CLIP = "torch.nn.utils.clip_grad:"


class Part(NamedTuple):
    """One private part of torch.

    Attributes:
        path: ``module:qualified.name``.
        use: what fastloop does with it.
        forms: digests of the names in the code, of all releases that fastloop knows; empty: being
            there is enough.
        syntax: the digest of the code's syntax in the newest release that fastloop knows.
        sets: attributes that the code must use, because fastloop reads them.
    """

    path: str
    use: str
    forms: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    syntax: str = ""


_EXCHANGE = "torch:Tensor.__dlpack_c_exchange_api__"
_MODES = "torch._C:_len_torch_dispatch_stack"
_WRAPPED = "torch._C._functorch:is_functorch_wrapped_tensor"
_STORAGE = "torch:UntypedStorage."
_PROFILER = "torch.autograd.profiler:_is_profiler_enabled"

# Arguments of torch's DataLoader.
_ARGUMENTS = frozenset(
    "self dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory "
    "drop_last timeout worker_init_fn multiprocessing_context generator prefetch_factor "
    "persistent_workers pin_memory_device in_order".split()
)

# Groups by name, each with the groups that it builds on. The digests are those of torch 2.10 to
# 2.15, oldest first.
_NEEDS: dict[str, tuple[str, ...]] = {
    "array": ("loader", "tensors", "fetch", "collate"),
    "process": ("loader", "tensors", "workers"),
    "thread": ("loader", "tensors", "workers", "fetch"),
    "sync": ("loader", "single"),
    "torch": ("loader", "single", "multi"),
}
_PARTS: dict[str, tuple[Part, ...]] = {
    "tensors": (Part(_EXCHANGE, "C reads and makes tensors through its functions"),),
    "loader": (
        Part(
            _LOADER + "DataLoader.__init__",
            "sets what iterators read of a loader",
            sets=("_dataset_kind", "_iterator", "_IterableDataset_len_called"),
        ),
        Part(
            _LOADER + "DataLoader.__iter__",
            "makes an iterator or resets it",
            ("4b282e17",),
            syntax="69835b14",
        ),
        Part(
            _LOADER + "DataLoader._get_iterator", "is overridden", ("981497f6",), syntax="37ea5b54"
        ),
        Part(_LOADER + "DataLoader._auto_collation", "whether samples are collated"),
        Part(_LOADER + "DataLoader._index_sampler", "yields the indices of each batch"),
        Part(_LOADER + "_DatasetKind.Map", "what `_dataset_kind` is for map-style datasets"),
        Part(_LOADER + "_DatasetKind.create_fetcher", "makes what loads batches in a thread"),
        Part(_BASE, "is the base of all iterators"),
        Part(
            _BASE + ".__init__",
            "takes a loader's settings; draws the base seed",
            ("edbaf70b",),
            syntax="3b151efc",
        ),
        Part(_BASE + "._reset", "begins an epoch", ("c49d3830",), syntax="7d5a1ca7"),
        Part(_BASE + "._next_index", "asks the sampler", ("f2cba40a",), syntax="fcc06585"),
        Part(
            _BASE + ".__next__",
            "counts batches, warns of wrong lengths",
            ("840ba3a7",),
            syntax="b1333bb5",
        ),
        Part(
            "torch._utils:ExceptionWrapper.__init__",
            "wraps errors of workers",
            ("c497adf4",),
            syntax="769d3b01",
        ),
        Part(
            "torch._utils:ExceptionWrapper.reraise",
            "raises them again",
            ("ee5422e1",),
            syntax="c480f780",
        ),
        Part(
            _PIN,
            "pins batches",
            ("15735879",),
            syntax="e33b9942",
        ),
    ),
    "single": (
        Part(_SINGLE + ".__init__", "is the base of SyncIter", ("af02001a",), syntax="bb21a8d5"),
        Part(_SINGLE + "._next_data", "loads a batch", ("1ec6f1aa",), syntax="1755ebaf"),
    ),
    "multi": (
        Part(
            _MULTI + "._try_get_data",
            "is overridden to measure waits",
            ("9b182778",),
            syntax="75034b84",
        ),
        Part(
            _MULTI + "._shutdown_workers", "ends torch's workers", ("ccbea8da",), syntax="52648e10"
        ),
        Part(_MULTI + "._reset", "is overridden to take a lock", ("7885a088",), syntax="e6038030"),
    ),
    # WorkerIter does what these do, so any change of them matters.
    "workers": (
        Part(
            _MULTI + ".__init__",
            "starts workers",
            ("d33bec98", "9c44ab88", "15039bcc"),
            syntax="c88ca6d4",
        ),
        Part(_MULTI + "._reset", "begins an epoch of workers", ("7885a088",), syntax="e6038030"),
        Part(_MULTI + "._get_data", "waits for a batch", ("1998ca94",), syntax="1077afe3"),
        Part(_MULTI + "._next_data", "puts batches in order", ("80046439",), syntax="99b28f4f"),
        Part(
            _MULTI + "._try_put_index",
            "gives a worker its next task",
            ("fec06c83",),
            syntax="c0b452ba",
        ),
        Part(
            _MULTI + "._process_data", "raises errors of workers", ("cbf63bc3",), syntax="311c2bb3"
        ),
        Part(
            _MULTI + "._mark_worker_as_unavailable",
            "ends one worker",
            ("7770b535",),
            syntax="8cc9c102",
        ),
        Part(
            _WORKER + "_worker_loop",
            "runs in worker processes",
            ("a45dc3c2", "7147b1c5"),
            syntax="208d8dc9",
        ),
        Part(_WORKER + "_IterableDatasetStopIteration", "ends a worker's share of a stream"),
        Part(_WORKER + "_ResumeIteration", "tells a worker that an epoch begins"),
    ),
    "fetch": (
        Part(
            _FETCH + "_MapDatasetFetcher.fetch",
            "loads the samples of a batch",
            ("42786a59",),
            syntax="bd4ba3b5",
        ),
        Part(
            _FETCH + "_IterableDatasetFetcher.fetch",
            "reads a stream",
            ("119eb86f",),
            syntax="15c4f388",
        ),
    ),
    # C collates as these do.
    "collate": (
        Part(_COLLATE + "collate", "collates containers", ("f837e324",), syntax="bcda648e"),
        Part(_COLLATE + "default_collate", "is done in C", ("a380959a",), syntax="5a2aee65"),
        Part(_COLLATE + "default_convert", "is done in C", ("db284ef3",), syntax="612b73c8"),
        Part(_COLLATE + "default_collate_fn_map", "tells whether types were added"),
        Part(_COLLATE + "collate_tensor_fn", "is done in C", ("38d9ce74",), syntax="94a4fe44"),
        Part(_COLLATE + "collate_numpy_array_fn", "is done in C", ("cbaa6f43",), syntax="836b6477"),
        Part(
            _COLLATE + "collate_numpy_scalar_fn", "is done in C", ("5f0655f0",), syntax="5baacdcb"
        ),
        Part(_COLLATE + "collate_float_fn", "is done in C", ("ebf4a55e",), syntax="7fe5bf05"),
        Part(_COLLATE + "collate_int_fn", "is done in C", ("1d2cb71a",), syntax="59a3bf9c"),
        Part(_COLLATE + "collate_str_fn", "is done in C", ("6f14bc62",), syntax="a310e13d"),
        Part("torch._C:_len_torch_function_stack", "whether a mode watches functions"),
        Part("torch._C:_len_torch_dispatch_stack", "whether a mode watches operations"),
    ),
    "scaler": (
        Part(
            _SCALER + "GradScaler.__init__",
            "sets the scale and the states of optimizers",
            ("dcfe3bd6", "596aa390"),
            syntax="707c5486",
        ),
        Part(
            _SCALER + "GradScaler._check_scale_growth_tracker",
            "begins each step",
            ("e0fc937b", "ef4b6436"),
            syntax="d1cf671d",
        ),
        Part(
            _SCALER + "GradScaler._lazy_init_scale_growth_tracker",
            "makes the scale",
            ("6d301abe", "ebedef67"),
            syntax="0d48d104",
        ),
        Part(
            _SCALER + "GradScaler.scale",
            "multiplies losses",
            ("a26cc599", "a75ce996"),
            syntax="c279e0fe",
        ),
        Part(
            _SCALER + "GradScaler.unscale_",
            "is done in C",
            ("4b43f0cf", "39a13023"),
            syntax="24630bd0",
        ),
        Part(
            _SCALER + "GradScaler._unscale_grads_",
            "is done in C",
            ("737ddf79", "e3e0dec9"),
            syntax="673f12da",
        ),
        Part(
            _SCALER + "GradScaler._maybe_opt_step",
            "skips or takes a step",
            ("ac890ffa",),
            syntax="048f2d2f",
        ),
        Part(
            _SCALER + "GradScaler.step",
            "decides who unscales",
            ("d95e6495", "fb56d3c5"),
            syntax="fb368d62",
        ),
        Part(
            _SCALER + "GradScaler.update",
            "is done in C",
            ("c14a2bcc", "6853f75e"),
            syntax="c440e2e4",
        ),
        Part(
            _SCALER + "GradScaler._check_inf_per_device",
            "is done in C",
            ("f9b3ab15",),
            syntax="77be309f",
        ),
        Part(_SCALER + "OptState.READY", "where an optimizer stands between updates"),
        Part(
            _SCALER + "_refresh_per_optimizer_state",
            "makes that state",
            ("0fb087b3",),
            syntax="7fb39de3",
        ),
    ),
    "clip": (
        Part(_CLIP + "_get_total_norm", "is replaced by patch()", ("95759cb2",), syntax="cd131e53"),
        Part(
            _CLIP + "_clip_grads_with_norm_",
            "is replaced by patch()",
            ("78fc7c64",),
            syntax="9801e828",
        ),
        Part(_CLIP + "clip_grad_norm_", "calls both", ("becdda84",), syntax="aef2cf40"),
    ),
    "modes": (Part(_MODES, "what a mode of the user's watches is left to torch"),),
    "functorch": (Part(_WRAPPED, "tensors inside torch.func's functions are left to torch"),),
    "sparse": (
        Part("torch:Tensor._indices", "memory of a sparse tensor that waits for an upload"),
        Part("torch:Tensor._values", "elements of a sparse gradient, repeated ones too"),
    ),
    # The last two are called without the first, too.
    "moves": (
        *(
            Part(_STORAGE + name, "moves the memory of tensors, which base/moves.py has to notice")
            for name in ("share_memory_", "_share_filename_cpu_", "_share_fd_cpu_")
        ),
        Part(_STORAGE + "_cdata", "tells whether tensors have one storage"),
    ),
    "profiler": (Part(_PROFILER, "fastloop's ranges are on the profiler's timeline"),),
    "queue": (
        Part(
            _MULTI + ".__init__",
            "reports count batches that wait",
            sets=("_data_queue",),
            syntax="c88ca6d4",
        ),
        Part(
            _MULTI + "._reset",
            "and those that came before their turn",
            sets=("_task_info", "_tasks_outstanding"),
            syntax="e6038030",
        ),
    ),
}
PATHS = tuple(_NEEDS)
GROUPS = (*_PARTS, *_NEEDS)


def parts_of(group: str) -> Iterator[Part]:
    """The parts of a group and of those that it builds on."""
    for name in (group, *_NEEDS.get(group, ())):
        yield from _PARTS.get(name, ())


def resolve(path: str) -> Any:
    """What `path` names now. Raises ImportError or AttributeError."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


def _module(path: str) -> types.ModuleType:
    """The module of `path`, or this one where it is gone."""
    try:
        return importlib.import_module(path.partition(":")[0])
    except ImportError:
        return sys.modules[__name__]


@functools.cache
def _is_newer() -> bool:
    """Whether this torch is newer than all that fastloop was tested with: then any change of the
    code counts, not only other names in it."""
    return read_release(str(torch.__version__)) > NEWEST_TESTED


@functools.cache
def _compare(part: Part) -> str:
    """How `part` differs from the forms that fastloop knows, or ""."""
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
        return ""  # a tool has put its own function around torch's, which says nothing of torch
    if part.forms and names_digest(found) not in part.forms:
        return f"{name} has changed"
    if part.syntax and _is_newer() and syntax_digest(found) != part.syntax:
        return f"{name} has changed"
    if part.sets:
        code = code_of(found)
        missing = set(part.sets) - (names_in(code) if code else set())
        if missing:
            return f"{name} no longer sets {', '.join(sorted(missing))}"
    return ""


@functools.cache
def difference(group: str) -> str:
    """How the parts of `group` differ from those that fastloop knows, or "". Compares when `group`
    is first asked for (0.2 ms)."""
    found = [text for text in map(_compare, parts_of(group)) if text]
    if not found:
        return ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"torch {torch.__version__}: {found[0]}{more}"


@functools.cache
def _warn(group: str, left: str) -> None:
    warnings.warn(
        f"{left} to torch's own code, because fastloop does not know this torch: "
        f"{difference(group)}. Results are torch's; install a newer fastloop for its speed",
        RuntimeWarning,
        stacklevel=4,
    )


def is_known(group: str, left: str) -> bool:
    """Whether `group` can be used. If not, warns once.

    Args:
        left: begins the warning: what is left to torch ("The loader's iterators are left").
    """
    if not difference(group):
        return True
    _warn(group, left)
    return False


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


#: Calls a function of torch from a frame with the globals of torch's own caller: the warnings that
#: it gives with stacklevel=2 keep torch's module, which users' filters name.
call_as_torch = types.FunctionType(_call.__code__, vars(_module(_LOADER)))


@functools.cache
def new_arguments() -> dict[str, Any]:
    """The defaults of arguments of torch's DataLoader that fastloop does not know, by name."""
    arguments = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values()
    return {a.name: a.default for a in arguments if a.name not in _ARGUMENTS}


def collate_functions() -> Any:
    """The module with what default_collate calls."""
    return importlib.import_module("torch.utils.data._utils.collate")


def pin_memory(batch: Any, device: str | None = None) -> Any:
    """The batch in pinned memory, by the function that torch's module has now."""
    return resolve(_PIN)(batch, device)


def run_worker_loop(*, dataset: Any, **arguments: Any) -> None:
    """Torch's loop of a worker process. From 2.14 on it takes the dataset out of a list."""
    loop = resolve(_WORKER + "_worker_loop")
    if "dataset_holder" in parameters_of(loop.__code__):
        loop(dataset_holder=[dataset], **arguments)
    else:
        loop(dataset=dataset, **arguments)


_PACKAGE = __file__.rpartition("base")[0]


def is_fastloops(function: Any) -> bool:
    """Whether it is code of this package: reports put theirs around torch's methods."""
    return bool(
        getattr(getattr(function, "__code__", None), "co_filename", "").startswith(_PACKAGE)
    )


class Methods:
    """Methods of torch whose work fastloop does itself. Where a tool or a user has put another in
    the place of one, torch's code is to run, which calls it.

    Args:
        methods: pairs of a class of torch and a name; a class need not have a method of that name.
    """

    def __init__(self, *methods: tuple[type, str]) -> None:
        self._methods = [(*method, self._find(*method)) for method in methods]

    @staticmethod
    def _find(cls: type, name: str) -> Any:
        """The method as torch has it; what equals nothing if it was replaced already."""
        method = vars(cls).get(name)
        names = getattr(sys.modules.get(cls.__module__), "__dict__", None)
        is_torchs = method is None or getattr(method, "__globals__", None) is names
        return method if is_torchs else object()

    def find_replaced(self) -> str:
        """The name of one that is no longer torch's, or ""."""
        for cls, name, method in self._methods:
            found = vars(cls).get(name)
            if found is not method and not is_fastloops(found):
                return f"{cls.__name__}.{name}"
        return ""


def _take(path: str, public: Any = None) -> Any:
    """A part; where it is gone, as `difference` says, the public one or an empty class."""
    try:
        return resolve(path)
    except (ImportError, AttributeError):
        return public or type("Missing", (), {})


if TYPE_CHECKING:
    from torch._utils import ExceptionWrapper
    from torch.amp.grad_scaler import GradScaler as TorchScaler
    from torch.amp.grad_scaler import OptState
    from torch.utils.data._utils.collate import default_collate, default_convert
    from torch.utils.data._utils.fetch import _MapDatasetFetcher as MapFetcher
    from torch.utils.data._utils.worker import _IterableDatasetStopIteration as StreamEnd
    from torch.utils.data._utils.worker import _ResumeIteration as Resume
    from torch.utils.data.dataloader import _BaseDataLoaderIter as BaseIter
    from torch.utils.data.dataloader import _DatasetKind as DatasetKind
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as MultiIter
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as SingleIter
else:
    # Users put functions of their own in place of the public names.
    default_collate = _take(_COLLATE + "default_collate", torch.utils.data.default_collate)
    default_convert = _take(_COLLATE + "default_convert", torch.utils.data.default_convert)
    ExceptionWrapper = _take("torch._utils:ExceptionWrapper")
    TorchScaler = _take(_SCALER + "GradScaler", torch.amp.GradScaler)
    OptState = _take(_SCALER + "OptState")
    MapFetcher = _take(_FETCH + "_MapDatasetFetcher")
    StreamEnd = _take(_WORKER + "_IterableDatasetStopIteration")
    Resume = _take(_WORKER + "_ResumeIteration")
    BaseIter = _take(_BASE)
    DatasetKind = _take(_LOADER + "_DatasetKind")
    MultiIter = _take(_MULTI)
    SingleIter = _take(_SINGLE)

# Where these are gone, a mode may be on, and a tensor may be wrapped.
count_dispatch_modes: Any = _take(
    _MODES, lambda: not is_known("modes", "What modes may watch is left")
)
is_functorch_wrapped: Any = _take(
    _WRAPPED, lambda tensor: not is_known("functorch", "Tensors of samples are left")
)
refresh_optimizer_state: Any = _take(_SCALER + "_refresh_per_optimizer_state")
clip_module: Any = _take("torch.nn.utils:clip_grad")
torch_clip_grad_norm_: Any = _take(_CLIP + "clip_grad_norm_", torch.nn.utils.clip_grad_norm_)
