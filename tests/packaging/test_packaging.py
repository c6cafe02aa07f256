"""What a user installs: the sdist is complete, builds without torch, and imports without it."""

import importlib.metadata
import re
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from sources import ROOT
from user_environment import Built, lend, run, run_well

import fastloop

pytestmark = pytest.mark.slowest


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with NumPy and fastloop."""
    place = tmp_path_factory.mktemp("install")
    venv.create(place / "env", symlinks=True)
    (site,) = (place / "env").glob("lib/python*/site-packages")
    for package in ("pip", "numpy"):
        lend(package, site)
    python = place / "env" / "bin" / "python"
    flags = ("--no-index", "--no-deps", "--disable-pip-version-check")
    run_well(python, "-m", "pip", "install", *flags, built.wheel, cwd=place)
    assert run(python, "-c", "import torch", cwd=place).returncode != 0
    return python


def fake_torch(folder: Path, version: str) -> str:
    """A torch that has a version and nothing else; the folder goes into PYTHONPATH."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"__version__ = '{version}'\n")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return str(folder)


def test_the_tests_run_against_the_installed_package() -> None:
    assert ROOT / "fastloop" not in Path(fastloop.__file__).resolve().parents, (
        "start pytest through `make test` or .venv/bin/pytest, not `python -m pytest`"
    )


def test_metadata_asks_for_numpy_alone() -> None:
    wanted = importlib.metadata.requires("fastloop") or []
    assert [line for line in wanted if "extra ==" not in line] == ["numpy>=1.26"]
    assert [line for line in wanted if line.startswith("torch>")] == [
        'torch>=2.10; extra == "torch"'
    ]


def test_sdist_holds_all_that_is_needed(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        inside = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}
    endings = (".c", ".h", ".cu", ".cuh")
    sources = {p for p in ROOT.glob("csrc/**/*") if p.suffix in endings}
    for folder in ("fastloop", "tests", "benchmarks", "examples"):
        sources |= {p for p in (ROOT / folder).rglob("*") if p.suffix in (*endings, ".py", ".pyi")}
    wanted = {str(p.relative_to(ROOT)) for p in sources}
    wanted |= {"Makefile", "LICENSE", "README.md", "setup.py", "pyproject.toml", ".clang-format"}
    wanted |= {
        "setup_cuda.py",
        "fastloop/py.typed",
        "fastloop/adapters/originals.txt",
        "fastloop/compat/torch_parts.txt",
        "fastloop/tools/report/page.html",
        "requirements-dev.txt",
        ".ci/run",
        "CITATION.cff",
    }
    assert sorted(wanted - inside) == []
    assert [name for name in inside if name.endswith((".so", ".o", ".pyc"))] == []


def test_install_holds_the_package_and_its_types_alone(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata as m; print(*m.files('fastloop'), sep='\\n')"
    names = set(run_well(installed, "-c", code, cwd=tmp_path).split())
    assert {"fastloop/__init__.py", "fastloop/py.typed", "fastloop/_core.pyi"} <= names
    files = {"adapters/originals.txt", "compat/torch_parts.txt", "tools/report/page.html"}
    assert {f"fastloop/{name}" for name in files} <= names
    others = {n for n in names if not n.startswith("fastloop/") and ".dist-info/" not in n}
    assert others == {"../../../bin/fastloop"}  # the console script
    assert [n for n in names if n.endswith((".c", ".h"))] == []


def test_import_works_without_torch(installed: Path, tmp_path: Path) -> None:
    code = "import fastloop; print(fastloop.build_info())"
    assert "0.1.0" in run_well(installed, "-c", code, cwd=tmp_path)


def test_a_build_with_a_broken_nvcc_works_and_tells_why(
    built: Built, installed: Path, tmp_path: Path
) -> None:
    line = f'{built.toolkit}/bin/nvcc failed: x.cu(3): error: "broken"'
    assert f"fastloop is built without CUDA: {line}\n" in built.said
    said = run_well(installed, "-m", "fastloop", "doctor", cwd=tmp_path)
    assert re.search(r"^device +CPU only, built without CUDA: (.*)$", said, re.M)[1] == line
    code = """import fastloop, fastloop._core as core
print(fastloop.build_info()["cuda_reason"])
core.check_cuda(0)"""
    done = run(installed, "-c", code, cwd=tmp_path)
    assert done.stdout == f'{line}\nx.cu(3): error: "broken"\nmore \\\n'
    assert "RuntimeError: this fastloop was built without CUDA" in done.stderr


def test_dataloader_without_torch_says_what_to_run(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "-c", "import fastloop; fastloop.DataLoader", cwd=tmp_path)
    assert "ImportError" in done.stderr and "pip install" in done.stderr, done.stderr


def test_dataloader_with_an_old_torch_names_both_versions(installed: Path, tmp_path: Path) -> None:
    path = fake_torch(tmp_path, "2.9.1")
    code = "import fastloop; fastloop.DataLoader"
    done = run(installed, "-c", code, cwd=tmp_path, PYTHONPATH=path)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and "2.9.1" in last and "2.10" in last, done.stderr


def test_import_brings_in_nothing_heavy(tmp_path: Path) -> None:
    code = "import fastloop, sys; print({name.partition('.')[0] for name in sys.modules})"
    names = run_well(sys.executable, "-c", code, cwd=tmp_path)
    heavy = ("torch", "scipy", "sklearn", "pandas", "multiprocessing", "asyncio")
    assert [name for name in heavy if f"'{name}'" in names] == []


def test_the_module_needs_libc_alone(tmp_path: Path) -> None:
    code = "import fastloop._core as c; print(c.__file__)"
    core = run_well(sys.executable, "-c", code, cwd=tmp_path).strip()
    lines = run_well("readelf", "-d", core, cwd=tmp_path, LC_ALL="C").splitlines()
    needed = {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}
    allowed = ("libc.", "libpthread.", "libm.", "libdl.", "librt.", "ld-linux")
    assert needed and all(name.startswith(allowed) for name in needed), needed
