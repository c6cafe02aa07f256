"""Limits of tests in seconds: they grow with the load, and no wait has another one."""

import re
from pathlib import Path

import pytest
from time_limits import limit

TESTS = Path(__file__).parents[1]
# Waits of ten seconds and more are there to end a test that hangs. run_script()
# and run_file() reckon by themselves.
FIXED = re.compile(r"\b(timeout=|(wait|join)\(|monotonic\(\) \+ |(seconds|late) < )\d\d")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("load", "schedule", "times"),
    [
        ("0.00 0.00 0.00 1/99 7", "5000000000 1000 9", 1),
        ("21.00 9.00 0.00 1/99 7", "5000000000 1000 9", 21 / 2),
        ("0.00 0.00 0.00 17/99 7", "5000000000 1000 9", 17 / 2),
        ("4.00 0.00 0.00 3/99 7", "5000000000 20000000000 9", 5),  # of low priority
        ("4.00 0.00 0.00 3/99 7", "0 90000000 1", 9),  # has just begun
        ("900.00 0.00 0.00 3/99 7", "5000000000 1000 9", 30),
    ],
)
def test_a_second_is_worth_as_much_as_the_load_makes_it(
    load: str, schedule: str, times: float, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    (proc / "loadavg").write_text(load)
    (proc / "self/schedstat").write_text(schedule)
    assert limit(60, proc) == pytest.approx(60 * times, rel=1e-3)


def test_the_limit_of_this_moment_is_no_shorter_than_that_of_an_idle_machine() -> None:
    assert 60 <= limit(60) <= 60 * 30


def test_every_long_wait_of_a_test_grows_with_the_load() -> None:
    files = [file for file in TESTS.rglob("*.py") if "gpu" not in file.parts]
    assert len(files) > 300
    told = [
        f"{file.relative_to(TESTS)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if FIXED.search(line) and "run_" not in line
    ]
    assert told == []
