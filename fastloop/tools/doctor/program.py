"""Checks of the program and its environment: slow modes, how workers start, what others have put in
torch's place. torch is looked at only if it has been imported."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from fastloop.base.requirements import INSTALL, NEWEST_TESTED, OLDEST, read_release
from fastloop.tools.doctor.finding import Finding, Level, System
from fastloop.tools.doctor.host import usable_cpus

# Variables that make programs slow if they are set to something else than 0: what that costs. No
# other variable is ever shown.
_SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver, which waits",
    "PYTORCH_JIT_LOG_LEVEL": "every compilation is logged",
    "PYTORCH_SHOW_CPP_STACKTRACES": "errors collect stacks of C++",
    "TORCH_CPP_LOG_LEVEL": "more is logged than errors",
    "TORCH_COMPILE_DEBUG": "every compilation writes files",
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
    "TORCH_LOGS": "compilations are logged",
    "NCCL_DEBUG": "every communicator logs",
    "PYTHONTRACEMALLOC": "every allocation of Python is traced",
    "PYTHONDEVMODE": "Python checks its memory at each allocation",
    "MALLOC_PERTURB_": "every byte of freed memory is written",
    "FASTLOOP_DISABLE_CUDA": "torch's operations run in place of fastloop's kernels",
    "FASTLOOP_CPU": "fastloop's code for newer CPUs may not be used",
}
_SLOW_VALUES = {
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked on all ranks"),
    "PYTHONMALLOC": ("debug", "Python checks its memory at each allocation"),
    "FASTLOOP": ("0", "fastloop.patch() does nothing"),
}


def check_switches(system: System) -> Finding:
    """Variables and modes that are for debugging, and slow."""
    environ = system.environ
    found = {
        f"{name}={environ[name]}": cost
        for name, cost in _SWITCHES.items()
        if environ.get(name, "0") not in ("", "0")
    }
    for name, (value, cost) in _SLOW_VALUES.items():
        if environ.get(name, "").lower().startswith(value.lower()):
            found[f"{name}={environ[name]}"] = cost
    found.update(_slow_modes())
    if not found:
        return Finding("switches", Level.OK, "no slow mode is on")
    return Finding(
        "switches",
        Level.WARN,
        ", ".join(found),
        "; ".join(found.values()),
        "unset them when nothing is being debugged",
    )


def _slow_modes() -> dict[str, str]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    modes = {
        "torch.autograd.set_detect_anomaly(True)": (
            torch.is_anomaly_enabled(),
            "every backward is traced and checked for NaN",
        ),
        "torch.use_deterministic_algorithms(True)": (
            torch.are_deterministic_algorithms_enabled(),
            "some operations take slower ways",
        ),
    }
    return {name: cost for name, (is_on, cost) in modes.items() if is_on}


def check_threads(system: System) -> Finding:
    """OpenMP's threads against the CPUs."""
    cpus = usable_cpus(system)
    text = system.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > cpus:
        return Finding(
            "threads",
            Level.WARN,
            f"OMP_NUM_THREADS={text} on {cpus:g} usable CPUs",
            "threads of one operation wait for each other",
            f"OMP_NUM_THREADS={max(1, int(cpus))}, or unset it",
        )
    return Finding("threads", Level.OK, f"OMP_NUM_THREADS={text}" if text else "OpenMP's default")


def check_torch(torch: Any) -> Finding:
    """Whether fastloop's tests have run on this release of torch; None: it is not installed."""
    oldest, newest = (".".join(map(str, release)) for release in (OLDEST, NEWEST_TESTED))
    if torch is None:
        cost = "only what needs no torch can be used, such as the tools for token files"
        return Finding("torch", Level.NOTE, "not installed", cost, INSTALL)
    version = str(torch.__version__)
    if read_release(version) < OLDEST:
        fact = f"{version} is older than {oldest}, the oldest that fastloop works with"
        return Finding("torch", Level.FAIL, fact, "fastloop.DataLoader raises ImportError", INSTALL)
    if read_release(version) > NEWEST_TESTED:
        fact = f"{version} is newer than {newest}, the newest that fastloop is tested with"
        cost = "where torch's private parts differ, torch's own code runs, with a RuntimeWarning"
        return Finding("torch", Level.NOTE, fact, cost, "look for a newer fastloop")
    return Finding("torch", Level.OK, f"{version} is tested: {oldest} to {newest} are")


