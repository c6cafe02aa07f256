"""The doctor's checks, on fakes of machines: what each says, what it costs, and what to do."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from time_limits import limit
from torch.utils.data import DataLoader, TensorDataset

import fastloop
from fastloop._core import build_info, usable_cpus
from fastloop.base.machine import list_groups, read_cpus, read_memory
from fastloop.compat import torch_parts
from fastloop.compat.requirements import NEWEST_TESTED
from fastloop.data.image_folder import decode
from fastloop.device import availability
from fastloop.tools import doctor
from fastloop.tools import doctor as checks
from fastloop.tools.doctor import Finding

MIB, GIB = 2**20, 2**30
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*(name.partition("=")[0] for name in checks._SWITCHES), "OMP_NUM_THREADS"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a root with these files, of 8 CPUs and 64 GiB where they say nothing else."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def make(files: dict[str, str] | None = None) -> Path:
        common = {
            "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n",
        }
        for name, text in {**common, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def v2(files: dict[str, str]) -> dict[str, str]:
    """Of group /pod/box: names without a folder are its own, "../" is that above it."""
    folder = "sys/fs/cgroup/pod/box"
    named = {os.path.normpath(f"{folder}/{name}"): text for name, text in files.items()}
    top = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
    return {**top, **named}


def v1(files: dict[str, str], path: str = "/docker/box") -> dict[str, str]:
    """Mounted tops hold the files: the path that the kernel names is outside of the container."""
    listed = f"9:name=systemd:{path}\n4:memory:{path}\n3:cpu,cpuacct:{path}\n0::/\n"
    tops = {"cpu": "sys/fs/cgroup/cpu,cpuacct", "mem": "sys/fs/cgroup/memory"}
    named = {f"{tops[name[:3].rstrip('.')]}/{name}": text for name, text in files.items()}
    return {"proc/self/cgroup": listed, **named}


def told(finding: Finding) -> str:
    """Whatever is no OK says what it costs and what to do."""
    if finding.level != "ok":
        assert finding.cost and finding.fix, finding
    return f"{finding.level.upper()} {finding.fact} | {finding.cost} | {finding.fix}"


# ---- CPUs


def test_all_cpus_may_be_used(fake: Make) -> None:
    text = told(checks.check_cpus(fake()))
    assert text == "OK 8 CPUs visible, 8 allowed by the affinity |  | "


@pytest.mark.parametrize(
    "files",
    [
        v2({"cpu.max": "250000 100000\n", "../cpu.max": "max 100000\n"}),
        v2({"cpu.max": "max 100000\n", "../cpu.max": "250000 100000\n"}),
        v1({"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}),
        {**v2({}), **v1({"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"})},
    ],
    ids=["v2", "v2 above", "v1", "hybrid"],
)
def test_the_quota_of_the_container_counts(fake: Make, files: dict[str, str]) -> None:
    root = fake(files)
    text = told(checks.check_cpus(root))
    assert "NOTE 8 CPUs visible, 8 allowed by the affinity, 2.5 by the container's quota" in text
    assert "num_workers=2 at most" in text
    assert "WARN" in told(checks.check_cpus(root, workers=4))
    assert "num_workers=4 needs more CPUs than are" in told(checks.check_cpus(root, workers=4))


def test_a_quota_of_half_a_cpu_is_told_and_none_limits_nothing(fake: Make) -> None:
    text = told(checks.check_cpus(fake(v2({"cpu.max": "50000 100000\n"}))))
    assert "0.5 by the container's quota" in text and "num_workers=1 at most" in text
    root = fake(v1({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}))
    assert checks.check_cpus(root).level == "ok"


def test_reports_and_threads_count_the_same_cpus() -> None:
    assert usable_cpus() == max(1, int(read_cpus().usable)) == build_info()["cpus"]


@pytest.mark.parametrize(
    ("load", "pressure", "level"),
    [
        ("7.5", "some avg10=3.10 avg60=0.00", "OK"),
        ("30.1", "some avg10=3.10 avg60=0.00", "WARN"),
        ("7.5", "some avg10=99.10 avg60=0.00", "WARN"),
        ("7.5", "", "OK"),
    ],
)
def test_load_and_pressure(fake: Make, load: str, pressure: str, level: str) -> None:
    files = {"proc/loadavg": f"{load} 1 1 2/3 4\n", "proc/pressure/cpu": pressure}
    text = told(checks.check_load(fake(files)))
    assert text.startswith(f"{level} load {load} on 8 CPUs")
    assert ("waited for a CPU" in text) == bool(pressure)


NODES = {f"sys/devices/system/node/node{n}/cpulist": f"{4 * n}-{4 * n + 3}\n" for n in range(2)}
NODES["sys/bus/pci/devices/0000:3b:00.0/numa_node"] = "1\n"
NODES["proc/driver/nvidia/gpus/0000:3b:00.0/information"] = "Model: X\n"
TOLD_NODES = "4 CPUs at node 0, 4 CPUs at node 1, GPU 0000:3b:00.0 at node 1"


def find_nodes(root: Path, loader: Any = None) -> list[str]:
    found = doctor.diagnose(root, loader).findings
    return [told(finding) for finding in found if finding.id == "nodes"]


def test_nodes_are_told_on_machines_that_have_several(fake: Make) -> None:
    [text] = find_nodes(fake(NODES))
    assert text.startswith(f"OK {TOLD_NODES}; batches for a GPU lie at its node, other")
    loader = fastloop.DataLoader(TensorDataset(torch.arange(3)), numa="off")
    [text] = find_nodes(fake(NODES), loader)
    assert text.startswith(f"NOTE {TOLD_NODES} | uploads may read")


def test_a_program_on_one_node_is_told_so(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 6})
    [text] = find_nodes(fake(NODES))
    assert text.startswith("OK 2 CPUs at node 1, GPU 0000:3b:00.0 at node 1; this process has no")


def test_a_machine_of_one_node_has_no_line_about_nodes(fake: Make) -> None:
    assert find_nodes(fake({"sys/devices/system/node/node0/cpulist": "0-7"})) == []


def test_decoders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"simplejpeg": object(), "PIL.Image": object()}
    monkeypatch.setattr(decode, "find_module", there.get)
    assert told(checks.check_decoders()) == "OK simplejpeg, Pillow |  | "
    del there["simplejpeg"]
    assert told(checks.check_decoders()).startswith("NOTE Pillow | JPEGs take longer")
    del there["PIL.Image"]
    assert told(checks.check_decoders()).startswith("NOTE none | ImageFolder cannot read files")


def test_affinity_and_throttling_are_told(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3})
        assert "NOTE 8 CPUs visible, 3 allowed" in told(checks.check_cpus(fake()))
    stat = v2({"cpu.max": "400000 100000", "cpu.stat": "nr_periods 200\nnr_throttled 62\n"})
    text = told(checks.check_cpus(fake(stat)))
    assert text.startswith("WARN") and "stopped the container in 31% of all periods" in text


def test_groups_that_are_not_there_limit_nothing(fake: Make) -> None:
    for files in ({}, {"proc/self/cgroup": "nonsense\n\n0::/gone\n"}, v1({})):
        root = fake(files)
        assert (read_memory(root).limit, list_groups("cpu", root)) == (None, [])
    assert checks.check_cpus(Path("/nonexistent")).level == "ok"


# ---- memory


@pytest.mark.parametrize(
    "files",
    [
        v2(
            {
                "memory.max": f"{16 * GIB}",
                "memory.current": f"{6 * GIB}",
                "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\n",
                "memory.events": "low 0\noom 3\noom_kill 2\n",
            }
        ),
        v1(
            {
                "memory.limit_in_bytes": f"{16 * GIB}",
                "memory.usage_in_bytes": f"{6 * GIB}",
                "memory.stat": f"total_inactive_file {2 * GIB}\n",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            }
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_memory_of_the_container_counts(fake: Make, files: dict[str, str]) -> None:
    text = told(checks.check_memory(fake(files)))
    assert text.startswith(
        "WARN 32.0 GiB of 64.0 GiB available; the container uses 4.00 GiB of 16.0"
    )
    assert "Linux has killed 2 processes for lack of memory" in text
    calm = {n: t.replace("oom_kill 2", "oom_kill 0") for n, t in files.items()}
    assert told(checks.check_memory(fake(calm))).startswith("NOTE 32.0 GiB of 64.0 GiB")


def test_little_memory_is_a_warning(fake: Make) -> None:
    assert told(checks.check_memory(fake())) == "OK 32.0 GiB of 64.0 GiB available |  | "
    little = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 1000 kB\n"}
    assert "workers may be killed" in told(checks.check_memory(fake(little)))
    limits = v2({"memory.max": f"{8 * GIB}", "memory.current": f"{7 * GIB}"})
    assert "WARN" in told(checks.check_memory(fake(limits)))


def test_a_small_shm_ends_in_bus_errors(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {"f_frsize": MIB, "f_blocks": 64, "f_bavail": 60}
    monkeypatch.setattr(checks.os, "statvfs", lambda path: SimpleNamespace(**room))
    text = told(checks.check_shared_memory(fake()))
    assert "WARN /dev/shm has 60.0 MiB of 64.0 MiB free" in text
    assert "'Bus error'" in text and "--shm-size=8g" in text
    room.update(f_blocks=8192, f_bavail=8192)
    assert checks.check_shared_memory(fake()).level == "ok"


@pytest.mark.parametrize(
    ("limit", "workers", "expected"),
    [
        ("1024", None, "NOTE 1024 files may be open at a time | torch's own workers keep"),
        ("1024", 400, "WARN 1024 files may be open at a time, and 400 workers take about 1664"),
        ("65536", 400, "OK 65536 files may be open at a time |"),
        ("unlimited", 400, "OK any number of files may be open |"),
    ],
)
def test_open_files(fake: Make, limit: str, workers: int | None, expected: str) -> None:
    root = fake(
        {"proc/self/limits": f"Max processes  9 9 p\nMax open files  {limit}  4096  files\n"}
    )
    assert told(checks.check_open_files(root, workers)).startswith(expected)


# ---- the program


@pytest.mark.parametrize(
    ("environ", "cost"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "the host waits for every kernel"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "the driver allocates"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "all ranks check"),
        ({"FASTLOOP": "0"}, "patch() does nothing"),
    ],
)
def test_slow_modes_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], cost: str
) -> None:
    off = {
        "CUDA_LAUNCH_BLOCKING": "0",
        "TORCH_COMPILE_DEBUG": "",
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
    }
    for name, value in {**off, "SECRET": "x", "NCCL": "1"}.items():
        monkeypatch.setenv(name, value)
    assert checks.check_switches().level == "ok"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    text = told(checks.check_switches())
    assert text.startswith("WARN") and cost in text and "SECRET" not in text


def test_slow_modes_of_torch() -> None:
    with torch.autograd.set_detect_anomaly(True):
        text = told(checks.check_switches())
    assert "set_detect_anomaly(True)" in text
    assert checks.check_switches().level == "ok"


def test_a_lock_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sysconfig, "get_config_var", lambda name: 1)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    python = doctor._facts(Path("/"))["python"]
    assert python.endswith(" free-threaded, but the lock was put back (PYTHON_GIL=0)")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert doctor._facts(Path("/"))["python"].endswith(" free-threaded")


def test_more_threads_than_cpus(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert told(checks.check_cpus(fake())).startswith(
        "WARN 8 CPUs visible, 8 allowed by the affinity; O"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert checks.check_cpus(fake()).level == "ok"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_loader_that_cannot_start_its_workers(method: str) -> None:
    data = TensorDataset(torch.zeros(2))
    loader = DataLoader(
        data, num_workers=1, multiprocessing_context=method, collate_fn=lambda batch: batch
    )
    text = told(checks.check_start_method(loader))
    assert text.startswith(f"FAIL worker processes start by {method}; collate_fn does not pickle")
    fine = DataLoader(data, num_workers=1, multiprocessing_context=method)
    assert checks.check_start_method(fine).level == "ok"
    forked = DataLoader(
        data, num_workers=1, multiprocessing_context="fork", collate_fn=lambda batch: batch
    )
    assert checks.check_start_method(forked).level == "ok"


# ---- GPUs

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.65.06  Release Build\n"


def with_gpu(fake: Make, driver: int = 580) -> Path:
    return fake(
        {
            "proc/driver/nvidia/version": DRIVER.format(driver),
            "proc/driver/nvidia/gpus/0000:3d:00.0/information": "Model: \t NVIDIA X\nIRQ: 3\n",
        }
    )


def torch_of(cuda: str | None) -> Any:
    return SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "2.9.1",
            "FAIL 2.9.1 is older than 2.10, the oldest that fastloop works with | fastloop.D",
        ),
        ("2.10.0", "OK 2.10.0 is tested, as are all releases from 2.10 to "),
        ("{0}.{1}.1+cpu", "OK {0}.{1}.1+cpu is tested, as are all releases from 2.10 to {0}.{1}"),
        (
            "{0}.{2}.0a0",
            "NOTE {0}.{2}.0a0 is newer than {0}.{1}, the newest that fastloop is tested",
        ),
        (
            "3.0.0",
            "NOTE 3.0.0 is newer than {0}.{1}, the newest that fastloop is tested with | if ",
        ),
        ("99", "NOTE 99 is newer than {0}.{1}, the newest that fastloop is tested with | if to"),
    ],
)
def test_releases_of_torch(version: str, text: str) -> None:
    major, minor = NEWEST_TESTED
    fake_torch = SimpleNamespace(__version__=version.format(major, minor, minor + 1))
    finding = told(checks.check_torch(fake_torch))
    assert finding.startswith(text.format(major, minor, minor + 1))


def test_private_parts_of_torch_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    different = {"scaler": "torch 2.99.0: GradScaler.update has changed"}
    monkeypatch.setattr(torch_parts, "difference", lambda group: different.get(group, ""))
    line = doctor._facts(Path("/"))["torch parts"]
    assert line == f"torch runs its own code for scaler ({different['scaler']})"
    different.clear()
    assert doctor._facts(Path("/"))["torch parts"] == "all are known"


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        (580, "13.0", "OK torch 2.13.0 is built for CUDA 13.0; the driver is 580 |"),
        (535, "12.8", "OK"),
        (580, None, "WARN torch 2.13.0 is built for CUDA None; the driver is 580 | torch d"),
        (
            535,
            "13.0",
            "FAIL torch 2.13.0 is built for CUDA 13.0; the driver is 535 | torch cannot u",
        ),
    ],
)
def test_the_build_of_torch(fake: Make, driver: int, cuda: str | None, expected: str) -> None:
    text = told(checks.check_torch_build(with_gpu(fake, driver), torch_of(cuda)))
    assert text.startswith(expected)


def test_fastloops_own_build_says_what_to_do(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_cuda(index: int) -> None:
        raise RuntimeError("device 0 has compute capability 5.0")

    info = {"cuda": "13.0", "cuda_reason": ""}
    monkeypatch.setattr(checks, "build_info", lambda: info)
    monkeypatch.setattr(checks, "check_cuda", check_cuda)
    text = told(checks.check_own_build(with_gpu(fake)))
    assert text.startswith("WARN device 0 has compute capability 5.0 |")
    assert text.endswith("| build with FASTLOOP_CUDA_ARCHS set to this capability, without the dot")
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    assert "NOTE FASTLOOP_DISABLE_CUDA is set |" in told(checks.check_own_build(with_gpu(fake)))
    info.update(cuda="", cuda_reason="no nvcc\nanywhere")
    assert "without CUDA: no nvcc |" in told(checks.check_own_build(with_gpu(fake)))


@pytest.mark.parametrize(("cuda", "needed"), [("13.0", 580), ("12.9", 525)])
def test_a_driver_too_old_for_fastloops_own_build(
    fake: Make, monkeypatch: pytest.MonkeyPatch, cuda: str, needed: int
) -> None:
    errors = [RuntimeError("CUDA error 35, CUDA driver version is insufficient")]

    def check_cuda(index: int) -> None:
        if errors:
            raise errors.pop()

    for module in (checks, availability):
        monkeypatch.setattr(module, "build_info", lambda: {"cuda": cuda, "cuda_reason": ""})
    monkeypatch.setattr(checks, "check_cuda", check_cuda)
    text = told(checks.check_own_build(with_gpu(fake)))
    assert text.startswith("WARN CUDA error 35, CUDA driver version is insufficient | torch's")
    assert f"CUDA {cuda} that fastloop was built with needs an NVIDIA driver {needed} or n" in text
    assert told(checks.check_own_build(with_gpu(fake))).startswith(f"OK CUDA {cuda};")


def test_a_probe_without_a_device_is_not_available() -> None:
    without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    assert checks.probe_gpu(without).fact == "n/a: torch finds no CUDA device"


# ---- the report


def test_the_report_has_every_check_and_one_that_breaks_stops_no_other(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(root: Path) -> Finding:
        raise OSError("gone")

    monkeypatch.setattr(checks, "check_memory", broken)
    monkeypatch.setattr(checks, "check_torch", lambda torch: doctor.fail("old", "stops", "update"))
    found = doctor.diagnose(with_gpu(fake))
    by_id = {finding.id: finding for finding in found.findings}
    assert list(by_id) == [
        *("torch", "cpus", "load", "memory", "shared memory", "open files", "start method"),
        *("switches", "decoders", "torch build", "fastloop build"),
    ]
    assert by_id["memory"].fact == "could not be checked: OSError: gone"
    assert (by_id["torch"].level, found.status) == ("fail", 1)
    assert "\nfail  torch: old\n      costs: stops\n      do:    update\n" in str(found)
    summary = str(found).splitlines()[-1]
    assert summary.startswith("doctor: 1 failed (torch); ") and " to know (" in summary
    assert found.to_dict()["schema"] == 1
    assert set(found.to_dict()["checks"][0]) == {"id", "level", "fact", "cost", "fix"}
    assert pickle.loads(pickle.dumps(found)) == found


def run_doctor(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastloop", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit(300))


@pytest.mark.slowest
def test_the_command() -> None:
    done = run_doctor("--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema"]) == (0, 1), done.stderr
    assert found["checks"][0]["id"] == "torch" and "device" in found["facts"]
    assert run_doctor("--nonsense").returncode == 2


def test_a_machine_without_a_gpu_is_not_told_to_update_a_driver(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_cuda(index: int) -> None:
        raise RuntimeError("CUDA error 35, driver version is insufficient")

    info = {"cuda": "13.0", "cuda_archs": "80", "cuda_reason": ""}
    monkeypatch.setattr(checks, "build_info", lambda: info)
    monkeypatch.setattr(checks, "explain_error", lambda error: "too old; update the driver")
    monkeypatch.setattr(checks, "check_cuda", check_cuda)
    assert checks.describe_own_build(fake()).endswith("; not used: no NVIDIA GPU is visible")
    assert checks.describe_own_build(with_gpu(fake)).endswith(
        "not used: too old; update the driver"
    )


def test_only_a_loader_is_taken() -> None:
    with pytest.raises(TypeError, match="loader must be a DataLoader or None, got 123"):
        fastloop.doctor(123)


def test_from_python_a_loader_is_looked_at() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(2)), num_workers=10_000)
    found = fastloop.doctor(loader)
    assert isinstance(found, fastloop.Diagnosis)
    assert "num_workers=10000 needs more CPUs" in next(
        f.cost for f in found.findings if f.id == "cpus"
    )
