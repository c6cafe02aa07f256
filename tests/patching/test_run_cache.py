"""What the last line of run says about a cache of decoded images: what it would have saved, or that
it is full."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from time_limits import limit

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import picture
from torchvision_shim import torchvision_v2

from fastloop.compat.decoded import Decoded

SCRIPT = """
import sys
import numpy, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from fastloop.compat import decoded

decoded._LEAST_GAIN = 1  # this machine may be busy
kind, workers, epochs = sys.argv[1], *map(int, sys.argv[2:])

class Files(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        image = Image.open(f"images/a/{index}.jpg").convert("RGB")
        return torch.from_numpy(numpy.array(image.resize((8, 9))))

dataset = Files()
if kind == "folder":
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    chain = [transforms.RandomResizedCrop(16), transforms.ToTensor()]
    dataset = ImageFolder("images", transforms.Compose(chain))
loader = DataLoader(dataset, 4, shuffle=True, num_workers=workers)
for _ in range(epochs):
    list(loader)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(12):
        path = tmp_path / "images" / "a" / f"{number}.jpg"
        picture(number, 90, 120).save(path)
        os.utime(path, (10, 10))
    return tmp_path


def last_line(folder: Path, *args: object) -> str:
    """Run the script, and return the last line."""
    command = [sys.executable, "-m", "fastloop", "run", *map(str, args)]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("kind", "workers"), [("own", 2), ("folder", 0), ("folder", 2)])
def test_the_gain_of_a_cache_is_named(folder: Path, kind: str, workers: int) -> None:
    if kind == "folder" and torchvision_v2() is None:
        pytest.skip("torchvision is not installed")
    told = last_line(folder, "script.py", kind, workers, 3)
    assert "; with --cache, later epochs would have loaded about " in told, told
    assert told.endswith(" x as fast, out of 0 MiB of decoded JPEG files"), told


def decoded_of(files: int, there: int, saved_ns: int = 80) -> Decoded:
    """Return what decoding has cost in two processes: 100 ns a file, for files of 1 MiB."""
    found, other = Decoded(), Decoded()
    for name in range(there):
        other.add(str(name), 0, other.begin(), 0)
    other.files, other.pixels = files, files << 20
    other.saved_ns, other.cpu_ns = files * saved_ns, files * 100
    found.merge(json.loads(json.dumps(other.counts())))
    return found


def test_the_gain_is_worked_out_of_shares() -> None:
    (told,) = decoded_of(1200, 400).describe()
    size = r"out of (59|60|61)\d MiB of decoded JPEG files"
    assert re.fullmatch(f"with --cache, .* about 5.0 x as fast, {size}", told), told


@pytest.mark.parametrize("found", [(0, 0), (400, 400), (1200, 400, 30), (10**8, 10**5)], ids=str)
def test_a_small_gain_or_files_that_are_read_once_are_not_told(found: tuple[int, ...]) -> None:
    assert decoded_of(*found).describe() == []


def test_a_full_cache_says_so(folder: Path) -> None:
    told = last_line(folder, "--cache=1M", "script.py", "own", 0, 0)
    assert "cache" not in told, told
    time.sleep(2)  # younger files are not kept
    told = last_line(folder, "--cache=64K", "script.py", "own", 2, 2)
    assert told.endswith("each time; without a size it fills its file of 1 MiB"), told
