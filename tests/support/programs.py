"""The programs of tests/programs, run in processes of their own."""

from pathlib import Path

from helpers import run_script

PROGRAMS = Path(__file__).parents[1] / "programs"


def run_program(folder: Path, name: str, *args: object, **options: object) -> str:
    """Run the program of that name in a folder and return its output; options as `run_script`."""
    text = (PROGRAMS / f"{name}.py").read_text()
    return run_script(folder, text, *args, **options)  # type: ignore[arg-type]
