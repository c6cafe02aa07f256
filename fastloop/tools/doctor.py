"""``fastloop.doctor()`` and the command ``doctor``: facts about the build and this machine, and the
checks of the machine, its container, the program and the GPUs.

`root` is the folder that holds proc, sys and dev; tests pass a copy. If torch cannot be imported,
the checks that need torch are left out.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import platform
import re
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from fastloop._core import build_info, check_cuda
from fastloop.base.checks import look_up, make_message
from fastloop.base.machine import (
    oom_kills,
    read_cpus,
    read_device_node,
    read_memory,
    read_nodes,
    read_text,
    throttled_share,
)
from fastloop.base.shown import repr_html
from fastloop.compat import requirements
from fastloop.device.availability import explain_error, needed_driver
from fastloop.tools.facts import torch_facts
from fastloop.tools.text import percent, size

_MUCH_LOAD = 1.5  # runnable tasks for each CPU
_MUCH_WAITING = 25  # percent of the last 10 s
_OWN_FILES = 64  # descriptors that a program needs apart from its workers
_FILES_A_WORKER = 4  # descriptors that one of torch's own workers takes; fastloop's take two
_FEW_FILES = 4096
_LITTLE_SHM = 1 << 30
_LITTLE_MEMORY = 2 << 30
_GPUS = "proc/driver/nvidia/gpus"  # a folder for each GPU, named by its PCI address
_COPY = 256 << 20  # bytes of the pinned copy
_SLOW_COPY = 6e9  # bytes/s: less than PCIe 3 with 8 lanes

# The cost of each environment variable that slows programs down. A variable with "=" counts if its
# value is the one after "="; a variable without "=" counts unless it is 0 or unset.
_SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver allocates every tensor, and the host waits",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": "all ranks check every collective",
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
    "PYTHONTRACEMALLOC": "Python traces every allocation",
    "FASTLOOP_DISABLE_CUDA": "torch's operations run in place of fastloop's kernels",
    "FASTLOOP_CPU": "fastloop's code for newer CPUs may not be used",
    "FASTLOOP=0": "fastloop.patch() does nothing",
}


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        level: "ok", "note" (good to know), "warn" (costs time or memory) or "fail" (something
            does not work).
        fact: what the check found.
        cost: what the fact costs; empty if the fact costs nothing.
        fix: what to do; empty if there is nothing to do.
        id: the check's name.
    """

    level: str
    fact: str
    cost: str = ""
    fix: str = ""
    id: str = ""

    def __str__(self) -> str:
        text = f"{self.level:<4}  {self.id}: {self.fact}"
        text += f"\n      costs: {self.cost}" if self.cost else ""
        return text + (f"\n      do:    {self.fix}" if self.fix else "")


ok, note, warn, fail = (partial(Finding, level) for level in ("ok", "note", "warn", "fail"))


# ---- the machine


def check_cpus(root: Path, workers: int | None = None) -> Finding:
    """Compare the machine's CPUs with the CPUs that the affinity and cgroups allow."""
    cpus, share = read_cpus(root), throttled_share(root)
    fact = f"{cpus.visible} CPUs visible, {cpus.allowed} allowed by the affinity"
    fact += f", {cpus.quota:g} by the container's quota" if cpus.quota < math.inf else ""
    most = max(1, int(cpus.usable))
    fix = f"set num_workers={most} at most if samples need the CPU; or allow more CPUs"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cpus.usable:
        fact += f"; OMP_NUM_THREADS={threads}"
        cost = "the threads of an operation wait for each other"
        return warn(fact, cost, "unset OMP_NUM_THREADS")
    if (workers or 0) > cpus.usable:
        return warn(fact, f"num_workers={workers} needs more CPUs than are allowed", fix)
    if share >= 0.05:
        fact += f"; the quota stopped the container in {percent(share)} of all periods"
        return warn(fact, "workers and training stand still until the next period", fix)
    if cpus.usable < cpus.visible:
        cost = f"programs that count the visible CPUs start threads for {cpus.visible}"
        return note(fact, cost, fix)
    return ok(fact)


