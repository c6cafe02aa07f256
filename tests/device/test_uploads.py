"""Batches for a device, from the sampler to the user's kernels: the module is compiled anew over a
fake of the CUDA runtime, and each trial runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from built_core import build_core
from helpers import run_file
from time_limits import limit

TESTS = Path(__file__).resolve().parents[1]
TRIAL_S = 580

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, over the fake."""
    (path,) = (build_core(tmp_path_factory, "uploads") / "fastloop").glob("_core*.so")
    return path


TRIALS = {
    "upload_trials": [
        "batches_and_singles_lists_and_dicts",
        "large_batches_go_up_in_slices",
        "threads_and_streams_live_on",
        "the_current_stream_may_change",
        "no_context_on_a_device_that_nobody_chose",
        "a_loop_is_left_early",
        "a_loader_from_end_to_end",
        "epochs_are_read_ahead",
        "sequences_from_end_to_end",
        "memory_comes_back",
        "an_interrupt_loses_no_batch",
        "a_batch_cannot_be_filled",
        "slots_cannot_be_pinned",
        "nothing_can_be_pinned",
        "each_call_may_fail",
        "a_child_is_inert",
        "a_cycle_is_collected",
        "arguments_are_checked",
    ],
    "image_trials": [
        "images_from_end_to_end",
        "images_are_made_there",
        "the_user_says_where",
    ],
    "token_trials": ["tokens_from_end_to_end", "tokens_that_cannot_be_had"],
    "pinning_trials": [
        "blocks_are_for_the_next_batches_alone",
        "blocks_of_large_batches_are_fewer",
        "batches_without_a_block_wait_filled",
        "the_budget_bounds_what_is_posted",
        "what_copies_still_read_counts_in_the_budget",
        "the_budget_of_a_loader_is_that",
        "the_first_batch_is_registered_first",
        "epochs_keep_what_is_registered",
        "growing_batches_are_registered_a_few_times",
        "batches_of_workers_keep_what_is_registered",
        "growing_batches_of_workers",
    ],
    "process_trials": [
        "a_loader_from_end_to_end",
        "epochs_are_read_ahead",
        "no_context_on_a_device_that_nobody_chose",
        "batches_of_every_kind",
        "a_batch_comes_in_the_middle_of_a_step",
        "the_current_stream_may_change",
        "order_is_torchs",
        "a_loop_is_left_early",
        "memory_comes_back",
        "memory_cannot_be_pinned",
        "each_call_may_fail",
        "a_child_is_inert",
        "a_worker_dies",
        "workers_come_back",
        "what_hides_tensors_goes_another_way",
        "a_transform_runs_on_what_has_arrived",
        "arguments_are_checked",
    ],
}


IMAGES = [
    "batches_and_singles_lists_and_dicts",
    "large_batches_go_up_in_slices",
    "the_current_stream_may_change",
    "a_loop_is_left_early",
    "memory_comes_back",
    "an_interrupt_loses_no_batch",
    "slots_cannot_be_pinned",
    "a_child_is_inert",
    "a_cycle_is_collected",
]


def run_trial(core: Path, script: str, *args: str) -> None:
    program = TESTS / f"support/{script}.py"
    done = run_file(program, core, *args, cwd=core.parent, timeout=TRIAL_S)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slowest
@pytest.mark.parametrize(
    ("script", "trial"), [(script, trial) for script, names in TRIALS.items() for trial in names]
)
def test_upload(core: Path, script: str, trial: str) -> None:
    run_trial(core, script, trial)


@pytest.mark.slowest
@pytest.mark.parametrize("kind", ["images", "sent"])
@pytest.mark.parametrize("trial", IMAGES)
def test_upload_of_images(core: Path, trial: str, kind: str) -> None:
    """As bytes, which are cast on the device; or as they are, with what a kernel does there."""
    run_trial(core, "upload_trials", trial, kind)


WITHOUT_TORCH = """
import ctypes, sys
import fastloop._core as core

fake = ctypes.CDLL(core.__file__)
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
for number, code in ((2, None), (719, 719)):
    fake.fake_fail_at(1, number, False)
    try:
        core.check_cuda(0)
        raise AssertionError("nothing failed")
    except Exception as error:
        assert type(error) is RuntimeError and f"(CUDA error {number}, " in str(error), repr(error)
        assert getattr(error, "error_code", None) == code
assert "torch" not in sys.modules
"""


@pytest.mark.slowest
def test_an_error_of_the_device_needs_no_torch(core: Path) -> None:
    """Nor loads it: who has not imported torch does not wait for that to read a sentence."""
    command = [sys.executable, "-c", WITHOUT_TORCH]
    subprocess.run(command, check=True, timeout=limit(TRIAL_S), cwd=core.parent.parent)
