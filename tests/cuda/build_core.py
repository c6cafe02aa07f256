"""Builds fastloop with its CUDA backend for machines without a GPU.

    python tests/cuda/build_core.py FOLDER kernels|uploads [OBJECTS]

Over the runtime of tests/cuda/fake. kernels: compiled for the CPU through the shim; uploads: none,
but with what their tests ask of the fake.

FOLDER then holds a package `fastloop` and libas_cuda.so; see as_cuda.py. What OBJECTS holds is not
compiled again, so both halves share their files: the folder is for one state of the sources. Files
that know nothing of CUDA come from the last installation, if no source is newer."""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
CSRC, HERE = ROOT / "csrc", Path(__file__).parent
FLOORS = [path for path in sorted(CSRC.rglob("*")) if path.is_dir() and "vendor" not in path.parts]
FLAGS = ["-O1", "-g0", "-fPIC", "-pthread", "-ffp-contract=off"]
DEFINES = [
    '-DFL_VERSION="0"',
    '-DFL_CUDA_ARCHS="shim"',
    '-DFL_CUDA_REASON=""',
    "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION",
    "-DNPY_TARGET_VERSION=NPY_1_25_API_VERSION",
]
CXX_FLAGS = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing"]
FOLDERS = [*FLOORS, HERE, HERE / "fake", HERE / "shim", CSRC / "vendor"]
FOLDERS += [Path(sysconfig.get_path("include")), Path(numpy.get_include())]
INSTALLED = ROOT / f"build/temp.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
NEWEST = max(path.stat().st_mtime for path in [ROOT / "setup.py", *CSRC.rglob("*.[ch]")])


def find_installed(source: Path) -> Path | None:
    """Return the object that was installed. Two folders have what is defined for CUDA."""
    if CSRC not in source.parents or source.parent in (CSRC / "cuda", CSRC / "python"):
        return None
    made = INSTALLED / source.relative_to(ROOT).with_suffix(".o")
    return made if made.exists() and made.stat().st_mtime > NEWEST else None


def compile_one(source: Path, folder: Path) -> Path:
    made = find_installed(source) or folder / f"{source.name}.o"
    if made.exists():
        return made
    is_cuda = source.suffix == ".cu"
    language = ["g++", "-x", "c++", *CXX_FLAGS] if is_cuda else ["gcc", "-std=c11"]
    includes = [f"-I{path}" for path in FOLDERS]
    subprocess.run(
        [*language, *FLAGS, *DEFINES, *includes, "-c", str(source), "-o", str(made)], check=True
    )
    return made


def find_sources(half: str) -> list[Path]:
    sources = [path for floor in FLOORS for path in floor.iterdir() if path.suffix in (".c", ".cu")]
    without = {"fl_cuda_stub.c"}
    if half == "kernels":
        uploads_only = {"fake_kernels.c", "fake_torch.c"}
        fake = [path for path in (HERE / "fake").glob("*.c") if path.name not in uploads_only]
        more = [HERE / "shim_grid.c", *fake]
    else:
        more = list((HERE / "fake").glob("*.c"))
        without |= {"fl_cuda_grad.c", *(path.name for path in CSRC.glob("cuda/*.cu"))}
    return [*(path for path in sources if path.name not in without), *more]


def compile_all(sources: list[Path], objects: Path) -> list[Path]:
    """Compiles those that `objects` does not hold. Another process may do so at the same time."""
    objects.mkdir(parents=True, exist_ok=True)
    with open(objects / "lock", "w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return list(pool.map(lambda source: compile_one(source, objects), sources))


def build(folder: Path, half: str, objects: Path) -> None:
    *made, shown = compile_all([*find_sources(half), HERE / "as_cuda.c"], objects)
    package = folder / "fastloop"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "fastloop", package, ignore=shutil.ignore_patterns("__pycache__"))
    core = package / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    link = ["g++", "-shared", "-pthread"]
    subprocess.run([*link, *map(str, made), "-o", str(core), "-ldl", "-lm"], check=True)
    subprocess.run([*link, str(shown), "-o", str(folder / "libas_cuda.so")], check=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if len(sys.argv) == 3:
        shutil.rmtree(folder / "objects", ignore_errors=True)
    build(folder, sys.argv[2], Path(*sys.argv[3:] or [folder / "objects"]).resolve())
