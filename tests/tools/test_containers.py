"""How many CPUs a process counts inside a real control group, which the test makes, of version 1 or
2. Only root may make groups, and not on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from helpers import run_script
from workers import wait_until

from fastloop.base.machine import list_groups, read_cpus

PERIOD = 100_000  # us
PROGRAM = """
import sys
from functools import partial
from pathlib import Path

(Path(sys.argv[1]) / "cgroup.procs").write_text("0")  # this process

import torch
import fastloop
from fastloop._core import build_info, usable_cpus
from fastloop.base.machine import read_cpus

data = torch.arange(100)
loader = fastloop.DataLoader(torch.utils.data.TensorDataset(data), 10, num_workers=2)
for _ in range(2):
    assert torch.equal(torch.cat([batch[0] for batch in loader]), data)
print(loader.stats().path, usable_cpus(), build_info()["cpus"], read_cpus().quota)
"""


def is_removed(group: Path) -> bool:
    """A group can be removed as soon as its processes have ended."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture
def group() -> Iterator[Path]:
    for parent in list_groups("cpu"):
        made = parent / f"fastloop-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if any((made / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us")):
                yield made
                return
        finally:
            wait_until(partial(is_removed, made))
    pytest.skip("no control group with a quota of CPU time can be made here")


def set_quota(group: Path, cpus: float | None) -> None:
    quota = None if cpus is None else round(cpus * PERIOD)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))


@pytest.mark.parametrize("quota", [0.5, 1, 1.5, None])
def test_a_process_counts_the_cpus_that_its_group_pays_for(
    tmp_path: Path, group: Path, quota: float | None
) -> None:
    before = read_cpus()
    if quota is not None and quota > before.quota:
        pytest.skip(f"the groups above pay for {before.quota:g} CPUs")
    set_quota(group, quota)
    pays = before.quota if quota is None else quota
    cpus = max(1, int(min(before.allowed, pays)))
    printed = run_script(tmp_path, PROGRAM, group)
    assert printed.split() == ["array", str(cpus), str(cpus), str(float(pays))]
    assert read_cpus() == before
