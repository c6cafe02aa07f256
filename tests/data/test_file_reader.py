"""The core's reader of many files: what its binding takes, and the errors that it raises."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from fastloop._core import FileReader


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, ...]:
    for n in range(3):
        (tmp_path / f"{n}é").write_bytes(bytes(range(n, n + 100)))
    return tuple(str(tmp_path / f"{n}é") for n in range(3))


def test_reads_parts_and_hands_its_states_on(paths: tuple[str, ...]) -> None:
    reader = FileReader(paths)
    stats = [os.stat(path) for path in paths]
    states = np.frombuffer(reader.states, np.int64).reshape(3, 3)
    assert states.tolist() == [[s.st_size, s.st_mtime_ns, s.st_ino] for s in stats]
    again = FileReader(paths, reader.states)
    again.announce(np.array([[0, 0, 100], [2, 99, 1]]))
    assert again.read(1, 10, 5) == bytes(range(11, 16))
    assert again.read(2, 100, 0) == b""
    assert FileReader(()).states == b""


def test_a_changed_file_is_an_error_that_names_it(paths: tuple[str, ...]) -> None:
    states = FileReader(paths).states
    os.utime(paths[1], ns=(0, 1))
    reader = FileReader(paths, states)
    with pytest.raises(OSError, match="byte 3 cannot be read: the file has changed") as caught:
        reader.read(1, 3, 4)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, paths[1])
    assert reader.read(0, 3, 1) == b"\3"


@pytest.mark.parametrize("part", [(3, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, 101), (0, 2**63 - 1, 2),
                                  (0, 0, -1)])  # fmt: skip
def test_a_part_that_no_file_has_is_refused(
    paths: tuple[str, ...], part: tuple[int, int, int]
) -> None:
    reader = FileReader(paths)
    with pytest.raises(IndexError, match="no part of a file"):
        reader.read(*part)
    with pytest.raises(IndexError, match="no part of a file"):
        reader.announce(np.array([part]))


def test_wrong_arguments(tmp_path: Path, paths: tuple[str, ...]) -> None:
    for path, name in ((str(tmp_path), "Is a directory"), (f"{tmp_path}/no", "No such file")):
        with pytest.raises(OSError, match=name) as caught:
            FileReader((*paths, path))
        assert caught.value.filename == path
    with pytest.raises(ValueError, match="states must have 72 bytes, got 3"):
        FileReader(paths, b"abc")
    with pytest.raises((TypeError, ValueError)):
        FileReader((*paths, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        FileReader(("a\0b",))