def check_nodes(root: Path, numa: str = "auto") -> Finding:
    """Tell which CPUs and GPUs each node has, and on which nodes batches lie."""
    nodes = read_nodes(root)
    gpus = {path.name: read_device_node(path.name, root) for path in (root / _GPUS).glob("*")}
    parts = [f"{len(cpus)} CPUs at node {node}" for node, cpus in nodes.items()]
    parts += [f"GPU {gpu} at node {node}" for gpu, node in sorted(gpus.items()) if node >= 0]
    if len(nodes) == 1:
        return ok(f"{', '.join(parts)}; this process has no other, so batches lie there")
    if numa == "off":
        cost = "uploads may read batches from the memory of a different node"
        return note(", ".join(parts), cost, "leave numa='off' out, unless you place the memory")
    rule = "batches for a GPU lie at its node, other batches on all nodes in turn"
    return ok(f"{', '.join(parts)}; {rule}")


def check_load(root: Path) -> Finding:
    """Tell whether other programs use the CPUs."""
    visible = read_cpus(root).visible
    load = float((read_text(root / "proc/loadavg").split() or ["0"])[0])
    found = re.search(r"some avg10=([\d.]+)", read_text(root / "proc/pressure/cpu"))
    waits = float(found[1]) if found else 0.0
    fact = f"load {load:.1f} on {visible} CPUs"
    fact += f"; tasks waited for a CPU in {waits:.0f}% of the last 10 s" if found else ""
    if load <= _MUCH_LOAD * visible and waits < _MUCH_WAITING:
        return ok(fact)
    cost = "workers and training share the CPUs with other programs; do not trust timings taken now"
    return warn(fact, cost, "end programs that you do not need (top lists all programs)")


def check_memory(root: Path) -> Finding:
    """Tell how much memory is left, and whether lack of memory has killed processes."""
    memory, kills = read_memory(root), oom_kills(root)
    fact = f"{size(memory.available)} of {size(memory.total)} available"
    if memory.limit is not None:
        fact += f"; the container uses {size(memory.used)} of {size(memory.limit)}"
    fix = "use fewer workers or a smaller prefetch_factor or memory_budget; or allow more memory"
    fix += " (docker run -m)"
    if kills:
        fact += f"; Linux has killed {kills} processes for lack of memory"
        return warn(fact, "a killed worker ends the epoch", f"{fix}; on_worker_death='restart'")
    if memory.total and memory.left < _LITTLE_MEMORY:
        return warn(fact, "workers may be killed", fix)
    if memory.most < memory.total:
        cost = "programs that read the size of the host's memory expect too much"
        return note(fact, cost, "limit the memory of these programs")
    return ok(fact)


def check_shared_memory(root: Path) -> Finding:
    """Look at /dev/shm, through which torch's own worker processes send tensors."""
    found = os.statvfs(root / "dev/shm")
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    fact = f"/dev/shm has {size(free)} of {size(total)} free"
    if free >= _LITTLE_SHM:
        return ok(fact)
    cost = "if /dev/shm is full, torch's own workers end with 'Bus error'; fastloop's workers do "
    cost += "not use /dev/shm"
    fix = "start docker run with --shm-size=8g or --ipc=host; or use a fastloop.DataLoader"
    return warn(fact, cost, fix)


def check_open_files(root: Path, workers: int | None = None) -> Finding:
    """Compare the limit of open files with the descriptors that workers take."""
    found = re.search(r"Max open files +(\d+)", read_text(root / "proc/self/limits"))
    if found is None:
        return ok("any number of files may be open")
    files, needed = int(found[1]), _OWN_FILES + _FILES_A_WORKER * (workers or 0)
    fact = f"{files} files may be open at a time"
    if files >= max(needed, _FEW_FILES):
        return ok(fact)
    fact += f", and {workers} workers take about {needed}" if workers else ""
    cost = "torch's own workers keep a descriptor open for each tensor of a batch that is held"
    fix = f"run ulimit -n {max(65536, 2 * needed)}"
    return (warn if files < needed else note)(fact, cost, fix)


