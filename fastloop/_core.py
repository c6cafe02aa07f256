"""Stands where the compiled module is missing, as in the source tree, and says what to do. Python
prefers a compiled module to this file."""

from pathlib import Path

raise ImportError(
    f"{Path(__file__).parents[1]} is fastloop's source tree, which is not compiled: leave this "
    "folder or use the command `fastloop`, once `pip install .` has installed it",
    name="fastloop._core",
)
