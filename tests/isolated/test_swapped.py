"""Public names of torch with ours in their place, `torch.x.y = fastloop.y`, before and after the
modules that fall back to torch's are imported: what we fall back to is still torch's."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.parametrize("order", ["before", "after"])
def test_fallbacks_are_torchs(order: str, tmp_path: Path) -> None:
    run_program(tmp_path, "swapped/fallbacks_are_torchs", order)
