"""The tests of what is built on the passes, over the CUDA backend: its kernels run on the CPU
(tests/cuda), and the engine takes every tensor for one of a CUDA device."""

import os
from pathlib import Path

import pytest
from built_core import build_core
from helpers import run_program, run_script
from sources import ROOT

pytestmark = pytest.mark.slowest
FILES = (
    "test_grad_list.py test_clip.py test_scaler.py test_scaler_bounds.py test_scaler_parity.py "
    "test_stepper.py test_stepper_exact.py"
).split()
OTHERWISE = {
    # Only the device knows that a factor is 1: autograd is told of a write.
    "test_grad_list.py::test_unscaling_by_1_only_reads",
    "test_grad_list.py::test_scale[",
    "test_scaler.py::test_fused_optimizer_gets_the_flag_and_is_counted[engine]",
    # A list without tensors is on the CPU, and so are its numbers.
    "test_grad_list.py::test_collecting_sees_what_has_changed",
    "test_grad_list.py::test_a_default_device_does_not_matter[GradList]",
    "test_grad_list.py::test_an_empty_list",
    # Loads with fastloop's loader, whose data would be on the device.
    "test_stepper_exact.py::test_the_loader_may_be_ours",
    # Take long, and ask the kernels for nothing that others do not.
    "test_stepper_exact.py::test_buffers_equal_one_big_batch",
    "test_stepper_exact.py::test_bfloat16_is_as_good_as_torch",
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory, "kernels")


@pytest.fixture(autouse=True)
def programs_import_it(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(core), str(ROOT / "tests/cuda")]))


SEEN = """
import as_cuda, torch
from fastloop.step.grad_list import GradList
print(GradList().collect([torch.ones(3)]).is_plain)
"""


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_tensors_are_seen_on_a_device(
    disabled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the next test relies on; and it can be switched off."""
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", disabled)
    assert run_script(tmp_path, SEEN).strip() == str(disabled == "0")


SCRATCH = """
import as_cuda, torch
import fastloop.step.grad_list as grads

made, is_full = [], False
def new_scratch(like, size, make=grads._new_scratch):
    if is_full:
        raise torch.OutOfMemoryError("none left")
    made.append(make(like, size))
    return made[-1]
grads._new_scratch = new_scratch

few, many = [torch.ones(2)] * 1, [torch.ones(20_000) for _ in range(3000)]
found, passes = torch.zeros(()), grads.GradList()
def norm(tensors):
    return round(passes.collect(tensors).norm_check(found).item() ** 2)

assert norm(few) == 2 and norm(few) == 2 and len(made) == 1
is_full = True
for tensors in (many, few):
    try:
        norm(tensors)
        raise AssertionError("scratch that was too small, or was given up, is in use")
    except torch.OutOfMemoryError:
        pass
is_full = False
assert norm(many) == 60_000_000 and len(made) == 2 and norm(few) == 2 and len(made) == 2
"""


def test_scratch_that_could_not_be_had_is_asked_for_again(tmp_path: Path) -> None:
    run_script(tmp_path, SCRATCH)


FAILURES = """
import as_cuda, ctypes, torch
import fastloop._core as core
from fastloop.step.grad_list import GradList

fake = ctypes.CDLL(core.__file__)
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
passes, half = GradList().collect([torch.ones(3)]), torch.tensor(0.5, dtype=torch.float64)
passes.scale_(half)
failed = 0
for n in range(1, 9):
    fake.fake_fail_at(n, 719, False)
    try:
        passes.scale_(half)
    except torch.AcceleratorError as error:
        assert type(error) is torch.AcceleratorError and error.error_code == 719, repr(error)
        assert "cudaErrorLaunchFailure" in str(error)
        failed += 1
fake.fake_fail_at(0, 0, False)
assert failed > 2, failed
assert passes.tensors[0].tolist() == [0.5 ** (1 + 8 - failed)] * 3
"""


def test_a_pass_that_cannot_be_queued_raises_torchs_error(tmp_path: Path) -> None:
    run_script(tmp_path, FAILURES)


def test_rows_of_resident_data_are_gathered(tmp_path: Path) -> None:
    run_program(tmp_path, "resident_batches")


def test_sequences_of_resident_data_are_padded_and_packed(tmp_path: Path) -> None:
    run_program(tmp_path, "resident_sequences")


def test_rows_in_host_memory_are_gathered(tmp_path: Path) -> None:
    run_program(tmp_path, "fetched_batches")


def test_the_same_over_kernels(tmp_path: Path) -> None:
    options = ["-q", "-x", "-p", "as_cuda", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
    without = [f"--deselect=tests/step/{name}" for name in OTHERWISE]
    files = [ROOT / "tests/step" / name for name in FILES]
    options += [f"--basetemp={tmp_path}/base", "-o", f"cache_dir={tmp_path}/cache"]
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    out = run_script(tmp_path, program, *options, *without, *files, timeout=560)
    assert " passed" in out and "deselected" in out
