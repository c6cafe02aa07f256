"""``python -m fastloop doctor``: what was built, what this machine offers, what runs where, and
what slows programs down here. Checks are functions of a System; this file runs them and prints."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastloop._core import build_info, check_cuda
from fastloop.base.requirements import kernels_are_disabled, require_torch
from fastloop.device.availability import explain_error
from fastloop.tools.doctor.finding import Finding, Level, System
from fastloop.tools.doctor.gpu import check_gpus, find_driver, needed_driver, probe_gpu
from fastloop.tools.doctor.host import (
    check_cpus,
    check_data,
    check_limits,
    check_load,
    check_memory,
    check_shared_memory,
)
from fastloop.tools.doctor.program import (
    check_decoders,
    check_lock,
    check_patchers,
    check_start_method,
    check_switches,
    check_threads,
    check_torch,
)


def _torch_line() -> str:
    try:
        require_torch("fastloop.DataLoader")
    except ImportError as error:
        return f"missing: {error}"
    import torch

    return str(torch.__version__)


def _parts_line() -> str:
    """Which of torch's private parts are not as fastloop knows them, and left to torch."""
    if "torch" not in sys.modules:
        return "not compared (torch is missing)"
    from fastloop.base.torch_parts import GROUPS, difference

    different = [f"{group} ({why})" for group in GROUPS if (why := difference(group))]
    if not different:
        return "all are known"
    return f"left to torch's own code: {', '.join(different)}"


def _threads() -> str:
    if "torch" not in sys.modules:
        return "threads of its own (torch is missing)"
    from fastloop.base.openmp import openmp

    return "threads of its own" if openmp() is None else "the threads of torch's OpenMP"


def _limit() -> str:
    named = os.environ.get("FASTLOOP_CPU")
    return f" (at most, FASTLOOP_CPU is {named})" if named else ""


def _device(system: System) -> str:
    info = build_info()
    if not info["cuda"]:
        return f"CPU only, built without CUDA: {str(info['cuda_reason']).splitlines()[0]}"
    driver = find_driver(system)
    built = (
        f"CUDA {info['cuda']} for {info['cuda_archs']} and later, needs driver "
        f"{needed_driver(str(info['cuda']))} or newer, {f'has {driver}' if driver else 'sees none'}"
    )
    if kernels_are_disabled():
        return f"{built}; torch's operations instead, FASTLOOP_DISABLE_CUDA is set"
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    if hip is not None:
        return f"{built}; torch's operations instead, torch is built for ROCm {hip}"
    try:
        check_cuda(0)
    except RuntimeError as error:
        if not any((system.root / at).exists() for at in ("proc/driver/nvidia", "dev/dxg")):
            return f"{built}; no NVIDIA GPU is visible, so it is not used"
        return f"{built}; not usable here, {explain_error(error)}"
    return f"{built}; device 0 is ready"


def _facts(system: System) -> dict[str, str]:
    info = build_info()
    guarded = {
        "process_vm": "process_vm_readv/writev",
        "memfd": "through a memfd (process_vm_readv is not permitted here), slower",
    }[str(info["guarded_reads"])]
    return {
        "fastloop": f"{info['version']}, built with {info['compiler']}, DLPack {info['dlpack']}",
        "python": f"{platform.python_version()} on {platform.release()}",
        "torch": _torch_line(),
        "torch parts": _parts_line(),
        "cpus": str(info["cpus"]),
        "mapped files": guarded,
        "page population": "MADV_POPULATE_WRITE"
        if info["populates_pages"]
        else "first touch (MADV_POPULATE_WRITE needs Linux 5.14)",
        "worker processes": "a memfd shared with them; the parent's death is seen by "
        + ("pidfd" if info["watches_processes"] else "looking twice a second (no pidfd here)"),
        "code on the CPU": f"{info['instructions']}{_limit()}",
        "passes over gradients": _threads(),
        "device": _device(system),
    }


