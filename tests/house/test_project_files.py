"""What other programs read about the project: GitHub's workflows and the citation."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from sources import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def make_targets() -> set[str]:
    lines = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for line in lines for name in line.split()}


def called_targets(command: str) -> list[str]:
    """Of each `make` in a step's commands, the words that are neither options nor variables."""
    command = re.sub(r"\$\{\{.*?\}\}", "", command)
    words = [line.split()[1:] for line in command.splitlines() if line.split()[:1] == ["make"]]
    return [word for of_line in words for word in of_line if not re.search("^-|=", word)]


def commands(workflow: Any) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_there_are_workflows_to_build_test_and_lint() -> None:
    assert [path.stem for path in WORKFLOWS] == ["build", "lint", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_targets_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["name"] == path.stem
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # `on`, which YAML 1.1 reads as a truth value
    called = [target for command in commands(workflow) for target in called_targets(command)]
    assert called and {*called} <= make_targets(), called


def test_targets_are_read_from_commands() -> None:
    command = "make -k lint PYTHON=python${{ matrix.python }}\necho make x\nmake asan tsan"
    assert called_targets(command) == ["lint", "asan", "tsan"]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"] and citation["authors"] == [{"name": "The fastloop developers"}]
    project = (ROOT / "pyproject.toml").read_text()
    for key in ("version", "license"):
        assert f'\n{key} = "{citation[key]}"\n' in project
    assert f'\nname = "{citation["title"]}"\n' in project