# ---- the program


def check_torch(torch: Any) -> Finding:
    """Tell whether fastloop is tested with this release of torch.

    Args:
        torch: the module; None if torch is not installed.
    """
    if torch is None:
        return warn("not installed", "fastloop.DataLoader raises ImportError", requirements.INSTALL)
    oldest, newest = (f"{a}.{b}" for a, b in (requirements.OLDEST, requirements.NEWEST_TESTED))
    release = requirements.read_release(version := str(torch.__version__))
    if release < requirements.OLDEST:
        fact = f"{version} is older than {oldest}, the oldest that fastloop works with"
        return fail(fact, "fastloop.DataLoader raises ImportError", requirements.INSTALL)
    if release > requirements.NEWEST_TESTED:
        fact = f"{version} is newer than {newest}, the newest that fastloop is tested with"
        cost = "if torch's private parts differ, torch's own code runs, with a RuntimeWarning"
        return note(fact, cost, "look for a newer fastloop")
    return ok(f"{version} is tested, as are all releases from {oldest} to {newest}")


def check_switches() -> Finding:
    """Look for variables and modes that help debugging and slow programs down."""
    found = {}
    for name, cost in _SWITCHES.items():
        variable, _, slow = name.partition("=")
        value = os.environ.get(variable, "")
        if value.lower().startswith(slow.lower()) if slow else value not in ("", "0"):
            found[f"{variable}={value}"] = cost
    if (torch := sys.modules.get("torch")) is not None:
        if torch.is_anomaly_enabled():
            found["torch.autograd.set_detect_anomaly(True)"] = "every backward is checked for NaN"
        if torch.are_deterministic_algorithms_enabled():
            found["torch.use_deterministic_algorithms(True)"] = "some operations are slower"
    if not found:
        return ok("no slow mode is on")
    fix = "switch these modes off unless you are debugging"
    return warn(", ".join(found), "; ".join(found.values()), fix)


def check_decoders() -> Finding:
    """Name the library that decodes images for an ImageFolder."""
    from fastloop.data.image_folder.decode import AutoDecoder

    fix = "pip install fastloop[images]"
    try:
        name = AutoDecoder().name
    except ImportError:
        return note("none", "ImageFolder cannot read files", fix)
    is_slow = name == "Pillow"
    return note(name, "JPEGs take longer than with simplejpeg", fix) if is_slow else ok(name)


