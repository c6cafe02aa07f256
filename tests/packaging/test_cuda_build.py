"""What nvcc makes of the kernels, on a machine without a GPU: code for every architecture promised,
within the registers that their blocks count on, nothing spilled, loads of 128 bits, several loads
under way at a time."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import fastloop
from fastloop import _core

ROOT = Path(__file__).resolve().parents[2]
ARCHS = (75, 80, 86, 89, 90, 100, 120)
MAX_REGISTERS = 64  # four blocks of 256 threads share the 65 536 of a multiprocessor
PASSES = ("k_norm_check", "k_scale", "k_combine")
# Loads of whole packs, by what one of them reads, that no instruction waits for before all of them
# have been issued. Narrower ones are of tensors that do not lie at a multiple of 16 bytes.
IN_FLIGHT = {
    "k_norm_check": {"128": 4, "64": 8, "32": 16, "U16": 16},
    "k_scale": {"128": 4},  # begins each tensor at a multiple of 16 bytes
    "k_combine": {"128": 4, "64": 4, "32": 8, "U16": 8},
}
NUMBERS = ("k_clip_factor", "k_invert", "k_update_scale", "k_write_rows")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc"),
]


class Kernel(NamedTuple):
    name: str
    spilled: int  # bytes, of the stack too
    registers: int


def nvcc(*arguments: str | Path) -> str:
    folders = [f"-I{ROOT}/csrc/{floor}" for floor in ("base", "core", "cuda")]
    source = ROOT / "csrc/cuda/fl_cuda_kernels.cu"
    done = subprocess.run(
        ["nvcc", "-O3", "-std=c++17", "--Werror=all-warnings", *folders, *arguments, source],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def short_name(mangled: str) -> str:
    found = re.search(r"\d+(k_[a-z_]+?)(?=I\d|I[a-z]|[0-9A-Z])", mangled)
    return found[1] if found else mangled


def kernels(arch: int, folder: Path) -> list[Kernel]:
    """What ptxas says of each kernel, compiled for sm_`arch`."""
    report = nvcc(f"-arch=sm_{arch}", "-cubin", "-Xptxas=-v", "-o", folder / f"{arch}.cubin")
    found = []
    for part in report.split("Compiling entry function")[1:]:
        name = re.match(rf" '(\w+)' for 'sm_{arch}\w*'", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert name and registers, part
        memory = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", part)
        assert memory, part
        found.append(Kernel(short_name(name[1]), sum(map(int, memory)), int(registers[1])))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[int, list[Kernel]]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ARCHS, pool.map(lambda arch: kernels(arch, folder), ARCHS), strict=True))


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_keep_within_their_budget(built: dict[int, list[Kernel]], arch: int) -> None:
    names = sorted(kernel.name for kernel in built[arch])
    assert names == sorted([*PASSES, *PASSES, *NUMBERS])  # of a pass two: by the table they carry
    wrong = [k for k in built[arch] if k.spilled > 0 or k.registers > MAX_REGISTERS]
    assert wrong == []


def test_loads_and_stores_are_of_128_bits(tmp_path: Path) -> None:
    path = tmp_path / "kernels.ptx"
    nvcc(f"-arch=compute_{ARCHS[0]}", "-ptx", "-o", path)
    entries = path.read_text().split(".entry ")[1:]
    passes = {entry.split("(")[0]: entry for entry in entries if short_name(entry) in PASSES}
    assert len(passes) == 2 * len(PASSES)
    for name, entry in passes.items():
        assert not re.search(r"\b(ld|st)\.local\b", entry), name
        kinds = ["ld.global.v4.u32", "ld.global.v4.f32", "ld.global.v2.f64"]
        if short_name(name) != "k_norm_check":
            kinds += [kind.replace("ld", "st", 1) for kind in kinds]
        assert [kind for kind in kinds if kind not in entry] == [], name


# ---- machine code


def cuobjdump(*arguments: str | Path) -> str:
    """What it says; it comes with CUDA, or as a wheel of requirements-dev.txt."""
    wheel = Path(sysconfig.get_path("purelib"), "nvidia/cu13/bin")
    path = os.pathsep.join([str(wheel), os.environ["PATH"]])
    if shutil.which("cuobjdump", path=path) is None:
        pytest.skip("there is no cuobjdump; pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    done = subprocess.run(
        ["cuobjdump", *arguments],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not fastloop.build_info()["cuda"], reason="it is built without CUDA")
def test_the_module_has_ptx_of_the_oldest_and_of_the_newest() -> None:
    """So that a device of an architecture that is not listed (11.0, say) finds code."""
    assert _core.__file__ is not None
    archs = str(fastloop.build_info()["cuda_archs"]).split()
    listed = cuobjdump("--list-ptx", "--list-elf", _core.__file__)
    assert set(re.findall(r"\.sm_(\d+)\.ptx", listed)) == {archs[0], archs[-1]}
    assert sorted(re.findall(r"\.sm_(\d+)\.cubin", listed), key=int) == archs


INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
ENDS = ("BRA", "BRX", "EXIT", "BSYNC", "WARPSYNC", "BAR", "CALL", "RET")
REGISTERS = {"128": 4, "64": 2}


def loads_in_flight(code: str) -> dict[str, int]:
    """By width, the most loads from global memory in a row that are executed whatever happens, with
    no jump between them and before anything uses what one of them has loaded."""
    pending: set[int] = set()
    row: Counter[str] = Counter()
    most: dict[str, int] = {}
    for guard, name, operands in INSTRUCTION.findall(code):
        kind, *modifiers = name.split(".")
        if kind in ENDS or pending & {int(r) for r in re.findall(r"\bR(\d+)\b", operands)}:
            pending.clear()
            row.clear()
        if kind != "LDG" or guard or "STRONG" in modifiers:  # strong: the sums of chunks
            continue
        width = next((m for m in modifiers if m in ("128", "64", "U16")), "32")
        target = re.match(r"R(\d+)", operands)
        assert target is not None, operands
        pending |= {int(target[1]) + i for i in range(REGISTERS.get(width, 1))}
        row[width] += 1
        most[width] = max(most.get(width, 0), row[width])
    return most


@pytest.mark.parametrize("arch", [75, 90, 120])
def test_loads_are_in_flight_together(
    built: dict[int, list[Kernel]], folder: Path, arch: int
) -> None:
    """Of aligned tensors and of misaligned ones (views into the buckets of DDP and FSDP)."""
    found = {}
    for code in cuobjdump("-sass", folder / f"{arch}.cubin").split("Function : ")[1:]:
        name = short_name(code.split()[0])
        if name in PASSES:
            most = loads_in_flight(code)
            found[code.split()[0]] = {width: most.get(width, 0) for width in IN_FLIGHT[name]}
    assert len(found) == 2 * len(PASSES)
    for mangled, most in found.items():
        wanted = IN_FLIGHT[short_name(mangled)]
        assert all(most[width] >= count for width, count in wanted.items()), (mangled, most)
