"""What is built once for the tests of packaging: the sdist, and a wheel from that."""

import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from sources import ROOT
from user_environment import NOT_SOURCES, Built, fake_toolkit, quick_compiler, run, run_well


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, built in a copy: a build writes into the folder it builds from."""
    place = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, place / "tree", ignore=NOT_SOURCES)
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", place)
    run_well(*command, cwd=place / "tree")
    (archive,) = place.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def built(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel, by the sdist's own Makefile, where nvcc is broken."""
    pytest.importorskip("auditwheel")
    place = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (tree,) = (place / "unpacked").iterdir()
    compiles = """echo 'x.cu(3): error: "broken"'; echo 'more \\'; exit 2"""
    toolkit = fake_toolkit(place / "cuda", compiles=compiles)
    stamp = Path(sys.prefix) / "stamps" / "requirements"
    given = (f"VENV={sys.prefix}", f"PYTHONS={sys.executable}", f"WHEELS={place}")
    flags = "WHEEL_FLAGS=--no-build-isolation -vv"  # what the build prints is shown
    command = ("make", "wheel", "-o", stamp, *given, flags, f"CC={quick_compiler(place)}")
    done = run(*command, cwd=tree, CUDA_HOME=str(toolkit))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = place.glob("*.whl")
    return Built(wheel, toolkit, done.stdout + done.stderr)
