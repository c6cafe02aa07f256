"""``python -m fastloop doctor`` and ``fastloop.doctor()``: facts about the build and this machine,
then all checks."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastloop._core import build_info
from fastloop.base.checks import make_message
from fastloop.base.requirements import require_torch
from fastloop.tools.doctor import gpu, host
from fastloop.tools.doctor.diagnosis import Diagnosis, Finding, note


def _torch_facts() -> dict[str, str]:
    try:
        require_torch("fastloop.DataLoader")
    except ImportError as error:
        return {"torch": f"torch is missing: {error}"}
    import torch

    from fastloop.base.threads import openmp
    from fastloop.base.torch_parts import GROUPS, difference

    different = [f"{group} ({why})" for group in GROUPS if (why := difference(group))]
    parts = f"torch runs its own code for {', '.join(different)}" if different else "all are known"
    threads = "its own threads" if openmp() is None else "torch's OpenMP threads"
    return {"torch": torch.__version__, "torch parts": parts, "passes over gradients": threads}


def _facts(root: Path) -> dict[str, str]:
    info = build_info()
    is_free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return {
        "fastloop": f"{info['version']}, built with {info['compiler']}, DLPack {info['dlpack']}",
        "python": f"{platform.python_version()}{' free-threaded' * is_free}",
        "linux": platform.release(),
        **_torch_facts(),
        "code on the CPU": str(info["instructions"]),
        "mapped files": f"read by {info['guarded_reads']}",
        "device": gpu.describe_own_build(root),
    }


def diagnose(
    root: Path = Path("/"), loader: Any = None, data: str | None = None, probe: bool = False
) -> Diagnosis:
    """Run all checks, in the order of their report; one that raises stops no other.

    Args:
        root: the folder that holds proc, sys and dev.
        loader, data, probe: as in `doctor()`.
    """
    facts, torch = _facts(root), sys.modules.get("torch")
    workers = getattr(loader, "num_workers", None)
    checks: dict[str, Callable[[], Finding]] = {
        "cpus": lambda: host.check_cpus(root, workers),
        "load": lambda: host.check_load(root),
        "memory": lambda: host.check_memory(root),
        "shared memory": lambda: host.check_shared_memory(root, workers),
        "open files": lambda: host.check_open_files(root, workers),
        "start method": lambda: host.check_start_method(loader),
        "interpreter lock": host.check_lock,
        "switches": host.check_switches,
    }
    if torch is not None:
        checks = {"torch": lambda: host.check_torch(torch), **checks}
        checks["decoders"] = host.check_decoders
    if any((root / "proc/driver/nvidia/gpus").glob("*/information")):
        if torch is not None:
            checks["torch build"] = lambda: gpu.check_torch_build(root, torch)
        checks["fastloop build"] = lambda: gpu.check_own_build(root)
        checks["gpu sharing"] = gpu.check_others
    if data is not None:
        checks["data"] = lambda: host.check_data(data)
    if probe:
        checks["gpu probe"] = lambda: gpu.probe_gpu(torch)
    return Diagnosis(facts, tuple(replace(_run(check), id=id) for id, check in checks.items()))


def _run(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        fact = f"could not be checked: {type(error).__name__}: {error}"
        return note(fact, "", "report it with this output")


def doctor(loader: Any = None, *, data: str | None = None, probe: bool = False) -> Diagnosis:
    """Report what this machine offers, what slows programs down on it, and what to do about that.

    Args:
        loader: a DataLoader: its number of workers is compared with the CPUs, and what its worker
            processes are sent is pickled, to name what cannot be.
        data: a file or folder; one file is read from disk, 64 MiB at most.
        probe: run a kernel and a copy on the GPU, and check their results (SYNC).

    Raises:
        TypeError: ``loader`` is not a DataLoader.
    """
    if loader is not None and not hasattr(loader, "num_workers"):
        remedy = "for a file or folder pass data="
        raise TypeError(make_message("loader", "a DataLoader or None", loader, remedy))
    return diagnose(loader=loader, data=data, probe=probe)


def main(args: list[str]) -> int:
    """Run the command. Returns 0, 1 if something does not work, 2 if the doctor itself fails."""
    parser = argparse.ArgumentParser(
        "python -m fastloop doctor",
        description="What this machine offers, and what slows programs down.",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("--paste", action="store_true", help="print a block for a bug report")
    parser.add_argument("--data", metavar="PATH", help="read a file of the data cold")
    parser.add_argument("--probe", action="store_true", help="use the GPU, and check its results")
    options = parser.parse_args(args)
    try:
        found = diagnose(data=options.data, probe=options.probe)
    except Exception:
        traceback.print_exc()
        return 2
    text = json.dumps(found.to_dict(), indent=1) if options.json else str(found)
    if options.paste:
        text = f"<details><summary>fastloop doctor</summary>\n\n```\n{text}\n```\n\n</details>"
    print(text)
    return found.status
