"""clip_grad_norm_, GradScaler and patch() over DTensors: two and four processes over gloo.
tests/support/shard_cases.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks, run_script

CASES = "norms others empty missing scaler flags apart none patch fsdp disagree"


@pytest.mark.slowest
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    outputs = run_ranks(tmp_path, "shard_cases.py", *CASES.split(), ranks=ranks)
    for case in CASES.split():
        assert all(f"{case} fine" in output for output in outputs)


WITHOUT_A_PART = """
import warnings
import torch.distributed.tensor
from fastloop.compat import torch_parts
from fastloop.step import shards
part = torch_parts._PARTS["shards"][0]
torch_parts._PARTS["shards"] = (part._replace(path="torch.distributed.tensor:DTensor._gone"),)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert shards.dtensor_type() is None and shards.dtensor_type() is None
(warning,) = seen
assert "Passes over DTensors are left" in str(warning.message), warning.message
"""


def test_a_torch_without_the_parts_keeps_its_dtensors(tmp_path: Path) -> None:
    run_script(tmp_path, WITHOUT_A_PART)
