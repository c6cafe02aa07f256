"""Tells the user what to do if the compiled module is missing, as in the source tree. If there is a
compiled module, Python prefers that module to this file."""

from pathlib import Path

raise ImportError(
    f"fastloop must be compiled, but {Path(__file__).parents[1]} is its source tree: run `pip "
    "install .`, then leave this folder or use the command `fastloop`",
    name="fastloop._core",
)
