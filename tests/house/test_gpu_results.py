"""Pages and docstrings say what has run on a GPU as docs/results/gpu/*.jsonl, the results of
`make gpu`, say it: what has run where, and what has run on the simulated device alone."""

import inspect
import json
import re
import runpy
from collections.abc import Callable
from typing import Any

import pytest
from sources import ROOT

import fastloop

DOCS = ROOT / "docs"
RUN = runpy.run_path(str(ROOT / "tests/gpu/run.py"))
STAGES = RUN["PARTS"]
# (device, line) for each line of the results; "H100" is the device of h100.jsonl.
LINES: list[tuple[str, dict[str, Any]]] = [
    (path.stem.upper(), json.loads(line))
    for path in sorted((DOCS / "results/gpu").glob("*.jsonl"))
    for line in path.read_text().splitlines()
]
MARK = "simulated device only"
# Stages whose part a user asks for by this name: pages list it while the stage has not passed.
PARTS = {
    "graph": "`graph_step()`",
    "device_transforms": '`transforms_on="device"`',
    "resident": '`.to("cuda")`',
    "fetch": '`gather="device"`',
    "slices": "uploads in slices",
    "devices": "several devices",
}
# Docstrings of these parts. A second name is the argument whose paragraph speaks of the part.
DOCSTRINGS: list[tuple[str, Callable[..., Any], str]] = [
    ("graph", fastloop.graph_step, ""),
    ("device_transforms", fastloop.DataLoader, "transforms_on"),
    ("resident", fastloop.ArrayDataset.to, ""),
    ("resident", fastloop.TokenDataset.to, ""),
    ("resident", fastloop.RaggedArray.to, ""),
    ("fetch", fastloop.ArrayDataset, "gather"),
    ("slices", fastloop.DataLoader, "device"),
]


PASSED: dict[str, dict[str, str]] = RUN["passed_on"]()


def text_of(thing: Callable[..., Any], argument: str) -> str:
    """A docstring, or its paragraph about one argument."""
    text = inspect.getdoc(thing) or ""
    if argument:
        found = re.search(rf"^    {argument}: .*\n(?:     .*\n)*", text, re.MULTILINE)
        assert found, argument
        text = found[0]
    return " ".join(text.split())


@pytest.mark.parametrize(("stage", "thing", "argument"), DOCSTRINGS)
def test_a_docstring_marks_a_part_that_has_not_run(
    stage: str, thing: Callable[..., Any], argument: str
) -> None:
    assert (MARK in text_of(thing, argument)) == (not PASSED[stage])


@pytest.mark.parametrize("page", ["README.md", "docs/use/equality.md", "docs/use/devices.md"])
def test_a_page_lists_the_parts_that_have_not_run(page: str) -> None:
    """One paragraph, or one item of a list, does."""
    texts = [t for t in re.split(r"\n(?=\n|- )", (ROOT / page).read_text()) if MARK in t]
    found = {stage for stage, part in PARTS.items() for text in texts if part in text}
    assert found == {stage for stage in PARTS if not PASSED[stage]}
    assert len(texts) == bool(found), texts


def test_the_table_of_parts_is_that_of_the_results() -> None:
    """`tests/gpu/run.py --never-run` writes the table."""
    text = (DOCS / "results/gpu/README.md").read_text()
    assert RUN["page"](text) == text and text.count("| not yet on hardware |") < len(STAGES)
    rows = dict(re.findall(r"^\| .* \| `(\w+)` \| (.*) \|$", text.split("## The stages")[0], re.M))
    assert rows.keys() == STAGES.keys() and rows["tokens"] == "H200 2026-11-26"


def test_the_table_of_stages_marks_those_that_have_not_run() -> None:
    text = (DOCS / "results/gpu/README.md").read_text()
    rows = dict(re.findall(r"^\| \d? ?\| `(\w+)` \| .* \| (.*) \|$", text, re.MULTILINE))
    marked = {stage for stage, took in rows.items() if took == "not run"}
    assert rows.keys() == STAGES.keys() and marked == {s for s in STAGES if not PASSED[s]}


CLAIM = r"Uploads and gradient kernels have run on ([^,(]*), casts on ([^,(]*) \(\[a table\]"


@pytest.mark.parametrize("page", ["README.md", "docs/use/equality.md"])
def test_a_page_claims_what_has_passed(page: str) -> None:
    claim = re.search(CLAIM, " ".join((ROOT / page).read_text().split()))
    assert claim is not None
    found = [{*re.findall(r"[HAB]\d+", devices)} for devices in claim.groups()]
    assert found == [PASSED["uploads"].keys() & PASSED["passes"].keys(), {*PASSED["transforms"]}]


def test_no_other_text_claims_a_run() -> None:
    """What has run stands in the tables and the sentence above, which results are compared with."""
    what = r"(?:has|have) (?:run|passed (?:its|their) tests|been (?:run|tested)) on "
    claim = re.compile(what + r"(?:one |an? |the )?(?:[HAB]\d+|GPU|device|hardware)")
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "fastloop").rglob("*.py")]
    texts = {path: re.sub(CLAIM, "", " ".join(path.read_text().split())) for path in pages}
    faults = [(path.name, found) for path, text in texts.items() for found in claim.findall(text)]
    assert not faults, faults


def test_runs_name_their_commit() -> None:
    runs = [line for _, line in LINES if line.get("time", "") > "2026-11-27"]  # no run before did
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", line.get("commit", "")) for line in runs), runs