def check_start_method(loader: Any = None) -> Finding:
    """Tell how worker processes start, and which part of a loader cannot be sent to a worker."""
    context = look_up(loader, "multiprocessing_context")
    method, name = (context or multiprocessing).get_start_method(), ""
    fact = f"worker processes start by {method}"
    fix = "define classes and functions at the top of a module"
    if method == "fork":
        return ok(fact)
    if not look_up(loader, "num_workers", 0):
        return note(fact, "datasets, collate functions and worker_init_fn must be picklable", fix)
    try:
        with open(os.devnull, "wb") as sink:
            for name in ("dataset", "collate_fn", "worker_init_fn"):
                pickle.dump(look_up(loader, name, None), sink, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a __reduce__ may raise anything
        fact += f"; {name} does not pickle: {type(error).__name__}: {error}"
        return fail(fact, "workers cannot start", f"{fix}, without lambda")
    return ok(f"{fact}; dataset and functions pickle")


# ---- GPUs


def read_driver(root: Path) -> int:
    """Return the major version of the NVIDIA driver; 0 if no driver is visible."""
    found = re.search(r"\s(\d{3})\.\d+", read_text(root / "proc/driver/nvidia/version"))
    return int(found[1]) if found else 0


def explain_own_build(root: Path) -> tuple[str, str]:
    """Return why fastloop's CUDA kernels do not run here, and the remedy. If the kernels run,
    return two empty strings."""
    info = build_info()
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    if not info["cuda"]:
        reason = str(info["cuda_reason"]).partition("\n")[0]
        return f"without CUDA: {reason}", "build fastloop with nvcc (set CUDA_HOME to its toolkit)"
    if requirements.kernels_are_disabled():
        return "FASTLOOP_DISABLE_CUDA is set", "unset FASTLOOP_DISABLE_CUDA"
    if hip is not None:
        return f"torch is built for ROCm {hip}", "install a torch for CUDA"
    try:
        check_cuda(0)
    except RuntimeError as error:
        if not any((root / at).exists() for at in ("proc/driver/nvidia", "dev/dxg")):
            return "no NVIDIA GPU is visible", ""
        fact, _, fix = explain_error(error).partition("; ")
        return fact, fix
    return "", ""


def describe_own_build(root: Path) -> str:
    """Return the CUDA version that fastloop was built for, and whether the kernels run here."""
    info, driver, (fault, fix) = build_info(), read_driver(root), explain_own_build(root)
    if not info["cuda"]:
        return f"CPU only, built {fault}"
    use = "; ".join(filter(None, (f"not used: {fault}", fix))) if fault else "device 0 is ready"
    needs = f"needs driver {needed_driver(str(info['cuda']))} or newer, has {driver or 'none'}"
    return f"CUDA {info['cuda']} for {info['cuda_archs']} and later, {needs}; {use}"


def check_torch_build(root: Path, torch: Any) -> Finding:
    """Compare the CUDA version that torch was built for with the driver."""
    driver, cuda = read_driver(root), torch.version.cuda
    fact = f"torch {torch.__version__} is built for CUDA {cuda}; the driver is {driver or 'n/a'}"
    if cuda is None:
        return warn(fact, "torch does not use the GPU", "install a torch with CUDA (pytorch.org)")
    if 0 < driver < (needed := needed_driver(cuda)):
        fix = f"update the driver to {needed} or newer, or install a torch for an older CUDA"
        return fail(fact, "torch cannot use the GPU", fix)
    return ok(fact)


def check_own_build(root: Path) -> Finding:
    """Tell whether fastloop's kernels run on the GPU."""
    fact, fix = explain_own_build(root)
    if not fact:
        return ok(f"CUDA {build_info()['cuda']}; device 0 is ready")
    cost = "torch's operations run in place of fastloop's kernels, with the same results"
    return (note if requirements.kernels_are_disabled() else warn)(fact, cost, fix)


def probe_gpu(torch: Any) -> Finding:
    """Run one of fastloop's kernels and a pinned copy on the current GPU, and check the results.
    SYNC."""
    if not torch.cuda.is_available():
        return note("n/a: torch finds no CUDA device")
    from fastloop.step.grad_list import clip_grad_norm_

    parameter = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    parameter.grad = torch.ones(1 << 20, device="cuda")
    norm = clip_grad_norm_([parameter], 1.0).item()
    clipped = parameter.grad.norm().item()
    source = torch.arange(_COPY // 8, dtype=torch.int64).pin_memory()
    target = source.to("cuda", non_blocking=True)  # the first copy is slower, because CUDA sets up
    torch.cuda.synchronize()
    begin = perf_counter()
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    speed = _COPY / (perf_counter() - begin)
    is_clipped = abs(norm / 1024 - 1) < 1e-5 and abs(clipped - 1) < 1e-4
    if not is_clipped or not torch.equal(target.cpu(), source):
        fact = f"wrong results: the norm must be 1024 and 1 after clipping, got {norm}, {clipped}"
        fix = "set FASTLOOP_DISABLE_CUDA=1, and report this output"
        return fail(fact, "training gives wrong results", fix)
    fact = f"kernel and pinned copy are correct; {speed / 1e9:.1f} GB/s to the device"
    if speed < _SLOW_COPY:
        cost = f"a batch of 38 MB takes {38e6 / speed * 1e3:.0f} ms to the device"
        return warn(fact, cost, "check the PCI link (nvidia-smi -q) and the process's NUMA node")
    return ok(fact)


# ---- the diagnosis


class Diagnosis(NamedTuple):
    """The doctor's facts and findings. ``print(diagnosis)`` shows both.

    Attributes:
        facts: facts about the build and this machine, by name.
        findings: the result of each check.
    """

    facts: dict[str, str]
    findings: tuple[Finding, ...]

    def _repr_html_(self) -> str:
        return repr_html(self)

    @property
    def status(self) -> int:
        """The command's exit status: 1 if a check failed, else 0."""
        return int(any(finding.level == "fail" for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. ``schema`` changes whenever a name changes."""
        checks = [finding._asdict() for finding in self.findings]
        return {"schema": 1, "facts": self.facts, "checks": checks}

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, "", *map(str, self.findings), "", self.summary])

    @property
    def summary(self) -> str:
        """One line with the number and the names of failures, warnings and notes."""
        told = []
        for level, name in (("fail", "failed"), ("warn", "to mend"), ("note", "to know")):
            ids = [finding.id for finding in self.findings if finding.level == level]
            told += [f"{len(ids)} {name} ({', '.join(ids)})"] if ids else []
        return f"doctor: {'; '.join(told) or 'nothing to do'}"


def _facts(root: Path) -> dict[str, str]:
    info = build_info()
    is_free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    has_lock = is_free and getattr(sys, "_is_gil_enabled", lambda: True)()
    threads = " free-threaded" * is_free + ", but the lock was put back (PYTHON_GIL=0)" * has_lock
    return {
        "fastloop": f"{info['version']}, built with {info['compiler']}, DLPack {info['dlpack']}",
        "python": f"{platform.python_version()}{threads}",
        "linux": platform.release(),
        **torch_facts(),
        "code on the CPU": str(info["instructions"]),
        "mapped files": f"read by {info['guarded_reads']}",
        "device": describe_own_build(root),
    }


def diagnose(root: Path = Path("/"), loader: Any = None, probe: bool = False) -> Diagnosis:
    """Run all checks in the order of the output. If a check raises, the error becomes a note.

    Args:
        root: the folder that holds proc, sys and dev.
        loader, probe: the arguments of `doctor()`.
    """
    facts, torch = _facts(root), sys.modules.get("torch")
    workers, has_torch = look_up(loader, "num_workers"), torch is not None
    has_gpu = any((root / _GPUS).glob("*/information"))
    numa, has_nodes = look_up(loader, "numa", "auto"), bool(read_nodes(root))
    every: list[tuple[str, bool, Callable[[], Finding]]] = [
        ("torch", True, lambda: check_torch(torch)),
        ("cpus", True, lambda: check_cpus(root, workers)),
        ("nodes", has_nodes, lambda: check_nodes(root, numa)),
        ("load", True, lambda: check_load(root)),
        ("memory", True, lambda: check_memory(root)),
        ("shared memory", True, lambda: check_shared_memory(root)),
        ("open files", True, lambda: check_open_files(root, workers)),
        ("start method", True, lambda: check_start_method(loader)),
        ("switches", True, check_switches),
        ("decoders", has_torch, check_decoders),
        ("torch build", has_gpu and has_torch, lambda: check_torch_build(root, torch)),
        ("fastloop build", has_gpu, lambda: check_own_build(root)),
        ("gpu probe", probe, lambda: probe_gpu(torch)),
    ]
    findings = []
    for id, _, check in filter(itemgetter(1), every):
        try:
            finding = check()
        except Exception as error:
            fact = f"could not be checked: {type(error).__name__}: {error}"
            finding = note(fact, "", "report it with this output")
        findings.append(finding._replace(id=id))
    return Diagnosis(facts, tuple(findings))


def doctor(loader: Any = None, *, probe: bool = False) -> Diagnosis:
    """Report what this machine offers, what slows programs down, and what to do about that.

    Args:
        loader: a DataLoader. The doctor compares ``num_workers`` with the CPUs, and pickles the
            dataset and functions to name a part that cannot be sent to worker processes.
        probe: whether to run a kernel and a copy on the GPU and check the results (SYNC).

    Raises:
        TypeError: ``loader`` is not a DataLoader.
    """
    if loader is not None and look_up(loader, "num_workers") is None:
        raise TypeError(make_message("loader", "a DataLoader or None", loader))
    return diagnose(loader=loader, probe=probe)
