"""`make overlay`: lays the Python parts of another release of torch, those that fastloop relies on,
over the torch that is installed. Most of what a release can break is there, and it takes a minute
instead of the five gigabytes that an installation does.

Run as `overlay.py RELEASE FOLDER`: prints the folder to put into PYTHONPATH. The parts are kept in
FOLDER, so the wheel is fetched once. Exits with 3 if it cannot be."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The rest of nn/utils asks for modules of its own release.
PARTS = ("amp", "nn/utils/clip_grad.py", "utils/data")

MARK = "+overlay"


def fetch(release: str, parts: Path) -> None:
    """Keep the parts of a release's wheel, and nothing else of it."""
    with tempfile.TemporaryDirectory(dir=parts.parent) as name:
        uv = Path(sys.executable).parent / "uv"
        command = [str(uv) if uv.exists() else "uv", "pip", "install", "-q", "--no-cache"]
        command += ["--no-deps", "--python", sys.executable, "--target", name]
        if subprocess.run([*command, f"torch=={release}"]).returncode:
            sys.exit(3)
        for part in PARTS:
            target = Path(name, "parts", part)
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(name, "torch", part).rename(target)
        Path(name, "parts").rename(parts)


def lay(parts: Path, installed: Path, target: Path, below: str = "") -> None:
    """Make `target` of links to what is in `installed`, but for the parts."""
    target.mkdir(parents=True)
    for path in installed.iterdir():
        name = below + path.name
        if name in PARTS:
            (target / path.name).symlink_to(parts / name)
        elif any(part.startswith(f"{name}/") for part in PARTS):
            lay(parts, path, target / path.name, f"{name}/")
        elif path.name != "__pycache__":
            (target / path.name).symlink_to(path)


def rename(torch: Path, release: str) -> None:
    """The version is the release's, with a mark."""
    path = torch / "version.py"
    text = re.sub(r"__version__ = '.*?'", f"__version__ = '{release}{MARK}'", path.read_text())
    path.unlink()  # a link
    path.write_text(text)


def main(release: str, folder: Path) -> None:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    folder.mkdir(parents=True, exist_ok=True)
    parts = folder / f"parts-{release}"
    if not parts.exists():
        fetch(release, parts)
    path = folder / f"torch-{release}"
    shutil.rmtree(path, ignore_errors=True)
    lay(parts, Path(found.origin).resolve().parent, path / "torch")
    rename(path / "torch", release)
    used = subprocess.run(
        [sys.executable, "-c", "import torch.utils.data; print(torch.__version__)"],
        env={**os.environ, "PYTHONPATH": str(path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert used.stdout == f"{release}{MARK}\n", used.stdout
    print(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
