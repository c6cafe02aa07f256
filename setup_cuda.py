"""The device half of the build: finds nvcc, compiles csrc/cuda with it, or says why not.

setup.py calls add_to() and nothing else. FASTLOOP_CUDA and FASTLOOP_CUDA_ARCHS are read here;
docs/internals/cuda.md explains them and the rule for architectures.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from glob import glob
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension
from setuptools.errors import SetupError

ARCHS = (75, 80, 90, 100, 120)  # devices of 8.6 and 8.9 run the code of 8.0
OLDEST = (12, 1)  # kernels take arguments of up to 32 KB
LOCAL = "/usr/local/cuda*"
IN_SITE = "nvidia/cu13"
STUB = "csrc/cuda/fl_cuda_stub.c"
EXACT = "csrc/cuda/fl_cuda_gather.cu"  # draws the CPU's bits: no product may be fused with a sum
CUDART = "libcudart_static.a"
HOST_FLAGS = ["-fPIC", "-fvisibility=hidden"]
# What would need the C++ runtime is off: the module stays C.
HOST_FLAGS += ["-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fno-threadsafe-statics"]
NEEDED = (
    f"A CUDA build takes g++ and nvcc of CUDA {OLDEST[0]}.{OLDEST[1]} or later with its static "
    "runtime; CUDA_HOME says where they are, FASTLOOP_CUDA=0 builds without them."
)


class CudaUnavailableError(Exception):
    """Why there is no CUDA build: one line, then what the tool printed, if one did."""

    def __init__(self, line: str, output: str = "") -> None:
        super().__init__(f"{line}\n{output[:2000].strip()}".strip())
        self.line = line


class Toolkit(NamedTuple):
    nvcc: str
    archs: list[int]  # ascending
    includes: list[str]
    cudart: str  # the static library
    release: tuple[int, int]


def run(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CudaUnavailableError(f"{command[0]} does not run: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
        said = [*errors, *lines, f"exit status {done.returncode}"][0].strip()
        raise CudaUnavailableError(f"{command[0]} failed: {said[:300]}", done.stdout)
    return done.stdout


def places() -> dict[str, list[str]]:
    """Where an nvcc may be, best first: what the place is called, and the programs to look for."""
    found = {}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(name)
        if root:
            found[f"{name}={root}"] = [f"{root}/bin/nvcc"]
        else:
            found[f"{name} (not set)"] = []
    in_path = shutil.which("nvcc")
    found["PATH"] = [in_path] if in_path else []
    roots = sorted(glob(LOCAL), key=lambda root: [int(n) for n in re.findall(r"\d+", root)])
    roots.append(LOCAL.rstrip("*"))  # the link to the current one
    found[LOCAL] = [f"{root}/bin/nvcc" for root in reversed(roots)]
    sites = (sysconfig.get_path("purelib"), *sys.path)
    found[f"{IN_SITE} in site-packages"] = [f"{site}/{IN_SITE}/bin/nvcc" for site in sites]
    return found


def find_nvcc() -> str:
    looked = places()
    for program in chain(*looked.values()):
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    raise CudaUnavailableError(f"there is no nvcc; looked in {', '.join(looked)}")


def text(archs: Iterable[int]) -> str:
    return " ".join(map(str, sorted(archs)))


def choose_archs(nvcc: str) -> list[int]:
    """The architectures asked for, which nvcc must all know; by default, what it knows of ARCHS."""
    known = {int(n) for n in re.findall(r"\bsm_(\d+)\b", run(nvcc, "--list-gpu-code"))}
    words = re.findall(r"[^\s,;]+", os.environ.get("FASTLOOP_CUDA_ARCHS", ""))
    for word in words:
        if not re.fullmatch(r"[1-9]\d{1,2}", word):
            raise SetupError(
                f"FASTLOOP_CUDA_ARCHS: {word!r} is not an architecture; write numbers such as "
                "'80 90' (compute capability 8.0 and 9.0)"
            )
    wanted = {int(word) for word in words} or known.intersection(ARCHS) or set(ARCHS)
    if wanted - known:
        raise CudaUnavailableError(
            f"{nvcc} does not know architecture {text(wanted - known)}; it knows {text(known)}"
        )
    return sorted(wanted)


def find_toolkit() -> Toolkit:
    nvcc = find_nvcc()
    release = re.search(r"release (\d+)\.(\d+)", run(nvcc, "--version"))
    if release is None:
        raise CudaUnavailableError(f"{nvcc} --version does not name a release")
    number = (int(release[1]), int(release[2]))
    if number < OLDEST:
        raise CudaUnavailableError(
            f"{nvcc} is of CUDA {release[1]}.{release[2]}, older than {OLDEST[0]}.{OLDEST[1]}"
        )
    # nvcc may be a script or a link: it is asked where its headers and libraries are.
    plan = run(nvcc, "--dryrun", "-c", "any.cu")
    said = dict(re.findall(r"^#\$ (INCLUDES|LIBRARIES)=(.*)$", plan, re.MULTILINE))
    includes, folders = (
        [word[2:] for word in shlex.split(said.get(name, ""))] for name in ("INCLUDES", "LIBRARIES")
    )
    # The wheels' nvcc names a lib64 that they call lib.
    folders += [re.sub(r"/lib64$", "/lib", folder) for folder in folders]
    found = [path for folder in folders if os.path.isfile(path := f"{folder}/{CUDART}")]
    if not found:
        raise CudaUnavailableError(f"{nvcc} has no {CUDART} (looked in {', '.join(folders)})")
    return Toolkit(nvcc, choose_archs(nvcc), includes, found[0], number)


def compile_kernels(toolkit: Toolkit, ext: Extension, folder: str) -> list[str]:
    """The objects of all .cu files: code for each architecture, and PTX of the oldest, for devices
    between them that none of it is for, and of the newest, for what comes later."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in toolkit.archs]
    codes += [
        f"-gencode=arch=compute_{arch},code=compute_{arch}"
        for arch in sorted({toolkit.archs[0], toolkit.archs[-1]})
    ]
    # Uncompressed, the same kernels for all architectures are ten times as large. The mode `size`
    # takes a sixth less; old drivers cannot read it, but all that run code of CUDA 13 can.
    compress = "--compress-mode=size" if toolkit.release >= (13, 0) else "-Xfatbin=-compress-all"
    flags = ["-O3", "-std=c++17", compress, f"-Xcompiler={','.join(HOST_FLAGS)}"]
    flags += ["--threads=0", *(f"-I{path}" for path in ext.include_dirs)]
    if os.environ.get("FASTLOOP_WERROR") == "1":
        flags.append("--Werror=all-warnings")
    os.makedirs(folder, exist_ok=True)
    objects = []
    for source in sorted(glob("csrc/cuda/*.cu")):
        objects.append(f"{folder}/{Path(source).stem}.o")
        more = ["--fmad=false"] if source == EXACT else []
        print(run(toolkit.nvcc, *codes, *flags, *more, "-c", source, "-o", objects[-1]), end="")
    return objects


