"""Public names of torch with ours in their place, `torch.x.y = fastloop.y`, before and after the
modules that fall back to torch's are imported: what we fall back to is still torch's."""

from pathlib import Path

import pytest
from helpers import PROGRAMS, run_script


@pytest.mark.parametrize("order", ["before", "after"])
def test_fallbacks_are_torchs(order: str, tmp_path: Path) -> None:
    run_script(tmp_path, PROGRAMS / "swapped" / "fallbacks_are_torchs.py", order, timeout=300)
