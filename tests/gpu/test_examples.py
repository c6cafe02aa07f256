"""The short examples on a device: they end by themselves, and the loss falls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDED = {"folder": "PIL", "trainer": "transformers"}
NEEDED |= {name: name for name in ("accelerate", "lightning")}
NAMES = sorted(path.stem.removeprefix("minimal_") for path in EXAMPLES.glob("minimal_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_a_short_example_falls(name: str, tmp_path: Path) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 1".split()
    done = subprocess.run(
        [
            sys.executable,
            *(launcher if name in ("ddp", "fsdp") else []),
            EXAMPLES / f"minimal_{name}.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"loss(?:': '| )([\d.]+)", done.stdout)]
    assert len(losses) > 1 and losses[-1] < losses[0], done.stdout