def check_lock() -> Finding:
    """Whether the interpreter has its global lock."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Finding("interpreter lock", Level.OK, "this Python has one")
    is_on = getattr(sys, "_is_gil_enabled", bool)()
    fact = "this Python is free-threaded, and " + ("the lock was put back" if is_on else "has none")
    cost = "worker threads run Python one at a time" if is_on else ""
    fix = "start it with PYTHON_GIL=0; a module has done this, often Triton" if is_on else ""
    return Finding("interpreter lock", Level.NOTE if is_on else Level.OK, fact, cost, fix)


def check_decoders() -> Finding:
    """What decodes images for an ImageFolder."""
    if "torch" not in sys.modules:
        return Finding("decoders", Level.OK, "n/a: torch is missing")
    from fastloop.data.image_folder.decode import AutoDecoder

    fix = "pip install fastloop[images]"
    try:
        name = AutoDecoder().name
    except ImportError:
        return Finding("decoders", Level.NOTE, "none", "ImageFolder reads no file", fix)
    if name == "Pillow":
        cost = "JPEGs take longer than with simplejpeg"
        return Finding("decoders", Level.NOTE, name, cost, fix)
    return Finding("decoders", Level.OK, name)


# ---- how workers start


def check_start_method(loader: Any = None) -> Finding:
    """How worker processes begin, and what of a loader cannot be sent to them."""
    context = getattr(loader, "multiprocessing_context", None)
    method = (context or multiprocessing).get_start_method()
    fact = f"worker processes start by {method}"
    if method == "fork":
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            cost = "workers that touch CUDA fail; threads of libraries do not exist in them"
            fix = "leave CUDA to the main process, or multiprocessing_context='forkserver'"
            return Finding("start method", Level.NOTE, f"{fact}, and CUDA is in use", cost, fix)
        return Finding("start method", Level.OK, fact)
    if not getattr(loader, "num_workers", 0):
        cost = "datasets, collate functions and worker_init_fn must be picklable"
        return Finding("start method", Level.NOTE, fact, cost, "define them at the top of a module")
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        if found := find_unpicklable(getattr(loader, name, None), name):
            where, error = found
            fix = "define it at the top of a module (functools.partial in place of lambda)"
            fact += f"; {where} does not pickle: {error}"
            return Finding("start method", Level.FAIL, fact, "workers cannot start", fix)
    return Finding("start method", Level.OK, f"{fact}; dataset and functions pickle")


class _Sink:
    """Takes what is pickled, and keeps none of it."""

    def write(self, part: Any) -> int:
        return len(part)


def find_unpicklable(value: Any, name: str) -> tuple[str, str] | None:
    """(where, error) of the innermost part of a value that cannot be pickled; None if all can."""
    return _find_unpicklable(value, name, set())


def _find_unpicklable(value: Any, name: str, seen: set[int]) -> tuple[str, str] | None:
    if id(value) in seen:
        return None
    seen.add(id(value))
    try:
        pickle.Pickler(_Sink(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # whatever a __reduce__ raises
        for part_name, part in _parts(value, name):
            if found := _find_unpicklable(part, part_name, seen):
                return found
        return name, f"{type(error).__name__}: {error}"
    return None


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{i}]", part) for i, part in enumerate(value))
    elif not isinstance(value, type) and not hasattr(value, "__code__"):
        yield from ((f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items())


# ---- other patchers

_PATCHED = (
    ("torch.utils.data", "DataLoader", ("__init__", "__iter__", "_get_iterator")),
    ("torch.amp", "GradScaler", ("scale", "unscale_", "step", "update")),
    ("torch", "Tensor", ("backward", "to")),
    ("torch.nn", "Module", ("__call__", "to")),
    ("torch.optim", "Optimizer", ("zero_grad",)),
    ("torch.nn.utils", "clip_grad_norm_", ("",)),
)


def check_patchers() -> Finding:
    """Functions of torch that somebody has put others in place of."""
    found = []
    for module, owner, names in _PATCHED:
        holder = getattr(sys.modules.get(module), owner, None)
        for name in names if holder is not None else ():
            function = getattr(holder, name) if name else holder
            if file := _foreign_file(function):
                found.append(f"{owner}.{name} ({file})".replace(". ", " "))
    if not found:
        return Finding("patchers", Level.OK, "torch's functions are torch's, or fastloop's")
    cost = "times and errors may be theirs; fastloop.patch() stays below them"
    fix = "leave them out when something is wrong, to see whose it is"
    return Finding("patchers", Level.NOTE, f"replaced by others: {', '.join(found)}", cost, fix)


def _foreign_file(function: Any) -> str:
    """The last two parts of the file of a Python function that is neither torch's nor ours."""
    code = getattr(function, "__code__", None)
    parts = [] if code is None else code.co_filename.replace("\\", "/").split("/")
    is_ours = not parts or {"torch", "fastloop"} & set(parts[:-1])
    return "" if is_ours else "/".join(parts[-2:])
