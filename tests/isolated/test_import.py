"""import fastloop: without torch, which only a name that needs it brings in."""

from pathlib import Path

from helpers import run_program


def test_import_does_not_import_torch(tmp_path: Path) -> None:
    out = run_program(
        tmp_path,
        "import/import_does_not_import_torch",
        is_fresh=True,
    )
    assert "DataLoader" in out


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
