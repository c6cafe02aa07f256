"""What `make matrix` makes of a word of VERSIONS, and of pytest's report."""

import sys
from pathlib import Path

import pytest
from sources import ROOT

sys.path.append(str(ROOT / "tests" / "versions"))
import matrix

PYTHONS = {"3.11": "/usual", "3.13t": "/free", "3.14": "/newer"}


def test_a_word_is_a_release_an_interpreter_or_a_start_method() -> None:
    words = ["2.15", "newest", "spawn", "py3.13t", "py3.14", "2.10"]
    cells = matrix.read_cells(words, "2.15", "/usual", PYTHONS)
    assert cells == [
        matrix.Cell("py3.13t", "torch", "/free"),
        matrix.Cell("py3.14", "torch", "/newer", "forkserver"),
        matrix.Cell("2.10", "torch==2.10.*", "/usual"),
        matrix.Cell("2.15", "torch==2.15.*", "/usual"),
        matrix.Cell("spawn", "torch==2.15.*", "/usual", "spawn"),
    ]
    assert len({cell.folder for cell in cells}) == 4  # the last two share one environment


def test_words_that_name_nothing_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.read_cells(["py3.9"], "2.15", "/usual", PYTHONS) == []
    assert "py3.9: no such interpreter here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"VERSIONS has 'latest'"):
        matrix.read_cells(["2.10", "latest"], "2.15", "/usual", PYTHONS)


def test_a_report_is_counts_and_its_most_frequent_errors(tmp_path: Path) -> None:
    failed = '<testcase name="{}"><failure message="{}&#10;more"/></testcase>'
    cases = [failed.format(name, "KeyError: 'dataset'") for name in ("a", "b")]
    cases += [failed.format(f"c{n}", f"error {n}") for n in range(4)]
    cases += ['<testcase name="d"><skipped/></testcase>', '<testcase name="e"/>']
    counts = 'tests="8" failures="6" errors="0" skipped="1"'
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite {counts}>{''.join(cases)}</testsuite></testsuites>")
    assert matrix.read_report(report) == (
        (1, 6, 1),
        "2 × `KeyError: 'dataset'` (a); 1 × `error 0` (c0); 1 × `error 1` (c1); 2 other errors",
    )
    assert matrix.read_report(tmp_path / "none") == ((0, 0, 0), "pytest ended without a report")
