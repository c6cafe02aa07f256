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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastloop._core import build_info
from fastloop.base.checks import make_message
from fastloop.base.requirements import require_torch
from fastloop.tools.doctor import checks
from fastloop.tools.doctor.checks import Finding, Level, note


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's facts and findings. ``print(diagnosis)`` shows them.

    Attributes:
        facts: what was built and what runs where, by name.
        findings: one for each check.
    """

    facts: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        """The command's exit status: 1 if something does not work."""
        return int(any(finding.level is Level.FAIL for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``schema`` changes when a name here does."""
        checks = [{**asdict(f), "level": f.level.name.lower()} for f in self.findings]
        return {"schema": 1, "facts": self.facts, "checks": checks}

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, "", *map(str, self.findings), "", self.summary])

    @property
    def summary(self) -> str:
        """One line that counts failures and warnings and names them."""
        parts = []
        for level, name in ((Level.FAIL, "failure"), (Level.WARN, "warning")):
            if ids := [finding.id for finding in self.findings if finding.level is level]:
                parts.append(f"{len(ids)} {name}{'s' * (len(ids) > 1)} ({', '.join(ids)})")
        notes = [finding.level for finding in self.findings].count(Level.NOTE)
        return f"doctor: {', '.join(parts) or 'nothing to do'}; {notes} to know"


def _torch_facts() -> dict[str, str]:
    try:
        require_torch("fastloop.DataLoader")
    except ImportError as error:
        return {"torch": f"missing: {error}"}
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
        "device": checks.describe_own_build(root),
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
    workers, has_torch = getattr(loader, "num_workers", None), torch is not None
    has_gpu = any((root / "proc/driver/nvidia/gpus").glob("*/information"))
    every: list[tuple[str, bool, Callable[[], Finding]]] = [
        ("torch", has_torch, lambda: checks.check_torch(torch)),
        ("cpus", True, lambda: checks.check_cpus(root, workers)),
        ("load", True, lambda: checks.check_load(root)),
        ("memory", True, lambda: checks.check_memory(root)),
        ("shared memory", True, lambda: checks.check_shared_memory(root, workers)),
        ("open files", True, lambda: checks.check_open_files(root, workers)),
        ("start method", True, lambda: checks.check_start_method(loader)),
        ("interpreter lock", True, checks.check_lock),
        ("switches", True, checks.check_switches),
        ("decoders", has_torch, checks.check_decoders),
        ("torch build", has_gpu and has_torch, lambda: checks.check_torch_build(root, torch)),
        ("fastloop build", has_gpu, lambda: checks.check_own_build(root)),
        ("gpu sharing", has_gpu, checks.check_others),
        ("data", data is not None, lambda: checks.check_data(str(data))),
        ("gpu probe", probe, lambda: checks.probe_gpu(torch)),
    ]
    findings = []
    for id, is_wanted, check in every:
        if is_wanted:
            try:
                finding = check()
            except Exception as error:
                fact = f"could not be checked: {type(error).__name__}: {error}"
                finding = note(fact, "", "report it with this output")
            findings.append(replace(finding, id=id))
    return Diagnosis(facts, tuple(findings))


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
