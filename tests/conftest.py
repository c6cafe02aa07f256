"""Puts helpers.py on the path: pytest's importlib mode does not, and spawned workers need it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    # torch's warning where there are fewer CPUs than workers.
    config.addinivalue_line("filterwarnings", "ignore:This DataLoader will create")
