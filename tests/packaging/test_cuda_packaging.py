"""The device half of the build: which nvcc it finds, what it says without a working one, what the
module needs of a machine. tests/house/test_built_module.py reads the module's symbols."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from setuptools import Extension
from setuptools.errors import SetupError
from time_limits import limit
from user_environment import fake_toolkit

import fastloop
from fastloop import _core

pytestmark = pytest.mark.slowest

ROOT = Path(__file__).resolve().parents[2]
# 0.7 MB of it is the CUDA runtime. Kernels are 0.8 MB, and 1.9 MB in the compression of CUDA 12.
MAX_BYTES = {"12": 4_500_000}

with_cuda = pytest.mark.skipif(
    not fastloop.build_info()["cuda"], reason=str(fastloop.build_info()["cuda_reason"])
)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """setup_cuda of the sources, on a machine where there is no CUDA anywhere."""
    spec = importlib.util.spec_from_file_location("setup_cuda", ROOT / "setup_cuda.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("CUDA_HOME", "CUDA_PATH", "FASTLOOP_CUDA", "FASTLOOP_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(module, "LOCAL", f"{tmp_path}/local/cuda*")
    monkeypatch.setattr(module, "IN_SITE", "nvidia/none")
    monkeypatch.chdir(ROOT)
    return module


def added(build: ModuleType, tmp_path: Path) -> Extension:
    ext = Extension("fastloop._core", [], include_dirs=["csrc/base"])
    build.add_to(ext, str(tmp_path / "objects"))
    return ext


def macro(ext: Extension, name: str) -> str:
    return str(dict(ext.define_macros)[name])


def asked(root: Path) -> str:
    log = root / "log"
    return log.read_text() if log.exists() else ""


# ---- which nvcc


def test_nvcc_is_looked_for_in_the_order_of_the_documentation(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    places = ["home", "path", "on_path", "local/cuda", "local/cuda-13.1", "local/cuda-9.2"]
    roots = [fake_toolkit(tmp_path / place) for place in places]
    roots.append(fake_toolkit(site / "nvidia" / "cu13"))
    monkeypatch.setattr(build, "IN_SITE", "nvidia/cu13")
    monkeypatch.setenv("CUDA_HOME", str(roots[0]))
    monkeypatch.setenv("CUDA_PATH", str(roots[1]))
    monkeypatch.setenv("PATH", f"{roots[2]}/bin:/usr/bin:/bin")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(site))
    for root in roots:
        assert build.find_nvcc() == f"{root}/bin/nvcc"
        (root / "bin" / "nvcc").unlink()
    with pytest.raises(build.CudaUnavailableError, match="there is no nvcc") as raised:
        build.find_nvcc()
    looked = (f"CUDA_HOME={roots[0]}", f"CUDA_PATH={roots[1]}", "PATH", build.LOCAL, "nvidia/cu13")
    assert all(f" {place}" in str(raised.value) for place in looked)


def test_a_folder_of_that_name_and_a_file_that_is_no_program_are_passed_over(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "folder" / "bin" / "nvcc").mkdir(parents=True)
    (fake_toolkit(tmp_path / "file") / "bin" / "nvcc").chmod(0o644)
    root = fake_toolkit(tmp_path / "local" / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "folder"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "file"))
    assert build.find_nvcc() == f"{root}/bin/nvcc"


def test_an_empty_cuda_home_is_none(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "path")
    monkeypatch.setenv("CUDA_HOME", "")
    monkeypatch.setenv("CUDA_PATH", str(root))
    assert build.find_nvcc() == f"{root}/bin/nvcc"
    assert build.places()["CUDA_HOME (not set)"] == []


def test_the_runtime_is_found_where_the_wheels_have_it(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(root))
    toolkit = build.find_toolkit()
    assert toolkit.cudart == f"{root}/lib/libcudart_static.a"
    assert toolkit.includes == [f"{root}/include"]


# ---- what is added to the extension


def test_a_cuda_build_takes_all_but_the_stub(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(root))
    ext = added(build, tmp_path)
    sources = {path.name for path in (ROOT / "csrc" / "cuda").glob("*.c")}
    assert {Path(path).name for path in ext.sources} == sources - {"fl_cuda_stub.c"}
    kernels = {f"{path.stem}.o" for path in (ROOT / "csrc" / "cuda").glob("*.cu")}
    assert kernels
    assert {Path(path).name for path in ext.extra_objects} == kernels | {"libcudart_static.a"}
    assert macro(ext, "FL_CUDA_ARCHS") == '"75 80 90 100 120"'
    assert macro(ext, "FL_CUDA_REASON") == '""'
    codes = re.findall(r"-gencode=arch=compute_(\d+),code=(\w+)_(\d+)", asked(root))
    count = len(kernels)  # each file is compiled for all
    assert [code[2] for code in codes if code[1] == "sm"] == "75 80 90 100 120".split() * count
    ptx = [code for code in codes if code[1] == "compute"]
    assert ptx == [("75", "compute", "75"), ("120", "compute", "120")] * count


def test_fastloop_cuda_0_never_looks(
    build: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(root))
    monkeypatch.setenv("FASTLOOP_CUDA", "0")
    ext = added(build, tmp_path)
    assert ext.sources == ["csrc/cuda/fl_cuda_stub.c"] and ext.extra_objects == []
    assert asked(root) == ""
    assert capsys.readouterr().out.count("\n") == 1
    assert macro(ext, "FL_CUDA_REASON") == '"FASTLOOP_CUDA was 0"'


FAULTS = {
    "none": (None, "there is no nvcc; looked in CUDA_HOME (not set), CUDA_PATH (not set), PATH, "),
    "old": ({"version": "Cuda compilation tools, release 11.8, V11.8.89"}, "CUDA 11.8, older than"),
    "no release": ({"version": "nvcc for something else"}, "does not name a release"),
    "does not compile": (
        {"compiles": 'echo in a file; echo "x.cu(3): error: \\"no\\" headers"; exit 2'},
        'x.cu(3): error: "no" headers',
    ),
    "says nothing": ({"compiles": "exit 9"}, "exit status 9"),
    "knows nothing": ({"known": "sm_10 sm_20"}, "does not know architecture 75 80"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_working_nvcc_it_is_a_cpu_build_and_one_line_says_why(
    build: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
) -> None:
    options, said = FAULTS[fault]
    if options is not None:
        monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", **options)))
    ext = added(build, tmp_path)
    assert ext.sources == ["csrc/cuda/fl_cuda_stub.c"]
    assert ext.extra_objects == [] and ext.extra_link_args == []
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("fastloop is built without CUDA: ") and said in line
    assert macro(ext, "FL_CUDA_ARCHS") == '""'
    assert build.c_string(said)[1:-1] in macro(ext, "FL_CUDA_REASON")


@pytest.mark.parametrize("fault", FAULTS)
def test_fastloop_cuda_1_without_a_working_nvcc_is_an_error(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    options, said = FAULTS[fault]
    if options is not None:
        monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", **options)))
    monkeypatch.setenv("FASTLOOP_CUDA", "1")
    with pytest.raises(SetupError, match=re.escape(said)) as raised:
        added(build, tmp_path)
    assert "CUDA_HOME" in str(raised.value) and "FASTLOOP_CUDA=0" in str(raised.value)


def test_an_nvcc_that_cannot_run_is_a_cpu_build(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    (root / "bin" / "nvcc").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("CUDA_HOME", str(root))
    assert "does not run: Exec format error" in macro(added(build, tmp_path), "FL_CUDA_REASON")


def test_a_toolkit_without_the_static_runtime_is_a_cpu_build(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    (root / "lib" / "libcudart_static.a").unlink()
    monkeypatch.setenv("CUDA_HOME", str(root))
    assert "has no libcudart_static.a" in macro(added(build, tmp_path), "FL_CUDA_REASON")


def test_another_fastloop_cuda_is_an_error(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FASTLOOP_CUDA", "yes")
    with pytest.raises(SetupError, match="FASTLOOP_CUDA=yes: it is auto, 0 or 1"):
        added(build, tmp_path)


# ---- architectures


@pytest.mark.parametrize("text", ["80 90", "90,80", "80;90;", " 80 , 90 90 "])
def test_architectures_may_be_separated_by_anything(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda")))
    monkeypatch.setenv("FASTLOOP_CUDA_ARCHS", text)
    assert macro(added(build, tmp_path), "FL_CUDA_ARCHS") == '"80 90"'
    log = asked(tmp_path / "cuda")
    assert "code=compute_80" in log and "code=compute_90" in log and "_75" not in log


@pytest.mark.parametrize("mode", ["auto", "1"])
@pytest.mark.parametrize("word", ["sm_80", "8.0", "80a", "0"])
def test_what_is_no_architecture_is_an_error(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, mode: str
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda")))
    monkeypatch.setenv("FASTLOOP_CUDA", mode)
    monkeypatch.setenv("FASTLOOP_CUDA_ARCHS", f"90 {word}")
    with pytest.raises(SetupError, match=f"FASTLOOP_CUDA_ARCHS: '{word}'"):
        added(build, tmp_path)


def test_an_architecture_asked_for_is_not_left_out(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda")))
    monkeypatch.setenv("FASTLOOP_CUDA_ARCHS", "80 70")
    reason = macro(added(build, tmp_path), "FL_CUDA_REASON")
    assert "does not know architecture 70; it knows 75 80" in reason
    monkeypatch.setenv("FASTLOOP_CUDA", "1")
    with pytest.raises(SetupError, match="does not know architecture 70"):
        added(build, tmp_path)


def test_an_older_nvcc_builds_for_those_it_knows(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_toolkit(tmp_path / "cuda", known="sm_70 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90")
    monkeypatch.setenv("CUDA_HOME", str(root))
    assert macro(added(build, tmp_path), "FL_CUDA_ARCHS") == '"75 80 90"'
    assert "arch=compute_90,code=compute_90" in asked(root)


# ---- the built module


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTLOOP")}
    return subprocess.run(
        (sys.executable, "-c", code),
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )


def device_line(**variables: str) -> str:
    code = "import fastloop.__main__ as m; m.main(['doctor'])"
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("device ")]
    return line


def test_the_module_is_small() -> None:
    assert _core.__file__ is not None
    major = str(fastloop.build_info()["cuda"]).partition(".")[0]
    assert Path(_core.__file__).stat().st_size < MAX_BYTES.get(major, 3_400_000)


def test_build_info_says_how_or_why_not() -> None:
    info = fastloop.build_info()
    assert bool(info["cuda"]) == bool(info["cuda_archs"]) != bool(info["cuda_reason"])


def test_doctor_tells_of_the_build() -> None:
    info = fastloop.build_info()
    if info["cuda"]:
        assert f"CUDA {info['cuda']} for {info['cuda_archs']}" in device_line()
    else:
        reason = str(info["cuda_reason"]).splitlines()[0]
        assert f"CPU only, built without CUDA: {reason}" in device_line()


@with_cuda
def test_doctor_tells_that_kernels_are_switched_off() -> None:
    assert "FASTLOOP_DISABLE_CUDA is set" in device_line(FASTLOOP_DISABLE_CUDA="1")


@with_cuda
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver here")
def test_without_a_driver_the_check_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"CUDA error 35, cudaErrorInsufficientDriver"):
        _core.check_cuda(0)
    assert "or newer, has none; not used: no NVIDIA GPU is visible" in device_line()


@pytest.fixture
def no_device(tmp_path: Path) -> str:
    """A folder with a libcuda.so.1 that finds no device, and says on stdout that it is loaded."""
    source = tmp_path / "driver.c"
    source.write_text("""#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void load(void) { puts("loaded"); }
int cuInit(unsigned flags) { return (void)flags, 100; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
static int nothing(void) { return 999; }
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *found)
{
    (void)version, (void)flags;
    *out = strcmp(name, "cuInit") == 0               ? (void *)cuInit
           : strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion
           : strcmp(name, "cuGetProcAddress") == 0   ? (void *)cuGetProcAddress_v2
                                                     : (void *)nothing;
    if (found != NULL) *found = 0;
    return 0;
}
""")
    command = ("gcc", "-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1")
    subprocess.run(command, check=True, timeout=limit(300))
    return str(tmp_path)


@with_cuda
def test_import_loads_no_driver_and_the_check_does(no_device: str) -> None:
    done = python("import fastloop; fastloop.build_info()", LD_LIBRARY_PATH=no_device)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = python("import fastloop._core as c; c.check_cuda(0)", LD_LIBRARY_PATH=no_device)
    assert done.stdout == "loaded\n"
    assert done.stderr.strip().splitlines()[-1] == (
        "RuntimeError: cudaGetDeviceCount: no CUDA-capable device is detected (CUDA error 100, "
        "cudaErrorNoDevice)"
    )
