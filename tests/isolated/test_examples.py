"""The examples, small: they end by themselves, both trainings agree, and the loss falls."""

from pathlib import Path

import pytest
from helpers import run_file, run_ranks, run_script
from sources import ROOT

pytestmark = pytest.mark.slowest


@pytest.fixture(autouse=True)
def one_thread_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def printed(folder: Path, name: str, *args: str) -> str:
    example = ROOT / "examples" / name
    done = run_file(example, *args, cwd=folder, timeout=300, trains=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> list[list[float]]:
    """The rows of the table that show losses."""
    rows = [line.split() for line in text.splitlines() if line.startswith("loss of ")]
    return [[float(number) for number in row[4:]] for row in rows]


def test_the_digits_are_learned_alike_and_augmented_otherwise(tmp_path: Path) -> None:
    text = printed(tmp_path, "digits.py", "--epochs", "1")
    rows = [line.split() for line in text.splitlines() if "final loss" in line]
    (_, _, torchs, fastloops, word), augmented = rows
    assert torchs == fastloops and word == "equal"
    assert augmented[2] != augmented[3] and augmented[4:] == ["own", "random", "crops"]
    wait_for_augmented = text.split("waiting for data")[2].split()[0]
    assert " ".join(text.split()).endswith(f"instead of {wait_for_augmented}.")


def test_the_small_transformer_learns_from_a_token_file(tmp_path: Path) -> None:
    rows = losses(printed(tmp_path, "charlm.py", "--steps", "8", "--accumulate", "1"))
    for first, last in zip(rows[0], rows[-1], strict=True):
        assert last < 0.8 * first


def test_texts_are_classified(tmp_path: Path) -> None:
    rows = losses(printed(tmp_path, "textclass.py", "--epochs", "2"))
    assert rows[0][0] == rows[0][1]  # torch and fastloop
    for first, last in zip(rows[0], rows[-1], strict=True):
        assert last < 0.95 * first


def test_shapes_in_files_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    rows = losses(printed(tmp_path, "shapes.py", "--images", "300", "--epochs", "3"))
    for row in rows:
        assert row[0] == row[1] == row[2]  # torch, processes and threads
    assert rows[-1][0] < 0.9 * rows[0][0]


def test_a_stream_goes_on_where_it_was_left(tmp_path: Path) -> None:
    rows = losses(printed(tmp_path, "stream.py", "--lines", "3000"))
    for whole, in_two in rows:
        assert whole == in_two
    assert rows[-1][0] < 0.8 * rows[0][0]


def test_two_ranks_train_the_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    text, _ = run_ranks(tmp_path, str(ROOT / "examples/ddp.py"), "--epochs", "3")
    rows = losses(text)
    assert len(rows) == 3
    for torchs, ours in rows:
        assert abs(torchs - ours) <= 1e-5 * torchs
    assert rows[-1][1] < 0.9 * rows[0][1]


def test_the_program_of_readme_learns(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().split("## A whole program\n\n```python\n")[1]
    out = run_script(tmp_path, text.split("```")[0], trains=True)
    found = [float(line.split()[1]) for line in out.splitlines()]
    assert len(found) == 3 and found[2] < found[0]
