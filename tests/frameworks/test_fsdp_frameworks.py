"""accelerate's clip_grad_norm_, Lightning's and transformers' Trainer over models sharded by FSDP2:
two processes over gloo. tests/support/fsdp_framework_ranks.py holds what the ranks run."""

from pathlib import Path

import pytest
from helpers import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_sharded_models_are_clipped_alike(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    for output in run_ranks(tmp_path, "fsdp_framework_ranks.py", framework):
        assert output.endswith("alike\n"), output
