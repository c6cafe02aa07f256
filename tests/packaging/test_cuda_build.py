"""What nvcc has made of the kernels, read from the built module without a GPU. There is code for
every architecture; it keeps within the registers that its blocks count on and spills nothing; loads
and stores are wide, several loads under way at a time."""

import functools
import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from time_limits import limit

import fastloop
from fastloop import _core

ARCHS = [int(arch) for arch in str(fastloop.build_info()["cuda_archs"]).split()]
MAX_REGISTERS = 64  # four blocks of 256 threads share the 65 536 of a multiprocessor
PASSES = ("k_norm_check", "k_scale", "k_combine")
# Loads of whole packs, by what one of them reads, that no instruction waits for before all of them
# have been issued. Narrower ones are of tensors that do not lie at a multiple of 16 bytes.
IN_FLIGHT = {
    "k_norm_check": {"128": 4, "64": 8, "32": 16, "U16": 16},
    "k_scale": {"128": 4},  # begins each tensor at a multiple of 16 bytes
    "k_combine": {"128": 4, "64": 4, "32": 8, "U16": 8},
}
# To halves; to floats, of three channels and of four: how wide bytes are loaded, and how often
# before one of them is used.
CASTS = {"k_castItLi4": ("64", 2), "k_castIjLi3": ("32", 4), "k_castIjLi4": ("32", 4)}
# From bytes, halves and words to integers of 4 (j) and of 8 bytes (m): how wide they are loaded;
# how often before one is used.
WIDENED = {
    "k_widenIhj": "U8",
    "k_widenIhm": "U8",
    "k_widenItj": "U16",
    "k_widenItm": "U16",
    "k_widenIjm": "32",
}
WIDEN_AHEAD = 16
NUMBERS = (
    *("k_clip_factor", "k_fetch", "k_gather", "k_invert", "k_pieces", "k_update_scale"),
    "k_write_rows",
)

pytestmark = [
    pytest.mark.slowest,
    pytest.mark.skipif(not ARCHS, reason="it is built without CUDA"),
]


