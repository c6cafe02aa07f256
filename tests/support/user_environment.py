"""Environments as users have them, and programs that run there: for the tests of packaging."""

import importlib.metadata
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from time_limits import limit

NOT_SOURCES = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", ".*_cache")
# What nvcc answers.
NVCC = "Cuda compilation tools, release 13.0, V13.0.88"
ARCHS = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120"


class Built(NamedTuple):
    wheel: Path
    toolkit: Path  # whose nvcc compiles nothing
    said: str  # by all that took part in the build


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs to the end and returns the output, in a user's environment: without our variables."""
    ours = ("PYTHON", "FASTLOOP")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=limit(600),
    )


def run_well(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = run(*command, cwd=cwd, **variables)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def quick_compiler(folder: Path) -> str:
    """Return a compiler for CC that does not optimize: a build takes a third of the time. What the
    module of `make` is like, other tests ask of that."""
    compiler = folder / "quick_cc"
    # gcc warns of more where it does not optimize.
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0 -Wno-error\n')
    compiler.chmod(0o755)
    return str(compiler)


def lend(package: str, site: Path) -> None:
    """Links an installed distribution into another environment's site-packages."""
    files = importlib.metadata.files(package)
    assert files is not None
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(importlib.metadata.distribution(package).locate_file(top)))
        if not (site / top).exists():
            (site / top).symlink_to(source)


def fake_toolkit(
    root: Path, version: str = NVCC, known: str = ARCHS, compiles: str = 'touch "$out"'
) -> Path:
    """A folder with an nvcc that answers as the real one does, and writes to `log` what it is
    asked."""
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "lib" / "libcudart_static.a").touch()
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(f"""#!/bin/sh
echo "$@" >> {root}/log
for out in "$@"; do :; done
case "$1" in
--version) echo '{version}' ;;
--list-gpu-code) echo '{known}' ;;
--dryrun) echo '#$ INCLUDES="-I{root}/include"  ' >&2
    echo '#$ LIBRARIES=  "-L{root}/lib64/stubs" "-L{root}/lib64"' >&2 ;;
*) {compiles} ;;
esac
""")
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return root
