"""The doctor's checks: of the machine and the container, the program, the GPUs. Each returns one
finding.

`root` is the folder that holds proc, sys and dev: tests pass a copy. torch is looked at only if it
has been imported.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from fastloop._core import build_info, check_cuda
from fastloop.base import requirements
from fastloop.base.machine import oom_kills, read_cpus, read_memory, read_text, throttled_share
from fastloop.device.availability import NEEDED_DRIVERS, explain_error
from fastloop.tools.text import percent, seconds, size

_MUCH_LOAD = 1.5  # runnable tasks a CPU
_MUCH_WAITING = 25  # percent of the last 10 s
_OWN_FILES = 64  # of a program that loads data
_FILES_A_WORKER = 4  # torch's own workers take as many, fastloop's two
_FEW_FILES = 4096
_LITTLE_SHM = 1 << 30
_LITTLE_MEMORY = 2 << 30
_MOST_READ, _MOST_FILES = 64 << 20, 64  # bytes and files that the check of data reads
_LEAST_READ = 1 << 20  # bytes; the time of fewer is the time to open files
_SLOW_READ = 200e6  # bytes/s
_COPY = 256 << 20  # bytes of the pinned copy
_SLOW_COPY = 6e9  # bytes/s: less than PCIe 3 with 8 lanes
_SMI = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")

# Variables that are slow if set, but to 0, or if set to the value behind "=", and the cost. The
# doctor shows no other variable.
_SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver, which waits",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": "every collective is checked on all ranks",
    "TORCH_COMPILE_DEBUG": "every compilation writes files",
    "TORCH_LOGS": "compilations are logged",
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
    "NCCL_DEBUG": "every communicator logs",
    "PYTHONTRACEMALLOC": "Python traces every allocation",
    "PYTHONDEVMODE": "Python checks its memory at each allocation",
    "PYTHONMALLOC=debug": "Python checks its memory at each allocation",
    "MALLOC_PERTURB_": "every byte of freed memory is written",
    "FASTLOOP_DISABLE_CUDA": "torch's operations run in place of fastloop's kernels",
    "FASTLOOP_CPU": "fastloop's code for newer CPUs may not be used",
    "FASTLOOP=0": "fastloop.patch() does nothing",
}


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    NOTE = 1  # good to know
    WARN = 2  # it costs time or memory
    FAIL = 3  # something does not work


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: how much it matters.
        fact: what was seen.
        cost: what that costs; empty if nothing.
        fix: what to do about it.
        id: the check's name.
    """

    level: Level
    fact: str
    cost: str = ""
    fix: str = ""
    id: str = ""

    def __str__(self) -> str:
        text = f"{self.level.name.lower():<4}  {self.id}: {self.fact}"
        text += f"\n      costs: {self.cost}" if self.cost else ""
        return text + (f"\n      do:    {self.fix}" if self.fix else "")


ok, note = partial(Finding, Level.OK), partial(Finding, Level.NOTE)
warn, fail = partial(Finding, Level.WARN), partial(Finding, Level.FAIL)


# ---- the machine


def check_cpus(root: Path, workers: int | None = None) -> Finding:
    """Compare the CPUs that are there with those that affinity and cgroups allow."""
    cpus, share = read_cpus(root), throttled_share(root)
    fact = f"{cpus.visible} CPUs visible, {cpus.allowed} allowed by the affinity"
    if cpus.quota is not None:
        fact += f", {cpus.quota:g} by the container's quota"
    fix = f"num_workers={max(1, int(cpus.usable))} at most for work on the CPU; or allow more CPUs"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cpus.usable:
        fact += f"; OMP_NUM_THREADS={threads}"
        return warn(fact, "threads of one operation wait for each other", "unset OMP_NUM_THREADS")
    if (workers or 0) > cpus.usable:
        asked = f"num_workers={workers} asks for {(workers or 0) / cpus.usable:.1f} times"
        return warn(fact, f"{asked} what there is", fix)
    if share >= 0.05:
        fact += f"; it was throttled in {percent(share)} of its periods"
        return warn(fact, "workers and training stand still until the next period", fix)
    if cpus.usable < cpus.visible:
        cost = f"programs that count CPUs start workers and threads for {cpus.visible}"
        return note(fact, cost, fix)
    return ok(fact)


