"""What nvcc makes of the kernels, on a machine without a GPU: code for every architecture promised,
within the registers that their blocks count on, nothing spilled, loads of 128 bits."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHS = (75, 80, 86, 89, 90, 100, 120)
MAX_REGISTERS = 64  # four blocks of 256 threads share the 65 536 of a multiprocessor
PASSES = ("k_norm_check", "k_scale", "k_combine")
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
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Kernel]]:
    folder = tmp_path_factory.mktemp("cubins")
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