@functools.cache  # to disassemble takes seconds
def cuobjdump(*arguments: str) -> str:
    """What it says of the module; it comes with CUDA, or as a wheel of requirements-dev.txt."""
    wheel = Path(sysconfig.get_path("purelib"), "nvidia/cu13/bin")
    path = os.pathsep.join([str(wheel), os.environ["PATH"]])
    if shutil.which("cuobjdump", path=path) is None:
        pytest.skip("there is no cuobjdump; pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    assert _core.__file__ is not None
    done = subprocess.run(
        ["cuobjdump", *arguments, _core.__file__],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def short_name(mangled: str) -> str:
    found = re.search(r"\d+(k_[a-z_]+?)(?=I\d|I[a-z]|[0-9A-Z])", mangled)
    return found[1] if found else mangled


class Kernel(NamedTuple):
    name: str
    registers: int
    memory: int  # bytes a thread, of its stack and of what is spilled


def kernels(arch: int) -> list[Kernel]:
    usage = r" Function (\w+):\s+REG:(\d+) STACK:(\d+) \S+ LOCAL:(\d+) "
    found = re.findall(usage, cuobjdump("-arch", f"sm_{arch}", "-res-usage"))
    return [Kernel(short_name(n), int(r), int(stack) + int(local)) for n, r, stack, local in found]


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_keep_within_their_budget(arch: int) -> None:
    built = kernels(arch)
    names = sorted(kernel.name for kernel in built)
    # Of a pass two: by the table they carry.
    assert names == sorted(
        [
            *(*PASSES, *PASSES, *NUMBERS, "k_colors", *["k_images"] * 3, *["k_windows"] * 3),
            *["k_cast"] * len(CASTS),
            *["k_widen"] * len(WIDENED),
        ]
    )
    assert [k for k in built if k.memory > 0 or k.registers > MAX_REGISTERS] == []


def test_loads_and_stores_are_of_128_bits() -> None:
    files = cuobjdump("-ptx").split(f".target sm_{ARCHS[0]}\n")[1:]
    entries = [entry for ptx in files for entry in ptx.split(".target ")[0].split(".entry ")[1:]]
    passes = {entry.split("(")[0]: entry for entry in entries if short_name(entry) in PASSES}
    assert len(passes) == 2 * len(PASSES)
    for name, entry in passes.items():
        assert not re.search(r"\b(ld|st)\.local\b", entry), name
        kinds = ["ld.global.v4.u32", "ld.global.v4.f32", "ld.global.v2.f64"]
        if short_name(name) != "k_norm_check":
            kinds += [kind.replace("ld", "st", 1) for kind in kinds]
        assert [kind for kind in kinds if kind not in entry] == [], name


def test_what_is_drawn_fuses_no_product_with_a_sum() -> None:
    """Of the CPU's double arithmetic every result is rounded; --fmad=false says so to nvcc."""
    files = cuobjdump("-ptx").split(f".target sm_{ARCHS[0]}\n")[1:]
    (draws,) = (ptx for ptx in files if "k_gather" in ptx)
    assert "mul.rn.f64" in draws
    assert "fma.rn" not in draws.split(".target ")[0]


def test_the_module_has_ptx_of_the_oldest_and_of_the_newest() -> None:
    """So that devices of architectures that are not listed (11.0, say) find code; of each file."""
    files = len(list(Path(__file__).parents[2].glob("csrc/cuda/*.cu")))
    listed = cuobjdump("--list-ptx", "--list-elf")
    assert {int(arch) for arch in re.findall(r"\.sm_(\d+)\.ptx", listed)} == {ARCHS[0], ARCHS[-1]}
    assert sorted(int(arch) for arch in re.findall(r"\.sm_(\d+)\.cubin", listed)) == sorted(
        ARCHS * files
    )


# ---- machine code

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
        width = next((m for m in modifiers if m in ("128", "64", "U16", "U8")), "32")
        target = re.match(r"R(\d+)", operands)
        assert target is not None, operands
        pending |= {int(target[1]) + i for i in range(REGISTERS.get(width, 1))}
        row[width] += 1
        most[width] = max(most.get(width, 0), row[width])
    return most


@pytest.mark.parametrize("arch", sorted({75, 90, 120}.intersection(ARCHS)))
def test_loads_are_in_flight_together(arch: int) -> None:
    """Of aligned tensors and of misaligned ones (views into the buckets of DDP and FSDP)."""
    found = {}
    for code in cuobjdump("-arch", f"sm_{arch}", "-sass").split("Function : ")[1:]:
        name = short_name(code.split()[0])
        if name in PASSES:
            most = loads_in_flight(code)
            found[code.split()[0]] = {width: most.get(width, 0) for width in IN_FLIGHT[name]}
    assert len(found) == 2 * len(PASSES)
    for mangled, most in found.items():
        wanted = IN_FLIGHT[short_name(mangled)]
        assert all(most[width] >= count for width, count in wanted.items()), (mangled, most)


@pytest.mark.parametrize("arch", sorted({75, 90, 120}.intersection(ARCHS)))
def test_casts_load_ahead_and_store_whole_packs(arch: int) -> None:
    found = 0
    for code in cuobjdump("-arch", f"sm_{arch}", "-sass").split("Function : ")[1:]:
        for name, (width, ahead) in CASTS.items():
            if name in code.split()[0]:
                found += 1
                assert loads_in_flight(code).get(width, 0) == ahead, name
                assert len(re.findall(r"\bSTG\.E\.128\b", code)) == ahead + 1, name
    assert found == len(CASTS)


@pytest.mark.parametrize("arch", sorted({75, 90, 120}.intersection(ARCHS)))
def test_integers_are_loaded_ahead_and_stored_as_whole_packs(arch: int) -> None:
    found = 0
    for code in cuobjdump("-arch", f"sm_{arch}", "-sass").split("Function : ")[1:]:
        for name, width in WIDENED.items():
            if name in code.split()[0]:
                found += 1
                assert loads_in_flight(code).get(width, 0) == WIDEN_AHEAD, name
                packs = WIDEN_AHEAD * (4 if name[-1] == "j" else 8) // 16
                assert len(re.findall(r"\bSTG\.E\.128\b", code)) == packs + 1, name
    assert found == len(WIDENED)
