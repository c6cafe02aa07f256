"""The short examples: at most 40 lines, they end by themselves, and the loss falls."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import run_file, run_ranks
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
def test_the_loss_of_a_short_example_falls(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDED and find_spec(NEEDED[name]) is None:
        pytest.skip(f"there is no {NEEDED[name]}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    example = EXAMPLES / f"minimal_{name}.py"
    if name == "fsdp":
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        out, _ = run_ranks(tmp_path, str(example))
    elif name == "ddp":
        launcher = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
        command = [sys.executable, *launcher, example]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=limit(300)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        out = done.stdout
    else:
        done = run_file(example, cwd=tmp_path, timeout=300, trains=True)
        assert done.returncode == 0, done.stdout + done.stderr
        out = done.stdout
    losses = [float(loss) for loss in re.findall(r"loss(?:': '| )([\d.]+)", out)]
    assert len(losses) > 1 and losses[-1] < losses[0], out
    assert not any(tmp_path.iterdir())
