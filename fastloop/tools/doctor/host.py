"""The doctor's checks of the machine, the container and the program. Each returns one finding.

`root` is the folder that holds proc, sys and dev: tests pass a copy. torch is looked at only if it
has been imported.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
import sysconfig
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from fastloop.base.machine import oom_kills, read_cpus, read_memory, read_text, throttled_share
from fastloop.base.requirements import INSTALL, NEWEST_TESTED, OLDEST, read_release
from fastloop.tools.doctor.diagnosis import Finding, fail, note, ok, warn
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
    if workers is not None and workers > cpus.usable:
        cost = f"num_workers={workers} asks for {workers / cpus.usable:.1f} times what there is"
        return warn(fact, cost, fix)
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
    """Measure how fast files that are not cached are read."""
    try:
        count, took = _read_cold(Path(path))
    except OSError as error:
        fact = f"{path} cannot be read: {error.strerror}"
        return fail(fact, "nothing can be loaded", "pass a path with data")
    fact = f"{size(count)} of {path} were read cold in {seconds(took)}"
    if count >= _LEAST_READ and count < _SLOW_READ * took:
        cost = f"a batch of 38 MB takes {38e6 * took / count:.1f} s the first time"
        return warn(fact, cost, "copy the data to a local disk, or keep it in memory")
    return ok(fact)


def _read_cold(path: Path) -> tuple[int, float]:
    """Return (bytes, seconds) of reading the first files at a path, their pages dropped before."""
    path.stat()  # raises where nothing is; rglob() would find nothing
    files = [path] if path.is_file() else islice(filter(Path.is_file, path.rglob("*")), _MOST_FILES)
    count, took = 0, 0.0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, _MOST_READ, os.POSIX_FADV_DONTNEED)
            begin = perf_counter()
            while count < _MOST_READ and (part := stream.read(1 << 20)):
                count += len(part)
            took += perf_counter() - begin
    return count, took


# ---- the program


def check_torch(torch: Any) -> Finding:
    """Tell whether fastloop is tested with this release of torch."""
    oldest, newest = (".".join(map(str, release)) for release in (OLDEST, NEWEST_TESTED))
    version = str(torch.__version__)
    if read_release(version) < OLDEST:
        fact = f"{version} is older than {oldest}, the oldest that fastloop works with"
        return fail(fact, "fastloop.DataLoader raises ImportError", INSTALL)
    if read_release(version) > NEWEST_TESTED:
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
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.is_anomaly_enabled():
        found["torch.autograd.set_detect_anomaly(True)"] = "every backward is checked for NaN"
    if torch is not None and torch.are_deterministic_algorithms_enabled():
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
