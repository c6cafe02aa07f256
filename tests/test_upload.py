"""Batches for a device, from the sampler to the user's kernels: the module is compiled anew over a
fake of the CUDA runtime, and each trial runs in a process of its own."""

import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
FAKE = ROOT / "tests" / "cuda" / "fake"
TRIAL_S = 240

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, over the fake."""
    folder = tmp_path_factory.mktemp("core")
    floors = [CSRC / name for name in ("base", "core", "cpu", "cuda", "python")]
    sources = [path for floor in floors if floor.name != "cuda" for path in floor.glob("*.c")]
    sources += [CSRC / "cuda" / name for name in ("fl_cuda.c", "fl_cuda_upload.c")]
    sources += FAKE.glob("*.c")
    folders = [*floors, FAKE, CSRC / "vendor"]
    folders += [Path(sysconfig.get_path("include")), Path(np.get_include())]
    command = ["gcc", "-std=c11", "-O1", "-g", "-fPIC", "-pthread", '-DFL_VERSION="fake"']
    command += ['-DFL_CUDA_ARCHS="80"', '-DFL_CUDA_REASON=""']
    command += ["-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION"]
    command += ["-DNPY_TARGET_VERSION=NPY_1_25_API_VERSION", *(f"-I{path}" for path in folders)]

    def compile_file(source: Path) -> str:
        out = str(folder / f"{source.stem}.o")
        subprocess.run([*command, "-c", str(source), "-o", out], check=True)
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_file, sources))
    path = folder / "core.so"
    subprocess.run(["gcc", "-shared", "-pthread", *objects, "-o", str(path), "-lm"], check=True)
    return path


@pytest.mark.parametrize(
    "trial",
    [
        "batches_and_singles_lists_and_dicts",
        "the_current_stream_may_change",
        "a_loop_is_left_early",
        "a_loader_from_end_to_end",
        "memory_comes_back",
        "an_interrupt_loses_no_batch",
        "a_batch_cannot_be_filled",
        "slots_cannot_be_pinned",
        "each_call_may_fail",
        "a_child_is_inert",
        "a_cycle_is_collected",
        "arguments_are_checked",
    ],
)
def test_upload(core: Path, trial: str) -> None:
    command = [sys.executable, str(ROOT / "tests" / "upload_trials.py"), str(core), trial]
    subprocess.run(command, check=True, timeout=TRIAL_S, cwd=core.parent)
