"""The short examples: at most 40 lines, they end by themselves, and the loss falls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT
from time_limits import limit

pytestmark = pytest.mark.slowest

EXAMPLES = ROOT / "examples"
NEEDED = {"folder": "PIL", "trainer": "transformers"}
NEEDED |= {name: name for name in ("accelerate", "lightning")}
NAMES = sorted(path.stem.removeprefix("minimal_") for path in EXAMPLES.glob("minimal_*.py"))


def test_there_is_one_for_each_feature_and_each_is_listed() -> None:
    features = "accelerate accumulate ddp folder fsdp graph images lightning resume table texts"
    assert [*features.split(), "tokens", "trainer"] == NAMES
    listed = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_short_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"minimal_{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_a_short_example_falls(name: str, tmp_path: Path) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    launcher = launcher if name in ("ddp", "fsdp") else []
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / f"minimal_{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"loss(?:': '| )([\d.]+)", done.stdout)]
    assert len(losses) > 1 and losses[-1] < losses[0], done.stdout
    assert not any(tmp_path.iterdir())
