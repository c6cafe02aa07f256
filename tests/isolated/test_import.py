"""import fastloop: without torch, which only a name that needs it brings in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import run_program
from time_limits import limit

import fastloop

PACKAGE = Path(__file__).parents[2] / "fastloop"
# The package that these tests import: the installed one, or that of PYTHONPATH.
PACKAGE_PATH = Path(fastloop.__file__).parents[1]
NO_TORCH = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'


def run_python(*arguments: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    command, variables = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=limit(300)
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, in which nothing is compiled."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "fastloop", ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    return folder


def say_source_tree(folder: Path) -> str:
    return (
        f"fastloop must be compiled, but {folder} is its source tree: run `pip install .`, then "
        "leave this folder or use the command `fastloop`\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "from fastloop import DataLoader",
        "from fastloop import *",
        "import fastloop; fastloop.build_info()",
        "import fastloop; fastloop.__version__",
        "import fastloop.transforms",
        "import fastloop.step.stepper",
    ],
)
def test_a_source_tree_says_that_it_is_one_each_time(code: str, sources: Path) -> None:
    twice = f"try:\n    exec({code!r})\nexcept ImportError as error:\n    print(error)\n{code}"
    done = run_python("-c", twice, folder=sources)
    text = say_source_tree(sources)
    assert (done.returncode, done.stdout) == (1, text)
    assert done.stderr.endswith(f"ImportError: {text}"), done.stderr


@pytest.mark.parametrize("command", ["doctor", "bench", "--version", "compare a.json b.json"])
def test_a_command_in_the_source_tree_says_it_in_one_line(command: str, sources: Path) -> None:
    done = run_python("-m", "fastloop", *command.split(), folder=sources)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"fastloop: {say_source_tree(sources)}"


@pytest.mark.parametrize(
    "code",
    [
        "from fastloop import DataLoader",
        "import fastloop.transforms",
        "from fastloop import patch",
    ],
)
def test_without_torch_the_error_says_how_to_install_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(NO_TORCH)
    path = f"{tmp_path}{os.pathsep}{PACKAGE_PATH}"
    done = run_python("-c", code, folder=tmp_path, path=path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: fastloop.")
    assert last.endswith("needs PyTorch, which is not installed; run: pip install 'torch>=2.10'")


def test_without_torch_the_commands_say_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(NO_TORCH)
    path = f"{tmp_path}{os.pathsep}{PACKAGE_PATH}"
    done = run_python("-m", "fastloop", "bench", folder=tmp_path, path=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "fastloop: fastloop bench needs PyTorch, which is not installed; "
        "run: pip install 'torch>=2.10'\n"
    )
    done = run_python("-m", "fastloop", "doctor", folder=tmp_path, path=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "warn  torch: not installed\n" in done.stdout
    assert "do:    pip install 'torch>=2.10'\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("doctor: ") and "torch" in done.stdout[-60:]


def test_import_does_not_import_torch(tmp_path: Path) -> None:
    out = run_program(
        tmp_path,
        "import/import_does_not_import_torch",
        is_fresh=True,
    )
    assert "DataLoader" in out


def test_a_first_batch_imports_only_what_it_uses(tmp_path: Path) -> None:
    """Each module that the first batch of a program does not need would make it later."""
    run_program(tmp_path, "import/a_first_batch_imports_only_what_it_uses", is_fresh=True)


def test_the_first_batch_of_a_folder_imports_only_what_it_uses(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    run_program(tmp_path, "import/a_folder_imports_only_what_it_uses", is_fresh=True)


def test_the_module_can_be_imported_twice_and_from_a_thread(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "import/the_module_can_be_imported_twice_and_from_a_thread",
        is_fresh=True,
    )


def test_the_environment_limits_the_instructions(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "import/the_environment_limits_the_instructions",
        is_fresh=True,
    )


def test_torchs_openmp_is_found_by_whoever_asks_first(tmp_path: Path) -> None:
    """torch sets OpenMP's number of threads when it is first asked for its own."""
    run_program(
        tmp_path,
        "import/torchs_openmp_is_found_by_whoever_asks_first",
        is_fresh=True,
    )