def check_load(root: Path) -> Finding:
    """Tell whether other programs want the CPUs as well."""
    visible = read_cpus(root).visible
    load = float((read_text(root / "proc/loadavg").split() or ["0"])[0])
    found = re.search(r"some avg10=([\d.]+)", read_text(root / "proc/pressure/cpu"))
    waits = float(found[1]) if found else 0.0
    fact = f"load {load:.1f} on {visible} CPUs"
    if found:
        fact += f"; something waited for a CPU {waits:.0f}% of the last 10 s"
    if load <= _MUCH_LOAD * visible and waits < _MUCH_WAITING:
        return ok(fact)
    cost = "workers and training share the CPUs with others; timings taken now are noise"
    return warn(fact, cost, "end what is not needed (top shows it)")


def check_memory(root: Path) -> Finding:
    """Tell how much memory is left, and whether processes were killed for lack of it."""
    memory, kills = read_memory(root), oom_kills(root)
    fact = f"{size(memory.available)} of {size(memory.total)} available"
    if memory.limit is not None:
        fact += f"; the container uses {size(memory.used)} of {size(memory.limit)}"
    fix = "fewer workers, a smaller prefetch_factor or memory_budget; or allow more (docker run -m)"
    if kills:
        fact += f"; {kills} of its processes were killed for lack of memory"
        return warn(fact, "a killed worker ends the epoch", f"{fix}; on_worker_death='restart'")
    if memory.total and memory.left < _LITTLE_MEMORY:
        return warn(fact, "workers may be killed", fix)
    if memory.most < memory.total:
        cost = "programs that look at the host's memory plan with too much"
        return note(fact, cost, "plan with the container's")
    return ok(fact)


def check_shared_memory(root: Path, workers: int | None = None) -> Finding:
    """Look at /dev/shm, through which torch's own worker processes send tensors."""
    found = os.statvfs(root / "dev/shm")
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    fact = f"/dev/shm has {size(free)} of {size(total)} free"
    if free >= _LITTLE_SHM:
        return ok(fact)
    fact += f", which {workers} workers share" if workers else ""
    cost = "torch's own workers end with 'Bus error' once it is full; fastloop's do not use it"
    return warn(fact, cost, "docker run --shm-size=8g, or --ipc=host; or a fastloop.DataLoader")


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
    return (warn if files < needed else note)(fact, cost, f"ulimit -n {max(65536, 2 * needed)}")


def check_data(path: str) -> Finding:
    """Measure how fast the first files at a path are read, their pages dropped before."""
    top, count, took = Path(path), 0, 0.0
    try:
        top.stat()  # raises where nothing is; rglob() would find nothing
        files = [top] if top.is_file() else filter(Path.is_file, top.rglob("*"))
        for file in islice(files, _MOST_FILES):
            with file.open("rb", buffering=0) as stream:
                os.posix_fadvise(stream.fileno(), 0, _MOST_READ, os.POSIX_FADV_DONTNEED)
                begin = perf_counter()
                while count < _MOST_READ and (part := stream.read(1 << 20)):
                    count += len(part)
                took += perf_counter() - begin
    except OSError as error:
        fact = f"{path} cannot be read: {error.strerror}"
        return fail(fact, "nothing can be loaded", "pass a path with data")
    fact = f"{size(count)} of {path} were read cold in {seconds(took)}"
    if count >= _LEAST_READ and count < _SLOW_READ * took:
        cost = f"a batch of 38 MB takes {38e6 * took / count:.1f} s the first time"
        return warn(fact, cost, "copy the data to a local disk, or keep it in memory")
    return ok(fact)


# ---- the program