def drop_runtime_names(module: str) -> None:
    """Drops the names of functions inside the static CUDA runtime, a twelfth of the module: they
    are hashes. Names of our own functions stay, for tests and profilers."""
    with contextlib.suppress(CudaUnavailableError):  # without strip the module is only larger
        run("strip", "-w", "-N", "libcudart_static_*", module)


def c_string(text: str) -> str:
    plain = text.encode("ascii", "backslashreplace").decode()
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def add_to(ext: Extension, folder: str) -> None:
    """Adds csrc/cuda to what is compiled and linked: the device half, or its stub and the reason.

    Objects go to folder."""
    mode = os.environ.get("FASTLOOP_CUDA") or "auto"
    if mode not in ("auto", "0", "1"):
        raise SetupError(f"FASTLOOP_CUDA={mode}: it is auto, 0 or 1")
    archs = reason = ""
    try:
        if mode == "0":
            raise CudaUnavailableError("FASTLOOP_CUDA was 0")
        toolkit = find_toolkit()
        objects = compile_kernels(toolkit, ext, folder)
        ext.sources += [path for path in sorted(glob("csrc/cuda/*.c")) if path != STUB]
        ext.extra_compile_args += [f"-isystem{path}" for path in toolkit.includes]
        ext.extra_objects += [*objects, toolkit.cudart]
        ext.libraries += ["dl", "rt"]
        archs = text(toolkit.archs)
    except CudaUnavailableError as why:
        if mode == "1":
            raise SetupError(f"FASTLOOP_CUDA=1, but {why}\n{NEEDED}") from None
        print(f"fastloop is built without CUDA: {why.line}")
        ext.sources.append(STUB)
        reason = str(why)
    ext.define_macros += [("FL_CUDA_ARCHS", c_string(archs)), ("FL_CUDA_REASON", c_string(reason))]
