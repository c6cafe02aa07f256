"""Wheels as `make wheel` makes them: each is what its name says, installs into an empty environment
and runs there without torch.

One is built here (conftest.py), for this Python and without CUDA. `make test-wheels` tries all that
`make wheel` has made instead; then the oldest NumPy that each Python has comes from the index."""

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from sources import ROOT
from user_environment import lend, run, run_well

pytestmark = pytest.mark.slowest

MAX_BYTES = 2_750_000  # 0.9 MB of it are kernels, in the compression of CUDA 12
GIVEN = os.environ.get("FASTLOOP_WHEELS")
OLDEST_NUMPY = {"3.13": "2.1.0"}  # before: 1.26.4
NAME = re.compile(
    r"fastloop-(?P<version>[^-]+)-cp3(?P<minor>\d+)-cp3(?P=minor)-(?P<platform>.+)\.whl"
)


@pytest.fixture(scope="module", params=sorted(Path(GIVEN).glob("*.whl")) if GIVEN else ["built"])
def wheel(request: pytest.FixtureRequest) -> Path:
    return Path(request.param) if GIVEN else request.getfixturevalue("built").wheel


def parts_of(wheel: Path) -> re.Match[str]:
    found = NAME.fullmatch(wheel.name)
    assert found is not None, wheel.name
    return found


def release_toolkit() -> str:
    """The CUDA of release wheels, as pyproject.toml names it in the container's packages."""
    named = r"\bcuda-(?:nvcc|cudart-devel)-(\d+)-(\d+)\b"
    found = re.findall(named, (ROOT / "pyproject.toml").read_text())
    assert len(found) == 2 and found[0] == found[1], found
    return ".".join(found[0])


def oldest_glibc(wheel: Path) -> tuple[int, ...]:
    named = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    assert named, "auditwheel has not named a glibc"
    return min(tuple(map(int, version)) for version in named)


def python_of(wheel: Path) -> str:
    version = f"3.{parts_of(wheel)['minor']}"
    own = [sys.executable] if f"3.{sys.version_info.minor}" == version else []
    for python in [*os.environ.get("FASTLOOP_PYTHONS", "").split(), *own]:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if run(python, "-c", code, cwd=Path("/")).stdout.strip() == version:
            return python
    pytest.skip(f"there is no Python {version} here: FASTLOOP_PYTHONS names none")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with NumPy, into which the wheel was installed."""
    place = tmp_path_factory.mktemp("env")
    run_well(python_of(wheel), "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    if GIVEN:
        version = OLDEST_NUMPY.get(f"3.{parts_of(wheel)['minor']}", "1.26.4")
        run_well(*pip, "install", f"numpy=={version}", cwd=place)
    else:
        (site,) = place.glob("lib/python*/site-packages")
        lend("numpy", site)
    before = run_well(*pip, "freeze", cwd=place).splitlines()
    run_well(*pip, "install", *(() if GIVEN else ("--no-index",)), wheel, cwd=place)
    after = run_well(*pip, "freeze", cwd=place).splitlines()
    assert [line for line in after if not line.startswith("fastloop")] == before
    return python


def test_the_wheel_is_small_and_holds_the_package_alone(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    info = f"fastloop-{parts_of(wheel)['version']}.dist-info/"
    assert [name for name in names if not name.startswith(("fastloop/", info))] == []
    assert {"fastloop/py.typed", "fastloop/_core.pyi"} <= {*names}
    assert "fastloop/tools/report/page.html" in names
    assert len([name for name in names if name.endswith(".so")]) == 1


def test_the_wheel_runs_on_the_oldest_glibc_that_it_names(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (core,) = (name for name in archive.namelist() if name.endswith(".so"))
        archive.extract(core, tmp_path)
    symbols = run_well("readelf", "-W", "--dyn-syms", core, cwd=tmp_path)
    wanted = [tuple(map(int, v)) for v in re.findall(r"@GLIBC_(\d+)\.(\d+)", symbols)]
    assert max(wanted) <= oldest_glibc(wheel)


def test_it_imports_and_tells_how_it_was_built(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    code = "import fastloop; print(fastloop.__version__, fastloop.build_info()['version'])"
    version = parts_of(wheel)["version"]
    assert run_well(installed, "-c", code, cwd=tmp_path).split() == [version, version]
    assert run(installed, "-c", "import torch", cwd=tmp_path).returncode != 0


def test_release_wheels_run_on_drivers_from_525_on() -> None:
    """CUDA 12.8 is the first with code for every architecture; 13.0 needs driver 580."""
    assert release_toolkit() in ("12.8", "12.9")


def test_a_release_wheel_has_the_runtime_of_its_toolkit(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    if oldest_glibc(wheel) > (2, 28):
        pytest.skip("built outside of the manylinux_2_28 container, with any toolkit")
    code = "import fastloop; print(fastloop.build_info()['cuda'])"
    assert run_well(installed, "-c", code, cwd=tmp_path).strip() == release_toolkit()


def test_the_doctor_says_that_torch_is_missing(installed: Path, tmp_path: Path) -> None:
    said = run_well(installed, "-m", "fastloop", "doctor", cwd=tmp_path)
    assert re.search(r"^torch +missing: ", said, re.MULTILINE), said


def test_a_script_without_torch_runs_as_under_python(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(__name__, sys.argv); sys.exit(3)")
    plain = run(installed, "script.py", "a", "--b", cwd=tmp_path)
    ours = run(installed, "-m", "fastloop", "run", "script.py", "a", "--b", cwd=tmp_path)
    assert plain.stdout == "__main__ ['script.py', 'a', '--b']\n"
    assert (ours.returncode, ours.stdout, ours.stderr) == (3, plain.stdout, plain.stderr)