def check_torch(torch: Any) -> Finding:
    """Tell whether fastloop is tested with this release of torch."""
    oldest, newest = (f"{a}.{b}" for a, b in (requirements.OLDEST, requirements.NEWEST_TESTED))
    version = str(torch.__version__)
    release = requirements.read_release(version)
    if release < requirements.OLDEST:
        fact = f"{version} is older than {oldest}, the oldest that fastloop works with"
        return fail(fact, "fastloop.DataLoader raises ImportError", requirements.INSTALL)
    if release > requirements.NEWEST_TESTED:
        fact = f"{version} is newer than {newest}, the newest that fastloop is tested with"
        cost = "where torch's private parts differ, torch's own code runs, with a RuntimeWarning"
        return note(fact, cost, "look for a newer fastloop")
    return ok(f"{version} is tested: {oldest} to {newest} are")


def check_lock() -> Finding:
    """Tell whether a free-threaded interpreter runs with its global lock."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    if not has_lock or not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ok("this Python has one" if has_lock else "this Python has none")
    fix = "start it with PYTHON_GIL=0; a module has done this, often Triton"
    fact = "this Python is free-threaded, and the lock was put back"
    return note(fact, "worker threads run Python one at a time", fix)


def check_switches() -> Finding:
    """Look for variables and modes that are for debugging, and slow."""
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
            found["torch.use_deterministic_algorithms(True)"] = "some operations take slower ways"
    if not found:
        return ok("no slow mode is on")
    fix = "unset them when nothing is being debugged"
    return warn(", ".join(found), "; ".join(found.values()), fix)


def check_decoders() -> Finding:
    """Name the library that decodes images for an ImageFolder."""
    from fastloop.data.image_folder.decode import AutoDecoder

    fix = "pip install fastloop[images]"
    try:
        name = AutoDecoder().name
    except ImportError:
        return note("none", "ImageFolder reads no file", fix)
    is_slow = name == "Pillow"
    return note(name, "JPEGs take longer than with simplejpeg", fix) if is_slow else ok(name)


def check_start_method(loader: Any = None) -> Finding:
    """Tell how worker processes start, and which part of a loader cannot be sent to them."""
    context = getattr(loader, "multiprocessing_context", None)
    method = (context or multiprocessing).get_start_method()
    fact = f"worker processes start by {method}"
    if method == "fork":
        return ok(fact)
    if not getattr(loader, "num_workers", 0):
        cost = "datasets, collate functions and worker_init_fn must be picklable"
        return note(fact, cost, "define them at the top of a module")
    try:
        with open(os.devnull, "wb") as sink:
            for name in ("dataset", "collate_fn", "worker_init_fn"):
                pickle.dump(getattr(loader, name, None), sink, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a __reduce__ may raise anything
        fact += f"; {name} does not pickle: {type(error).__name__}: {error}"
        fix = "define it at the top of a module (functools.partial in place of lambda)"
        return fail(fact, "workers cannot start", fix)
    return ok(f"{fact}; dataset and functions pickle")


# ---- GPUs


def read_driver(root: Path) -> int:
    """Return the major version of the NVIDIA driver that is loaded, 0 if none is visible."""
    found = re.search(r"\s(\d{3})\.\d+", read_text(root / "proc/driver/nvidia/version"))
    return int(found[1]) if found else 0


def needed_driver(cuda: str) -> int:
    """Return the oldest driver that runs a build for this CUDA ("12.9"), 0 if that is unknown."""
    return int(NEEDED_DRIVERS.get(int(cuda.partition(".")[0]), 0))


def explain_own_build(root: Path) -> tuple[str, str]:
    """Return why fastloop's CUDA kernels do not run here and the remedy; two "" if they do."""
    info = build_info()
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    if not info["cuda"]:
        reason = str(info["cuda_reason"]).partition("\n")[0]
        return f"without CUDA: {reason}", "build it where nvcc is (CUDA_HOME says where)"
    if requirements.kernels_are_disabled():
        return "FASTLOOP_DISABLE_CUDA is set", "unset it"
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
    """Return the CUDA that fastloop was built for, and whether its kernels run here."""
    info, driver, (fault, fix) = build_info(), read_driver(root), explain_own_build(root)
    if not info["cuda"]:
        return f"CPU only, built {fault}"
    use = "; ".join(filter(None, (f"not used: {fault}", fix))) if fault else "device 0 is ready"
    needs = f"needs driver {needed_driver(str(info['cuda']))} or newer"
    has = f"has {driver}" if driver else "sees none"
    return f"CUDA {info['cuda']} for {info['cuda_archs']} and later, {needs}, {has}; {use}"


