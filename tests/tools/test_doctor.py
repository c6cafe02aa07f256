"""The doctor's checks, on fakes of machines: what each says, what it costs, and what to do."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop
from fastloop.base import torch_parts
from fastloop.base.cgroup import find_groups, memory_limits
from fastloop.base.requirements import NEWEST_TESTED
from fastloop.data.image_folder import decode
from fastloop.tools.doctor import doctor
from fastloop.tools.doctor import gpu as gpu_checks
from fastloop.tools.doctor import host as host_checks
from fastloop.tools.doctor import program as program_checks
from fastloop.tools.doctor.finding import Finding, Level, System

MIB, GIB = 2**20, 2**30
Make = Callable[..., System]


@pytest.fixture
def fake(tmp_path: Path) -> Make:
    """Makes a System with these files, of 8 CPUs and 64 GiB where they say nothing else."""

    def make(files: dict[str, str] | None = None, **fields: Any) -> System:
        common = {
            "sys/devices/system/cpu/online": "0-7\n",
            "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-7\n",
            "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n",
        }
        for name, text in {**common, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return System(root=tmp_path, **{"environ": {}, **fields})

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
    if finding.level is not Level.OK:
        assert finding.cost and finding.fix, finding
    return f"{finding.level.name} {finding.fact} | {finding.cost} | {finding.fix}"


# ---- CPUs


def test_all_cpus_may_be_used(fake: Make) -> None:
    text = told(host_checks.check_cpus(fake()))
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
    system = fake(files)
    text = told(host_checks.check_cpus(system))
    assert "NOTE 8 CPUs visible, 8 allowed by the affinity, 2.5 by the container's quota" in text
    assert "num_workers=2 at most" in text
    assert "WARN" in told(host_checks.check_cpus(system, workers=4))
    assert "num_workers=4 asks for 1.6 times" in told(host_checks.check_cpus(system, workers=4))


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
    text = told(host_checks.check_load(fake(files)))
    assert text.startswith(f"{level} load {load} on 8 CPUs")
    assert ("waited for a CPU" in text) == bool(pressure)


def test_decoders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"simplejpeg": object(), "PIL.Image": object()}
    monkeypatch.setattr(decode, "find_module", there.get)
    monkeypatch.setattr(decode, "_SimpleJpeg", lambda module: SimpleNamespace(name="simplejpeg"))
    monkeypatch.setattr(decode, "_Pillow", lambda module: SimpleNamespace(name="Pillow"))
    assert told(program_checks.check_decoders()) == "OK simplejpeg, Pillow |  | "
    del there["simplejpeg"]
    assert told(program_checks.check_decoders()).startswith("NOTE Pillow | JPEGs take longer")
    del there["PIL.Image"]
    assert told(program_checks.check_decoders()).startswith("NOTE none | ImageFolder reads no")


def test_affinity_and_throttling_are_told(fake: Make) -> None:
    status = {"proc/self/status": "Cpus_allowed_list:\t0,2-3\n"}
    assert "NOTE 8 CPUs visible, 3 allowed" in told(host_checks.check_cpus(fake(status)))
    stat = v2({"cpu.max": "400000 100000", "cpu.stat": "nr_periods 200\nnr_throttled 62\n"})
    text = told(host_checks.check_cpus(fake(stat)))
    assert text.startswith("WARN") and "it was throttled in 31% of its periods" in text


def test_groups_that_are_not_there_limit_nothing(fake: Make) -> None:
    for files in ({}, {"proc/self/cgroup": "nonsense\n\n0::/gone\n"}, v1({})):
        system = fake(files)
        assert (memory_limits(system.root), find_groups("cpu", system.root)) == ([], [])
    assert host_checks.check_cpus(System(root=Path("/nonexistent"))).level is Level.OK


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
    text = told(host_checks.check_memory(fake(files)))
    assert text.startswith(
        "WARN 32.0 GiB of 64.0 GiB available; the container uses 4.0 GiB of 16.0"
    )
    assert "2 of its processes were killed for want of memory" in text
    calm = {n: t.replace("oom_kill 2", "oom_kill 0") for n, t in files.items()}
    assert told(host_checks.check_memory(fake(calm))).startswith("NOTE 32.0 GiB of 64.0 GiB")


def test_little_memory_is_a_warning(fake: Make) -> None:
    assert told(host_checks.check_memory(fake())) == "OK 32.0 GiB of 64.0 GiB available |  | "
    little = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 1000 kB\n"}
    assert "workers may be killed" in told(host_checks.check_memory(fake(little)))
    limits = v2({"memory.max": f"{8 * GIB}", "memory.current": f"{7 * GIB}"})
    assert "WARN" in told(host_checks.check_memory(fake(limits)))


def test_a_small_shm_ends_in_bus_errors(fake: Make) -> None:
    small = fake(space=lambda path: (64 * MIB, 60 * MIB))
    text = told(host_checks.check_shared_memory(small, workers=8))
    assert "WARN /dev/shm has 60 MiB of 64 MiB free, which 8 workers share" in text
    assert "'Bus error'" in text and "--shm-size=8g" in text
    large = fake(space=lambda path: (8 * GIB, 8 * GIB))
    assert host_checks.check_shared_memory(large).level is Level.OK
    assert "/dev/shm cannot be used" in told(host_checks.check_shared_memory(fake()))


def test_limits_of_the_process(fake: Make) -> None:
    text = "Max open files       1024  4096  files\nMax locked memory  8388608  8388608  bytes\n"
    locked, files = host_checks.check_limits(fake({"proc/self/limits": text}))
    assert told(locked) == "OK at most 8 MiB may be locked |  | "  # RDMA is for ranks
    ranks = fake({"proc/self/limits": text}, environ={"WORLD_SIZE": "2"})
    assert "NOTE at most 8 MiB may be locked" in told(next(host_checks.check_limits(ranks)))
    _, crowd = host_checks.check_limits(fake({"proc/self/limits": text}), workers=400)
    assert told(crowd).startswith("WARN 1024 files may be open at a time, and 400 workers take")
    assert "NOTE 1024 files may be open" in told(files)
    free = text.replace("8388608", "unlimited").replace("1024", "65536")
    levels = [f.level for f in host_checks.check_limits(fake({"proc/self/limits": free}))]
    assert levels == [Level.OK, Level.OK]


# ---- data


@pytest.mark.parametrize(
    ("kind", "mb_per_s", "expected"),
    [
        ("ext4", 1000, "OK"),
        ("ext4", 50, "WARN"),
        ("nfs4", 1000, "NOTE"),
        ("fuse.s3fs", 20, "WARN"),
    ],
)
def test_the_file_system_of_the_data(
    fake: Make, tmp_path: Path, kind: str, mb_per_s: int, expected: str
) -> None:
    data = tmp_path.resolve() / "home" / "my data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "large").write_bytes(bytes(3_000_000))
    (data / "small").write_bytes(b"x")
    times = iter([0.0, 3_000_000 / (mb_per_s * 1e6)])
    mount = str(data).replace(" ", "\\040")
    system = fake(
        {
            "proc/self/mountinfo": "22 1 0:1 / / rw - ext4 /dev/root rw\n"
            f"23 22 0:2 / {mount} rw shared:1 - {kind} server:/x rw\n"
            f"24 22 0:2 / {mount}/other rw - tmpfs none rw\n"
        },
        environ={"HOME": str(data.parent)},
        clock=lambda: next(times),
    )
    text = told(host_checks.check_data(system, str(data)))
    assert text.startswith(f"{expected} ~/my data is on {kind} (server:/x); 3 MiB read cold at ")
    assert f"at {mb_per_s:,} MB/s" in text


def test_small_files_tell_no_speed(fake: Make, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(3_000))
    times = iter([0.0, 0.0005])
    text = told(host_checks.check_data(fake(clock=lambda: next(times)), str(tmp_path)))
    assert text.startswith("OK") and "too small to tell its speed (0.5 ms for one)" in text


def test_data_that_is_not_there_fails_and_an_empty_folder_is_told(
    fake: Make, tmp_path: Path
) -> None:
    text = told(host_checks.check_data(fake(), str(tmp_path / "gone")))
    assert text.startswith("FAIL") and "cannot be read: No such file" in text
    (tmp_path / "empty").mkdir()
    finding = host_checks.check_data(fake(), str(tmp_path / "empty"))
    assert (finding.level, "without a file to read" in finding.fact) == (Level.NOTE, True)


# ---- the program


@pytest.mark.parametrize(
    ("environ", "cost"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "the host waits for every kernel"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "allocated by the driver"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "checked on all ranks"),
        ({"FASTLOOP": "0"}, "patch() does nothing"),
    ],
)
def test_slow_modes_of_the_environment(fake: Make, environ: dict[str, str], cost: str) -> None:
    text = told(
        program_checks.check_switches(fake(environ={**environ, "SECRET": "x", "NCCL": "1"}))
    )
    assert text.startswith("WARN") and cost in text and "SECRET" not in text
    off = {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_LOGS": "", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    assert program_checks.check_switches(fake(environ=off)).level is Level.OK


def test_slow_modes_of_torch(fake: Make) -> None:
    with torch.autograd.set_detect_anomaly(True):
        text = told(program_checks.check_switches(fake()))
    assert "set_detect_anomaly(True)" in text
    assert program_checks.check_switches(fake()).level is Level.OK


def test_a_lock_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_checks.sysconfig, "get_config_var", lambda name: 1)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    text = told(program_checks.check_lock())
    assert text.startswith("NOTE this Python is free-threaded, and the lock was put back")
    assert "PYTHON_GIL=0" in text
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert program_checks.check_lock().level is Level.OK


def test_more_threads_than_cpus(fake: Make) -> None:
    check = program_checks.check_threads
    assert "OMP_NUM_THREADS=16 on 8 usable" in told(check(fake(environ={"OMP_NUM_THREADS": "16"})))
    assert check(fake(environ={"OMP_NUM_THREADS": "8"})).level is Level.OK


def test_what_does_not_pickle_is_named() -> None:
    data: Any = TensorDataset(torch.zeros(2))
    data.itself = data
    data.options = {"steps": [print, lambda x: x]}
    found = program_checks.find_unpicklable(data, "dataset")
    assert found is not None and found[0] == "dataset.options['steps'][1]"
    found = program_checks.find_unpicklable(partial(print, lambda: 0), "collate_fn")
    assert found is not None and found[0] == "collate_fn"
    assert program_checks.find_unpicklable(partial(print, 3), "collate_fn") is None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_loader_that_cannot_start_its_workers(method: str) -> None:
    data = TensorDataset(torch.zeros(2))
    loader = DataLoader(
        data, num_workers=1, multiprocessing_context=method, collate_fn=lambda batch: batch
    )
    text = told(program_checks.check_start_method(loader))
    assert text.startswith(f"FAIL worker processes start by {method}; collate_fn does not pickle")
    fine = DataLoader(data, num_workers=1, multiprocessing_context=method)
    assert program_checks.check_start_method(fine).level is Level.OK
    forked = DataLoader(
        data, num_workers=1, multiprocessing_context="fork", collate_fn=lambda batch: batch
    )
    assert program_checks.check_start_method(forked).level is Level.OK


def test_other_patchers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program_checks.check_patchers().level is Level.OK
    with fastloop.patched():
        assert program_checks.check_patchers().level is Level.OK
    monkeypatch.setattr(DataLoader, "__iter__", lambda self: iter(()))
    assert "replaced by others: DataLoader.__iter__ (tools/test_doctor.py)" in told(
        program_checks.check_patchers()
    )


# ---- GPUs

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.65.06  Release Build\n"


def with_gpu(fake: Make, driver: int = 580, others: str = "", **fields: Any) -> System:
    def run(command: Sequence[str]) -> str:
        if not others:
            raise FileNotFoundError("nvidia-smi")
        return others

    files = {
        "proc/driver/nvidia/version": DRIVER.format(driver),
        "proc/driver/nvidia/gpus/0000:3d:00.0/information": "Model: \t NVIDIA X\nIRQ: 3\n",
    }
    return fake(files, run=run, **fields)


def gpu_findings(system: System, cuda: str | None = "13.0") -> dict[str, str]:
    fake_torch = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=cuda))
    return {f.id: told(f) for f in gpu_checks.check_gpus(system, fake_torch)}


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "2.9.1",
            "FAIL 2.9.1 is older than 2.10, the oldest that fastloop works with | fastloop.D",
        ),
        ("2.10.0", "OK 2.10.0 is tested: 2.10 to "),
        ("{0}.{1}.1+cpu", "OK {0}.{1}.1+cpu is tested: 2.10 to {0}.{1} are"),
        (
            "{0}.{2}.0a0",
            "NOTE {0}.{2}.0a0 is newer than {0}.{1}, the newest that fastloop is tested",
        ),
        (
            "3.0.0",
            "NOTE 3.0.0 is newer than {0}.{1}, the newest that fastloop is tested with | whe",
        ),
        ("99", "NOTE 99 is newer than {0}.{1}, the newest that fastloop is tested with | where"),
    ],
)
def test_releases_of_torch(version: str, text: str) -> None:
    major, minor = NEWEST_TESTED
    fake_torch = SimpleNamespace(__version__=version.format(major, minor, minor + 1))
    finding = told(program_checks.check_torch(fake_torch))
    assert finding.startswith(text.format(major, minor, minor + 1))
    assert told(program_checks.check_torch(None)).startswith("NOTE not installed | ")


def test_private_parts_of_torch_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    different = {"scaler": "torch 2.99.0: GradScaler.update has changed"}
    monkeypatch.setattr(torch_parts, "difference", lambda group: different.get(group, ""))
    line = doctor._facts(System())["torch parts"]
    assert line == f"left to torch's own code: scaler ({different['scaler']})"
    different.clear()
    assert doctor._facts(System())["torch parts"] == "all are known"


def test_no_gpu_is_no_fault(fake: Make) -> None:
    assert gpu_findings(fake()) == {"gpu": "OK no NVIDIA GPU is visible |  | "}


def test_a_build_of_torch_without_cuda_beside_a_gpu(fake: Make) -> None:
    found = gpu_findings(with_gpu(fake), cuda=None)
    assert found["gpu"].startswith("OK NVIDIA X, driver 580")
    assert found["torch build"].startswith("WARN torch 2.13.0 is built without CUDA, beside")


@pytest.mark.parametrize(("driver", "cuda", "level"), [(535, "13.0", "FAIL"), (535, "12.8", "OK")])
def test_drivers_that_are_too_old(fake: Make, driver: int, cuda: str, level: str) -> None:
    text = gpu_findings(with_gpu(fake, driver), cuda)["torch build"]
    assert text.startswith(level) and ("needs a driver 580 or newer; there is 535" in text) == (
        level == "FAIL"
    )


def test_fastloops_own_build_says_what_to_do(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_cuda(index: int) -> None:
        raise RuntimeError("device 0 has compute capability 5.0")

    info = {"cuda": "13.0", "cuda_reason": ""}
    monkeypatch.setattr(gpu_checks, "build_info", lambda: info)
    monkeypatch.setattr(gpu_checks, "check_cuda", check_cuda)
    text = gpu_findings(with_gpu(fake))["fastloop build"]
    assert text.startswith("WARN device 0 has compute capability 5.0 |")
    assert text.endswith("| build it with FASTLOOP_CUDA_ARCHS set to that, without the dot")
    info.update(cuda="", cuda_reason="no nvcc\nanywhere")
    assert "WARN without CUDA: no nvcc |" in gpu_findings(with_gpu(fake))["fastloop build"]


@pytest.mark.parametrize(("driver", "cuda", "needed"), [(535, "13.0", 580), (470, "12.9", 525)])
def test_a_driver_too_old_for_fastloops_own_build(
    fake: Make, monkeypatch: pytest.MonkeyPatch, driver: int, cuda: str, needed: int
) -> None:
    monkeypatch.setattr(gpu_checks, "build_info", lambda: {"cuda": cuda, "cuda_reason": ""})
    monkeypatch.setattr(gpu_checks, "check_cuda", lambda index: None)
    text = gpu_findings(with_gpu(fake, driver))["fastloop build"]
    assert text.startswith(f"WARN CUDA {cuda} needs a driver {needed} or newer; there is {driver}")
    assert gpu_findings(with_gpu(fake, needed))["fastloop build"].startswith(f"OK CUDA {cuda};")


def test_others_on_the_gpu_are_named(fake: Make) -> None:
    text = gpu_findings(with_gpu(fake, others=f"411, 61000\n{os.getpid()}, 300\n"))["gpu sharing"]
    assert "NOTE other processes are on the GPUs: 411 (61000 MiB) |" in text
    assert "n/a: nvidia-smi" in gpu_findings(with_gpu(fake))["gpu sharing"]


def test_a_probe_without_a_device_is_not_available() -> None:
    without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    assert gpu_checks.probe_gpu(without).fact == "n/a: torch finds no CUDA device"


# ---- the report


def test_the_report_has_every_check_and_one_that_breaks_stops_no_other(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(system: System) -> Finding:
        raise OSError("gone")

    monkeypatch.setattr(doctor, "check_memory", broken)
    found = doctor.diagnose(fake(), data="/nonexistent")
    by_id = {finding.id: finding for finding in found.findings}
    assert list(by_id) == [
        *("torch", "cpus", "load", "threads", "memory", "shared memory", "locked memory"),
        *("open files", "decoders", "start method", "interpreter lock", "switches", "patchers"),
        *("gpu", "data"),
    ]
    assert by_id["memory"].fact == "could not be checked: OSError: gone"
    assert (by_id["data"].level, found.status) == (Level.FAIL, 1)
    assert "\nfail  data: /nonexistent cannot be read" in str(found)
    assert "\n      costs: nothing can be loaded\n      do:    pass a path with data" in str(found)
    summary = str(found).splitlines()[-1]
    assert summary.startswith("doctor: 1 failure (data), 1 warning (shared memory); "), summary
    assert found.to_dict()["schema"] == 1
    assert set(found.to_dict()["checks"][0]) == {"id", "level", "fact", "cost", "fix"}
    assert pickle.loads(pickle.dumps(found)) == found


def run_doctor(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastloop", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command() -> None:
    done = run_doctor("--json", "--data", "/nonexistent")
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema"]) == (1, 1), done.stderr
    assert found["checks"][-1]["level"] == "fail" and "device" in found["facts"]
    assert run_doctor("--nonsense").returncode == 2


def test_the_command_prints_a_block_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--paste"]) in (0, 1)
    text = capsys.readouterr().out
    assert text.startswith("<details><summary>fastloop doctor</summary>\n\n```\nfastloop ")
    assert text.endswith("\n```\n\n</details>\n")


def test_a_doctor_that_fails_itself_returns_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_facts", lambda system: 1 / 0)
    assert doctor.main([]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_not_told_to_update_a_driver(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_cuda(index: int) -> None:
        raise RuntimeError("CUDA error 35, driver version is insufficient")

    info = {**doctor.build_info(), "cuda": "13.0", "cuda_archs": "80"}
    monkeypatch.setattr(doctor, "build_info", lambda: info)
    monkeypatch.setattr(doctor, "explain_error", lambda error: "update the driver")
    monkeypatch.setattr(doctor, "kernels_are_disabled", lambda: False)
    monkeypatch.setattr(doctor, "check_cuda", check_cuda)
    assert "no NVIDIA GPU is visible" in doctor._device(fake())
    assert doctor._device(with_gpu(fake)).endswith("not usable here, update the driver")


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a DataLoader or nothing, got int; .* data="):
        fastloop.doctor(123)


def test_from_python_a_loader_is_looked_at() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(2)), num_workers=10_000)
    found = fastloop.doctor(loader)
    assert isinstance(found, fastloop.Diagnosis)
    assert "num_workers=10000 asks for" in next(f.cost for f in found.findings if f.id == "cpus")
