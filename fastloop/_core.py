"""Stands where the compiled module is missing, as in the source tree, and says what to do. Python
prefers a compiled module to this file."""

import sys
from pathlib import Path

raise ImportError(
    f"{Path(__file__).parents[1]} is fastloop's source tree, and has no compiled module for Python "
    f"3.{sys.version_info.minor}: leave this folder or use the command `fastloop`, once "
    "`pip install .` has installed them",
    name="fastloop._core",
)