def check_torch_build(root: Path, torch: Any) -> Finding:
    """Compare the CUDA of torch with the driver."""
    driver, cuda = read_driver(root), torch.version.cuda
    fact = f"torch {torch.__version__} is built for CUDA {cuda}"
    if cuda is None:
        fact = f"torch {torch.__version__} is built without CUDA, beside an NVIDIA GPU"
        return warn(fact, "the GPU is not used", "install a build with CUDA: see pytorch.org")
    if 0 < driver < needed_driver(cuda):
        fact += f", which needs a driver {needed_driver(cuda)} or newer; there is {driver}"
        fix = "update the driver, or install a torch for an older CUDA"
        return fail(fact, "the GPU cannot be used", fix)
    return ok(fact)


def check_own_build(root: Path) -> Finding:
    """Tell whether fastloop's kernels run on the GPU."""
    fact, fix = explain_own_build(root)
    if not fact:
        return ok(f"CUDA {build_info()['cuda']}; device 0 is ready")
    cost = "torch's operations run in place of fastloop's kernels, with the same results"
    return (note if requirements.kernels_are_disabled() else warn)(fact, cost, fix)


def check_others() -> Finding:
    """Name the processes of others that compute on the GPUs."""
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return ok(f"n/a: nvidia-smi says nothing ({error})")
    rows = [row.replace(" ", "").split(",") for row in done.stdout.splitlines() if "," in row]
    others = [f"{pid} ({memory} MiB)" for pid, memory in rows if pid != str(os.getpid())]
    if not others:
        return ok("no other process computes on a GPU")
    fact = f"other processes are on the GPUs: {', '.join(others)}"
    fix = "wait for them, or choose another GPU by CUDA_VISIBLE_DEVICES"
    return note(fact, "they share memory and time, so measurements vary", fix)


def probe_gpu(torch: Any) -> Finding:
    """Run one of fastloop's kernels and a pinned copy on the current GPU, and check the results.
    SYNC."""
    if not torch.cuda.is_available():
        return note("n/a: torch finds no CUDA device")
    from fastloop.step.grad_list import clip_grad_norm_

    parameter = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    parameter.grad = torch.arange(1 << 20, dtype=torch.float32, device="cuda") / (1 << 20)
    expected = parameter.grad.double().norm().item()
    norm = clip_grad_norm_([parameter], 1.0).item()
    clipped = parameter.grad.double().norm().item()
    source = torch.arange(_COPY // 8, dtype=torch.int64).pin_memory()
    target = source.to("cuda", non_blocking=True)  # the first copy also sets up
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    speed = _COPY / (begin.elapsed_time(end) / 1e3)
    is_right = abs(norm / expected - 1) < 1e-5 and abs(clipped - 1) < 1e-4
    if not is_right or not torch.equal(target.cpu(), source):
        fact = f"wrong results: norm {norm} for {expected}, {clipped} after clipping to 1"
        fix = "FASTLOOP_DISABLE_CUDA=1, and report it with this output"
        return fail(fact, "trainings would go wrong", fix)
    fact = f"kernel and pinned copy are right; {speed / 1e9:.1f} GB/s to the device"
    if speed < _SLOW_COPY:
        fix = "look at the link (nvidia-smi -q, PCI, Link Width) and the NUMA node of the process"
        return warn(fact, f"a batch of 38 MB takes {38e6 / speed * 1e3:.0f} ms to the device", fix)
    return ok(fact)
