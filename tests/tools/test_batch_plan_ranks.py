"""find_batch_size on two ranks: they agree, and none waits for one that has failed."""

from pathlib import Path

import pytest
from helpers import run_ranks


@pytest.mark.slowest
def test_ranks_agree(tmp_path: Path) -> None:
    outputs = run_ranks(tmp_path, "batch_plan_ranks.py")
    assert [output.count("fine") for output in outputs] == [4, 4], outputs