# ---- checks


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor has found. ``print(diagnosis)`` shows it.

    Attributes:
        facts: what was built and what runs where, by name.
        findings: one or more for each check.
    """

    facts: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        """The command's exit status: 1 if something does not work."""
        return int(any(finding.level is Level.FAIL for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: ``schema`` changes when a name here does."""
        checks = [finding.to_dict() for finding in self.findings]
        return {"schema": 1, "facts": self.facts, "checks": checks}

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, "", *map(_describe, self.findings), "", self.summary])

    @property
    def summary(self) -> str:
        """One line: what is worth reading."""
        found = {level: [f.id for f in self.findings if f.level is level] for level in Level}
        parts = [
            f"{len(found[level])} {name}{'s' * (len(found[level]) > 1)} ({', '.join(found[level])})"
            for level, name in ((Level.FAIL, "failure"), (Level.WARN, "warning"))
            if found[level]
        ]
        return f"doctor: {', '.join(parts) or 'nothing to do'}; {len(found[Level.NOTE])} to know"


def _describe(finding: Finding) -> str:
    lines = [f"{finding.level.name.lower():<4}  {finding.id}: {finding.fact}"]
    lines += [f"      costs: {finding.cost}"] if finding.cost else []
    lines += [f"      do:    {finding.fix}"] if finding.fix else []
    return "\n".join(lines)


def diagnose(
    system: System, loader: Any = None, data: str | None = None, probe: bool = False
) -> Diagnosis:
    """All checks, in the order of their report. One that fails itself says so, and stops no other.

    Args:
        system: the machine.
        loader: a DataLoader that the checks of workers are about.
        data: a file or folder whose file system is read.
        probe: whether a GPU is used.
    """
    facts = _facts(system)
    torch = sys.modules.get("torch")
    workers = getattr(loader, "num_workers", None)
    checks: dict[str, Callable[[], Finding | Iterable[Finding]]] = {
        "torch": lambda: check_torch(torch),
        "cpus": lambda: check_cpus(system, workers),
        "load": lambda: check_load(system),
        "threads": lambda: check_threads(system),
        "memory": lambda: check_memory(system),
        "shared memory": lambda: check_shared_memory(system, workers),
        "limits": lambda: list(check_limits(system, workers)),
        "decoders": check_decoders,
        "start method": lambda: check_start_method(loader),
        "interpreter lock": check_lock,
        "switches": lambda: check_switches(system),
        "patchers": check_patchers,
        "gpu": lambda: list(check_gpus(system, torch)),
    }
    if data is not None:
        checks["data"] = lambda: check_data(system, data)
    if probe:
        checks["gpu probe"] = lambda: probe_gpu(torch)
    findings = [finding for id, check in checks.items() for finding in _run(id, check)]
    return Diagnosis(facts, tuple(findings))


def _run(id: str, check: Callable[[], Finding | Iterable[Finding]]) -> Iterable[Finding]:
    try:
        found = check()
    except Exception as error:
        text = f"could not be checked: {type(error).__name__}: {error}"
        return [Finding(id, Level.NOTE, text, "", "report it with this output")]
    return [found] if isinstance(found, Finding) else found


def doctor(loader: Any = None, *, data: str | None = None, probe: bool = False) -> Diagnosis:
    """What this machine offers, what slows programs down on it, and what to do about that.

    Args:
        loader: a DataLoader: its number of workers is compared with the CPUs, and what its worker
            processes are sent is pickled, to name what cannot be.
        data: a file or folder; one file is read from disk, 64 MiB at most.
        probe: run a kernel and a copy on the GPU, and check their results (SYNC).

    Raises:
        TypeError: ``loader`` is no DataLoader.
    """
    if loader is not None and not hasattr(loader, "num_workers"):
        raise TypeError(
            f"doctor() takes a DataLoader or nothing, got {type(loader).__name__}; for a file or "
            "folder pass data="
        )
    return diagnose(System(), loader, data, probe)


def main(args: list[str]) -> int:
    """Returns 0, 1 if something does not work, 2 if the doctor itself has failed."""
    parser = argparse.ArgumentParser(
        "python -m fastloop doctor",
        description="What this machine offers, and what slows it down.",
        allow_abbrev=False,
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("--paste", action="store_true", help="print a block for a bug report")
    parser.add_argument("--data", metavar="PATH", help="read a file of the data cold")
    parser.add_argument("--probe", action="store_true", help="use the GPU, and check its results")
    options = parser.parse_args(args)
    try:
        found = diagnose(System(), data=options.data, probe=options.probe)
    except Exception:
        traceback.print_exc()
        return 2
    if options.json:
        print(json.dumps(found.to_dict(), indent=1))
    elif options.paste:
        print(f"<details><summary>fastloop doctor</summary>\n\n```\n{found}\n```\n\n</details>")
    else:
        print(found)
    return found.status
